"""Validation errors are reported in plain words, not in those of msgspec."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.protocol.validation_messages import explain_validation_error
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.job_requests import NewJob
from meshfleet.rest.requests import NewRequest
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.rest.bodies import RequestBody

READ = {"operation": "read", "identifier": "8001"}
JOB = {"name": "All", "firmwareId": "fw-1", "targets": {"all": True}}


@pytest.mark.rule("rest-5")
@each_row(
    ("kind", "body", "field", "message"),
    [
        (NewRequest, READ | {"priority": 9}, "priority", "must be at most 4"),
        (NewRequest, READ | {"priority": -1}, "priority", "must be at least 0"),
        (NewRequest, READ | {"priority": "high"}, "priority", "must be a number, not a string"),
        (NewRequest, READ | {"timeoutMs": 1.5}, "timeoutMs", "must be a whole number, not a number"),
        (NewRequest, READ | {"timeoutMs": 99}, "timeoutMs", "must be at least 100"),
        (NewRequest, [], "body", "must be an object, not an array"),
        (NewJob, JOB | {"name": ""}, "name", "must not be empty"),
        (NewJob, JOB | {"name": "x" * 201}, "name", "must have at most 200 characters"),
        (NewJob, JOB | {"waves": [{"percent": 0}]}, "waves[0].percent", "must be more than 0"),
        (NewJob, JOB | {"waves": [{"count": 1}] * 51}, "waves", "must have at most 50 items"),
        (NewJob, JOB | {"stage": 1}, "stage", "must be a boolean, not a whole number"),
        (NewJob, JOB | {"deadline": 5}, "deadline", "must be a string or null, not a whole number"),
        (
            NewJob,
            JOB | {"targets": {"filter": {"Label": 1}}},
            "targets.filter.Label",
            "must be a string or an array, not a whole number",
        ),
    ],
)
def test_an_invalid_field_has_a_plain_message(
    kind: type[RequestBody], body: Any, field: str, message: str
) -> None:
    with pytest.raises(MalformedPayload) as raised:
        decode_body(kind, json.dumps(body).encode())
    assert (raised.value.field, raised.value.reason) == (field, message)


@each_row(
    ("kind", "value", "message"),
    [
        (Annotated[str, Meta(pattern="^a$")], "b", "does not match the required format"),
        (Annotated[str, Meta(min_length=2)], "b", "must have at least 2 characters"),
        (Annotated[dict[str, int], Meta(max_length=1)], {"a": 1, "b": 2}, "must have at most 1 fields"),
        (Annotated[float, Meta(lt=0.5)], 1.0, "must be less than 0.5"),
        (Annotated[float, Meta(le=1e300)], 1.5e300, "must be at most 1e+300"),
        (Annotated[int, Meta(le=2**53)], 2**54, "must be at most 9007199254740992"),
    ],
)
def test_every_kind_of_limit_has_a_plain_message(kind: Any, value: object, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, kind)
    assert explain_validation_error(str(raised.value)) == message


def test_an_unknown_message_is_unchanged() -> None:
    assert explain_validation_error("Invalid RFC3339 encoded datetime") == "Invalid RFC3339 encoded datetime"
