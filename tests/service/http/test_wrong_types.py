"""Every field of every request body with values of wrong types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.service.api import load_openapi_document
from tests.row_tables import each_row
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.http.running_service import RunningService

WRONG_VALUES: tuple[object, ...] = (
    None,
    True,
    0,
    -1.5,
    1e300,
    10**400,
    "",
    [],
    ["x"],
    [[]],
    {},
    {"x": {"y": []}},
)
"""Values of all JSON types."""

VALID_BODIES: dict[str, dict[str, Any]] = {
    "Login": {"username": "ada", "password": PASSWORD},
    "NewPassword": {"current": PASSWORD, "password": PASSWORD},
    "NewUser": {"username": "ada", "password": PASSWORD, "role": "viewer"},
    "UserChange": {"role": "viewer"},
    "NewApiKey": {"name": "ada", "role": "viewer"},
    "FriendlyName": {"name": "Ada"},
    "NewLabel": {"label": "somewhere"},
    "NewGateway": {"mac": "c0ffee000000"},
    "NewGatewayBatch": {"gateways": [{"mac": "c0ffee000000"}]},
    "NewJob": {"name": "A job", "firmwareId": "fw-0123456789abcdef", "targets": {"all": True}},
    "NewRequest": {"operation": "write-decoded", "identifier": "tx-power"},
    "NewSite": {"name": "Hall", "floors": [{"floor": 0, "minX": 0, "minY": 0, "maxX": 9, "maxY": 9}]},
    "NewPlace": {"site": "site-0123456789abcdef", "floor": 0, "x": 1, "y": 2.5},
    "PlaceBatch": {"places": [{"device": "bmac-c0ffee000000", "floor": 0, "x": 1, "y": 2.5}]},
    "NewAlarmNote": {"text": "On my way"},
    "NewAlarmSilence": {"seconds": 3600},
    "AlarmSelection": {"ids": ["alarm-1"]},
    "SeenAlarms": {"upTo": 1},
    "NewAlarmRule": {"kind": "measurement"},
    "RulePreviewRequest": {"rule": {"kind": "measurement"}},
    "NewSilence": {
        "scope": {"rules": ["battery-low"]},
        "from": "2026-01-01T00:00:00Z",
        "until": "2026-01-02T00:00:00Z",
    },
    "NewChannel": {"name": "Office", "kind": "email", "recipients": ["office@example.org"]},
    "NewAlarmRoutes": {"items": []},
    "NewZone": {"name": "Area", "floor": 0, "polygon": [[1, 1], [9, 1], [9, 8]]},
    "NewSurveyPoint": {"device": "bmac-c0ffee000000", "floor": 0, "x": 1, "y": 2.5},
    "SurveyBatch": {"points": [{"device": "bmac-c0ffee000000", "floor": 0, "x": 1, "y": 2.5}]},
}
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
DOCUMENT = load_openapi_document()
SCHEMAS = DOCUMENT["components"]["schemas"]


def _list_bodies() -> Iterator[tuple[str, str, str]]:
    """Yield all routes with a JSON body: method, path, name of the schema."""
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:  # not a form
                reference = content["application/json"]["schema"]["$ref"]
                yield method.upper(), path, reference.rpartition("/")[2]


BODIES = list(_list_bodies())
FIELDS = [
    (method, path, name, field) for method, path, name in BODIES for field in SCHEMAS[name]["properties"]
]


def test_this_module_has_an_example_of_every_body() -> None:
    assert {name for _, _, name in BODIES} == set(VALID_BODIES)
    assert all(set(VALID_BODIES[name]) <= set(SCHEMAS[name]["properties"]) for name in VALID_BODIES)


@pytest.mark.rule("rest-1", "rest-12")
@each_row(("method", "path", "name", "field"), FIELDS)
def test_a_field_of_a_wrong_type_is_refused_by_name(
    service: RunningService, method: str, path: str, name: str, field: str
) -> None:
    allowed = {kind for each in _list_types(SCHEMAS[name]["properties"][field]) for kind in TYPES[each]}
    for value in WRONG_VALUES:
        if type(value) in allowed:
            continue
        response = _send(service, method, path, VALID_BODIES[name] | {field: value})
        assert response.status_code == 400, value
        assert [each["field"].partition("[")[0] for each in response.json()["errors"]] == [field], value


@pytest.mark.rule("rest-5", "rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_an_unknown_field_is_refused_by_name(
    service: RunningService, method: str, path: str, name: str
) -> None:
    for unknown in ("unknown", next(iter(VALID_BODIES[name])).upper(), "__class__", "$ref"):
        response = _send(service, method, path, VALID_BODIES[name] | {unknown: None})
        assert response.status_code == 400
        assert [each["field"] for each in response.json()["errors"]] == [unknown]


@pytest.mark.rule("rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_a_missing_field_is_reported(service: RunningService, method: str, path: str, name: str) -> None:
    for missing in SCHEMAS[name].get("required", ()):
        body = {field: value for field, value in VALID_BODIES[name].items() if field != missing}
        response = _send(service, method, path, body)
        assert response.status_code == 400
        assert [each["field"] for each in response.json()["errors"]] == [missing]


@pytest.mark.rule("rest-1", "rest-12")
@each_row(("method", "path"), [(method, path) for method, path, _ in BODIES])
def test_a_body_that_is_not_an_object_is_refused(service: RunningService, method: str, path: str) -> None:
    for value in (b"", b" ", b"null", b"[]", b"1", b'"x"', b"{", b"{'x': 1}", b"NaN", b"Infinity"):
        response = service.admin.request(method, _format_path(path), content=value)
        assert response.status_code == 400, value
        assert [each["field"] for each in response.json()["errors"]] == ["body"]


@pytest.mark.rule("rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_a_deeply_nested_body_is_refused(service: RunningService, method: str, path: str, name: str) -> None:
    field = next(iter(VALID_BODIES[name]))
    for start in (b"[", b'{"%s":' % field.encode(), b'{"unknown":[', b'{"%s":[{"x":' % field.encode()):
        response = service.admin.request(method, _format_path(path), content=start * (900_000 // len(start)))
        assert response.status_code == 400


@pytest.mark.rule("rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_a_body_of_another_media_type_is_refused(
    service: RunningService, method: str, path: str, name: str
) -> None:
    for other in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
    ):
        response = service.admin.request(
            method, _format_path(path), json=VALID_BODIES[name], headers={"Content-Type": other}
        )
        assert (response.status_code, response.json()["code"]) == (415, "unsupported-media-type")


@pytest.mark.rule("rest-1")
@each_row("media_type", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"])
def test_the_json_media_type_is_accepted_in_any_form(service: RunningService, media_type: str) -> None:
    body = {"label": service.new_name("label")}
    response = service.admin.post("/api/v1/labels", json=body, headers={"Content-Type": media_type})
    assert response.status_code == 200


def _list_types(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the JSON types that a schema accepts."""
    if not schema:
        yield from TYPES
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    for each in schema.get("oneOf", ()):
        yield from _list_types(each)
    types = schema.get("type", [])
    yield from [types] if isinstance(types, str) else types


def _format_path(template: str) -> str:
    others = {
        "alarm_id": "alarm-1",
        "channel_id": "channel-1",
        "rule_id": "rule-1",
        "silence_id": "silence-1",
    }
    site = {"site_id": "site-0123456789abcdef", "zone_id": "zone-0123456789abcdef"}
    return template.format(device_id="bmac-c0ffee000000", username="unknown", **others, **site)


def _send(service: RunningService, method: str, path: str, body: dict[str, object]) -> Any:
    return service.admin.request(method, _format_path(path), json=body)
