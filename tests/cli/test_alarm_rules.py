"""`meshfleet alarms rules`, and `fleet.alarm_rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.client.blocking import Fleet
from meshfleet.errors import BuiltinRule, VersionConflict
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.accounts import Role
from tests.cli.shell import Shell
from tests.databases import fresh_database
from tests.service.http.running_service import PASSWORD, RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[RunningService]:
    with run_service(fresh_database(request, "sqlite")) as running:
        assert running.operator.post("/api/v1/labels", json={"label": "Freezer"}).is_success
        yield running


@pytest.fixture
def admin(service: RunningService, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "home")
    user = service.new_user(Role.ADMIN)
    shell.text("login", "--url", service.url, "--user", user, MESHFLEET_PASSWORD=PASSWORD)
    return shell


@pytest.mark.rule("rest-284", "rest-285", "rest-286", "rest-288")
def test_rules_are_written_as_sentences(service: RunningService, admin: Shell) -> None:
    rules = ("alarms", "rules")
    when = ("--when", "temperature above -15", "--for", "15m", "--label", "Freezer", "--clear", "-17")
    added = admin.json(*rules, "add", "Freezers too warm", *when, "--severity", "critical")
    assert added["sentence"] == (
        "When temperature is above -15 °C for 15 min on a device labeled Freezer, a critical alarm opens;"
        " it ends after 5 min at -17 °C or less."
    )
    identity = added["id"]
    assert "raised 0 alarms (0 devices checked)" in admin.text(*rules, "preview", *when)
    assert admin.json(*rules, "change", identity, "--for", "1h", "--name", "Warm")["forSeconds"] == 3600
    assert admin.json(*rules, "disable", identity)["enabled"] is False
    assert admin.json(*rules, "enable", identity)["when"]["clearValue"] == -17
    conditions = {
        "temperature outside 2 to 8": (2, 8),
        "motion equals 1": (1, None),
        "device-mode changes-to storage": ("storage", None),
        "temperature silent-for 2h": (7200, None),
    }
    for text, expected in conditions.items():
        shown = admin.json(*rules, "add", text, "--when", text, "--label", "Freezer", "--group")["when"]
        assert (shown["value"], shown["upper"]) == expected
    assert admin.json(*rules, "add", "Cold", "--label", "Freezer", "--offline", "30")["sharePercent"] == 30
    assert "Give one of --when and --offline." in admin.expect_failure(*rules, "add", "x", code=2)
    assert "is not a condition" in admin.expect_failure(*rules, "add", "x", "--when", "warm", code=2)
    assert "--offline needs one --label." in admin.expect_failure(
        *rules, "add", "x", "--offline", "3", code=2
    )
    changed = admin.json(*rules, "change", "battery-low", "--threshold", "lowPercent=10")
    assert changed["thresholds"]["lowPercent"] == 10
    assert admin.json(*rules, "reset", "battery-low")["thresholds"]["lowPercent"] == 15
    admin.text(*rules, "remove", identity, "--yes")
    assert identity not in admin.text(*rules, "list")
    fleet = Fleet(service.url, token=service.new_key(Role.ADMIN, "rules"))
    with fleet:
        rule = fleet.alarm_rules.show("gateway-offline")
        assert fleet.alarm_rules.change(rule, for_seconds=900).for_seconds == 900
        assert fleet.alarm_rules.reset(rule).changed is False
        with pytest.raises(BuiltinRule):
            fleet.alarm_rules.delete(rule)
        with pytest.raises(MalformedInput, match="wait"):
            fleet.alarm_rules.change(rule, wait=3)
        with pytest.raises(VersionConflict):
            fleet.alarm_rules.change(rule, version=0)
        assert len(fleet.alarm_rules.list()) > 20


@pytest.mark.rule("rest-289")
def test_routes_and_filters_use_the_kind_of_a_rule(service: RunningService, admin: Shell) -> None:
    channel = admin("channels", "add", "Office", "--email", "a@example.org")
    assert channel.exit_code == 0
    route = {
        "name": "Values",
        "match": {"rules": ["measurement", "label-offline"]},
        "channels": ["channel-1"],
    }
    response = service.admin.put("/api/v1/alarm-routes", json={"items": [route]})
    assert response.status_code == 200, response.text
    assert admin.text("alarms", "list", "--rule", "measurement").splitlines()[1:] == []
