"""Records denied publishes and subscriptions of MQTT clients in the audit log.

If an account repeats an action within a minute, the repetition is only counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from meshfleet.mqtt.broker import AccountKind
from meshfleet.rest.accounts import Role
from meshfleet.service.actor import Actor
from meshfleet.service.audit import log as audit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.mqtt.broker import Account

_SUPPRESS_MS: Final = 60_000
"""Milliseconds after an audit row in which repetitions of the denied action are only counted."""

_MAX_ACTIONS: Final = 10_000
"""Maximum number of denied actions whose last time is kept; if there are more, all times are deleted."""

_MAX_TOPIC_LENGTH: Final = 200
"""Maximum number of characters of a topic that are recorded in the audit log."""


_ACTOR_KINDS: Final[Mapping[AccountKind, Literal["gateway", "user", "api-key"]]] = {
    AccountKind.GATEWAY: "gateway",
    AccountKind.USER: "user",
    AccountKind.API_KEY: "api-key",
    AccountKind.HOME_ASSISTANT: "api-key",
}
"""Kind of the actor in the audit log, by the kind of the account."""


class _DeniedAction(NamedTuple):
    """Account, and the action that it was denied; repetitions within a minute are only counted."""

    account: str
    action: str


class _DeniedAccess(NamedTuple):
    """Denied publish or subscription that is to be recorded in the audit log."""

    actor: Actor
    action: str
    topic: str
    at: int
    suppressed: int
    """Number of earlier denials of the action that were only counted since its last audit row."""


class DeniedAccessLog:
    """Collects denied publishes and subscriptions until they are written to the audit log."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._last: dict[_DeniedAction, int] = {}
        self._suppressed: dict[_DeniedAction, int] = {}
        self._pending: list[_DeniedAccess] = []

    def add(self, account: Account, address: str, action: str, topic: str) -> None:
        """Record a denied publish or subscription, or only count it if it repeats within a minute."""
        now, key = self._now(), _DeniedAction(str(account), action)
        if (
            0 <= now - self._last.get(key, now - _SUPPRESS_MS) < _SUPPRESS_MS
            or len(self._pending) >= _MAX_ACTIONS
        ):
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        if len(self._last) >= _MAX_ACTIONS:
            self._last.clear()
            self._suppressed.clear()
        self._last[key] = now
        actor = Actor(
            name=account.name,
            role=account.role or Role.VIEWER,
            kind=_ACTOR_KINDS[account.kind],
            address=address,
        )
        self._pending.append(
            _DeniedAccess(actor, action, topic[:_MAX_TOPIC_LENGTH], now, self._suppressed.pop(key, 0))
        )

    def drain(self) -> Sequence[_DeniedAccess]:
        """Remove and return the recorded denied accesses, for the caller to write to the audit log."""
        entries, self._pending = self._pending, []
        return entries

    def requeue(self, entries: Sequence[_DeniedAccess]) -> None:
        """Put back denied accesses that could not be written to the audit log."""
        self._pending = [*entries, *self._pending]


def insert_denied_access(connection: Connection, entries: Sequence[_DeniedAccess]) -> None:
    """Write denied publishes and subscriptions to the audit log."""
    for actor, action, topic, at, suppressed in entries:
        detail = {"before": suppressed} if suppressed else {}
        audit.record_change(connection, actor, f"mqtt.forbidden-{action}", topic, now=at, **detail)
