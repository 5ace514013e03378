"""Every operation, asked with what its own document allows and with what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from meshfleet.rest.live import STREAM_PATH
from meshfleet.service.api import load_openapi_document
from meshfleet.service.http.access import REQUIRED_ROLES
from tests.row_tables import each_row
from tests.service.firmware.uploads import upload_record
from tests.service.jobs.job_environment import JobEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case

    from tests.service.http.running_service import RunningService

ASKING = "POST /api/v1/devices/{device_id}/requests"
"""No gateway is there to answer: 503 and 504 are its right answers, and in its document."""

ANY_WILL_DO = "GET /api/v1/images/{token}/{file_name}"
"""All that it takes are texts, and no text is of the wrong kind."""

OPERATIONS = load_openapi_document()["paths"]


def _modes() -> Iterator[tuple[str, str]]:
    """Every operation with right values, and with wrong ones if it takes any."""
    for name in sorted(REQUIRED_ROLES.keys() - {f"GET {STREAM_PATH}"}):  # which never ends
        yield name, "positive"
        method, path = name.split()
        if name != ANY_WILL_DO and OPERATIONS[path][method.lower()].keys() & {"parameters", "requestBody"}:
            yield name, "negative"


@pytest.fixture(scope="module")
def schema(service: RunningService) -> Any:
    """The document that the service tells."""
    import schemathesis  # noqa: PLC0415 # it takes long to load, and one worker needs it

    return schemathesis.openapi.from_url(f"{service.url}/api/v1/openapi.json")


@pytest.fixture(scope="module")
def known(service: RunningService) -> dict[str, list[str]]:
    """Ids of things that are there, for paths: nobody would guess them."""
    devices = [service.new_device() for _ in range(5)]
    macs = [service.new_mac() for _ in range(3)]
    labels = [service.new_name("label") for _ in range(3)]
    for label in labels:
        service.admin.post("/api/v1/labels", json={"label": label, "deviceIds": devices[:3]})
    for mac in macs:
        service.admin.post("/api/v1/gateways", json={"mac": mac})
    keys = [
        service.admin.post("/api/v1/api-keys", json={"name": service.new_name("key"), "role": "admin"}).json()
        for _ in range(3)
    ]
    return {
        "device_id": devices,
        "mac": [*macs, devices[0].removeprefix("bmac-")],
        "label": labels,
        "username": [service.new_user() for _ in range(2)],
        "key_id": [key["id"] for key in keys],  # none of these is the one that we come with
        "request_id": ["-"],
        "firmware_id": [upload_record(service)["id"] for _ in range(3)],
        "job_id": [JobEnvironment(service).any_job() for _ in range(5)],
        "token": ["-"],
        "file_name": ["image.bin"],
    }


@pytest.mark.rule("rest-9", "rest-12", "rest-16", "rest-162")
@each_row(("name", "mode"), _modes())
def test_an_operation_answers_as_its_document_says(
    service: RunningService, schema: Any, known: dict[str, list[str]], name: str, mode: str
) -> None:
    # The first example is always the simplest one; the others are drawn.
    _fuzz(service, schema, known, name, mode, examples=3)


@pytest.mark.part("fuzz")
@each_row(("name", "mode"), _modes())
def test_an_operation_answers_so_however_often_it_is_asked(
    service: RunningService, schema: Any, known: dict[str, list[str]], name: str, mode: str
) -> None:
    _fuzz(service, schema, known, name, mode, examples=50)


def _fuzz(  # noqa: PLR0913, PLR0917 # as the tests
    service: RunningService, schema: Any, known: dict[str, list[str]], name: str, mode: str, examples: int
) -> None:
    """Send requests to an operation, and check each answer against the document."""
    from schemathesis import GenerationMode, checks  # noqa: PLC0415 # as above
    from schemathesis.specs.openapi import checks as by_document  # noqa: PLC0415

    method, path = name.split()
    headers = {"Authorization": service.admin.headers["Authorization"]}
    asked_for = [
        by_document.status_code_conformance,
        by_document.content_type_conformance,
        by_document.response_headers_conformance,
        by_document.response_schema_conformance,
    ]
    if name != ASKING:
        asked_for.append(checks.not_a_server_error)

    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=schema[path][method].as_strategy(generation_mode=GenerationMode(mode)), choice=st.integers(0, 9)
    )
    def ask(case: Case[Any], choice: int) -> None:
        for parameter in case.path_parameters or {}:
            if choice < len(known[parameter]):
                case.path_parameters[parameter] = known[parameter][choice]
        response = case.call_and_validate(headers=headers, checks=asked_for)
        assert response.status_code != 500

    ask()
    assert service.admin.get("/api/v1/auth/me").status_code == 200
