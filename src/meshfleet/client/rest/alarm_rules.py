"""`fleet.alarm_rules`: what is an alarm, and for how long it must last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from meshfleet.client.arguments import check_text
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.alarm_rules import (
    ALARM_RULES_PATH,
    RULE_PREVIEW_PATH,
    AlarmRuleBody,
    AlarmRuleList,
    NewAlarmRule,
    RuleCondition,
    RulePreview,
    RulePreviewRequest,
    RuleScope,
)
from meshfleet.rest.paths import alarm_rule_path

if TYPE_CHECKING:
    from collections.abc import Sequence


class AlarmRules(RestResource):
    """Rules of alarms: built-in ones, which admins change, and those of users.

    Methods accept the id of a rule (`rule-3`, or the name of a built-in rule such as `battery-low`) or an
    `AlarmRuleBody` object.
    """

    async def list(self) -> Sequence[AlarmRuleBody]:
        """List the built-in rules, then those of users in the order of their creation."""
        return (await self._caller.get(AlarmRuleList, ALARM_RULES_PATH)).items

    async def show(self, rule: str | AlarmRuleBody) -> AlarmRuleBody:
        """Return a rule."""
        return await self._caller.get(AlarmRuleBody, alarm_rule_path(to_rule_id(rule)))

    async def create(self, rule: NewAlarmRule) -> AlarmRuleBody:
        """Create a rule of the kind `measurement` or `label-offline`."""
        return await self._caller.post(AlarmRuleBody, ALARM_RULES_PATH, rule)

    async def replace(self, rule: str | AlarmRuleBody, new: NewAlarmRule) -> AlarmRuleBody:
        """Replace the settings of a rule. Its alarms end. Built-in rules need the role admin."""
        return await self._caller.put(AlarmRuleBody, alarm_rule_path(to_rule_id(rule)), new)

    async def change(self, rule: str | AlarmRuleBody, /, **changes: Any) -> AlarmRuleBody:
        """Change some fields of a rule, such as `enabled=False` or `for_seconds=900`. Its alarms end.

        Of `thresholds`, those that are not given stay.
        Raise `VersionConflict` if someone else changes it at the same time.
        """
        present = await self.show(rule)
        if "thresholds" in changes:
            changes["thresholds"] = {**present.thresholds, **changes["thresholds"]}
        try:
            new = msgspec.structs.replace(to_request(present), **changes)
        except TypeError as exc:
            raise MalformedInput("changes", str(exc)) from None
        return await self.replace(present, new)

    async def reset(self, rule: str | AlarmRuleBody) -> AlarmRuleBody:
        """Give a built-in rule its defaults. This needs the role admin."""
        return await self._caller.post(AlarmRuleBody, f"{alarm_rule_path(to_rule_id(rule))}/reset")

    async def delete(self, rule: str | AlarmRuleBody) -> None:
        """Delete a rule of a user. Its alarms end. Raise `BuiltinRule` for a built-in rule."""
        await self._caller.delete(alarm_rule_path(to_rule_id(rule)))

    async def preview(self, rule: NewAlarmRule) -> RulePreview:
        """Say what a rule would have found in the samples of the last seven days. Nothing is stored."""
        return await self._caller.post(RulePreview, RULE_PREVIEW_PATH, RulePreviewRequest(rule=rule))


def to_rule_id(rule: str | AlarmRuleBody) -> str:
    """Return the id of a rule that is given as its id or as an object."""
    return rule.id if isinstance(rule, AlarmRuleBody) else check_text(rule, "rule")


def to_request(rule: AlarmRuleBody) -> NewAlarmRule:
    """Return the request that would leave a rule as it is."""
    when, scope = rule.when, rule.scope
    return NewAlarmRule(
        kind=rule.kind,
        name=rule.name,
        enabled=rule.enabled,
        severity=rule.severity,
        for_seconds=rule.for_seconds,
        clear_seconds=rule.clear_seconds,
        thresholds=rule.thresholds,
        when=None if when is None else RuleCondition(**msgspec.structs.asdict(when)),
        scope=RuleScope() if scope is None else RuleScope(**msgspec.structs.asdict(scope)),
        group_by=rule.group_by or "device",
        label=rule.label,
        share_percent=rule.share_percent,
        version=rule.version,
    )
