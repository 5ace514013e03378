"""Rules of users as they are evaluated, and as they are said in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.rest.alarm_rules import NewAlarmRule, RuleOperator
from meshfleet.rest.alarms import AlarmSeverity
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.alarms.user_rules.state_machine import Threshold, Timing, Value, to_threshold
from meshfleet.service.alarms.wording import format_span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.rest.alarm_rules import RuleCondition

DEFAULT_SECONDS: Final = 300
"""Time for which a fault must last, or be gone, if a rule does not say."""
CLEAR_POINTS: Final = 5
"""Points in percent by which `label-offline` must be better before it is well."""
_MAX_DIGITS: Final = 4

decode_body = msgspec.json.Decoder(NewAlarmRule).decode


class UserRule(NamedTuple):
    """Rule of a user."""

    id: int
    kind: Rule
    body: NewAlarmRule
    is_enabled: bool
    version: int
    applied_version: int
    is_deleted: bool

    @property
    def name(self) -> str:
        """Name that the user gave."""
        return self.body.name or self.condition_rule

    @property
    def condition_rule(self) -> str:
        """Value of the column `rule` of its conditions."""
        return f"{self.kind}/{self.id}"

    @property
    def scope(self) -> str:
        """Beginning of the part of the keys of its alarms that says whose they are."""
        return f"rule-{self.id}"

    @property
    def severity(self) -> Severity:
        """Severity of its alarms."""
        return Severity[(self.body.severity or AlarmSeverity.WARNING).name]

    @property
    def timing(self) -> Timing:
        """Times in milliseconds."""
        wait, back = self.body.for_seconds, self.body.clear_seconds
        return Timing(
            1000 * (DEFAULT_SECONDS if wait is None else wait),
            1000 * (DEFAULT_SECONDS if back is None else back),
        )

    @property
    def has_scope(self) -> bool:
        """Whether the rule is only for devices with certain labels or of certain models."""
        return bool(self.body.scope.labels or self.body.scope.models)

    @property
    def is_grouped(self) -> bool:
        """Whether all devices have one alarm in common."""
        return self.body.group_by == "rule"

    @property
    def threshold(self) -> Threshold:
        """Comparison with the threshold: of values, or of the share of devices that are offline."""
        if self.body.when is not None:
            return to_threshold(self.body.when)
        share = self.body.share_percent or 0
        # A share of exactly this is a fault, and so is one that is not better by some points.
        return Threshold(RuleOperator.ABOVE, share - 0.001, clear_value=share - CLEAR_POINTS)

    @property
    def is_for_silence(self) -> bool:
        """Whether the rule is for values that are missing."""
        return self.body.when is not None and self.body.when.operator is RuleOperator.SILENT_FOR

    @property
    def identifier(self) -> int:
        """Number of the identifier in samples."""
        return -1 if self.body.when is None else parse_identifier_number(self.body.when.identifier)


def parse_identifier_number(text: str) -> int:
    """Return the stored number of an identifier that is given by its hex id or its name."""
    entry = BUILTIN_CATALOGUE.find(text)
    return identifier_to_int(text if entry is None else entry.id)  # type: ignore[arg-type] # checked when it was written


# --- Words ---


def name_identifier(text: str) -> str:
    """Return the name of an identifier, or its hex id if it has none."""
    entry = BUILTIN_CATALOGUE.find(text)
    return text if entry is None else entry.name


def format_value(value: Value | None, identifier: str) -> str:
    """Format a value with the unit of its identifier, such as `-15 °C`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, str):
        return "unknown" if value is None else value
    text = str(value) if isinstance(value, int) else f"{round(value, _MAX_DIGITS):g}"
    entry = BUILTIN_CATALOGUE.find(identifier)
    return f"{text} {entry.unit}" if entry is not None and entry.unit else text


def describe_rule(body: NewAlarmRule, kind: str) -> str:
    """Say a rule of a user in plain words."""
    wait = _format_time(body.for_seconds)
    severity = body.severity or AlarmSeverity.WARNING
    article = "an" if severity is AlarmSeverity.INFO else "a"
    opens = f"{article} {severity} alarm opens"
    if kind == Rule.LABEL_OFFLINE:
        return (
            f"When {body.share_percent} % or more of the devices labeled {body.label} are offline for {wait},"
            f" {opens}."
        )
    assert body.when is not None  # noqa: S101 # checked when the rule was written
    who = _describe_scope(body.scope.labels, body.scope.models, body.scope.except_labels)
    if body.when.operator is RuleOperator.SILENT_FOR:
        name = name_identifier(body.when.identifier)
        silence = format_span(int(float(body.when.value) * 1000))
        return f"When {name} was not reported for {silence} by {who} that is connected, {opens}."
    lasting = f" for {wait}" if body.for_seconds else ""
    return f"When {describe_condition(body.when)}{lasting} on {who}, {opens}{_describe_end(body)}."


def describe_condition(when: RuleCondition) -> str:
    """Say what a rule compares, such as `temperature is above -15 °C`."""
    name, value = name_identifier(when.identifier), format_value(when.value, when.identifier)
    match when.operator:
        case RuleOperator.OUTSIDE:
            return f"{name} is below {value} or above {format_value(when.upper, when.identifier)}"
        case RuleOperator.EQUALS:
            return f"{name} is {value}"
        case RuleOperator.CHANGES_TO:
            return f"{name} changes to {value}"
        case _:
            return f"{name} is {when.operator} {value}"


def _describe_end(body: NewAlarmRule) -> str:
    when = body.when
    if when is None or when.clear_value is None:
        return f"; it ends after {_format_time(body.clear_seconds)} without"
    side = "or less" if when.operator is RuleOperator.ABOVE else "or more"
    limit = format_value(when.clear_value, when.identifier)
    return f"; it ends after {_format_time(body.clear_seconds)} at {limit} {side}"


def _describe_scope(labels: Sequence[str], models: Sequence[str], except_labels: Sequence[str]) -> str:
    parts = ["a device"]
    if labels:
        parts.append(f"labeled {' or '.join(labels)}")
    if models:
        parts.append(f"of model {' or '.join(models)}")
    if except_labels:
        parts.append(f"not labeled {' or '.join(except_labels)}")
    return "any device" if len(parts) == 1 else " ".join(parts)


def _format_time(seconds: int | None) -> str:
    return format_span(1000 * (DEFAULT_SECONDS if seconds is None else seconds))


SEVERITIES: Final[Mapping[Severity, AlarmSeverity]] = {each: AlarmSeverity[each.name] for each in Severity}
