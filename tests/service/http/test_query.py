"""Names and values of query parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.rest.live import STREAM_PATH
from meshfleet.service.api import load_openapi_document
from tests.row_tables import each_row
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.raw_http import build_bearer_header, build_head, exchange_raw
from tests.service.jobs.job_environment import JobEnvironment
from tests.service.sites.site_requests import ROOM, create_site

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

LISTS = ("devices", "labels", "gateways", "users", "api-keys", "audit", "rejects", "jobs")


def _list_documented() -> list[tuple[str, str, str]]:
    """Return all documented query parameters: method, path, name."""
    return [
        (method.upper(), path, parameter["name"])
        for path, item in load_openapi_document()["paths"].items()
        for method, operation in item.items()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    ]


VALID_VALUES = {
    "MaxResults": "7",
    "Connected": "true",
    "LeftOut": "false",
    "Sort": "-friendlyName",
    "Include": "live",
    "ModelNumber": "2011",
    "FirmwareVersion": "2.4.0",
    "HardwareVersion": "1.0",
    "Gateway": "c0ffee000000",
    "Ids": "bmac-c0ffee000000",
    "Format": "csv",
    "Kind": "event",
    "From": "2023-11-14T22:13:20Z",
    "To": "2023-11-14T22:13:20Z",
    "Points": "7",
    "At": "2023-11-14T22:13:20Z",
    "Window": "7",
    "Floor": "0",
    "X": "1.5",
    "Y": "-2",
    "MinRssi": "-80",
    "Types": "report",
    "Jobs": "job-1",
    "Version": "2.4.0-beta.1",
    "Severity": "critical",
    "Rule": "gateway-offline",
    "Device": "bmac-c0ffee000000",
    "/api/v1/alarms State": "cleared",
    "/api/v1/channels/{channel_id}/deliveries State": "dead",
    "/api/v1/firmware State": "released",
    "/api/v1/jobs State": "PAUSED",
    "/api/v1/jobs/{job_id}/executions State": "QUEUED",
}
REQUIRED_PARAMETERS = {
    "/api/v1/devices/{device_id}/series": {"Identifier": "8800"},
    "/api/v1/fleet/availability": {"To": "2023-11-15T00:00:00Z"},
    "/api/v1/sites/{site_id}/nearest": {"Floor": "0", "X": "1.5", "Y": "-2"},
}
"""Other parameters that a path requires."""


@pytest.fixture(scope="module")
def device(service: RunningService) -> str:
    return service.new_device()


@pytest.fixture(scope="module")
def gateway(service: RunningService) -> str:
    mac = service.new_mac()
    assert service.admin.post("/api/v1/gateways", json={"mac": mac}).status_code == 201
    return mac


@pytest.fixture(scope="module")
def site(service: RunningService) -> dict[str, str]:
    """Create a site with a floor and a zone, and return their ids by the name of the path parameter."""
    site = create_site(service)["id"]
    zone = {"name": "Area", "floor": 0, "polygon": ROOM}
    created = service.operator.post(f"/api/v1/sites/{site}/zones", json=zone)
    return {"site_id": site, "floor": "0", "zone_id": created.json()["id"]}


@pytest.fixture(scope="module")
def job(service: RunningService) -> str:
    return JobEnvironment(service).any_job()


@pytest.fixture(scope="module")
def alarm(service: RunningService) -> str:
    """Let a device behind a gateway be silent, and return the id of the alarm."""
    log = PresenceLog(service.database)
    office, devices = log.add_gateway(1, 1)
    log.set_device(devices[0], office, connected=False)
    log.run(660)
    return f"alarm-{log.alarms()[0].id}"


@pytest.fixture(scope="module")
def channel(service: RunningService) -> str:
    body = {"name": "Office", "kind": "email", "recipients": ["office@example.org"]}
    created = service.admin.post("/api/v1/channels", json=body)
    return str(created.json()["channel"]["id"])


@pytest.mark.rule("rest-3")
@each_row(("method", "path", "name"), [each for each in _list_documented() if each[2] != "NextToken"])
def test_a_parameter_name_is_accepted_in_any_case(  # noqa: PLR0913, PLR0917 # fixtures and parameters
    service: RunningService,
    device: str,
    gateway: str,
    job: str,
    site: dict[str, str],
    alarm: str,
    channel: str,
    method: str,
    path: str,
    name: str,
) -> None:
    others = {each: value for each, value in REQUIRED_PARAMETERS.get(path, {}).items() if each != name}
    url = path.format(device_id=device, job_id=job, mac=gateway, alarm_id=alarm, channel_id=channel, **site)
    # HEAD for the endless stream.
    request_method = "HEAD" if path == STREAM_PATH else method
    for spelling in (name, name.lower(), name.upper(), name[0].lower() + name[1:]):
        query = {
            **others,
            spelling: VALID_VALUES.get(f"{path} {name}") or VALID_VALUES.get(name, "some text"),
        }
        assert service.admin.request(request_method, url, params=query).status_code == 200
    refused = service.admin.request(method, url, params={name.upper(): "\0"})
    assert [each["field"] for each in refused.json()["errors"]] == [name]


@pytest.mark.rule("rest-3")
def test_parameter_names_are_documented_in_pascal_case() -> None:
    names = {name for _, _, name in _list_documented()}
    assert names
    assert all(name[0].isupper() and name.isalpha() for name in names)


@pytest.mark.rule("rest-4", "rest-12")
@each_row(
    "query",
    ["Lable=x", "label[]=x", "=x", "Label.=x", "MaxResult=1", "max-results=1", "x", "Label%00=x", "a=1&b=2"],
)
def test_an_unknown_parameter_is_refused_by_name(service: RunningService, query: str) -> None:
    response = service.admin.get(f"/api/v1/devices?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "invalid-request")
    assert [each["message"] for each in response.json()["errors"]] == [
        "is not a parameter of this operation"
    ] * (1 + query.count("&"))


@pytest.mark.rule("rest-4")
@each_row(
    ("method", "path"),
    [
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/api/v1/openapi.json"),
        ("GET", "/api/v1/asyncapi.json"),
        ("GET", "/api/v1/auth/me"),
        ("POST", "/api/v1/auth/login"),
        ("POST", "/api/v1/labels"),
        ("DELETE", "/api/v1/labels/x"),
        ("GET", "/api/v1/devices/bmac-c0ffee000000"),
        *(("GET", f"/api/v1/{name}") for name in LISTS),
        ("GET", "/api/v1/devices/summary"),
    ],
)
def test_every_route_refuses_unknown_parameters(service: RunningService, method: str, path: str) -> None:
    response = service.admin.request(method, path, params={"Unknown": "x"})
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == ["Unknown"]


@pytest.mark.parametrize("second", ["MaxResults", "maxresults"])
def test_a_repeated_parameter_is_refused(service: RunningService, second: str) -> None:
    response = service.admin.get(f"/api/v1/devices?MaxResults=1&{second}=2")
    assert response.status_code == 400
    assert response.json()["errors"] == [{"field": "MaxResults", "message": "is given more than once"}]


@pytest.mark.rule("rest-34")
def test_a_repeatable_parameter_may_be_repeated_in_any_case(service: RunningService) -> None:
    ids = [service.new_device(), service.new_device()]
    response = service.admin.get(f"/api/v1/devices?Ids={ids[0]}&ids={ids[1]}&MAXRESULTS=2")
    assert [each["id"] for each in response.json()["items"]] == sorted(ids)


@pytest.mark.rule("rest-23")
@each_row(
    "invalid",
    [
        "0",
        "1001",
        "-1",
        "",
        " ",
        "x",
        "1.0",
        "1e2",
        "0x10",
        "1_0",
        "true",
        "null",
        "%2B1",
        "\u0661",
        "9" * 40,
    ],
)
def test_max_results_is_a_whole_number_from_1_to_1000(service: RunningService, invalid: str) -> None:
    for name in LISTS:
        response = service.admin.get(f"/api/v1/{name}?MaxResults={invalid}")
        assert response.status_code == 400
        assert [each["field"] for each in response.json()["errors"]] == ["MaxResults"]


@pytest.mark.rule("rest-23")
@each_row("path", LISTS)
def test_max_results_may_be_1_and_1000(service: RunningService, path: str) -> None:
    for fitting in ("1", "1000"):
        assert service.admin.get(f"/api/v1/{path}?MaxResults={fitting}").status_code == 200


@pytest.mark.rule("rest-12", "rest-19")
@each_row("query", ["NextToken", "Connected", "Sort", "Include", "Ids", "FirmwareVersion"])
def test_an_empty_value_is_not_ignored(service: RunningService, query: str) -> None:
    assert service.admin.get(f"/api/v1/devices?{query}=").status_code == 400
    assert service.admin.get(f"/api/v1/devices?{query}").status_code == 400


@pytest.mark.rule("rest-12")
@each_row("query", ["FriendlyName=%ff", "%ff=1", "FriendlyName=%C3", "FriendlyName=%ED%A0%80"])
def test_a_query_that_is_not_utf_8_is_refused(service: RunningService, query: str) -> None:
    assert service.admin.get(f"/api/v1/devices?{query}").status_code == 400


@each_row("query", ["FriendlyName=%zz%z%", "FriendlyName=a%2", "&&&", "Ids=;"])
def test_unusual_percent_encoding_causes_no_server_error(service: RunningService, query: str) -> None:
    response = exchange_raw(
        service, build_head(f"GET /api/v1/devices?{query}", build_bearer_header(service), "Connection: close")
    )
    assert response is not None
    assert response.status in {200, 400}


def test_a_plus_and_an_encoded_space_mean_the_same(service: RunningService) -> None:
    device = service.new_device()
    name = service.new_name("two words")
    assert (
        service.admin.put(f"/api/v1/devices/{device}/friendly-name", json={"name": name}).status_code == 200
    )
    found: Any = [
        service.admin.get(f"/api/v1/devices?FriendlyName={name.replace(' ', space)}").json()["items"]
        for space in ("+", "%20")
    ]
    assert [[each["id"] for each in items] for items in found] == [[device], [device]]
