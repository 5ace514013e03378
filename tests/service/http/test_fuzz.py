"""Fuzzing of every operation with values that its OpenAPI document allows and with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from meshfleet.protocol.times import format_millis
from meshfleet.rest.live import STREAM_PATH
from meshfleet.service import clock
from meshfleet.service.api import load_openapi_document
from meshfleet.service.http.access import REQUIRED_ROLES
from tests.row_tables import each_row
from tests.service.firmware.uploads import upload_record
from tests.service.jobs.job_environment import JobEnvironment
from tests.service.sites.site_requests import ROOM, create_site, put_place, upload_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case

    from tests.service.http.running_service import RunningService

UNAVAILABLE = (
    "POST /api/v1/devices/{device_id}/requests",
    "POST /api/v1/channels/{channel_id}/test",
)
"""Operations that need a gateway, or the task that sends messages. Both are missing here: 503 and 504 are
documented responses."""

ANY_TEXT = "GET /api/v1/images/{token}/{file_name}"
"""Operation whose parameters are all texts, so that no value is of a wrong type."""

OPERATIONS = load_openapi_document()["paths"]


def _list_modes() -> Iterator[tuple[str, str]]:
    """Yield every operation with valid values, and with invalid ones if it has parameters."""
    for name in sorted(REQUIRED_ROLES.keys() - {f"GET {STREAM_PATH}"}):  # an endless stream
        yield name, "positive"
        method, path = name.split()
        if name != ANY_TEXT and OPERATIONS[path][method.lower()].keys() & {"parameters", "requestBody"}:
            yield name, "negative"


@pytest.fixture(scope="module")
def schema(service: RunningService) -> Any:
    """Load the OpenAPI document of the service."""
    import schemathesis  # noqa: PLC0415 # slow to import, and only one worker needs it

    return schemathesis.openapi.from_url(f"{service.url}/api/v1/openapi.json")


@pytest.fixture(scope="module")
def existing_ids(service: RunningService) -> dict[str, list[str]]:
    """Create objects and return their ids by path parameter: fuzzing would not guess them."""
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
    sites = [create_site(service)["id"] for _ in range(3)]
    area = {"name": "Area", "floor": 0, "polygon": ROOM}
    for site, device in zip(sites, devices, strict=False):
        put_place(service, device, site)
        upload_plan(service, site)
    return {
        "site_id": sites,
        "floor": ["0", "1"],
        "point_id": ["survey-0000000000000001"],
        "zone_id": [
            service.admin.post(f"/api/v1/sites/{site}/zones", json=area).json()["id"] for site in sites
        ],
        "device_id": devices,
        "mac": [*macs, devices[0].removeprefix("bmac-")],
        "label": labels,
        "username": [service.new_user() for _ in range(2)],
        "key_id": [key["id"] for key in keys],  # without the key of the test's own client
        "request_id": ["-"],
        "firmware_id": [upload_record(service)["id"] for _ in range(3)],
        "job_id": [JobEnvironment(service).any_job() for _ in range(5)],
        "alarm_id": ["alarm-1"],
        "channel_id": [create_channel(service) for _ in range(3)],
        "delivery_id": ["delivery-1"],
        "rule_id": ["battery-low", *(create_rule(service) for _ in range(3))],
        "silence_id": [create_silence(service) for _ in range(3)],
        "token": ["-"],
        "file_name": ["image.bin"],
    }


def create_channel(service: RunningService) -> str:
    """Create a channel and return its id."""
    body = {"name": service.new_name("channel"), "kind": "email", "recipients": ["office@example.org"]}
    return str(service.admin.post("/api/v1/channels", json=body).json()["channel"]["id"])


def create_rule(service: RunningService) -> str:
    """Create a rule of alarms and return its id."""
    when = {"identifier": "temperature", "operator": "above", "value": 30}
    body = {"name": service.new_name("rule"), "kind": "measurement", "when": when}
    return str(service.admin.post("/api/v1/alarm-rules", json=body).json()["id"])


def create_silence(service: RunningService) -> str:
    """Create a silence of alarms and return its id."""
    now = clock.now()
    times = {"from": format_millis(now), "until": format_millis(now + 3_600_000)}
    body = {"scope": {"rules": ["battery-low"]}, **times}
    return str(service.admin.post("/api/v1/silences", json=body).json()["id"])


@pytest.mark.rule("rest-9", "rest-12", "rest-16", "rest-162")
@each_row(("name", "mode"), _list_modes())
def test_an_operation_responds_as_documented(
    service: RunningService, schema: Any, existing_ids: dict[str, list[str]], name: str, mode: str
) -> None:
    # The first example is always the simplest one; the second is random.
    _fuzz(service, schema, existing_ids, name, mode, examples=2)


@pytest.mark.part("fuzz")
@each_row(("name", "mode"), _list_modes())
def test_an_operation_responds_as_documented_to_many_requests(
    service: RunningService, schema: Any, existing_ids: dict[str, list[str]], name: str, mode: str
) -> None:
    _fuzz(service, schema, existing_ids, name, mode, examples=50)


def _fuzz(  # noqa: PLR0913, PLR0917 # the parameters of the tests
    service: RunningService,
    schema: Any,
    existing_ids: dict[str, list[str]],
    name: str,
    mode: str,
    examples: int,
) -> None:
    """Send requests to an operation and check each response against the document."""
    from schemathesis import GenerationMode, checks  # noqa: PLC0415 # slow to import
    from schemathesis.specs.openapi import checks as openapi_checks  # noqa: PLC0415

    method, path = name.split()
    headers = {"Authorization": service.admin.headers["Authorization"]}
    enabled_checks = [
        openapi_checks.status_code_conformance,
        openapi_checks.content_type_conformance,
        openapi_checks.response_headers_conformance,
        openapi_checks.response_schema_conformance,
    ]
    if name not in UNAVAILABLE:
        enabled_checks.append(checks.not_a_server_error)

    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
    )
    @given(
        case=schema[path][method].as_strategy(generation_mode=GenerationMode(mode)), choice=st.integers(0, 9)
    )
    def send_request(case: Case[Any], choice: int) -> None:
        for parameter in case.path_parameters or {}:
            if choice < len(existing_ids[parameter]):
                case.path_parameters[parameter] = existing_ids[parameter][choice]
        response = case.call_and_validate(headers=headers, checks=enabled_checks)
        assert response.status_code != 500

    send_request()
    assert service.admin.get("/api/v1/auth/me").status_code == 200
