"""Coverage of all operations of the REST API by the asynchronous and the blocking SDK."""

from __future__ import annotations

import re
from contextlib import aclosing
from datetime import UTC, datetime
from inspect import isasyncgen
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client import (
    BatchGateway,
    BatchPlace,
    Fleet,
    NewAlarmRule,
    NewRequest,
    NewSilence,
    Operation,
    SilenceScope,
    blocking,
)
from meshfleet.errors import Unavailable
from meshfleet.service.api import load_openapi_document
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

DEVICE, GATEWAY = "bmac-c0ffee000001", "02005e000001"
PASSWORD = "another-horse-battery"  # noqa: S105 # not a real password

SILENCE = NewSilence(
    scope=SilenceScope(rules=["battery-low"]), starts_at="2026-01-01T00:00:00Z", until="2026-01-02T00:00:00Z"
)

DOCUMENTED = {
    operation["operationId"]: f"{method.upper()} {path}"
    for path, item in load_openapi_document()["paths"].items()
    for method, operation in item.items()
}

METHODS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "logIn": ("log_in", lambda method: method()),
    "refresh": ("", lambda method: method()),
    "logOut": ("log_out", lambda method: method()),
    "me": ("me", lambda method: method()),
    "changePassword": ("change_password", lambda method: method(PASSWORD, PASSWORD)),
    "listUsers": ("users.list", lambda method: method()),
    "createUser": ("users.add", lambda method: method("someone", PASSWORD, "viewer")),
    "showUser": ("users.show", lambda method: method("someone")),
    "changeUser": ("users.change", lambda method: method("someone", role="admin")),
    "removeUser": ("users.remove", lambda method: method("someone")),
    "listKeys": ("api_keys.list", lambda method: method()),
    "issueKey": ("api_keys.issue", lambda method: method("robot", "viewer")),
    "revokeKey": ("api_keys.revoke", lambda method: method("some-id")),
    "listChanges": ("audit.list", lambda method: method()),
    "listDevices": ("devices.list", lambda method: method()),
    "summarize": ("devices.summary", lambda method: method()),
    "showDevice": ("devices.show", lambda method: method(DEVICE)),
    "forgetDevice": ("devices.forget", lambda method: method(DEVICE)),
    "renameDevice": ("devices.rename", lambda method: method(DEVICE, "name")),
    "attachLabel": ("devices.label", lambda method: method(DEVICE, "label")),
    "detachLabel": ("devices.unlabel", lambda method: method(DEVICE, "label")),
    "listConnectivity": ("devices.connectivity", lambda method: method(DEVICE)),
    "listParents": ("devices.parents", lambda method: method(DEVICE)),
    "showPath": ("devices.path", lambda method: method(DEVICE)),
    "showTopology": ("gateways.topology", lambda method: method(GATEWAY)),
    "listHoles": ("devices.gaps", lambda method: method(DEVICE)),
    "listDeviceUpdates": ("devices.updates", lambda method: method(DEVICE)),
    "listLabels": ("labels.list", lambda method: method()),
    "addLabel": ("labels.add", lambda method: method("label", [DEVICE])),
    "removeLabel": ("labels.remove", lambda method: method("label")),
    "showPlace": ("devices.place", lambda method: method(DEVICE)),
    "setPlace": ("devices.set_place", lambda method: method(DEVICE, "site-1", 0, 1, 2.5)),
    "removePlace": ("devices.remove_place", lambda method: method(DEVICE)),
    "createSite": ("sites.create", lambda method: method("name", [])),
    "listSites": ("sites.list", lambda method: method()),
    "showSite": ("sites.show", lambda method: method("site-1")),
    "changeSite": ("sites.change", lambda method: method("site-1", "name", [])),
    "removeSite": ("sites.remove", lambda method: method("site-1")),
    "listPlaces": ("sites.places", lambda method: method("site-1")),
    "setPlaces": (
        "sites.set_places",
        lambda method: method("site-1", [BatchPlace(device=DEVICE, floor=0, x=1, y=2)]),
    ),
    "uploadPlan": ("sites.upload_plan", lambda method: method("site-1", 0, BytesIO(b"image"), [])),
    "downloadPlan": ("sites.download_plan", lambda method: method("site-1", 0)),
    "removePlan": ("sites.remove_plan", lambda method: method("site-1", 0)),
    "createZone": ("sites.create_zone", lambda method: method("site-1", "name", 0, [])),
    "listZones": ("sites.zones", lambda method: method("site-1")),
    "showZone": ("sites.zone", lambda method: method("site-1", "zone-1")),
    "changeZone": (
        "sites.change_zone",
        lambda method: method("site-1", "zone-1", name="name", floor=0, polygon=[]),
    ),
    "removeZone": ("sites.remove_zone", lambda method: method("site-1", "zone-1")),
    "listAlarms": ("alarms.list", lambda method: method()),
    "showAlarm": ("alarms.show", lambda method: method("alarm-1")),
    "listAlarmMembers": ("alarms.members", lambda method: method("alarm-1")),
    "listAlarmEvents": ("alarms.events", lambda method: method("alarm-1")),
    "acknowledgeAlarm": ("alarms.acknowledge", lambda method: method("alarm-1")),
    "acknowledgeAlarms": ("alarms.acknowledge_all", lambda method: method(["alarm-1"])),
    "listAlarmNews": ("alarms.news", lambda method: method()),
    "markAlarmsSeen": ("alarms.mark_seen", lambda method: method(1)),
    "showAvailability": ("devices.availability", lambda method: method()),
    "listFleetConnectivity": (
        "devices.connectivity_changes",
        lambda method: method("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
    ),
    "unacknowledgeAlarm": ("alarms.unacknowledge", lambda method: method("alarm-1")),
    "addAlarmNote": ("alarms.add_note", lambda method: method("alarm-1", "note")),
    "silenceAlarm": ("alarms.silence", lambda method: method("alarm-1", 3600)),
    "unsilenceAlarm": ("alarms.unsilence", lambda method: method("alarm-1")),
    "listAlarmRules": ("alarm_rules.list", lambda method: method()),
    "showAlarmRule": ("alarm_rules.show", lambda method: method("rule-1")),
    "createAlarmRule": ("alarm_rules.create", lambda method: method(NewAlarmRule(kind="measurement"))),
    "changeAlarmRule": (
        "alarm_rules.replace",
        lambda method: method("rule-1", NewAlarmRule(kind="measurement")),
    ),
    "resetAlarmRule": ("alarm_rules.reset", lambda method: method("battery-low")),
    "removeAlarmRule": ("alarm_rules.delete", lambda method: method("rule-1")),
    "previewAlarmRule": ("alarm_rules.preview", lambda method: method(NewAlarmRule(kind="measurement"))),
    "listSilences": ("alarms.silences", lambda method: method()),
    "showSilence": ("alarms.show_silence", lambda method: method("silence-1")),
    "createSilence": ("alarms.add_silence", lambda method: method(SILENCE)),
    "changeSilence": ("alarms.change_silence", lambda method: method("silence-1", SILENCE)),
    "deleteSilence": ("alarms.delete_silence", lambda method: method("silence-1")),
    "listChannels": ("channels.list", lambda method: method()),
    "createChannel": ("channels.create", lambda method: method("name", "email", recipients="a@b.example")),
    "showChannel": ("channels.show", lambda method: method("channel-1")),
    "changeChannel": ("channels.change", lambda method: method("channel-1", "name", "webhook")),
    "deleteChannel": ("channels.delete", lambda method: method("channel-1")),
    "testChannel": ("channels.test", lambda method: method("channel-1")),
    "rotateChannelSecret": ("channels.rotate_secret", lambda method: method("channel-1")),
    "listDeliveries": ("channels.deliveries", lambda method: method("channel-1")),
    "retryDelivery": ("channels.retry", lambda method: method("channel-1", "delivery-1")),
    "retryDeadDeliveries": ("channels.retry_dead", lambda method: method("channel-1")),
    "listAlarmRoutes": ("channels.routes", lambda method: method()),
    "changeAlarmRoutes": ("channels.set_routes", lambda method: method([])),
    "diagnoseDevice": ("devices.diagnose", lambda method: method(DEVICE)),
    "showAttention": ("alarms.attention", lambda method: method()),
    "listVisits": ("sites.visits", lambda method: method("site-1", "zone-1")),
    "showPosition": ("devices.position", lambda method: method(DEVICE)),
    "listPositions": ("devices.positions", lambda method: method(DEVICE)),
    "listSitePositions": ("sites.positions", lambda method: method("site-1")),
    "listNearest": ("sites.nearest", lambda method: method("site-1", 0, 1, 2.5)),
    "showCoverage": ("sites.coverage", lambda method: method("site-1", 0)),
    "createSurveyPoint": ("sites.add_survey_point", lambda method: method("site-1", DEVICE, 0, 1, 2.5)),
    "listSurveyPoints": ("sites.survey_points", lambda method: method("site-1")),
    "exportSurvey": ("sites.export_survey", lambda method: method("site-1")),
    "importSurvey": ("sites.import_survey", lambda method: method("site-1", [])),
    "showSurveyPoint": ("sites.survey_point", lambda method: method("site-1", "survey-1")),
    "removeSurveyPoint": ("sites.remove_survey_point", lambda method: method("site-1", "survey-1")),
    "listGateways": ("gateways.list", lambda method: method()),
    "claimGateway": ("gateways.claim", lambda method: method(GATEWAY)),
    "claimGateways": ("gateways.claim_many", lambda method: method([BatchGateway(mac=GATEWAY)])),
    "showGateway": ("gateways.show", lambda method: method(GATEWAY)),
    "releaseGateway": ("gateways.release", lambda method: method(GATEWAY)),
    "rotateCredentials": ("gateways.rotate", lambda method: method(GATEWAY)),
    "listSamples": ("samples.list", lambda method: method(DEVICE)),
    "exportSamples": ("samples.export", lambda method: method()),
    "showSeries": ("samples.series", lambda method: method(DEVICE, "temperature")),
    "showLinks": ("samples.links", lambda method: method(DEVICE)),
    "listRejects": ("samples.rejects", lambda method: method()),
    "showCatalogue": ("catalogue", lambda method: method()),
    "sendRequest": ("requests.send", lambda method: method(DEVICE, NewRequest(operation=Operation.READ))),
    "listRequests": ("requests.list", lambda method: method(DEVICE)),
    "showRequest": ("requests.show", lambda method: method("some-id")),
    "listFirmware": ("firmware.list", lambda method: method()),
    "uploadFirmware": (
        "firmware.upload",
        lambda method: method(BytesIO(b"image"), model_number="0018", version="1.0.0", file_name="a.zip"),
    ),
    "showFirmware": ("firmware.show", lambda method: method("fw-1")),
    "removeFirmware": ("firmware.remove", lambda method: method("fw-1")),
    "downloadImage": ("firmware.download", lambda method: method("fw-1")),
    "releaseFirmware": ("firmware.release", lambda method: method("fw-1")),
    "withdrawFirmware": ("firmware.withdraw", lambda method: method("fw-1")),
    "fetchImage": ("", lambda method: method()),
    "createJob": ("jobs.create", lambda method: method("name", "fw-1", everything=True)),
    "listJobs": ("jobs.list", lambda method: method()),
    "showJob": ("jobs.show", lambda method: method("job-1")),
    "summarizeJob": ("jobs.summary", lambda method: method("job-1")),
    "listExecutions": ("jobs.executions", lambda method: method("job-1")),
    "showExecution": ("jobs.execution", lambda method: method("job-1", DEVICE)),
    "applyJob": ("jobs.apply", lambda method: method("job-1")),
    "pauseJob": ("jobs.pause", lambda method: method("job-1")),
    "resumeJob": ("jobs.resume", lambda method: method("job-1")),
    "cancelJob": ("jobs.cancel", lambda method: method("job-1")),
    "deleteJob": ("jobs.delete", lambda method: method("job-1")),
    "retryJob": ("jobs.retry", lambda method: method("job-1")),
    "streamEvents": ("live", lambda method: method()),
    "getHealth": ("operations.health", lambda method: method()),
    "getReadiness": ("operations.ready", lambda method: method()),
    "getMetrics": ("operations.metrics", lambda method: method()),
    "reloadSettings": ("operations.reload", lambda method: method()),
    "getStorage": ("operations.storage", lambda method: method()),
    "getAsyncapi": ("operations.asyncapi", lambda method: method()),
    "getOpenapi": ("operations.openapi", lambda method: method()),
}
"""SDK method for each operation; empty if the SDK or a gateway calls it internally."""

OTHER_METHODS: dict[str, Callable[[Any], Any]] = {
    "alarm_rules.change": lambda method: method("rule-1", enabled=False),
    "firmware.save": lambda method: method("fw-1", "image"),
    "jobs.dry_run": lambda method: method("name", "fw-1", everything=True),
    "jobs.watch": lambda method: method("job-1"),
    "samples.csv": lambda method: method(DEVICE),
    "requests.read": lambda method: method(DEVICE, "8000"),
    "requests.write": lambda method: method(DEVICE, "8000", "00"),
    "requests.apiversion": lambda method: method(GATEWAY),
    "requests.ack": lambda method: method(DEVICE, "8000", time=datetime(2026, 1, 1, tzinfo=UTC)),
    "requests.post": lambda method: method(DEVICE, NewRequest(operation=Operation.READ)),
}
"""SDK methods that share the operation of another method."""


def get_method(fleet: object, name: str) -> Any:
    resource: Any = fleet
    for part in name.split("."):
        resource = getattr(resource, part)
    return resource


def list_public_names(target: object) -> set[str]:
    return {name for name in dir(target) if not name.startswith("_")}


def test_every_operation_has_a_method() -> None:
    assert DOCUMENTED.keys() == METHODS.keys()


@each_row("operation", [each for each, (name, _) in METHODS.items() if name])
async def test_a_method_calls_its_operation(operation: str) -> None:
    name, call = METHODS[operation]
    async with scripted_server(build_response(500)) as server:
        credentials = {"user": "me", "password": PASSWORD} if name == "log_in" else {"token": "mfk_key"}
        async with Fleet(server.url, **credentials) as fleet:  # type: ignore[arg-type] # keywords of Fleet
            with pytest.raises(Unavailable):
                await _run(call(get_method(fleet, name)))
    [request] = server.requests
    method, template = DOCUMENTED[operation].split(" ")
    pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
    assert request.method == method
    assert re.fullmatch(pattern, request.path), request.path


async def _run(call: Any) -> None:
    if isasyncgen(call):
        async with aclosing(call) as items:
            await anext(items)
    else:
        await call


async def test_the_blocking_fleet_has_all_methods_and_resources() -> None:
    async with Fleet("http://127.0.0.1", token="mfk_key") as fleet:  # noqa: S106 # not a real key
        blocking_fleet = blocking.Fleet("http://127.0.0.1", token="mfk_key")  # noqa: S106
        assert list_public_names(blocking_fleet) == list_public_names(fleet)
        for resource in (
            *("devices", "labels", "gateways", "samples", "requests", "firmware", "jobs"),
            *("sites", "alarms", "alarm_rules", "channels", "users", "api_keys", "audit"),
        ):
            assert list_public_names(getattr(blocking_fleet, resource)) == list_public_names(
                getattr(fleet, resource)
            )
        assert list_public_names(blocking_fleet.operations) == list_public_names(fleet.operations)


def test_a_blocking_method_has_the_docstring_of_its_counterpart() -> None:
    blocking_fleet = blocking.Fleet("http://127.0.0.1", token="mfk_key")  # noqa: S106 # not a real key
    for name in [each for each, _ in METHODS.values() if each] + list(OTHER_METHODS):
        assert get_method(blocking_fleet, name).__doc__ == get_method(Fleet("http://127.0.0.1"), name).__doc__


def test_every_method_of_a_resource_is_listed_here() -> None:
    fleet = Fleet("http://127.0.0.1")
    listed = {name for name, _ in METHODS.values()} | set(OTHER_METHODS)
    resources = {
        name
        for name in list_public_names(fleet)
        if type(getattr(fleet, name)).__module__.startswith("meshfleet")
    }
    assert {
        f"{resource}.{each}" for resource in resources for each in list_public_names(getattr(fleet, resource))
    } <= listed
