"""Conditions: the state of a rule for one subject.

A condition is `pending` from the first sign of a fault, `active` when the fault has lasted long enough,
`clearing` while the subject is well again and watched, and `quiet` for a day after that. A fault that returns
within that day makes the next return harder (`REPEAT_DELAYS`). Subjects without a fault have no condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import alarm_condition
from meshfleet.service.alarms.parking import PARKED_CAUSE
from meshfleet.service.alarms.rules import DAY_MS, REPEAT_DELAYS, Rule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy import Connection

_COLUMNS: Final = "rule, subject, device, gateway, state, since, due, cause, alarm, opens, remembered_until"
_SELECT_SUBJECTS: Final = f"SELECT {_COLUMNS} FROM alarm_condition WHERE subject IN numbers"  # noqa: S608
_SELECT_GATEWAYS: Final = (
    f"SELECT {_COLUMNS} FROM alarm_condition"  # noqa: S608
    " WHERE gateway IN numbers AND rule = 'device-offline' AND state = 'pending'"
)
_SELECT_ALARM: Final = f"SELECT {_COLUMNS} FROM alarm_condition WHERE alarm = ?"  # noqa: S608
_SELECT_RULES: Final = f"SELECT {_COLUMNS} FROM alarm_condition WHERE rule IN numbers AND state <> 'quiet'"  # noqa: S608
_SELECT_DUE: Final = f"SELECT {_COLUMNS} FROM alarm_condition WHERE due <= ? ORDER BY due LIMIT ?"  # noqa: S608
_DELETE: Final = "DELETE FROM alarm_condition WHERE rule = ? AND subject = ?"
_UPSERT: Final = "UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in _COLUMNS.split(", ") if name not in {"rule", "subject", "device"}
)
_SHIFT: Final = (
    "UPDATE alarm_condition SET since = since + ?, due = due + ?, remembered_until = remembered_until + ?"
    " WHERE substr(rule, 1, 12) <> 'measurement/'"
)
_KNOWN_RULES: Final = frozenset(map(str, Rule))


class ConditionState(StrEnum):
    """State of a condition."""

    PENDING = "pending"
    ACTIVE = "active"
    CLEARING = "clearing"
    QUIET = "quiet"


class Subject(NamedTuple):
    """Subject of a condition: a rule, and the number of a device or gateway, or 0 for the fleet."""

    rule: Rule
    number: int


FLEET: Final = 0
"""Number of the subject of rules about the whole fleet."""


@dataclass(slots=True)
class Condition:
    """State of a rule for a subject. All times are Unix times in milliseconds."""

    subject: Subject
    device: int | None
    gateway: int | None
    state: ConditionState
    since: int
    due: int | None
    cause: str = ""
    alarm: int | None = None
    opens: int = 0
    remembered_until: int | None = None
    """When it is forgotten how often the condition was active."""

    @property
    def is_member(self) -> bool:
        """Whether the condition belongs to an alarm that is not cleared."""
        return self.state in {ConditionState.ACTIVE, ConditionState.CLEARING}

    @property
    def is_at_fault(self) -> bool:
        """Whether the subject is at fault now."""
        return self.state in {ConditionState.PENDING, ConditionState.ACTIVE}

    @property
    def is_parked(self) -> bool:
        """Whether the fault is kept while the device is parked."""
        return self.cause == PARKED_CAUSE and self.state is ConditionState.PENDING

    def mark_faulty(self, since: int, due: int | None) -> None:
        """Record a fault. A subject that was only watched is at fault again without a new delay."""
        if self.state is ConditionState.CLEARING:
            self.state, self.due = ConditionState.ACTIVE, None
        elif self.state is ConditionState.QUIET:
            self.state, self.since, self.due, self.cause = ConditionState.PENDING, since, due, ""

    def mark_well(self, now: int, delay: int) -> None:
        """Record that the fault is gone. An active condition is watched for `delay` or longer."""
        if self.state is ConditionState.PENDING:
            self.state, self.since, self.due = ConditionState.QUIET, now, self.remembered_until
        elif self.state is ConditionState.ACTIVE:
            self.state, self.due = ConditionState.CLEARING, now + self.compute_watch_time(delay)

    def compute_watch_time(self, delay: int) -> int:
        """Return the milliseconds for which the subject must be well: longer with each time it opened."""
        return compute_watch_time(self.opens, delay)

    def activate(self, alarm: int, cause: str, now: int) -> None:
        """Make a pending condition a member of an alarm."""
        if self.remembered_until is not None and self.remembered_until <= now:
            self.opens = 0
        self.state, self.due, self.alarm, self.cause = ConditionState.ACTIVE, None, alarm, cause
        self.opens += 1

    def detach(self, now: int, due: int) -> None:
        """Leave the alarm although the fault is there. It has an alarm of its own if it lasts until `due`."""
        self.state, self.since, self.due, self.alarm = ConditionState.PENDING, now, due, None

    def park(self) -> None:
        """Leave the alarm, and wait until the device is not parked any more."""
        self.state, self.due, self.alarm, self.cause = ConditionState.PENDING, None, None, PARKED_CAUSE

    def unpark(self, due: int) -> None:
        """Have an alarm if the fault lasts until `due`."""
        self.due, self.cause = due, ""

    def end(self, now: int) -> None:
        """Leave the alarm. The condition is remembered for a day."""
        self.state, self.since, self.alarm = ConditionState.QUIET, now, None
        self.due = self.remembered_until = now + DAY_MS


def compute_watch_time(opens: int, delay: int) -> int:
    """Return the milliseconds for which a subject must be well that opened so often within a day."""
    repeats = opens - 1
    return max(delay, REPEAT_DELAYS[min(repeats, len(REPEAT_DELAYS)) - 1]) if repeats > 0 else delay


def shift_times(connection: Connection, by: int) -> None:
    """Move the times of conditions, after the clock was set back by `-by` milliseconds.

    Those of measurements are times of samples, by the clocks of gateways.
    """
    bulk.execute_one(connection, _SHIFT, (by, by, by))


class ConditionTable:
    """Conditions of one evaluation: loaded when needed, changed in memory, and saved together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loaded: dict[Subject, Condition] = {}
        self._saved: dict[Subject, tuple[object, ...]] = {}
        """Row of each condition as it is in the database."""
        self._loaded_rules: set[Rule] = set()

    def load_subjects(self, numbers: Collection[int]) -> None:
        """Load all conditions of devices and gateways."""
        if numbers:
            self._keep(bulk.query_in(self._connection, _SELECT_SUBJECTS, sorted(numbers)))

    def load_pending_behind(self, gateways: Collection[int]) -> list[Condition]:
        """Load the devices behind gateways that are silent, but not long enough for an alarm."""
        if not gateways:
            return []
        found = self._keep(bulk.query_in(self._connection, _SELECT_GATEWAYS, sorted(gateways)))
        return [each for each in found if each.state is ConditionState.PENDING]

    def load_rules(self, rules: Iterable[Rule]) -> None:
        """Load the conditions of rules with one query: an evaluation looks at those of twenty."""
        missing = sorted(set(rules) - self._loaded_rules)
        if missing:
            self._keep(bulk.query_in(self._connection, _SELECT_RULES, missing))
            self._loaded_rules.update(missing)

    def load_rule(self, rule: Rule) -> list[Condition]:
        """Load the conditions of a rule, except for those that are only remembered."""
        self.load_rules([rule])
        return [
            each
            for each in self._loaded.values()
            if each.subject.rule is rule and each.state is not ConditionState.QUIET
        ]

    def load_alarm(self, number: int) -> list[Condition]:
        """Load the conditions that belong to an alarm."""
        self._keep(bulk.query_rows(self._connection, _SELECT_ALARM, (number,)))
        return [each for each in self._loaded.values() if each.alarm == number]

    def load_due(self, now: int, limit: int) -> list[Condition]:
        """Load up to `limit` conditions whose next step is due. Return them with those of this evaluation."""
        self._keep(bulk.query_rows(self._connection, _SELECT_DUE, (now, limit)))
        return [each for each in self._loaded.values() if each.due is not None and each.due <= now]

    def list_loaded(self) -> list[Condition]:
        """Return all loaded conditions."""
        return list(self._loaded.values())

    def list_devices(self) -> set[int]:
        """Return the devices and gateways of all loaded conditions."""
        return {each.device for each in self._loaded.values() if each.device is not None}

    def find(self, subject: Subject) -> Condition | None:
        """Return a loaded condition."""
        return self._loaded.get(subject)

    def add(self, condition: Condition) -> Condition:
        """Add a new condition. The caller has loaded its subject before."""
        self._loaded[condition.subject] = condition
        return condition

    def remove(self, condition: Condition) -> None:
        """Forget a condition."""
        del self._loaded[condition.subject]

    def save(self) -> None:
        """Write all changed conditions, and delete the removed ones."""
        rows = {subject: _to_row(each) for subject, each in self._loaded.items()}
        changed = [row for subject, row in rows.items() if self._saved.get(subject) != row]
        bulk.upsert_rows(self._connection, alarm_condition, changed, on_conflict=_UPSERT)
        bulk.execute_many(self._connection, _DELETE, [*self._saved.keys() - rows.keys()])
        self._saved = dict(rows)

    def _keep(self, rows: Iterable[Sequence[object]]) -> list[Condition]:
        """Return the conditions of rows. What this evaluation has loaded before may have changed since."""
        found = []
        for row in rows:
            if row[0] not in _KNOWN_RULES:
                continue  # of a later version, which was in use before
            condition = _from_row(*row)
            if condition.subject not in self._saved:
                self._saved[condition.subject] = tuple(row)
                self._loaded[condition.subject] = condition
            if (loaded := self._loaded.get(condition.subject)) is not None:
                found.append(loaded)
        return found


def _from_row(*row: object) -> Condition:
    rule, number, device, gateway, state, since, due, cause, alarm, opens, remembered_until = row
    return Condition(
        Subject(Rule(str(rule)), number),  # type: ignore[arg-type] # columns of the table
        device,  # type: ignore[arg-type]
        gateway,  # type: ignore[arg-type]
        ConditionState(str(state)),
        since,  # type: ignore[arg-type]
        due,  # type: ignore[arg-type]
        str(cause),
        alarm,  # type: ignore[arg-type]
        opens,  # type: ignore[arg-type]
        remembered_until,  # type: ignore[arg-type]
    )


def _to_row(each: Condition) -> tuple[object, ...]:
    return (
        str(each.subject.rule),
        each.subject.number,
        each.device,
        each.gateway,
        str(each.state),
        each.since,
        each.due,
        each.cause,
        each.alarm,
        each.opens,
        each.remembered_until,
    )
