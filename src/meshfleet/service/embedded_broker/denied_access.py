"""What MQTT clients wanted and may not have, for the audit log; rate-limited: a client may try for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.rest import Role
from meshfleet.service.actor import Actor
from meshfleet.service.audit import log as audit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from meshfleet.mqtt.broker import Account

_SUPPRESS_MS: Final = 60_000
"""Milliseconds in which the same deed of the same account is one row."""

_MAX_ACTIONS: Final = 10_000
"""Deeds; when there are more, all are news again."""

_MAX_TOPIC_LENGTH: Final = 200
"""Characters of a topic that are written down."""


class _DeniedAction(NamedTuple):
    account: str
    what: str


class _DeniedAccess(NamedTuple):
    actor: Actor
    action: str
    topic: str
    at: int
    suppressed: int
    """How often it happened since the last row."""


class DeniedAccessLog:
    """Collects them until somebody writes them down."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._last: dict[_DeniedAction, int] = {}
        self._suppressed: dict[_DeniedAction, int] = {}
        self._new: list[_DeniedAccess] = []

    def add(self, account: Account, address: str, action: str, topic: str) -> None:
        """Somebody wanted more than the rules allow."""
        now, key = self._now(), _DeniedAction(str(account), action)
        if (
            0 <= now - self._last.get(key, now - _SUPPRESS_MS) < _SUPPRESS_MS
            or len(self._new) >= _MAX_ACTIONS
        ):
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        if len(self._last) >= _MAX_ACTIONS:
            self._last.clear()
            self._suppressed.clear()
        self._last[key] = now
        actor = Actor(
            name=account.name, role=account.role or Role.VIEWER, kind=account.kind.value, address=address
        )
        self._new.append(
            _DeniedAccess(actor, action, topic[:_MAX_TOPIC_LENGTH], now, self._suppressed.pop(key, 0))
        )

    def drain(self) -> Sequence[_DeniedAccess]:
        """Those that are not written down yet."""
        new, self._new = self._new, []
        return new

    def requeue(self, entries: Sequence[_DeniedAccess]) -> None:
        """These could not be written down."""
        self._new = [*entries, *self._new]


def insert_denied_access(connection: Connection, entries: Sequence[_DeniedAccess]) -> None:
    """Write them down."""
    for actor, deed, topic, at, before in entries:
        unsaid = {"before": before} if before else {}
        audit.record_change(connection, actor, f"mqtt.forbidden-{deed}", topic, now=at, **unsaid)
