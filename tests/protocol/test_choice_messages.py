"""Messages about invalid enumeration values list the allowed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.protocol import requests
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.validation_messages import explain_invalid_choice
from meshfleet.rest.accounts import NewUser
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.job_requests import NewJob
from meshfleet.rest.requests import NewRequest
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.rest.bodies import RequestBody

JOB: dict[str, Any] = {"name": "A job", "firmwareId": "fw-0123456789abcdef", "targets": {"all": True}}
LONG = "x" * 10_000


@each_row(
    ("kind", "body", "field", "reason"),
    [
        (NewJob, JOB | {"method": "post"}, "method", "must be one of download, broadcast, nordic-dfu"),
        (NewJob, JOB | {"onNewerJob": LONG}, "onNewerJob", "must be one of queue, reject, supersede"),
        (
            NewJob,
            JOB | {"abort": [{"percent": 1}, {"percent": 1, "type": "SOME"}]},
            "abort[1].type",
            "must be one of ALL, FAILED, REJECTED, TIMED_OUT",
        ),
        (
            NewUser,
            {"username": "alice", "password": "x", "role": "king"},
            "role",
            "must be one of viewer, operator, admin",
        ),
        (
            NewRequest,
            {"operation": "dance"},
            "operation",
            f"must be one of {', '.join(Operation)}",
        ),
    ],
)
def test_an_error_in_a_body_lists_the_allowed_values(
    kind: type[RequestBody], body: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decode_body(kind, msgspec.json.encode(body))
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_an_error_in_a_message_lists_the_allowed_values() -> None:
    with pytest.raises(MalformedPayload, match="accessType: must be one of unprovisioned, legacy"):
        requests.decode_request(Operation.READ, b'{"id": "1", "accessType": "open"}')


class ManyChoices(msgspec.Struct):
    """Fields with the maximum number of listed values, and with one more."""

    few: Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
    many: Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def test_too_many_values_are_not_listed() -> None:
    assert explain_invalid_choice(ManyChoices, "few") == f"must be one of {', '.join(map(str, range(20)))}"
    assert explain_invalid_choice(ManyChoices, "many") == "is not an allowed value"
