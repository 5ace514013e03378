"""Alarms as they are stored, why they end, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Row


class EndReason(StrEnum):
    """Why an alarm is over."""

    WELL = "well"
    MERGED = "merged"
    """Its members have a cause in common with others, and belong to another alarm."""
    RELEASED = "released"
    """The gateway is not claimed any more."""
    DELETED = "deleted"
    """The members were deleted."""
    PARKED = "parked"
    """The members carry the label `parked`: they are in no alarm."""
    OUT_OF_SCOPE = "out-of-scope"
    """The rule is not for the members any more."""
    RULE_CHANGED = "rule-changed"
    RULE_DISABLED = "rule-disabled"
    RULE_DELETED = "rule-deleted"


class AlarmEventKind(StrEnum):
    """Kind of an event of an alarm."""

    OPENED = "opened"
    REOPENED = "reopened"
    SEVERITY = "severity"
    MEMBERS = "members"
    RECOVERING = "recovering"
    RELAPSED = "relapsed"
    ACKNOWLEDGED = "acknowledged"
    UNACKNOWLEDGED = "unacknowledged"
    NOTE = "note"
    SILENCED = "silenced"
    UNSILENCED = "unsilenced"
    NOTIFIED = "notified"
    """A channel has delivered a message."""
    NOT_DELIVERED = "not-delivered"
    """A message was given up."""
    MERGED = "merged"
    CLEARED = "cleared"


@dataclass(slots=True)
class AlarmRecord:
    """Row of the table `alarm`."""

    id: int
    key: str
    rule: str
    cause: str
    severity: int
    state: str
    gateway: int | None
    since: int
    opened_at: int
    cleared_at: int | None
    members: int
    most_members: int
    affected: int
    most_affected: int
    back: int | None
    end_reason: str | None
    recovering_since: int | None
    acknowledged_by: str | None
    acknowledged_at: int | None
    new_members: int
    reopened: int
    version: int
    announced_version: int = 0
    """Version for which messages were written, or found to be unnecessary."""
    silenced_until: int | None = None
    silenced_by: str | None = None
    silence: int | None = None
    """Maintenance window that silences it; None if a user has silenced it, or if it is not silenced."""
    facts: str | None = None
    """Facts of a watch as JSON, as they were when the alarm opened or became more severe."""

    @property
    def scope(self) -> str:
        """Group of faults that are this alarm, such as `fleet` or `gw:02005e000001`."""
        return self.key.split("/", 2)[2]

    @property
    def relay(self) -> int | None:
        """Extender that the alarm is about; None if it is not about one."""
        kind, _, mac = self.scope.partition(":")
        return int(mac, 16) if kind == "relay" else None

    def load_facts(self) -> dict[str, Any]:
        """Return the facts of the alarm."""
        facts: dict[str, Any] = {} if self.facts is None else msgspec.json.decode(self.facts)
        return facts

    def change_facts(self, changes: dict[str, Any]) -> None:
        """Change some facts of the alarm; a fact that becomes None is removed."""
        facts = {name: each for name, each in (self.load_facts() | changes).items() if each is not None}
        if facts != self.load_facts():
            self.facts = msgspec.json.encode(facts).decode()


_FIELDS: Final = tuple(each.name for each in fields(AlarmRecord))


def to_records(rows: Iterable[Row[Any]]) -> list[AlarmRecord]:
    """Return the records of rows of the table `alarm`."""
    return [AlarmRecord(**row._asdict()) for row in rows]


def to_values(record: AlarmRecord) -> dict[str, Any]:
    """Return the columns of a record without its id, with plain strings."""
    values = {name: getattr(record, name) for name in _FIELDS if name != "id"}
    return values | {"state": str(record.state), "end_reason": record.end_reason and str(record.end_reason)}
