"""What MQTT clients wanted and may not have, for the audit log; rate-limited: a client may try for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.accounts.model import Actor
from meshfleet.service.audit import log as audit
from meshfleet.wire.rest import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from meshfleet.broker import Account

_QUIET: Final = 60_000
"""Milliseconds in which the same deed of the same account is one row."""

_REMEMBERED: Final = 10_000
"""Deeds; when there are more, all are news again."""

_LONGEST_TOPIC: Final = 200
"""Characters of a topic that are written down."""


class _Deed(NamedTuple):
    account: str
    what: str


class _Complaint(NamedTuple):
    actor: Actor
    deed: str
    topic: str
    at: int
    before: int
    """How often it happened since the last row."""


class Complaints:
    """Collects them until somebody writes them down."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._last: dict[_Deed, int] = {}
        self._unsaid: dict[_Deed, int] = {}
        self._new: list[_Complaint] = []

    def file(self, account: Account, address: str, deed: str, topic: str) -> None:
        """Somebody wanted more than the rules allow."""
        now, key = self._now(), _Deed(str(account), deed)
        if 0 <= now - self._last.get(key, now - _QUIET) < _QUIET or len(self._new) >= _REMEMBERED:
            self._unsaid[key] = self._unsaid.get(key, 0) + 1
            return
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
            self._unsaid.clear()
        self._last[key] = now
        actor = Actor(
            name=account.name, role=account.role or Role.VIEWER, kind=account.kind.value, address=address
        )
        self._new.append(_Complaint(actor, deed, topic[:_LONGEST_TOPIC], now, self._unsaid.pop(key, 0)))

    def take(self) -> Sequence[_Complaint]:
        """Those that are not written down yet."""
        new, self._new = self._new, []
        return new

    def put_back(self, complaints: Sequence[_Complaint]) -> None:
        """These could not be written down."""
        self._new = [*complaints, *self._new]


def write(connection: Connection, complaints: Sequence[_Complaint]) -> None:
    """Write them down."""
    for actor, deed, topic, at, before in complaints:
        unsaid = {"before": before} if before else {}
        audit.record(connection, actor, f"mqtt.forbidden-{deed}", topic, now=at, **unsaid)
