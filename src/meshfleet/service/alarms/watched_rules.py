"""Rules of watches in one evaluation: what a watch finds becomes conditions, and these open alarms."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from meshfleet.errors import FleetError
from meshfleet.errors.protocol import MalformedInput
from meshfleet.service.alarms.alarms import AlarmGroup, mark_well
from meshfleet.service.alarms.conditions import Condition, ConditionState, Subject
from meshfleet.service.alarms.watches.watch import Sight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from meshfleet.service.alarms.alarms import AlarmTable
    from meshfleet.service.alarms.conditions import ConditionTable
    from meshfleet.service.alarms.parking import ParkedDevices
    from meshfleet.service.alarms.rules import Rule
    from meshfleet.service.alarms.watches.watch import Fault, ServiceFacts, Watch

_log = logging.getLogger(__name__)


class WatchedRules:
    """Compares what watches find with the stored conditions of their rules."""

    def __init__(  # noqa: PLR0913 # keyword-only after the tables
        self,
        connection: Connection,
        now: int,
        conditions: ConditionTable,
        alarms: AlarmTable,
        *,
        parked: ParkedDevices,
        service: ServiceFacts | None,
        failing: set[Rule],
    ) -> None:
        """Create for an evaluation. `failing` are the rules whose watches have a defect; it is updated."""
        self._connection = connection
        self._now = now
        self._conditions = conditions
        self._alarms = alarms
        self._parked = parked
        self._service = service
        self._failing = failing
        self._faults: dict[Subject, Fault] = {}
        """Faults that watches have found now."""

    def apply(self, watch: Watch) -> None:
        """Compare what a watch finds with the stored conditions of its rule."""
        known = {each.subject.number: each for each in self._conditions.load_rule(watch.rule)}
        faults = self._find_faults(watch, known)
        if faults is None:
            return
        self._conditions.load_subjects(sorted(faults.keys() - known.keys()))
        changing = (known.get(number) for number, fault in faults.items() if fault.changes_alarm)
        self._alarms.load_all(
            {each.alarm for each in changing if each is not None and each.alarm is not None}
        )
        for fault in faults.values():
            self._apply_fault(watch, fault)
        for number, condition in known.items():
            if number not in faults and condition.is_at_fault:
                mark_well(self._conditions, self._alarms, condition.subject, self._now, delay=watch.back)

    def _find_faults(self, watch: Watch, known: Mapping[int, Condition]) -> dict[int, Fault] | None:
        """Return what a watch finds, by the number of the subject; None if that is not known now.

        A defect of one watch must not stop all rules. Errors of the database are raised: after one of them
        PostgreSQL executes nothing more in this transaction.
        """
        try:
            sight = Sight(self._connection, self._now, known, self._service, watch.thresholds_in_force)
            found = watch.find(sight)
            faults = None if found is None else {each.number: each for each in found}
            parked = self._parked.find({each.device for each in (faults or {}).values() if each.device})
            if parked and faults is not None:
                faults = {number: each for number, each in faults.items() if each.device not in parked}
        except Exception as exc:
            if isinstance(exc, FleetError | SQLAlchemyError) and not isinstance(exc, MalformedInput):
                raise
            if watch.rule not in self._failing:
                self._failing.add(watch.rule)
                _log.exception(
                    "alarms of the rule %s cannot be evaluated: internal error; other rules are not affected",
                    watch.rule,
                )
            return None
        self._failing.discard(watch.rule)
        return faults

    def _apply_fault(self, watch: Watch, fault: Fault) -> None:
        subject = Subject(watch.rule, fault.number)
        self._faults[subject] = fault
        condition = self._conditions.find(subject)
        due = max(self._now, fault.since + watch.wait) if fault.is_certain else None
        if condition is None:
            pending = ConditionState.PENDING
            condition = Condition(subject, fault.device, fault.gateway, pending, since=fault.since, due=due)
            self._conditions.add(condition)
        elif condition.state is ConditionState.ACTIVE:
            if fault.changes_alarm:
                self._alarms.worsen(condition, fault.severity, fault.facts, updates_facts=fault.updates_facts)
        elif condition.state is ConditionState.PENDING:
            if condition.due is None or not fault.is_certain:
                condition.due = due
        elif fault.is_certain or condition.state is ConditionState.QUIET:
            condition.mark_faulty(fault.since, due)
            condition.gateway = fault.gateway
            self._alarms.touch(condition)

    def judge(self, condition: Condition) -> None:
        """Open the alarm of a fault that a watch has found now. Without a look nothing is known."""
        fault = self._faults.get(condition.subject)
        if fault is not None:
            group = AlarmGroup(condition.subject.rule, fault.cause, fault.gateway, fault.scope)
            self._alarms.join(condition, group, fault.severity, fault.facts)
