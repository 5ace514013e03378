"""Evaluation of the built-in rules: turns changes of connections, faults and time into alarms."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.db import bulk
from meshfleet.service.alarms import progress, rule_changes
from meshfleet.service.alarms.absences import compute_patience, find_last_loss
from meshfleet.service.alarms.alarm_records import EndReason
from meshfleet.service.alarms.alarms import AlarmGroup, AlarmTable, mark_well
from meshfleet.service.alarms.conditions import (
    FLEET,
    Condition,
    ConditionState,
    ConditionTable,
    Subject,
    shift_times,
)
from meshfleet.service.alarms.diagnosis import EXPECTED_CAUSES, find_cause, load_facts
from meshfleet.service.alarms.parking import ParkedDevices
from meshfleet.service.alarms.progress import Progress
from meshfleet.service.alarms.relays import RelayRule
from meshfleet.service.alarms.rules import (
    GATEWAYS_BACK_PERCENT,
    GATEWAYS_LOST_PERCENT,
    MIN_GATEWAYS_LOST,
    SERVICE_RULES,
    AlarmTimes,
    Rule,
    Severity,
)
from meshfleet.service.alarms.watched_rules import WatchedRules
from meshfleet.service.presence.changes import PresenceCause
from meshfleet.service.presence.last_seen import DEFAULT_INTERVAL_MS, MISSED_HEARTBEATS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.alarms.builtin_rules import RuleChange
    from meshfleet.service.alarms.progress import ConnectionChange
    from meshfleet.service.alarms.watches.watch import ServiceFacts, Watch

_MAX_DUE: Final = 2_000
"""Maximum number of conditions whose time has come that one evaluation handles."""
_MAX_COUNTED: Final = 50
"""Maximum number of lost gateways whose devices are counted again in each evaluation."""
_KEPT_RULES: Final = frozenset({Rule.GATEWAY_OFFLINE, Rule.DEVICE_OFFLINE})
"""Rules whose faults are not found again: they are kept while the device is parked."""
_ALWAYS_LOADED: Final = frozenset({Rule.GATEWAY_OFFLINE, Rule.RELAY_LOST})
"""Rules whose conditions each evaluation needs."""
_RULE_ORDER: Final = {rule: number for number, rule in enumerate(Rule)}

_COUNT_CONNECTED: Final = """
    SELECT count(*) FROM gateway CROSS JOIN device WHERE device.id = gateway.device AND device.connected
"""
_SELECT_MISSING: Final = """
    SELECT device.id, device.connected_at, coalesce(device_state.rhythm, 0)
    FROM device
    LEFT JOIN device_state ON device_state.device = device.id
    LEFT JOIN gateway ON gateway.device = device.id
    WHERE device.gateway = ? AND NOT device.connected AND device.connected_at >= ? AND gateway.device IS NULL
"""
_COUNT_DEPENDANTS: Final = """
    SELECT count(*) FROM device
    WHERE gateway = ? AND id <> ? AND NOT connected AND connected_at >= ?
"""
_SELECT_CONNECTED: Final = """
    SELECT alarm_condition.rule, alarm_condition.subject
    FROM alarm_condition JOIN device ON device.id = alarm_condition.subject
    WHERE alarm_condition.rule IN ('gateway-offline', 'device-offline')
        AND alarm_condition.state IN ('pending', 'active') AND device.connected
"""
_SELECT_RELEASED: Final = """
    SELECT subject FROM alarm_condition
    WHERE rule IN ('gateway-offline', 'gateway-return')
        AND NOT EXISTS (SELECT 1 FROM gateway WHERE gateway.device = alarm_condition.subject)
"""


class RuleExtension(Protocol):
    """Rules that are evaluated in the same transaction, with conditions of their own."""

    def apply(self, connection: Connection, now: int, alarms: AlarmTable, *, is_quiet: bool) -> None:
        """Write what has changed. While it is quiet, no alarm opens or ends."""


def evaluate(  # noqa: PLR0913 # keyword-only after the times
    connection: Connection,
    now: int,
    times: AlarmTimes,
    *,
    is_receiving: bool = True,
    watches: Collection[Watch] = (),
    service: ServiceFacts | None = None,
    failing: set[Rule] | None = None,
    changes: Mapping[Rule, RuleChange] = MappingProxyType({}),
    user_rules: RuleExtension | None = None,
) -> set[int]:
    """Evaluate the rules at a time, a Unix time in milliseconds. Return the row ids of changed alarms.

    Without `is_receiving`, reports could not be received since the last evaluation: no alarm opens or ends
    for a while, except for those about this service. `watches` are those that look at their facts now.
    `service` is None if nothing is known about this service. `failing` are the rules whose watches have a
    defect: it is updated, so that each is logged once. `changes` are built-in rules that were changed.
    """
    evaluation = _Evaluation(connection, now, times, service, set() if failing is None else failing)
    return evaluation.run(watches, changes, user_rules, is_receiving=is_receiving)


class _Evaluation:
    """One evaluation, in one transaction."""

    def __init__(
        self,
        connection: Connection,
        now: int,
        times: AlarmTimes,
        service: ServiceFacts | None,
        failing: set[Rule],
    ) -> None:
        self._connection = connection
        self._now = now
        self._times = times
        self._conditions = ConditionTable(connection)
        self._parked = ParkedDevices(connection)
        self._alarms = AlarmTable(connection, now, times.reopen)
        self._relays = RelayRule(connection, now, times, self._conditions, self._alarms)
        self._watched = WatchedRules(
            connection,
            now,
            self._conditions,
            self._alarms,
            parked=self._parked,
            service=service,
            failing=failing,
        )
        self._judges: dict[Rule, Callable[[Condition], None]] = {
            Rule.GATEWAYS_LOST: self._judge_fleet,
            Rule.GATEWAY_OFFLINE: self._judge_gateway,
            Rule.GATEWAY_RETURN: self._judge_return,
            Rule.DEVICE_OFFLINE: self._judge_device,
            Rule.RELAY_PROBE: self._conditions.remove,  # its result is too old
        }
        self._disabled: frozenset[Rule] = frozenset()
        """Rules of which nothing is an alarm."""

    def run(
        self,
        watches: Collection[Watch],
        changes: Mapping[Rule, RuleChange],
        user_rules: RuleExtension | None,
        *,
        is_receiving: bool,
    ) -> set[int]:
        before = progress.load_progress(self._connection)
        if before is not None and self._now < before.evaluated_at:
            shift_times(self._connection, self._now - before.evaluated_at)
        if before is None:
            batch = progress.load_present_faults(self._connection, self._now)
            quiet_until = self._now + self._times.settling
        else:
            batch = progress.load_changes(self._connection, before.position)
            is_gap = not 0 <= self._now - before.evaluated_at <= self._times.outage
            was_away = is_gap or not is_receiving
            quiet_until = self._now + self._times.settling if was_away else before.quiet_until
        self._conditions.load_rules({*_ALWAYS_LOADED, *(each.rule for each in watches)})
        self._disabled = rule_changes.end_changed_rules(
            self._conditions, self._alarms, changes, self._now, self._times
        )
        self._apply_changes(batch.changes)
        self._compare_with_devices()
        self._remove_released()
        self._apply_parking()
        if Rule.GATEWAYS_LOST not in self._disabled:
            self._check_fleet()
        self._relays.check_roots()
        for watch in watches:
            self._watched.apply(watch)
        if user_rules is not None:
            user_rules.apply(self._connection, self._now, self._alarms, is_quiet=self._now < quiet_until)
        if self._now >= quiet_until:
            self._judge(self._conditions.load_due(self._now, _MAX_DUE))
        else:
            # What is wrong with this service is no consequence of reports that are missing, but their cause.
            for rule in SERVICE_RULES:
                self._judge(self._conditions.load_rule(rule))
        self._conditions.save()
        self._relays.store_facts()
        changed = self._alarms.finish()
        progress.save_progress(self._connection, Progress(batch.position, self._now, quiet_until))
        return changed

    # Changes of connections

    def _apply_changes(self, changes: Sequence[ConnectionChange]) -> None:
        self._conditions.load_subjects({each.device for each in changes})
        lost = {each.device for each in changes if each.is_gateway and not each.connected}
        waiting = self._conditions.load_pending_behind(lost)
        for change in changes:
            if change.is_gateway:
                self._apply_gateway_change(change)
            elif change.cause == PresenceCause.CONNECTION:
                continue  # a gateway that was released meanwhile
            elif change.connected:
                self._mark_well(Subject(Rule.DEVICE_OFFLINE, change.device), self._times.device_back)
            else:
                self._mark_device_silent(change.device, change.time, change.gateway)
        for condition in waiting:
            # Nothing is known about these devices now; they are checked when their gateway has returned.
            if condition.state is ConditionState.PENDING:
                condition.due = None

    def _apply_gateway_change(self, change: ConnectionChange) -> None:
        subject = Subject(Rule.GATEWAY_OFFLINE, change.device)
        check = Subject(Rule.GATEWAY_RETURN, change.device)
        self._remove(Subject(Rule.DEVICE_OFFLINE, change.device), EndReason.WELL)
        if not change.connected:
            self._remove(check, EndReason.WELL)
            self._mark_faulty(
                subject, change.time, change.time + self._times.gateway_offline, gateway=change.device
            )
            return
        known = self._conditions.find(subject)
        if known is not None and known.state in {ConditionState.PENDING, ConditionState.ACTIVE}:
            lost_at: int | None = known.since
        else:
            lost_at = find_last_loss(self._connection, change.device)
        if lost_at is not None:
            self._conditions.add(
                Condition(
                    check,
                    device=change.device,
                    gateway=change.device,
                    state=ConditionState.PENDING,
                    since=lost_at,
                    due=self._now + self._times.return_check,
                )
            )
        self._mark_well(subject, self._times.gateway_back)

    def _mark_device_silent(self, device: int, since: int, gateway: int | None) -> None:
        patience = compute_patience(self._connection, device, self._now, self._times)
        self._mark_faulty(Subject(Rule.DEVICE_OFFLINE, device), since, since + patience, gateway=gateway)

    def _mark_faulty(self, subject: Subject, since: int, due: int, *, gateway: int | None) -> Condition:
        """Record a fault of a subject that opens an alarm if it lasts until `due`."""
        condition = self._conditions.find(subject)
        if condition is None:
            device = subject.number or None
            return self._conditions.add(
                Condition(subject, device, gateway, ConditionState.PENDING, since=since, due=due)
            )
        condition.mark_faulty(since, due)
        condition.gateway = gateway
        self._alarms.touch(condition)
        return condition

    def _mark_well(self, subject: Subject, delay: int) -> None:
        mark_well(self._conditions, self._alarms, subject, self._now, delay=delay)

    def _compare_with_devices(self) -> None:
        """End faults of devices that are connected, whatever the history says: it may have been deleted."""
        rows = bulk.query_rows(self._connection, _SELECT_CONNECTED, ())
        self._conditions.load_subjects([number for _, number in rows])
        for rule, number in rows:
            delay = self._times.gateway_back if rule == Rule.GATEWAY_OFFLINE else self._times.device_back
            condition = self._conditions.find(Subject(Rule(rule), number))
            if condition is not None and condition.state in {ConditionState.PENDING, ConditionState.ACTIVE}:
                self._mark_well(condition.subject, delay)

    def _remove_released(self) -> None:
        """Remove the conditions of gateways that are not claimed any more."""
        released = [row[0] for row in bulk.query_rows(self._connection, _SELECT_RELEASED, ())]
        self._conditions.load_subjects(released)
        for number in released:
            for rule in (Rule.GATEWAY_OFFLINE, Rule.GATEWAY_RETURN):
                self._remove(Subject(rule, number), EndReason.RELEASED)

    def _apply_parking(self) -> None:
        """End what is wrong with parked devices, and look again at those that are not parked any more."""
        self._conditions.load_subjects(sorted({*self._parked.list_at_fault(), *self._parked.list_kept()}))
        parked = self._parked.find(self._conditions.list_devices())
        for each in self._conditions.list_loaded():
            is_ended = each.is_parked or each.state is ConditionState.QUIET
            if each.is_parked and each.device not in parked:
                # Not at once: who has brought it back needs time to switch it on.
                each.unpark(self._now + self._times.device_offline)
            elif each.device in parked and not is_ended and each.subject.rule is not Rule.GATEWAY_RETURN:
                self._alarms.touch(each, EndReason.PARKED)
                if each.subject.rule in _KEPT_RULES and each.is_at_fault:
                    each.park()
                else:
                    self._conditions.remove(each)

    def _remove(self, subject: Subject, reason: EndReason) -> None:
        """Remove a condition, which leaves its alarm for a reason."""
        condition = self._conditions.find(subject)
        if condition is not None:
            self._alarms.touch(condition, reason)
            self._conditions.remove(condition)

    # Many gateways at once

    def _check_fleet(self) -> None:
        """Find out whether many gateways were lost together, or whether most of them are back."""
        lost = [each for each in self._conditions.load_rule(Rule.GATEWAY_OFFLINE) if not each.is_parked]
        if len(lost) <= _MAX_COUNTED:
            for each in lost:
                self._alarms.touch(each)  # devices may have found another gateway meanwhile
        self._conditions.load_subjects([FLEET])
        subject = Subject(Rule.GATEWAYS_LOST, FLEET)
        fleet = self._conditions.find(subject)
        if not lost and fleet is None:
            return
        if fleet is not None and fleet.is_member:
            self._check_fleet_members(fleet, lost)
            return
        recent = [each.since for each in lost if self._is_recent(each) and each.is_at_fault]
        if self._are_many(len(recent)):
            # Counted from now: so many are away only since the last of them was lost.
            self._mark_faulty(subject, min(recent), self._now + self._times.gateways_lost, gateway=None)
        else:
            self._mark_well(subject, self._times.gateway_back)

    def _is_recent(self, condition: Condition) -> bool:
        return condition.since > self._now - self._times.gateways_window

    def _are_many(self, lost: int) -> bool:
        """Return whether so many gateways, lost together, must have a cause in common."""
        connected = int(bulk.query_rows(self._connection, _COUNT_CONNECTED, ())[0][0])
        is_large_share = 100 * lost >= GATEWAYS_LOST_PERCENT * (lost + connected)
        return (lost >= MIN_GATEWAYS_LOST and is_large_share) or (lost > 1 and not connected)

    def _check_fleet_members(self, fleet: Condition, lost: Sequence[Condition]) -> None:
        """Let the common cause end when most gateways are back; a single one has a cause of its own."""
        members = [each for each in lost if each.alarm == fleet.alarm]
        away = [each for each in members if each.state is ConditionState.ACTIVE]
        if fleet.state is ConditionState.CLEARING:
            new = [each for each in lost if each.state is ConditionState.PENDING and self._is_recent(each)]
            if self._are_many(len(away) + len(new)):
                self._mark_faulty(fleet.subject, fleet.since, self._now, gateway=None)
            else:
                for each in away:
                    self._alarms.touch(each)
                    each.detach(self._now, self._now + self._times.gateway_offline)
            return
        record = None if fleet.alarm is None else self._alarms.load(fleet.alarm)
        total = max(len(members), 0 if record is None else record.most_members)
        if len(away) <= 1 or 100 * len(away) <= (100 - GATEWAYS_BACK_PERCENT) * total:
            self._mark_well(fleet.subject, self._times.gateway_back)

    # Time

    def _judge(self, conditions: Iterable[Condition]) -> None:
        """Take the next step of those conditions whose time has come."""
        for condition in sorted(conditions, key=lambda each: (_RULE_ORDER[each.subject.rule], each.due or 0)):
            if condition.due is None or condition.due > self._now:
                continue  # another condition may have changed it meanwhile
            if condition.is_parked or (
                condition.subject.rule in self._disabled and condition.state is ConditionState.PENDING
            ):
                condition.due = None
            elif condition.state is ConditionState.PENDING:
                self._judges.get(condition.subject.rule, self._watched.judge)(condition)
            elif condition.state is ConditionState.CLEARING:
                self._end(condition)
            else:
                self._conditions.remove(condition)

    def _end(self, condition: Condition) -> None:
        """Let a condition leave its alarm, because its subject has been well for long enough."""
        self._alarms.count_remaining(condition)
        self._alarms.touch(condition, EndReason.WELL)
        alarm = condition.alarm
        if condition.subject.rule is Rule.RELAY_LOST:
            self._relays.end(condition)
        condition.end(self._now)
        if condition.subject.rule is not Rule.GATEWAYS_LOST:
            return
        # The common cause is gone: gateways that are still away have a cause of their own.
        for each in self._conditions.load_rule(Rule.GATEWAY_OFFLINE):
            if each.alarm != alarm:
                continue
            if each.state is ConditionState.ACTIVE:
                each.detach(each.since, self._now + self._times.gateway_offline)
            else:
                each.end(self._now)

    def _judge_fleet(self, fleet: Condition) -> None:
        group = AlarmGroup(Rule.GATEWAYS_LOST, "uplink-lost", None)
        self._alarms.join(fleet, group, Severity.CRITICAL)
        for each in self._conditions.load_rule(Rule.GATEWAY_OFFLINE):
            if each.since < fleet.since - self._times.gateways_window or each.is_parked:
                continue
            if each.state is ConditionState.PENDING:
                self._alarms.join(each, group, Severity.CRITICAL)
            elif each.state is ConditionState.ACTIVE:
                self._alarms.merge(each, group)

    def _judge_gateway(self, condition: Condition) -> None:
        fleet = self._conditions.find(Subject(Rule.GATEWAYS_LOST, FLEET))
        if (
            fleet is not None
            and fleet.state is ConditionState.ACTIVE
            and condition.since >= fleet.since - self._times.gateways_window
        ):
            group = AlarmGroup(Rule.GATEWAYS_LOST, "uplink-lost", None)
            self._alarms.join(condition, group, Severity.CRITICAL)
            return
        if fleet is not None and fleet.state is ConditionState.PENDING and fleet.due is not None:
            condition.due = fleet.due  # it may have the same cause
            return
        number = condition.subject.number
        row = bulk.query_rows(self._connection, _COUNT_DEPENDANTS, (number, number, condition.since))[0]
        severity = Severity.CRITICAL if row[0] else Severity.WARNING
        self._alarms.join(condition, AlarmGroup(Rule.GATEWAY_OFFLINE, "no-connection", number), severity)

    def _judge_return(self, check: Condition) -> None:
        """Look for devices that did not come back with their gateway, now that all others are back."""
        self._conditions.remove(check)
        gateway = check.subject.number
        returned_at = (check.due or self._now) - self._times.return_check
        waiting = self._conditions.load_pending_behind([gateway])
        since = min([check.since, *(each.since for each in waiting)])
        missing = bulk.query_rows(self._connection, _SELECT_MISSING, (gateway, since))
        self._conditions.load_subjects([row[0] for row in missing])
        for device, lost_at, rhythm in missing:
            patience = compute_patience(self._connection, device, self._now, self._times)
            grace = min(MISSED_HEARTBEATS * (rhythm or DEFAULT_INTERVAL_MS), self._times.return_max)
            due = max(lost_at + patience, returned_at + grace)
            condition = self._mark_faulty(Subject(Rule.DEVICE_OFFLINE, device), lost_at, due, gateway=gateway)
            # One that was lost after the return has its time already.
            if condition.state is ConditionState.PENDING and lost_at <= returned_at:
                condition.due = due
        for condition in waiting:
            if condition.state is ConditionState.PENDING and condition.due is None:
                condition.due = self._now  # it belongs to another gateway now

    def _judge_device(self, condition: Condition) -> None:
        """Open the alarm of a device, unless its silence is expected, or something above it is away."""
        facts = load_facts(self._connection, condition.subject.number, self._now)
        # What is stored about a lost extender may have changed in this evaluation.
        cause = find_cause(facts._replace(relay=None))
        condition.gateway = facts.gateway
        if cause in EXPECTED_CAUSES:
            condition.due = self._now + self._times.device_offline
        elif facts.gateway is None or not facts.is_gateway_connected:
            condition.due = None  # it is checked again when its gateway is back
        elif Rule.RELAY_LOST in self._disabled or not self._relays.judge(condition, facts.gateway, cause):
            self._alarms.join(
                condition, AlarmGroup(Rule.DEVICE_OFFLINE, cause, facts.gateway), Severity.WARNING
            )
