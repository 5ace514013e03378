"""Built-in rules that an admin has changed: other times, other thresholds, and rules that are off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.rest.alarm_rules import NewAlarmRule
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import engine, rule_store
from meshfleet.service.alarms.builtin_rules import BUILTIN_RULES, change_times, change_watches, find_limits
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.watches.registry import WATCHES
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.alarms.test_batteries import report
from tests.service.alarms.test_watches import list_alarms

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database


class ChangedRules(PresenceLog):
    """Fleet whose evaluation applies what admins have changed, as `AlarmRunner` does."""

    def evaluate(self) -> set[int]:
        """Evaluate the rules now."""
        return self.database.write_now(self._evaluate)

    def _evaluate(self, connection: Connection) -> set[int]:
        changed, changes = rule_store.find_changed(connection), rule_store.load_changes(connection)
        alarms = engine.evaluate(
            connection,
            self.now,
            change_times(self.times, changes),
            watches=change_watches(WATCHES.values(), changes),
            changes=changes,
        )
        rule_store.mark_applied(connection, changed)
        return alarms

    def set_rule(self, rule: Rule, **fields: Any) -> None:
        """Change a built-in rule."""
        new = NewAlarmRule(kind=str(rule), **fields)
        self.database.write_now(rule_store.replace_rule, str(rule), new, by=SERVICE, now=self.now)


@pytest.fixture
def log(database: Database) -> ChangedRules:
    return ChangedRules(database)


@pytest.mark.rule("rest-286")
def test_a_gateway_is_missed_after_the_time_that_an_admin_chose(log: ChangedRules) -> None:
    office, _ = log.add_gateway(1)
    log.set_rule(Rule.GATEWAY_OFFLINE, for_seconds=1800, clear_seconds=0)
    log.set_gateway(office, connected=False)
    log.run(29 * MINUTE)
    assert log.alarms() == []
    log.run(2 * MINUTE)
    assert [each.rule for each in log.alarms(state="open")] == ["gateway-offline"]
    log.set_rule(Rule.GATEWAY_OFFLINE, for_seconds=7200)
    log.run(MINUTE)
    assert [(each.state, each.end_reason) for each in log.alarms()] == [("cleared", "rule-changed")]
    log.run(2 * HOUR)
    assert [each.state for each in log.alarms()] == ["open"]


@pytest.mark.rule("rest-286")
def test_a_rule_that_is_off_opens_nothing_and_ends_its_alarms(log: ChangedRules) -> None:
    office, devices = log.add_gateway(1, 2)
    log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    assert [each.rule for each in log.alarms(state="open")] == ["device-offline"]
    log.set_rule(Rule.DEVICE_OFFLINE, enabled=False)
    log.set_device(devices[1], office, connected=False)
    log.run(HOUR)
    assert [(each.state, each.end_reason) for each in log.alarms()] == [("cleared", "rule-disabled")]
    log.set_rule(Rule.DEVICE_OFFLINE)
    log.run(MINUTE)
    assert [(each.state, each.members) for each in log.alarms()] == [("open", 2)]


@pytest.mark.rule("rest-286")
def test_without_the_rule_of_many_gateways_each_has_its_own_alarm(log: ChangedRules) -> None:
    gateways = [log.add_gateway(number)[0] for number in range(1, 5)]
    for each in gateways:
        log.set_gateway(each, connected=False)
    log.run(6 * MINUTE)
    assert [each.rule for each in log.alarms(state="open")] == ["gateways-lost"]
    log.set_rule(Rule.GATEWAYS_LOST, enabled=False)
    log.run(MINUTE)
    assert sorted(each.rule for each in log.alarms(state="open")) == ["gateway-offline"] * 4


@pytest.mark.rule("rest-286")
def test_a_battery_is_low_at_the_level_that_an_admin_chose(log: ChangedRules) -> None:
    _, (device, *_) = log.add_gateway(1, 2)
    log.set_rule(Rule.BATTERY_LOW, thresholds={"lowPercent": 8, "chargedPercent": 20})
    assert report(log, device, 15, 15, 9, 9) == [""] * 4
    assert report(log, device, 8, 8)[1].endswith("is at 8 %.")
    assert report(log, device, 20) == [""]
    report(log, device, 5, 5)
    log.set_rule(Rule.BATTERY_LOW, enabled=False)
    log.run(10 * MINUTE)
    assert list_alarms(log) == []
    assert log.alarms()[-1].end_reason == "rule-disabled"


def test_each_rule_says_what_can_be_changed() -> None:
    for rule in BUILTIN_RULES:
        limits = find_limits(rule)
        for each in limits.thresholds:
            assert each.least <= each.default <= each.most, (rule, each)
