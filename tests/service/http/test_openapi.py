"""The OpenAPI document is valid, complete and correct."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from click.testing import CliRunner

from meshfleet.cli import main
from meshfleet.service.api import load_openapi_document
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.http.running_service import RunningService

DOCUMENT: dict[str, Any] = json.loads(json.dumps(load_openapi_document()))
PLAN_PATH = "/api/v1/sites/{site_id}/floors/{floor}/plan"
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}


@pytest.mark.rule("rest-162")
def test_the_document_is_public_json(service: RunningService) -> None:
    response = service.anonymous.get("/api/v1/openapi.json")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert response.json() == DOCUMENT


@pytest.mark.rule("rest-162")
def test_the_command_prints_the_same_document() -> None:
    printed = CliRunner().invoke(main, ["openapi"])
    assert (printed.exit_code, json.loads(printed.stdout)) == (0, DOCUMENT)


@pytest.mark.rule("rest-162")
def test_the_document_is_valid_openapi_3_1() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    import schemathesis  # noqa: PLC0415 # slow to import, and only one worker needs it

    schemathesis.openapi.from_dict(DOCUMENT).validate()


@pytest.mark.rule("rest-162")
@each_row("name", list(DOCUMENT["components"]["schemas"]))
def test_every_schema_is_a_valid_json_schema(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    assert schema["title"] == name
    jsonschema_rs.Draft202012Validator(_make_resolvable(schema))


def test_every_reference_resolves_and_every_schema_is_used() -> None:
    used = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT)))
    assert used == {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}


@pytest.mark.rule("rest-162")
@each_row("name", list(OPERATIONS))
def test_every_operation_is_described(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["summary"]
    assert not operation["summary"].endswith(".")
    assert operation["description"].startswith(operation["summary"])
    assert operation["operationId"].isidentifier()
    assert len(operation["tags"]) == 1
    assert "security" in operation
    for parameter in operation.get("parameters", ()):
        assert parameter["in"] in {"path", "query", "header"}
        assert parameter["required"] is (parameter["in"] == "path")
        assert parameter["in"] == "path" or parameter["description"]


def test_operation_ids_are_unique() -> None:
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.rule("rest-9", "rest-13", "rest-14")
@each_row("name", list(OPERATIONS))
def test_every_operation_lists_its_problems(name: str) -> None:
    responses = OPERATIONS[name]["responses"]
    assert {"400", "503"} < set(responses)
    assert ("404" in responses) >= ("{" in name)
    assert ({"408", "413", "415"} <= set(responses)) is ("requestBody" in OPERATIONS[name])
    later = ["202"] if name == "POST /api/v1/devices/{device_id}/requests" else []
    later = ["200"] if name == "POST /api/v1/jobs" else later
    later = ["206"] if "416" in responses else later
    later = ["304"] if name == f"GET {PLAN_PATH}" else later
    successes = [status for status in responses if status < "400"]
    assert (len(successes), successes[1:]) == (1 + len(later), later)
    for status, response in responses.items():
        assert response["description"]
        if (name, status) == ("GET /readyz", "503"):
            assert response["content"] == {
                "application/json": {"schema": {"$ref": "#/components/schemas/NotReady"}}
            }
        elif status >= "400":
            assert response["content"] == {
                "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
            }
        assert ("WWW-Authenticate" in response.get("headers", {})) is (status == "401")
        assert ("Retry-After" in response.get("headers", {})) is (status == "429")


@pytest.mark.rule("rest-162")
def test_a_response_without_a_body_has_none_in_the_document() -> None:
    for operation in OPERATIONS.values():
        for status, response in operation["responses"].items():
            assert bool(response.get("content")) is (status not in {"204", "304"})


@pytest.mark.rule("rest-9", "rest-162")
def test_a_problem_has_its_seven_fields() -> None:
    problem = DOCUMENT["components"]["schemas"]["Problem"]
    assert list(problem["properties"]) == ["type", "title", "status", "detail", "instance", "code", "errors"]
    assert set(DOCUMENT["components"]["schemas"]["FieldProblem"]["required"]) == {"field", "message"}


@pytest.mark.rule("rest-29", "rest-30", "rest-31", "rest-32", "rest-33", "rest-162")
def test_a_device_in_the_list_has_its_ten_fields_and_their_types(service: RunningService) -> None:
    device = DOCUMENT["components"]["schemas"]["Device"]
    fields = list(device["properties"])
    assert fields[:10] == [
        "id",
        "friendlyName",
        "modelNumber",
        "labels",
        "bootMode",
        "connectivity",
        "firmwareVersion",
        "hardwareVersion",
        "imei",
        "status",
    ]
    assert fields[10:] in ([], ["live"])
    assert set(device["required"]) == set(fields[:10])
    validator = jsonschema_rs.Draft202012Validator(_make_resolvable(device))
    item = service.viewer.get("/api/v1/devices", params={"Ids": service.new_device()}).json()["items"][0]
    assert list(item) == fields[:10]
    assert validator.is_valid(item)
    for field in fields[:10]:
        invalid: object = [] if field != "labels" else {}
        assert not validator.is_valid(item | {field: invalid})
        assert not validator.is_valid({name: value for name, value in item.items() if name != field})
    for field in ("bootMode", "imei", "status"):
        assert validator.is_valid(item | {field: None})


@pytest.mark.rule("rest-162")
def test_fields_that_are_always_sent_are_required() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    optional = {
        name: set(schemas[name]["properties"]) - set(schemas[name]["required"])
        for name in ("Firmware", "Gateway", "GatewayCandidate", "LoggedIn", "Device", "Sample", "NewGateway")
    }
    assert {name: fields for name, fields in optional.items() if fields} == {
        "Device": {"live"},
        "Sample": {"correctedTime"},
        "NewGateway": {"friendlyName"},
    }


@pytest.mark.rule("rest-43", "rest-58", "auth-1", "auth-2", "rest-162")
def test_the_bodies_of_the_five_operations_are_those_of_the_interface() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas["Login"]["required"]) == {"username", "password"}
    assert set(schemas["LoggedIn"]["properties"]) == {"status", "authToken", "sessionId"}
    assert schemas["FriendlyName"]["required"] == ["name"]
    assert schemas["NewLabel"]["required"] == ["label"]
    assert set(schemas["DevicePage"]["properties"]) == {"items", "nextToken"}


@pytest.mark.rule("rest-5")
def test_request_bodies_are_closed_and_responses_are_open() -> None:
    """Require `additionalProperties: false` for requests only: clients ignore unknown fields of responses."""
    bodies = [each["requestBody"]["content"] for each in OPERATIONS.values() if "requestBody" in each]
    forms = [each["multipart/form-data"] for each in bodies if "multipart/form-data" in each]
    assert [each["schema"]["additionalProperties"] for each in forms] == [False] * 2
    request_schemas = {
        each["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for each in bodies
        if "application/json" in each
    }
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert (schema.get("additionalProperties") is False) is (name in request_schemas)


def test_building_the_document_does_not_change_the_logging() -> None:
    before = list(_list_logging_settings())
    load_openapi_document()
    assert list(_list_logging_settings()) == before


def _list_logging_settings() -> Iterator[Any]:
    for name in (None, "uvicorn", "uvicorn.access", "uvicorn.error", "meshfleet", "litestar"):
        logger = logging.getLogger(name)
        yield (name, logger.level, list(logger.handlers), logger.propagate, logger.disabled)


def _make_resolvable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema together with the schemas that it refers to."""
    return schema | {"components": DOCUMENT["components"]}
