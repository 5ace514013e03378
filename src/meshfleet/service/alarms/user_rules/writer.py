"""Writes judgments of rules of users as conditions, and opens and ends their alarms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.db.tables import alarm_condition
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.service.alarms import rule_store
from meshfleet.service.alarms.alarm_records import EndReason
from meshfleet.service.alarms.alarms import AlarmGroup
from meshfleet.service.alarms.conditions import Condition, ConditionState, Subject
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.user_rules.state_machine import restart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from meshfleet.service.alarms.alarms import AlarmTable
    from meshfleet.service.alarms.user_rules.definition import UserRule
    from meshfleet.service.alarms.user_rules.label_share import LabelShare
    from meshfleet.service.alarms.user_rules.state_machine import Judgment

FLEET: Final = 0
"""Subject of conditions that are not of a device: the share of a label, and a rule that is too wide."""
TOO_WIDE: Final = "too-wide"
_MEMBERS: Final = frozenset({ConditionState.ACTIVE, ConditionState.CLEARING})

_SELECT_STORED: Final = (
    "SELECT subject, state, alarm, cause FROM alarm_condition WHERE rule = :rule AND subject IN numbers"
)
_SELECT_DEVICES: Final = "SELECT id, name, gateway FROM device WHERE id IN numbers"
_SELECT_ALARMS: Final = "SELECT DISTINCT alarm FROM alarm_condition WHERE rule = ? AND alarm IS NOT NULL"
_DELETE_RULE: Final = "DELETE FROM alarm_condition WHERE rule = ?"
_DELETE: Final = "DELETE FROM alarm_condition WHERE rule = ? AND subject = ?"
_DELETE_FORGOTTEN: Final = (
    "DELETE FROM alarm_condition WHERE due <= ? AND state = 'quiet'"
    " AND (substr(rule, 1, 12) = 'measurement/' OR substr(rule, 1, 14) = 'label-offline/')"
)
_SELECT_LOSS: Final = (
    "SELECT 1 FROM connectivity WHERE device = ? AND NOT connected AND time >= ? AND time <= ? LIMIT 1"
)
_UPSERT: Final = "UPDATE SET " + ", ".join(
    f"{each.name} = excluded.{each.name}"
    for each in alarm_condition.columns
    if each.name not in {"rule", "subject", "device"}
)


class RuleWork(NamedTuple):
    """Judgments of a rule to write: copies of those that have changed; None for a device that is well."""

    rule: UserRule
    judgments: Mapping[int, Judgment | None]
    leaving: frozenset[int]
    """Devices that the rule is not for any more."""
    worst: tuple[int, Judgment] | None
    """Device with the worst value, of a rule with one alarm for all."""
    share: LabelShare | None
    is_too_wide: bool
    limit: int


class _StoredCondition(NamedTuple):
    state: ConditionState
    alarm: int | None
    cause: str


class _Device(NamedTuple):
    id: int
    name: str
    gateway: int | None


_NO_CONDITION: Final = _StoredCondition(ConditionState.QUIET, None, "")


class RuleWriter:
    """Writer of the judgments of one evaluation."""

    def __init__(self, connection: Connection, now: int, alarms: AlarmTable) -> None:
        self._connection = connection
        self._now = now
        self._alarms = alarms
        self.restarted: list[tuple[int, int]] = []
        """Rules and devices whose time begins again, because they were disconnected meanwhile."""
        self.unknown: list[tuple[int, int]] = []
        """Rules and devices that are not in the registry."""

    def delete_forgotten(self) -> None:
        """Delete conditions that ended a day ago."""
        bulk.execute_one(self._connection, _DELETE_FORGOTTEN, (self._now,))

    def write(self, work: RuleWork) -> None:
        """Write the changed judgments of a rule."""
        subjects = [*work.judgments, *work.leaving, FLEET]
        rule = work.rule.condition_rule
        stored = {
            subject: _StoredCondition(ConditionState(state), alarm, cause)
            for subject, state, alarm, cause in bulk.query_in(
                self._connection, _SELECT_STORED, subjects, rule=rule
            )
        }
        self._alarms.load_all({each.alarm for each in stored.values() if each.alarm is not None})
        numbers = [each for each in work.judgments if each]
        if work.worst is not None:
            numbers.append(work.worst[0])
        devices = {row[0]: _Device(*row) for row in bulk.query_in(self._connection, _SELECT_DEVICES, numbers)}
        rows, removed = [], []
        for subject in work.leaving & stored.keys():
            self._end(stored[subject], EndReason.OUT_OF_SCOPE)
            removed.append(subject)
        for subject, judgment in work.judgments.items():
            device = devices.get(subject)
            if subject and device is None:
                self.unknown.append((work.rule.id, subject))
                continue
            row = self._write_judgment(work, device, judgment, stored.get(subject, _NO_CONDITION), devices)
            if row is None:
                removed.append(subject)
            else:
                rows.append((rule, subject, *row))
        if work.share is None:
            rows += self._write_width(work, stored.get(FLEET))
        bulk.upsert_rows(self._connection, alarm_condition, rows, on_conflict=_UPSERT)
        bulk.execute_many(self._connection, _DELETE, [(rule, each) for each in removed if each in stored])

    def _write_judgment(
        self,
        work: RuleWork,
        device: _Device | None,
        original: Judgment | None,
        stored: _StoredCondition,
        devices: Mapping[int, _Device],
    ) -> tuple[object, ...] | None:
        """Open or end the alarm of a judgment. Return the columns of its condition; None for no condition."""
        judgment = None if original is None else replace(original)
        was_member = stored.state in _MEMBERS and stored.alarm is not None
        is_member = judgment is not None and judgment.is_member
        if judgment is not None and was_member != is_member and self._was_away(device, judgment):
            restart(judgment)
            is_member = judgment.is_member
            self.restarted.append((work.rule.id, 0 if device is None else device.id))
        condition = Condition(
            Subject(work.rule.kind, 0 if device is None else device.id),
            None if device is None else device.id,
            None if device is None else device.gateway,
            stored.state if was_member else ConditionState.PENDING,
            since=0 if judgment is None else judgment.since,
            due=None,
            cause=stored.cause,
            alarm=stored.alarm,
        )
        if judgment is None or not is_member:
            if was_member:
                self._end(stored, EndReason.WELL)
                if work.worst is not None:  # the sentence may have named the one that is well
                    facts = self._build_facts(work, device, work.worst[1], devices)
                    self._alarms.worsen(condition, work.rule.severity, facts, updates_facts=True)
            return None if judgment is None else _to_row(device, judgment, None, "")
        facts = self._build_facts(work, device, judgment, devices)
        if was_member:
            self._alarms.touch(condition)
            self._alarms.worsen(condition, work.rule.severity, facts, updates_facts=True)
        else:
            group = _build_group(work.rule, device)
            self._alarms.join(condition, group, work.rule.severity, facts)
        return _to_row(device, judgment, condition.alarm, condition.cause)

    def _write_width(self, work: RuleWork, stored: _StoredCondition | None) -> list[tuple[object, ...]]:
        """Open the alarm of a rule for which too many devices are at fault, or end it."""
        if stored is not None and not work.is_too_wide and stored.state in _MEMBERS:
            self._end(stored, EndReason.WELL)
            bulk.execute_one(self._connection, _DELETE, (work.rule.condition_rule, FLEET))
        if not work.is_too_wide or stored is not None:
            return []
        subject = Subject(work.rule.kind, FLEET)
        condition = Condition(subject, None, None, ConditionState.PENDING, since=self._now, due=None)
        group = AlarmGroup(work.rule.kind, TOO_WIDE, None, work.rule.scope)
        facts = {"rule": work.rule.scope, "name": work.rule.name, "limit": work.limit}
        self._alarms.join(condition, group, work.rule.severity, facts)
        active = ConditionState.ACTIVE
        values = (None, None, str(active), self._now, None, TOO_WIDE, condition.alarm, 1, None)
        return [(work.rule.condition_rule, FLEET, *values)]

    def _end(self, stored: _StoredCondition, reason: EndReason) -> None:
        if stored.alarm is not None:
            self._alarms.touch_alarm(stored.alarm, reason)

    def _was_away(self, device: _Device | None, judgment: Judgment) -> bool:
        """Return whether a device was disconnected while the time of its judgment ran."""
        since = judgment.since if judgment.is_member else judgment.back_at
        if device is None or since is None or since >= judgment.seen:
            return False
        values = (device.id, since, judgment.seen)
        return bool(bulk.query_rows(self._connection, _SELECT_LOSS, values))

    def _build_facts(
        self, work: RuleWork, device: _Device | None, judgment: Judgment, devices: Mapping[int, _Device]
    ) -> dict[str, Any]:
        """Return the numbers and names of the sentence of an alarm."""
        rule = work.rule
        facts: dict[str, Any] = {"rule": rule.scope, "name": rule.name, "since": judgment.since}
        if work.share is not None:
            return facts | {
                "label": rule.body.label,
                "share": round(100 * work.share.offline / max(1, work.share.total)),
                "offline": work.share.offline,
                "total": work.share.total,
            }
        if rule.is_grouped and work.worst is not None:
            device, judgment = devices.get(work.worst[0], device), work.worst[1]
        when = rule.body.when
        assert when is not None and device is not None  # noqa: S101, PT018 # a rule for values of devices
        return facts | {
            "device": to_device_id(mac_from_int(device.id)),
            "deviceName": device.name,
            "identifier": when.identifier,
            "operator": str(when.operator),
            "value": judgment.peak if rule.is_grouped else judgment.value,
            "threshold": when.value,
            "upper": when.upper,
            "grouped": rule.is_grouped,
        }


def end_changed_rules(connection: Connection, alarms: AlarmTable) -> None:
    """End the conditions of rules of users that were changed, disabled or deleted."""
    for rule in rule_store.load_user_rules(connection):
        if rule.applied_version == rule.version and not rule.is_deleted:
            continue
        reason = EndReason.RULE_CHANGED if rule.is_enabled else EndReason.RULE_DISABLED
        reason = EndReason.RULE_DELETED if rule.is_deleted else reason
        numbers = [row[0] for row in bulk.query_rows(connection, _SELECT_ALARMS, (rule.condition_rule,))]
        alarms.load_all(numbers)
        for number in numbers:
            alarms.touch_alarm(number, reason)
        bulk.execute_one(connection, _DELETE_RULE, (rule.condition_rule,))


def _build_group(rule: UserRule, device: _Device | None) -> AlarmGroup:
    if device is None:
        return AlarmGroup(Rule.LABEL_OFFLINE, "share", None, rule.scope)
    assert rule.body.when is not None  # noqa: S101 # a rule for values of devices
    cause = str(rule.body.when.operator)
    if rule.is_grouped:
        return AlarmGroup(Rule.MEASUREMENT, cause, None, rule.scope)
    return AlarmGroup(Rule.MEASUREMENT, cause, device.gateway, f"{rule.scope}:{mac_from_int(device.id)}")


def _to_row(device: _Device | None, judgment: Judgment, alarm: int | None, cause: str) -> tuple[object, ...]:
    """Return the columns of a condition after its rule and subject.

    Only `due` of what has ended is stored: time alone never moves the other states.
    """
    is_quiet = judgment.state is ConditionState.QUIET
    return (
        None if device is None else device.id,
        None if device is None else device.gateway,
        str(judgment.state),
        judgment.since,
        judgment.remembered_until if is_quiet else None,
        cause,
        alarm,
        judgment.opens,
        judgment.remembered_until,
    )
