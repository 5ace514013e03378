"""Alarms of one evaluation: opened, joined, left and cleared by conditions, and written together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import delete, insert, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import alarm, alarm_event
from meshfleet.rest.alarms import AlarmState
from meshfleet.service.alarms.alarm_records import AlarmEventKind, AlarmRecord, EndReason, to_values
from meshfleet.service.alarms.common_traits import COMPARED_RULES, find_common_trait
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import DEVICE_RULES, Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy import Connection, Row

    from meshfleet.service.alarms.conditions import Condition, ConditionTable, Subject

_SELECT_DIFFERENT: Final = """
    SELECT alarm.id FROM alarm
    LEFT JOIN alarm_condition AS member ON member.alarm = alarm.id
        AND member.rule = CASE alarm.rule WHEN 'gateways-lost' THEN 'gateway-offline'
            WHEN 'relay-lost' THEN 'device-offline' ELSE member.rule END
    WHERE alarm.state IN ('open', 'acknowledged')
    GROUP BY alarm.id, alarm.members HAVING count(member.subject) <> alarm.members
"""
MAX_EVENTS: Final = 1000
"""Maximum number of events that are kept of one alarm."""
_MAX_DELETED: Final = 1000
_MAX_LOADED: Final = 1000
"""Maximum number of alarms that one query loads."""

_COUNT_MEMBERS: Final = "SELECT state, count(*) FROM alarm_condition WHERE alarm = ? GROUP BY state"
_COUNT_MEMBERS_OF_RULE: Final = (
    "SELECT state, count(*) FROM alarm_condition WHERE alarm = ? AND rule = ? GROUP BY state"
)
_COUNT_AFFECTED: Final = (
    "SELECT count(*) FROM alarm_condition AS lost JOIN device ON device.gateway = lost.subject"
    " WHERE lost.alarm = ? AND lost.rule = 'gateway-offline' AND NOT device.connected"
    " AND device.id <> device.gateway AND device.connected_at >= lost.since"
)
"""Devices that were lost together with the gateways of an alarm; those lost before have another cause."""
_COUNT_CUT_OFF: Final = (
    "SELECT count(*) FROM alarm_condition"
    " WHERE alarm = ? AND rule = 'device-offline' AND state = 'active' AND subject <> ?"
)
"""Silent devices of an alarm without the extender that cuts them off."""
_COUNTED_RULES: Final = frozenset({Rule.GATEWAYS_LOST, Rule.GATEWAY_OFFLINE})
"""Rules of alarms whose affected devices are not their members, but are counted."""


MEMBER_RULES: Final[Mapping[str, Rule]] = {
    Rule.GATEWAYS_LOST: Rule.GATEWAY_OFFLINE,
    Rule.RELAY_LOST: Rule.DEVICE_OFFLINE,
}
"""Rules of the members of alarms whose own condition is about what the members have in common."""


class AlarmGroup(NamedTuple):
    """Cause that conditions have in common."""

    rule: Rule
    cause: str
    gateway: int | None
    scope: str | None = None
    """Group of faults that are one alarm; None: the gateway, or the fleet."""

    @property
    def key(self) -> str:
        """Text that is unique among alarms that are not cleared."""
        scope = "fleet" if self.gateway is None else f"gw:{self.gateway:012x}"
        return f"{self.rule}/{self.cause}/{self.scope or scope}"


class AlarmTable:
    """Alarms that an evaluation changes, with their events. Their rows are locked: users may change them."""

    def __init__(self, connection: Connection, now: int, reopen_ms: int) -> None:
        """Create for an evaluation at `now`. A cause that returns within `reopen_ms` is the same alarm."""
        self._connection = connection
        self._now = now
        self._reopen_ms = reopen_ms
        self._loaded: dict[int, AlarmRecord] = {}
        self._stored: dict[int, dict[str, Any]] = {}
        self._touched: set[int] = set()
        self._end_reasons: dict[int, EndReason] = {}
        """Why members left their alarms; those that were deleted do not say."""
        self._counted: set[int] = set()

    def join(
        self,
        condition: Condition,
        group: AlarmGroup,
        severity: Severity,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a pending condition a member of the alarm of a group. Open the alarm if it is not open."""
        found = self._find_open(group.key)
        if found is None:
            found = self._reopen(group, condition, severity) or self._open(group, condition, severity)
        else:
            found.new_members += found.acknowledged_by is not None
            found.state = AlarmState.OPEN
        self._raise_severity(found, severity)
        if facts is not None:
            found.facts = msgspec.json.encode(facts).decode()
        condition.activate(found.id, group.cause, self._now)
        self._touched.add(found.id)

    def worsen(
        self,
        condition: Condition,
        severity: Severity,
        facts: Mapping[str, Any],
        *,
        updates_facts: bool = False,
    ) -> None:
        """Make the alarm of a condition more severe, with the facts of now. It never becomes less severe.

        With `updates_facts` the alarm gets the facts of now in any case.
        """
        record = None if condition.alarm is None else self.load(condition.alarm)
        if record is not None and (self._raise_severity(record, severity) or updates_facts):
            record.facts = msgspec.json.encode(facts).decode()

    def _raise_severity(self, record: AlarmRecord, severity: Severity) -> bool:
        if severity <= record.severity:
            return False
        record.severity = int(severity)
        self._add_event(record.id, AlarmEventKind.SEVERITY, severity=severity.name.lower())
        return True

    def merge(self, condition: Condition, group: AlarmGroup) -> None:
        """Move a condition that has an alarm of its own to the alarm of a group, without a "cleared"."""
        root = self._find_open(group.key)
        if root is None or condition.alarm is None or condition.alarm == root.id:
            return
        self._end_reasons[condition.alarm] = EndReason.MERGED
        self._touched |= {condition.alarm, root.id}
        condition.alarm, condition.cause = root.id, group.cause
        if root.acknowledged_by is not None:
            root.new_members += 1
            root.state = AlarmState.OPEN

    def touch(self, condition: Condition, reason: EndReason | None = None) -> None:
        """Count the members of the alarm of a condition again at the end of the evaluation.

        `reason` says why the condition leaves the alarm, if it does.
        """
        if condition.alarm is not None:
            self.touch_alarm(condition.alarm, reason)

    def touch_alarm(self, number: int, reason: EndReason | None = None) -> None:
        """Count the members of an alarm again at the end of the evaluation. `reason` says why some leave."""
        self._touched.add(number)
        if reason is not None:
            self._end_reasons[number] = reason

    def add_missing(self, number: int, devices: int) -> None:
        """Record how many devices stay away although the extender of an alarm is back."""
        record = self.load(number)
        if record is not None and devices:
            record.change_facts({"missing": record.load_facts().get("missing", 0) + devices})

    def list_touched(self, rule: Rule) -> list[AlarmRecord]:
        """List the alarms of a rule whose members have changed."""
        self.load_all(self._touched)
        return [
            record
            for number, record in sorted(self._loaded.items())
            if number in self._touched and record.rule == rule and record.state != AlarmState.CLEARED
        ]

    def count_remaining(self, condition: Condition) -> None:
        """Count the affected devices before a condition leaves its alarm, which may then be cleared."""
        number = condition.alarm
        if number is None or number in self._counted:
            return
        self._counted.add(number)
        record = self.load(number)
        if record is not None and record.rule in _COUNTED_RULES:
            record.affected = self._count_affected(number)

    def load(self, number: int) -> AlarmRecord | None:
        """Load an alarm that may be changed."""
        if number not in self._loaded:
            query = select(alarm).where(alarm.c.id == number).with_for_update()
            row = self._connection.execute(query).first()
            if row is None:
                return None
            self._keep(row)
        return self._loaded[number]

    def load_all(self, numbers: Collection[int]) -> None:
        """Load alarms that may be changed, with few queries."""
        missing = sorted(set(numbers) - self._loaded.keys())
        for start in range(0, len(missing), _MAX_LOADED):
            is_missing = alarm.c.id.in_(missing[start : start + _MAX_LOADED])
            for row in self._connection.execute(
                select(alarm).where(is_missing).order_by(alarm.c.id).with_for_update()
            ):
                self._keep(row)

    def finish(self) -> set[int]:
        """Count the members of all changed alarms, clear those without members, and write everything.

        Return the changed alarms. The conditions must be saved before.
        """
        self._touch_abandoned()
        changed = set()
        for number in sorted(self._touched):
            record = self.load(number)
            if record is not None and record.state != AlarmState.CLEARED:
                self._recount(record)
        for number, record in self._loaded.items():
            values = to_values(record)
            if values != self._stored.get(number):
                values["version"] = record.version = record.version + 1
                self._connection.execute(update(alarm).where(alarm.c.id == number).values(**values))
                changed.add(number)
        return changed

    # Opening

    def _find_open(self, key: str) -> AlarmRecord | None:
        for record in self._loaded.values():
            if record.key == key and record.state != AlarmState.CLEARED:
                return record
        query = select(alarm).where(alarm.c.key == key, alarm.c.state != str(AlarmState.CLEARED))
        row = self._connection.execute(query.with_for_update()).first()
        return None if row is None else self._keep(row)

    def _reopen(self, group: AlarmGroup, condition: Condition, severity: Severity) -> AlarmRecord | None:
        """Reopen the last alarm of a group if it was cleared not long ago."""
        columns = alarm.c
        query = (
            select(alarm)
            .where(columns.key == group.key, columns.cleared_at > self._now - self._reopen_ms)
            .order_by(columns.cleared_at.desc())
            .limit(1)
            .with_for_update()
        )
        row = self._connection.execute(query).first()
        if row is None:
            return None
        record = self._keep(row)
        record.state, record.severity = AlarmState.OPEN, int(severity)
        record.cleared_at = record.back = record.end_reason = None
        record.since, record.opened_at, record.recovering_since = condition.since, self._now, None
        record.members = record.affected = record.new_members = 0
        record.most_members = record.most_affected = 0
        record.acknowledged_by = record.acknowledged_at = None
        record.facts = None
        record.reopened += 1
        self._add_event(record.id, AlarmEventKind.REOPENED, times=record.reopened)
        return record

    def _open(self, group: AlarmGroup, condition: Condition, severity: Severity) -> AlarmRecord:
        values = {
            "key": group.key,
            "rule": str(group.rule),
            "cause": group.cause,
            "severity": int(severity),
            "state": str(AlarmState.OPEN),
            "gateway": group.gateway,
            "since": condition.since,
            "opened_at": self._now,
            "members": 0,
            "most_members": 0,
            "affected": 0,
            "most_affected": 0,
            "new_members": 0,
            "reopened": 0,
            "version": 0,
        }
        statement = insert(alarm).values(**values).returning(alarm)
        record = self._keep(self._connection.execute(statement).one())
        self._add_event(record.id, AlarmEventKind.OPENED)
        return record

    # Counting

    def _touch_abandoned(self) -> None:
        """Count the members of alarms again of which some were deleted."""
        rows = bulk.query_rows(self._connection, _SELECT_DIFFERENT, ())
        self._touched.update(row[0] for row in rows)

    def _recount(self, record: AlarmRecord) -> None:
        """Count the members of an alarm and the devices that it affects. Clear it if it has none."""
        is_common = record.rule in MEMBER_RULES
        own = self._count_members(record.id, Rule(record.rule) if is_common else None)
        if not own:
            self._clear(record)
            return
        is_recovering = ConditionState.ACTIVE not in own
        if is_recovering and record.recovering_since is None:
            record.recovering_since = self._now
            self._add_event(record.id, AlarmEventKind.RECOVERING)
        elif not is_recovering and record.recovering_since is not None:
            record.recovering_since = None
            self._add_event(record.id, AlarmEventKind.RELAPSED)
        if (rule := MEMBER_RULES.get(record.rule)) is not None:
            own = self._count_members(record.id, rule)
        total = sum(own.values())
        if record.members and total != record.members:
            self._add_event(record.id, AlarmEventKind.MEMBERS, members=total, before=record.members)
        record.members, record.most_members = total, max(total, record.most_members)
        if record.rule in _COUNTED_RULES:
            record.affected = self._count_affected(record.id)
        elif record.relay is not None and record.rule == Rule.RELAY_LOST:
            values = (record.id, record.relay)
            record.affected = int(bulk.query_rows(self._connection, _COUNT_CUT_OFF, values)[0][0])
        else:
            record.affected = own.get(ConditionState.ACTIVE, 0) if record.rule in DEVICE_RULES else 0
        record.most_affected = max(record.most_affected, record.affected)
        if record.rule in COMPARED_RULES:
            record.change_facts(find_common_trait(self._connection, record.id, record.gateway, record.relay))

    def _clear(self, record: AlarmRecord) -> None:
        reason = self._end_reasons.get(record.id, EndReason.DELETED)
        kind = AlarmEventKind.MERGED if reason is EndReason.MERGED else AlarmEventKind.CLEARED
        record.state, record.cleared_at, record.end_reason = AlarmState.CLEARED, self._now, reason
        remaining = record.affected
        if record.rule == Rule.RELAY_LOST:  # those that stay away have left it when the extender was back
            remaining = record.load_facts().get("missing", 0)
        record.back = max(0, record.most_affected - remaining)
        record.members, record.recovering_since = 0, None
        self._add_event(record.id, kind, reason=reason, affected=record.most_affected, back=record.back)

    def _count_members(self, number: int, rule: Rule | None) -> Mapping[str, int]:
        """Count the conditions that belong to an alarm, by state; only those of a rule, unless it is None."""
        if rule is None:
            rows = bulk.query_rows(self._connection, _COUNT_MEMBERS, (number,))
        else:
            rows = bulk.query_rows(self._connection, _COUNT_MEMBERS_OF_RULE, (number, str(rule)))
        return {row[0]: row[1] for row in rows}

    def _count_affected(self, number: int) -> int:
        return int(bulk.query_rows(self._connection, _COUNT_AFFECTED, (number,))[0][0])

    def _add_event(self, number: int, kind: AlarmEventKind, **detail: Any) -> None:
        add_event(self._connection, number, kind, now=self._now, **detail)

    def _keep(self, row: Row[Any]) -> AlarmRecord:
        """Return the record of a row, unless it was loaded before."""
        if row.id not in self._loaded:
            record = AlarmRecord(**row._asdict())
            self._loaded[record.id] = record
            self._stored[record.id] = to_values(record)
        return self._loaded[row.id]


def add_event(
    connection: Connection,
    number: int,
    kind: AlarmEventKind,
    *,
    now: int,
    actor: str | None = None,
    **detail: Any,
) -> None:
    """Record what happened to an alarm. Only its newest events are kept."""
    text = msgspec.json.encode(detail).decode()
    connection.execute(
        insert(alarm_event).values(alarm=number, time=now, kind=str(kind), actor=actor, detail=text)
    )
    delete_old_events(connection, {number})


def delete_old_events(connection: Connection, numbers: Iterable[int]) -> None:
    """Delete all but the newest 1,000 events of each of some alarms: one may come and go for years."""
    columns = alarm_event.c
    for number in sorted(numbers):
        of_alarm = columns.alarm == number
        newest = select(columns.id).where(of_alarm).order_by(columns.id.desc())
        oldest_kept = newest.offset(MAX_EVENTS - 1).limit(1).scalar_subquery()
        connection.execute(delete(alarm_event).where(of_alarm, columns.id < oldest_kept))


def delete_ended_alarms(connection: Connection, before: int) -> None:
    """Delete alarms that ended before a Unix time in milliseconds; at most 1,000 per call."""
    columns = alarm.c
    ended = select(columns.id).where(columns.cleared_at < before).order_by(columns.cleared_at)
    connection.execute(delete(alarm).where(columns.id.in_(ended.limit(_MAX_DELETED).scalar_subquery())))


def mark_well(
    conditions: ConditionTable, alarms: AlarmTable, subject: Subject, now: int, *, delay: int
) -> None:
    """Record that a fault is gone. A member of an alarm is watched for `delay` milliseconds or longer."""
    condition = conditions.find(subject)
    if condition is None:
        return
    if condition.state is ConditionState.PENDING and not condition.opens:
        conditions.remove(condition)
        return
    condition.mark_well(now, delay)
    alarms.touch(condition)
