"""Rules of alarms over REST: those of users, and changes of built-in ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select

from meshfleet.db.tables import alarm_rule, audit
from meshfleet.service.alarms.builtin_rules import BUILTIN_RULES
from meshfleet.service.alarms.rules import USER_RULES, Rule
from tests.row_tables import each_row
from tests.service.http.running_service import run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService

PATH = "/api/v1/alarm-rules"

FREEZERS: dict[str, Any] = {
    "name": "Freezers too warm",
    "kind": "measurement",
    "severity": "critical",
    "scope": {"labels": ["Freezer"], "exceptLabels": ["parked"]},
    "when": {"identifier": "temperature", "operator": "above", "value": -15, "clearValue": -17},
    "forSeconds": 900,
    "clearSeconds": 300,
}


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    with run_service(database) as running:
        for each in ("Freezer", "parked"):
            assert running.operator.post("/api/v1/labels", json={"label": each}).is_success
        yield running


def create(service: RunningService, **changes: Any) -> Any:
    response = service.operator.post(PATH, json=FREEZERS | changes)
    assert response.status_code == 201, response.text
    return response.json()


@pytest.mark.both_databases
@pytest.mark.rule("rest-284", "rest-285")
def test_a_rule_of_a_user_is_created_changed_and_deleted(service: RunningService) -> None:
    created = create(service)
    assert created["sentence"] == (
        "When temperature is above -15 °C for 15 min on a device labeled Freezer not labeled parked, a"
        " critical alarm opens; it ends after 5 min at -17 °C or less."
    )
    path = f"{PATH}/{created['id']}"
    assert service.viewer.get(path).json() == created
    assert (created["builtin"], created["version"], created["groupBy"]) == (False, 1, "device")
    changed = service.operator.put(path, json=FREEZERS | {"enabled": False, "version": 1})
    assert (changed.json()["enabled"], changed.json()["version"]) == (False, 2)
    late = service.operator.put(path, json=FREEZERS | {"version": 1})
    assert (late.status_code, late.json()["code"]) == (412, "version-conflict")
    other_kind = {"kind": "label-offline", "name": "x", "label": "Freezer", "sharePercent": 20}
    assert service.operator.put(path, json=other_kind).status_code == 400
    assert service.operator.delete(path).status_code == 204
    assert [service.viewer.get(path).status_code, service.operator.delete(path).status_code] == [404, 404]
    query = select(audit.c.action).where(audit.c.target == created["id"]).order_by(audit.c.id)
    actions = service.database.read_now(lambda connection: connection.execute(query).scalars().all())
    assert actions == ["alarm-rule.create", "alarm-rule.change", "alarm-rule.delete"]


@pytest.mark.rule("rest-284")
def test_a_rule_of_a_label_has_a_share(service: RunningService) -> None:
    rule = {"kind": "label-offline", "name": "Cold room", "label": "Freezer", "sharePercent": 30}
    created = service.operator.post(PATH, json=rule).json()
    assert created["sentence"] == (
        "When 30 % or more of the devices labeled Freezer are offline for 5 min, a warning alarm opens."
    )
    assert (created["when"], created["scope"], created["groupBy"]) == (None, None, None)


WRONG: list[tuple[Any, ...]] = [
    ({"name": None}, "invalid-request", "name"),
    ({"kind": "gateway-offline"}, "invalid-request", "kind"),
    ({"when": None}, "invalid-request", "when"),
    ({"thresholds": {"hours": 3}}, "invalid-request", "thresholds"),
    ({"label": "Freezer"}, "invalid-request", "label"),
    ({"scope": {"labels": ["Oven"]}}, "unknown-label", "scope.labels"),
    ({"scope": {"exceptLabels": ["Oven"]}}, "unknown-label", "scope.exceptLabels"),
    ({"scope": {"models": ["18"]}}, "invalid-request", "scope.models"),
    (
        {"kind": "label-offline", "when": None, "scope": {}, "label": "Oven", "sharePercent": 9},
        "unknown-label",
        "label",
    ),
    (
        {"kind": "label-offline", "when": None, "scope": {}, "label": "Oven"},
        "invalid-request",
        "sharePercent",
    ),
]
WRONG_CONDITIONS: list[tuple[Any, ...]] = [
    ({"identifier": "temperatur"}, "unknown-identifier", "when.identifier"),
    ({"identifier": "No Name!"}, "unknown-identifier", "when.identifier"),
    ({"identifier": "8020"}, "unknown-identifier", "when.identifier"),
    ({"identifier": "f00d"}, "unknown-identifier", "when.identifier"),
    ({"identifier": "device-mode"}, "not-numeric", "when.operator"),
    ({"value": True, "clearValue": None}, "not-numeric", "when.value"),
    ({"value": "warm", "clearValue": None}, "not-numeric", "when.value"),
    ({"clearValue": -14}, "invalid-request", "when.clearValue"),
    ({"operator": "below"}, "invalid-request", "when.clearValue"),
    ({"operator": "equals"}, "invalid-request", "when.clearValue"),
    ({"upper": 3}, "invalid-request", "when.upper"),
    ({"operator": "outside", "clearValue": None}, "invalid-request", "when.upper"),
    ({"operator": "outside", "clearValue": None, "upper": -20}, "invalid-request", "when.upper"),
    ({"operator": "silent-for", "value": 59, "clearValue": None}, "invalid-request", "when.value"),
    ({"operator": "near"}, "malformed-payload", "when.operator"),
]


WRONG += [({"when": FREEZERS["when"] | change}, *rest) for change, *rest in WRONG_CONDITIONS]


@pytest.mark.rule("rest-284", "rest-285")
@each_row(("change", "code", "place"), WRONG)
def test_each_mistake_in_a_rule_is_named(
    service: RunningService, change: dict[str, Any], code: str, place: str
) -> None:
    body = {key: value for key, value in (FREEZERS | change).items() if value is not None}
    response = service.operator.post(PATH, json=body)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (400, code), problem
    assert problem["errors"][0]["field"] == place, problem


def test_a_rule_of_missing_values_needs_a_scope(service: RunningService) -> None:
    silent = {"identifier": "temperature", "operator": "silent-for", "value": 3600}
    response = service.operator.post(PATH, json=FREEZERS | {"when": silent, "scope": {}})
    assert response.json()["errors"][0]["field"] == "scope"
    assert create(service, when=silent)["sentence"] == (
        "When temperature was not reported for 1 h by a device labeled Freezer not labeled parked that is"
        " connected, a critical alarm opens."
    )


@pytest.mark.rule("rest-286")
def test_admins_change_built_in_rules(service: RunningService) -> None:
    listed = service.viewer.get(PATH).json()["items"]
    assert [each["id"] for each in listed] == [str(each) for each in BUILTIN_RULES]
    assert all(each["builtin"] and each["sentence"].startswith("When ") for each in listed)
    path = f"{PATH}/battery-low"
    change = {"kind": "battery-low", "thresholds": {"lowPercent": 10}, "forSeconds": 60}
    assert service.operator.put(path, json=change).status_code == 403
    changed = service.admin.put(path, json=change | {"version": 0}).json()
    assert changed["thresholds"] == {"lowPercent": 10, "chargedPercent": 25}
    assert changed["sentence"] == "When a device reported 10 % or less two times in a row; it ends at 25 %."
    assert (changed["forSeconds"], changed["changed"], changed["severity"]) == (60, True, None)
    response = service.admin.delete(path)
    assert (response.status_code, response.json()["code"]) == (409, "builtin-rule")
    assert service.operator.post(f"{path}/reset").status_code == 403
    reset = service.admin.post(f"{path}/reset").json()
    assert (reset["changed"], reset["thresholds"]["lowPercent"], reset["forSeconds"]) == (False, 15, 0)
    mine = create(service)["id"]
    assert service.admin.post(f"{PATH}/{mine}/reset").status_code == 409
    for wrong in (
        {"thresholds": {"lowPercent": 16}},
        {"thresholds": {"lowPercent": 1.5}},
        {"thresholds": {"hours": 2}},
        {"severity": "info"},
        {"name": "Other"},
        {"kind": "disk"},
    ):
        assert service.admin.put(path, json={"kind": "battery-low"} | wrong).status_code == 400, wrong
    off = {"kind": "database", "enabled": False}
    assert service.admin.put(f"{PATH}/database", json=off).status_code == 400


def test_all_rules_that_open_alarms_are_listed() -> None:
    assert {*BUILTIN_RULES, *USER_RULES, Rule.GATEWAY_RETURN, Rule.RELAY_PROBE} == {*Rule}


@pytest.mark.rule("rest-284")
def test_there_are_at_most_1000_rules_of_users(service: RunningService) -> None:
    body = create(service)
    query = select(alarm_rule.c.body)
    stored = service.database.read_now(lambda connection: connection.execute(query).scalar_one())
    values = {
        "kind": "measurement",
        "enabled": True,
        "body": stored,
        "deleted": False,
        "version": 1,
        "applied_version": 1,
        "updated_at": 0,
        "updated_by": "test",
    }
    service.database.write_now(lambda connection: connection.execute(insert(alarm_rule), [values] * 999))
    response = service.operator.post(PATH, json=FREEZERS)
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert "1,000 rules" in response.json()["detail"]
    assert len(service.viewer.get(PATH).json()["items"]) == 1000 + len(BUILTIN_RULES)
    assert service.operator.delete(f"{PATH}/{body['id']}").status_code == 204
    assert service.operator.post(PATH, json=FREEZERS).status_code == 201


@pytest.mark.rule("rest-284")
def test_viewers_read_rules_and_operators_write_those_of_users(service: RunningService) -> None:
    path = f"{PATH}/{create(service)['id']}"
    assert service.viewer.post(PATH, json=FREEZERS).status_code == 403
    assert service.viewer.put(path, json=FREEZERS).status_code == 403
    assert service.viewer.delete(path).status_code == 403
    assert service.viewer.get(path).status_code == 200
