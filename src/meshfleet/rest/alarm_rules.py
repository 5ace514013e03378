"""JSON bodies of the REST API: rules of alarms, built-in ones and those of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # msgspec reads it
from enum import StrEnum
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from meshfleet.rest.alarms import AlarmSeverity  # noqa: TC001 # msgspec reads it
from meshfleet.rest.bodies import DeviceIdText, RequestBody, ResponseBody, TimeText

ALARM_RULES_PATH: Final = "/api/v1/alarm-rules"
RULE_PREVIEW_PATH: Final = f"{ALARM_RULES_PATH}/preview"

MAX_USER_RULES: Final = 1000
"""Maximum number of rules of users."""
MAX_LABEL_RULES: Final = 100
"""Maximum number of rules of the kind `label-offline`: each counts the devices of its label every minute."""
MAX_SCOPE_NAMES: Final = 50
MAX_RULE_SECONDS: Final = 7 * 86_400
"""Longest time for which a fault must last, or be gone."""
MAX_SILENCE_SECONDS: Final = 30 * 86_400
MIN_SILENCE_SECONDS: Final = 60

RuleIdText = Annotated[str, Meta(pattern="^(rule-[1-9][0-9]*|[a-z-]+)$")]
RuleSeconds = Annotated[int, Meta(ge=0, le=MAX_RULE_SECONDS)]
RuleNames = Annotated[Sequence[Annotated[str, Meta(max_length=200)]], Meta(max_length=MAX_SCOPE_NAMES)]
RuleValue = float | int | bool | Annotated[str, Meta(max_length=200)]


class RuleOperator(StrEnum):
    """Comparison of a reported value with that of a rule (rest-285)."""

    ABOVE = "above"
    BELOW = "below"
    OUTSIDE = "outside"
    """Below `value` or above `upper`."""
    EQUALS = "equals"
    CHANGES_TO = "changes-to"
    """The value is `value`, and the one before was another."""
    SILENT_FOR = "silent-for"
    """No value for `value` seconds, although the device is connected."""


class RulePart(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base class of the parts of a rule. Responses contain all fields, including defaults."""


class RuleCondition(RulePart, frozen=True, kw_only=True):
    """Comparison of reported values by a rule of the kind `measurement`."""

    identifier: Annotated[str, Meta(min_length=1, max_length=100)]
    """Hex id or name."""
    operator: RuleOperator
    value: RuleValue
    upper: float | int | None = None
    """Upper limit of `outside`."""
    clear_value: float | int | None = None
    """Value beyond which `above` and `below` are well again; null for `value` itself."""


class RuleScope(RulePart, frozen=True, kw_only=True):
    """Devices that a rule is for. Absent fields match all."""

    labels: RuleNames = ()
    """Labels of which a device has at least one."""
    except_labels: RuleNames = ()
    """Labels of which a device has none."""
    models: RuleNames = ()
    """Model numbers, such as `0018`."""

    @property
    def is_empty(self) -> bool:
        """Whether the rule is for all devices."""
        return not (self.labels or self.except_labels or self.models)


class NewAlarmRule(RequestBody, frozen=True, kw_only=True):
    """Request to create a rule, or to replace the settings of one (rest-284)."""

    kind: Annotated[str, Meta(min_length=1, max_length=100)]
    """`measurement` or `label-offline`; in a change, that of the rule."""
    name: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    """Name of a rule of a user. Built-in rules keep theirs."""
    enabled: bool = True
    severity: AlarmSeverity | None = None
    """Severity of a rule of a user, by default `warning`. Built-in rules choose it by the fault."""
    for_seconds: RuleSeconds | None = None
    """Time for which a fault must last before its alarm opens; absent for the default."""
    clear_seconds: RuleSeconds | None = None
    """Time for which all must be well before the alarm ends; absent for the default."""
    thresholds: Mapping[str, float | int] = field(default_factory=dict)
    """Numbers of a built-in rule by their names; those that are absent get their defaults."""
    when: RuleCondition | None = None
    scope: RuleScope = RuleScope()
    group_by: Literal["device", "rule"] = "device"
    """Whether each device has an alarm of its own, or all of a rule have one in common."""
    label: Annotated[str, Meta(max_length=200)] | None = None
    """Label of `label-offline`."""
    share_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Share of the devices of a label from which on `label-offline` opens an alarm."""
    version: int | None = None
    """In a change: version that is replaced. 412 `version-conflict` if there is a newer one."""


class RuleConditionView(RuleCondition, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`RuleCondition` in responses; unlike in requests, unknown fields are ignored."""


class RuleScopeView(RuleScope, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`RuleScope` in responses; unlike in requests, unknown fields are ignored."""


class AlarmRuleBody(ResponseBody, frozen=True, kw_only=True):
    """Rule of alarms: a built-in one, or one of a user (rest-284)."""

    id: RuleIdText
    """`rule-N`, or the kind of a built-in rule."""
    builtin: bool
    kind: str
    name: str
    enabled: bool
    severity: AlarmSeverity | None
    """Null for a built-in rule, which chooses it by the fault."""
    for_seconds: int | None
    """Null if the rule has no such time, or chooses it itself."""
    clear_seconds: int | None
    thresholds: dict[str, float | int]
    when: RuleConditionView | None
    scope: RuleScopeView | None
    group_by: Literal["device", "rule"] | None
    label: str | None
    share_percent: int | None
    sentence: str
    """The rule in plain words."""
    changed: bool
    """Whether a built-in rule differs from its defaults."""
    version: int
    updated_by: str | None
    updated_at: TimeText | None


class AlarmRuleList(ResponseBody, frozen=True, kw_only=True):
    """All rules: the built-in ones, then those of users in the order of their creation."""

    items: list[AlarmRuleBody]


class RulePreviewRequest(RequestBody, frozen=True, kw_only=True):
    """Request to try a rule with samples of the last seven days (rest-288)."""

    rule: NewAlarmRule


class RulePreviewExample(ResponseBody, frozen=True, kw_only=True):
    """Time in which a device would have been a member of an alarm."""

    device: DeviceIdText
    name: str
    since: TimeText = field(name="from")
    until: TimeText | None = field(name="to")
    """Null if it still would be."""
    peak: float | int | str | bool | None
    """Worst value in this time; null for `silent-for`."""


class RulePreview(ResponseBody, frozen=True, kw_only=True):
    """Result of a rule that is tried with stored samples (rest-288)."""

    matches: int
    """Number of checked devices that would be members of an alarm now."""
    scope_size: int
    """Number of devices that the rule is for."""
    would_have_opened: int
    """How often a checked device would have become a member of an alarm."""
    examples: list[RulePreviewExample]
    """At most 10, the newest first."""
    checked: int
    """Number of devices whose samples were looked at."""
    exact: bool
    """Whether all devices and all samples of seven days were looked at."""
    sentence: str
