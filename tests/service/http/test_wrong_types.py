"""Every field of every body, with what does not belong there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.service.api import load_openapi_document
from tests.row_tables import each_row
from tests.service.http.running_service import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.http.running_service import RunningService

WRONG: tuple[object, ...] = (None, True, 0, -1.5, 1e300, 10**400, "", [], ["x"], [[]], {}, {"x": {"y": []}})
"""One of each kind."""

FITTING: dict[str, dict[str, Any]] = {
    "Login": {"username": "somebody", "password": PASSWORD},
    "NewPassword": {"current": PASSWORD, "password": PASSWORD},
    "NewUser": {"username": "somebody", "password": PASSWORD, "role": "viewer"},
    "UserChange": {"role": "viewer"},
    "NewApiKey": {"name": "somebody", "role": "viewer"},
    "FriendlyName": {"name": "Somebody"},
    "NewLabel": {"label": "somewhere"},
    "NewGateway": {"mac": "c0ffee000000"},
    "NewJob": {"name": "A job", "firmwareId": "fw-0123456789abcdef", "targets": {"all": True}},
    "NewRequest": {"operation": "write-decoded", "identifier": "tx-power"},
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


def _bodies() -> Iterator[tuple[str, str, str]]:
    """All routes with a body of JSON: method, path, the name of its schema."""
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:  # not a form
                reference = content["application/json"]["schema"]["$ref"]
                yield method.upper(), path, reference.rpartition("/")[2]


BODIES = list(_bodies())
FIELDS = [
    (method, path, name, field) for method, path, name in BODIES for field in SCHEMAS[name]["properties"]
]


def test_the_examples_of_this_file_are_all_the_bodies_there_are() -> None:
    assert {name for _, _, name in BODIES} == set(FITTING)
    assert all(set(FITTING[name]) <= set(SCHEMAS[name]["properties"]) for name in FITTING)


@pytest.mark.rule("rest-1", "rest-12")
@each_row(("method", "path", "name", "field"), FIELDS)
def test_a_field_of_another_type_is_refused_by_its_name(
    service: RunningService, method: str, path: str, name: str, field: str
) -> None:
    allowed = {kind for each in _types(SCHEMAS[name]["properties"][field]) for kind in TYPES[each]}
    for wrong in WRONG:
        if type(wrong) in allowed:
            continue
        answer = _ask(service, method, path, FITTING[name] | {field: wrong})
        assert answer.status_code == 400, wrong
        assert [each["field"].partition("[")[0] for each in answer.json()["errors"]] == [field], wrong


@pytest.mark.rule("rest-5", "rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_an_unknown_field_is_refused_by_its_name(
    service: RunningService, method: str, path: str, name: str
) -> None:
    for unknown in ("unknown", next(iter(FITTING[name])).upper(), "__class__", "$ref"):
        answer = _ask(service, method, path, FITTING[name] | {unknown: None})
        assert answer.status_code == 400
        assert [each["field"] for each in answer.json()["errors"]] == [unknown]


@pytest.mark.rule("rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_a_missing_field_is_told(service: RunningService, method: str, path: str, name: str) -> None:
    for missing in SCHEMAS[name].get("required", ()):
        body = {field: value for field, value in FITTING[name].items() if field != missing}
        answer = _ask(service, method, path, body)
        assert answer.status_code == 400
        assert [each["field"] for each in answer.json()["errors"]] == [missing]


@pytest.mark.rule("rest-1", "rest-12")
@each_row(("method", "path"), [(method, path) for method, path, _ in BODIES])
def test_a_body_that_is_no_object_is_refused(service: RunningService, method: str, path: str) -> None:
    for wrong in (b"", b" ", b"null", b"[]", b"1", b'"x"', b"{", b"{'x': 1}", b"NaN", b"Infinity"):
        answer = service.admin.request(method, _path(path), content=wrong)
        assert answer.status_code == 400, wrong
        assert [each["field"] for each in answer.json()["errors"]] == ["body"]


@pytest.mark.rule("rest-12")
@each_row(("method", "path", "name"), BODIES)
def test_a_deep_body_is_refused(service: RunningService, method: str, path: str, name: str) -> None:
    field = next(iter(FITTING[name]))
    for start in (b"[", b'{"%s":' % field.encode(), b'{"unknown":[', b'{"%s":[{"x":' % field.encode()):
        answer = service.admin.request(method, _path(path), content=start * (900_000 // len(start)))
        assert answer.status_code == 400


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
        answer = service.admin.request(
            method, _path(path), json=FITTING[name], headers={"Content-Type": other}
        )
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


@pytest.mark.rule("rest-1")
@each_row("media_type", ["application/json", "APPLICATION/JSON", "application/json; charset=utf-8"])
def test_json_is_json_however_it_is_spelt(service: RunningService, media_type: str) -> None:
    body = {"label": service.new_name("label")}
    answer = service.admin.post("/api/v1/labels", json=body, headers={"Content-Type": media_type})
    assert answer.status_code == 200


def _types(schema: dict[str, Any]) -> Iterator[str]:
    """The kinds of value that a schema lets through, as far as its types tell."""
    if not schema:
        yield from TYPES
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    for each in schema.get("oneOf", ()):
        yield from _types(each)
    found = schema.get("type", [])
    yield from [found] if isinstance(found, str) else found


def _path(template: str) -> str:
    return template.format(device_id="bmac-c0ffee000000", username="nobody")


def _ask(service: RunningService, method: str, path: str, body: dict[str, object]) -> Any:
    return service.admin.request(method, _path(path), json=body)
