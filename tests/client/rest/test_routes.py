"""The SDK reaches every operation of the REST interface, in both its forms."""

from __future__ import annotations

import re
from contextlib import aclosing
from datetime import UTC, datetime
from inspect import isasyncgen
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client import Fleet, NewRequest, Operation, blocking
from meshfleet.errors import Unavailable
from meshfleet.service.api import load_openapi_document
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

DEVICE, GATEWAY = "bmac-c0ffee000001", "02005e000001"
WORDS = "another-horse-battery"

DOCUMENTED = {
    operation["operationId"]: f"{method.upper()} {path}"
    for path, item in load_openapi_document()["paths"].items()
    for method, operation in item.items()
}

METHODS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "logIn": ("log_in", lambda do: do()),
    "refresh": ("", lambda do: do()),
    "logOut": ("log_out", lambda do: do()),
    "me": ("me", lambda do: do()),
    "changePassword": ("change_password", lambda do: do(WORDS, WORDS)),
    "listUsers": ("users.list", lambda do: do()),
    "createUser": ("users.add", lambda do: do("somebody", WORDS, "viewer")),
    "showUser": ("users.show", lambda do: do("somebody")),
    "changeUser": ("users.change", lambda do: do("somebody", role="admin")),
    "removeUser": ("users.remove", lambda do: do("somebody")),
    "listKeys": ("api_keys.list", lambda do: do()),
    "issueKey": ("api_keys.issue", lambda do: do("robot", "viewer")),
    "revokeKey": ("api_keys.revoke", lambda do: do("some-id")),
    "listChanges": ("audit.list", lambda do: do()),
    "listDevices": ("devices.list", lambda do: do()),
    "summarize": ("devices.summary", lambda do: do()),
    "showDevice": ("devices.show", lambda do: do(DEVICE)),
    "forgetDevice": ("devices.forget", lambda do: do(DEVICE)),
    "renameDevice": ("devices.rename", lambda do: do(DEVICE, "name")),
    "attachLabel": ("devices.label", lambda do: do(DEVICE, "label")),
    "detachLabel": ("devices.unlabel", lambda do: do(DEVICE, "label")),
    "listConnectivity": ("devices.connectivity", lambda do: do(DEVICE)),
    "listHoles": ("devices.holes", lambda do: do(DEVICE)),
    "listDeviceUpdates": ("devices.updates", lambda do: do(DEVICE)),
    "listLabels": ("labels.list", lambda do: do()),
    "addLabel": ("labels.add", lambda do: do("label", [DEVICE])),
    "removeLabel": ("labels.remove", lambda do: do("label")),
    "listGateways": ("gateways.list", lambda do: do()),
    "claimGateway": ("gateways.claim", lambda do: do(GATEWAY)),
    "showGateway": ("gateways.show", lambda do: do(GATEWAY)),
    "releaseGateway": ("gateways.release", lambda do: do(GATEWAY)),
    "rotateCredentials": ("gateways.rotate", lambda do: do(GATEWAY)),
    "listSamples": ("samples.list", lambda do: do(DEVICE)),
    "showSeries": ("samples.series", lambda do: do(DEVICE, "temperature")),
    "showLinks": ("samples.links", lambda do: do(DEVICE)),
    "listRejects": ("samples.rejects", lambda do: do()),
    "showCatalogue": ("catalogue", lambda do: do()),
    "sendRequest": ("requests.send", lambda do: do(DEVICE, NewRequest(operation=Operation.READ))),
    "listRequests": ("requests.list", lambda do: do(DEVICE)),
    "showRequest": ("requests.show", lambda do: do("some-id")),
    "listFirmware": ("firmware.list", lambda do: do()),
    "uploadFirmware": (
        "firmware.upload",
        lambda do: do(BytesIO(b"image"), model_number="0018", version="1.0.0", file_name="a.zip"),
    ),
    "showFirmware": ("firmware.show", lambda do: do("fw-1")),
    "removeFirmware": ("firmware.remove", lambda do: do("fw-1")),
    "downloadImage": ("firmware.download", lambda do: do("fw-1")),
    "releaseFirmware": ("firmware.release", lambda do: do("fw-1")),
    "withdrawFirmware": ("firmware.withdraw", lambda do: do("fw-1")),
    "fetchImage": ("", lambda do: do()),
    "createJob": ("jobs.create", lambda do: do("name", "fw-1", everything=True)),
    "listJobs": ("jobs.list", lambda do: do()),
    "showJob": ("jobs.show", lambda do: do("job-1")),
    "summarizeJob": ("jobs.summary", lambda do: do("job-1")),
    "listExecutions": ("jobs.executions", lambda do: do("job-1")),
    "showExecution": ("jobs.execution", lambda do: do("job-1", DEVICE)),
    "applyJob": ("jobs.apply", lambda do: do("job-1")),
    "pauseJob": ("jobs.pause", lambda do: do("job-1")),
    "resumeJob": ("jobs.resume", lambda do: do("job-1")),
    "cancelJob": ("jobs.cancel", lambda do: do("job-1")),
    "deleteJob": ("jobs.delete", lambda do: do("job-1")),
    "retryJob": ("jobs.retry", lambda do: do("job-1")),
    "streamEvents": ("live", lambda do: do()),
    "tellHealth": ("operations.health", lambda do: do()),
    "tellReadiness": ("operations.ready", lambda do: do()),
    "tellFigures": ("operations.metrics", lambda do: do()),
    "tellMessaging": ("operations.asyncapi", lambda do: do()),
    "tellDocument": ("operations.openapi", lambda do: do()),
}
"""By which method an operation is asked for; none where the SDK or a gateway does it by itself."""

MORE: dict[str, Callable[[Any], Any]] = {
    "firmware.save": lambda do: do("fw-1", "image"),
    "jobs.dry_run": lambda do: do("name", "fw-1", everything=True),
    "jobs.watch": lambda do: do("job-1"),
    "samples.csv": lambda do: do(DEVICE),
    "requests.read": lambda do: do(DEVICE, "8000"),
    "requests.write": lambda do: do(DEVICE, "8000", "00"),
    "requests.apiversion": lambda do: do(GATEWAY),
    "requests.ack": lambda do: do(DEVICE, "8000", time=datetime(2026, 1, 1, tzinfo=UTC)),
    "requests.post": lambda do: do(DEVICE, NewRequest(operation=Operation.READ)),
}
"""Other forms of some of them."""


def method_of(fleet: object, name: str) -> Any:
    found: Any = fleet
    for part in name.split("."):
        found = getattr(found, part)
    return found


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_operation_has_a_method() -> None:
    assert DOCUMENTED.keys() == METHODS.keys()


@each_row("operation", [each for each, (name, _) in METHODS.items() if name])
async def test_a_method_asks_for_its_operation(operation: str) -> None:
    name, call = METHODS[operation]
    async with scripted_server(build_response(500)) as server:
        given = {"user": "me", "password": WORDS} if name == "log_in" else {"token": "mfk_key"}
        async with Fleet(server.url, **given) as fleet:  # type: ignore[arg-type] # by their names
            with pytest.raises(Unavailable):
                await _do(call(method_of(fleet, name)))
    [asked] = server.requests
    method, template = DOCUMENTED[operation].split(" ")
    pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
    assert asked.method == method
    assert re.fullmatch(pattern, asked.path), asked.path


async def _do(call: Any) -> None:
    if isasyncgen(call):
        async with aclosing(call) as items:
            await anext(items)
    else:
        await call


async def test_the_blocking_fleet_has_all_methods_and_rooms_of_the_other() -> None:
    async with Fleet("http://127.0.0.1", token="mfk_key") as fleet:  # noqa: S106 # of nobody
        waiting = blocking.Fleet("http://127.0.0.1", token="mfk_key")  # noqa: S106
        assert public(waiting) == public(fleet)
        for room in (
            *("devices", "labels", "gateways", "samples", "requests", "firmware", "jobs"),
            *("users", "api_keys", "audit"),
        ):
            assert public(getattr(waiting, room)) == public(getattr(fleet, room))
        assert public(waiting.operations) == public(fleet.operations)


def test_a_method_that_waits_has_the_words_of_the_other() -> None:
    waiting = blocking.Fleet("http://127.0.0.1", token="mfk_key")  # noqa: S106 # of nobody
    for name in [each for each, _ in METHODS.values() if each] + list(MORE):
        assert method_of(waiting, name).__doc__ == method_of(Fleet("http://127.0.0.1"), name).__doc__


def test_every_method_of_a_room_is_known_here() -> None:
    fleet = Fleet("http://127.0.0.1")
    known = {name for name, _ in METHODS.values()} | set(MORE)
    rooms = {name for name in public(fleet) if type(getattr(fleet, name)).__module__.startswith("meshfleet")}
    assert {f"{room}.{each}" for room in rooms for each in public(getattr(fleet, room))} <= known
