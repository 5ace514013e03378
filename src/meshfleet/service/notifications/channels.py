"""Channels as the sender sees them: where they lead, and whether they work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import select

from meshfleet.db.tables import channel
from meshfleet.rest.channels import ChannelKind, WebhookFormat

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row


class ChannelTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a channel leads. URL and routing key are secrets."""

    url: str | None = None
    format: WebhookFormat = WebhookFormat.STANDARD
    routing_key: str | None = None
    recipients: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ChannelTarget(format={self.format!r}, …)"


class StoredChannel(NamedTuple):
    """Row of the table `channel`. Times are Unix times in milliseconds."""

    id: int
    name: str
    kind: ChannelKind
    is_enabled: bool
    target: ChannelTarget
    secrets: tuple[str, ...]
    """Secrets that sign now, the newest first."""
    created_at: int
    problem: str | None
    failing_since: int | None
    failures: int
    retry_at: int | None
    delivered_at: int | None

    def __repr__(self) -> str:
        return f"StoredChannel(id={self.id}, name={self.name!r}, kind={self.kind!r}, …)"

    @property
    def is_for_people(self) -> bool:
        """Whether people read its messages: several alarms are told in one."""
        return self.kind is ChannelKind.EMAIL or (
            self.kind is ChannelKind.WEBHOOK and self.target.format is WebhookFormat.TEXT
        )


_decode_target = msgspec.json.Decoder(ChannelTarget).decode


def load_channels(connection: Connection, now: int) -> dict[int, StoredChannel]:
    """Load all channels by id."""
    rows = connection.execute(select(channel).order_by(channel.c.id))
    return {row.id: to_channel(row, now) for row in rows}


def to_channel(row: Row[Any], now: int) -> StoredChannel:
    """Return the channel of a row. An old secret signs only for a while."""
    secrets = [row.secret]
    if row.old_secret_until is not None and now < row.old_secret_until:
        secrets.append(row.old_secret)
    return StoredChannel(
        id=row.id,
        name=row.name,
        kind=ChannelKind(row.kind),
        is_enabled=bool(row.enabled),
        target=_decode_target(row.target),
        secrets=tuple(each for each in secrets if each is not None),
        created_at=row.created_at,
        problem=row.problem,
        failing_since=row.failing_since,
        failures=row.failures,
        retry_at=row.retry_at,
        delivered_at=row.delivered_at,
    )
