"""Effects of a change of a built-in rule on its conditions and alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.alarms.alarm_records import EndReason
from meshfleet.service.alarms.builtin_rules import CONNECTION_RULES
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.alarms.alarms import AlarmTable
    from meshfleet.service.alarms.builtin_rules import RuleChange
    from meshfleet.service.alarms.conditions import Condition, ConditionTable
    from meshfleet.service.alarms.rules import AlarmTimes


def end_changed_rules(
    conditions: ConditionTable,
    alarms: AlarmTable,
    changes: Mapping[Rule, RuleChange],
    now: int,
    times: AlarmTimes,
) -> frozenset[Rule]:
    """End the conditions of rules that were changed or disabled. Return the disabled ones.

    A fault that is still there opens its alarm again when it has lasted for the new time.
    """
    for rule, change in changes.items():
        if change.is_enabled and not change.needs_end:
            continue
        reason = EndReason.RULE_CHANGED if change.is_enabled else EndReason.RULE_DISABLED
        for condition in conditions.load_rule(rule):
            if rule is Rule.GATEWAYS_LOST:
                _release_gateways(conditions, alarms, condition, now, times)
            if rule in CONNECTION_RULES and rule is not Rule.GATEWAYS_LOST:
                due = max(now, condition.since + _get_wait(rule, times)) if change.is_enabled else None
                _detach(alarms, condition, reason, now, due)
            else:
                alarms.touch(condition, reason)
                conditions.remove(condition)
    return frozenset(rule for rule, change in changes.items() if not change.is_enabled)


def _release_gateways(
    conditions: ConditionTable, alarms: AlarmTable, fleet: Condition, now: int, times: AlarmTimes
) -> None:
    """Give the gateways of a common alarm alarms of their own, if they are still away."""
    for each in conditions.load_rule(Rule.GATEWAY_OFFLINE):
        if fleet.alarm is not None and each.alarm == fleet.alarm:
            _detach(alarms, each, None, now, max(now, each.since + times.gateway_offline))


def _detach(
    alarms: AlarmTable, condition: Condition, reason: EndReason | None, now: int, due: int | None
) -> None:
    """Let a condition leave its alarm. What was only watched is over; what is at fault waits until `due`."""
    alarms.touch(condition, reason)
    if condition.state is ConditionState.CLEARING:
        condition.end(now)
    else:
        condition.state, condition.due, condition.alarm = ConditionState.PENDING, due, None


def _get_wait(rule: Rule, times: AlarmTimes) -> int:
    return times.gateway_offline if rule is Rule.GATEWAY_OFFLINE else times.device_offline
