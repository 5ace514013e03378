"""REST routes of rules of alarms: `/api/v1/alarm-rules`."""

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody, SkipValidation

from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore
from meshfleet.rest.alarm_rules import (
    ALARM_RULES_PATH,
    AlarmRuleBody,
    AlarmRuleList,
    NewAlarmRule,
    RulePreview,
    RulePreviewRequest,
)
from meshfleet.service.actor import Actor
from meshfleet.service.alarms import rule_store
from meshfleet.service.alarms.user_rules import preview
from meshfleet.service.clock import Now
from meshfleet.service.http.request import decode_segment


@get()
async def list_alarm_rules(database: Given[Database]) -> AlarmRuleList:
    """List all rules: the built-in ones, then those of users in the order of their creation."""
    return await database.read(rule_store.list_rules)


@post(problems=(409,))
async def create_alarm_rule(
    data: JSONBody[NewAlarmRule], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> AlarmRuleBody:
    """Create a rule of the kind `measurement` or `label-offline`."""
    return await database.write(rule_store.create_rule, data, by=actor, now=now())


@get("/{rule_id:str}")
async def show_alarm_rule(rule_id: FromPath[str], database: Given[Database]) -> AlarmRuleBody:
    """Show a rule."""
    return await database.read(rule_store.load_rule, decode_segment(rule_id))


@put("/{rule_id:str}", problems=(409, 412))
async def change_alarm_rule(
    rule_id: FromPath[str],
    data: JSONBody[NewAlarmRule],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> AlarmRuleBody:
    """Replace the settings of a rule. Its alarms end. A built-in rule requires the role admin."""
    return await database.write(rule_store.replace_rule, decode_segment(rule_id), data, by=actor, now=now())


@delete("/{rule_id:str}", problems=(409,))
async def remove_alarm_rule(
    rule_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> None:
    """Delete a rule of a user. Its alarms end."""
    await database.write(rule_store.delete_rule, decode_segment(rule_id), by=actor, now=now())


@post("/{rule_id:str}/reset", status_code=200, problems=(409,))
async def reset_alarm_rule(
    rule_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> AlarmRuleBody:
    """Give a built-in rule its defaults. This requires the role admin."""
    return await database.write(rule_store.reset_rule, decode_segment(rule_id), by=actor, now=now())


@post("/preview", status_code=200)
async def preview_alarm_rule(
    data: JSONBody[RulePreviewRequest],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    now: Given[Now],
) -> RulePreview:
    """Say what a rule would have found in the samples of the last seven days. Nothing is stored."""
    return await preview.preview_rule(database, samples, data.rule, now=now())


router = Router(
    ALARM_RULES_PATH,
    route_handlers=[
        list_alarm_rules,
        create_alarm_rule,
        show_alarm_rule,
        change_alarm_rule,
        remove_alarm_rule,
        reset_alarm_rule,
        preview_alarm_rule,
    ],
    tags=["Alarms"],
)
