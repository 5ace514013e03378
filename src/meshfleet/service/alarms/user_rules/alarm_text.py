"""Sentences of the alarms of rules of users, and what to do about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from meshfleet.rest.alarm_rules import RuleOperator
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.user_rules.definition import format_value, name_identifier
from meshfleet.service.alarms.wording import count, format_span

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECOND_MS: Final = 1000


def describe_values(facts: Mapping[str, Any], *, members: int, is_over: bool, length: str) -> str:
    """Describe an alarm of a rule for values."""
    if "limit" in facts:
        if is_over:
            return f"The rule {facts['name']} matches fewer devices again."
        return f"More than {facts['limit']:,} devices match; the rule {facts['name']} is too wide."
    who, condition = facts["deviceName"], _describe_condition(facts)
    if is_over:
        subject = who if members == 1 else count(members, "device")
        verb = "is" if members == 1 else "are"
        return f"{subject} {verb} well again after {length} ({facts['name']}: {condition})."
    since = _format_time(facts["since"])
    if members > 1:
        worst = "" if facts["value"] is None else f"; the worst, {who}, {_describe_value(facts)}"
        return f"{count(members, 'device')}: {condition}{worst}."
    match facts["operator"]:
        case RuleOperator.SILENT_FOR:
            what = f" has not reported {name_identifier(facts['identifier'])}"
        case RuleOperator.EQUALS | RuleOperator.CHANGES_TO:
            what = f": {condition}"
        case _:
            what = f" {_describe_value(facts)}, {_describe_limit(facts)}"
    return f"{who}{what} since {since}."


def describe_share(facts: Mapping[str, Any], *, is_over: bool, length: str) -> str:
    """Describe an alarm of a rule for a label."""
    if is_over:
        return f"Enough of {facts['label']} is online again after {length}."
    return f"{facts['share']} % of {facts['label']} is offline ({facts['offline']} of {facts['total']})."


def choose_value_action(facts: Mapping[str, Any]) -> AlarmAction:
    """Return what to do about an alarm of a rule for values."""
    if "limit" in facts:
        return AlarmAction(
            code="change-rule", text="Name labels or models in the rule.", href="/settings/alarm-rules"
        )
    return AlarmAction(code="check-device", text="Look at its values.", href=f"/devices/{facts['device']}")


def choose_share_action(_facts: Mapping[str, Any]) -> AlarmAction:
    """Return what to do about an alarm of a rule for a label."""
    return AlarmAction(code="check-devices", text="Look at which devices are offline.", href="/devices")


def _describe_condition(facts: Mapping[str, Any]) -> str:
    name = name_identifier(facts["identifier"])
    if facts["operator"] == RuleOperator.SILENT_FOR:
        return f"no {name} for {format_span(int(float(facts['threshold']) * _SECOND_MS))}"
    if facts["operator"] in {RuleOperator.EQUALS, RuleOperator.CHANGES_TO}:
        return f"{name} is {format_value(facts['threshold'], facts['identifier'])}"
    return f"{name} is {_describe_limit(facts)}"


def _describe_value(facts: Mapping[str, Any]) -> str:
    return f"is at {format_value(facts['value'], facts['identifier'])}"


def _describe_limit(facts: Mapping[str, Any]) -> str:
    limit = format_value(facts["threshold"], facts["identifier"])
    if facts["operator"] == RuleOperator.OUTSIDE:
        return f"outside {limit} to {format_value(facts['upper'], facts['identifier'])}"
    return f"{facts['operator']} {limit}"


def _format_time(time: int) -> str:
    """Format a time of UTC with its day: an alarm may be read days later."""
    moment = datetime.fromtimestamp(time / _SECOND_MS, UTC)
    return f"{moment:%H:%M} UTC on {moment.day} {moment:%B}"
