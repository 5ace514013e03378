"""Invalid arguments, reported as a `MalformedInput` before anything is sent, and without quoting secrets."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client import Fleet, NewRequest, Operation
from meshfleet.errors.protocol import MalformedInput, MalformedText, MalformedTime, UnencodableValue
from meshfleet.protocol.hex import Secret
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.client.rest.test_secrets import format_everything
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.client.rest.scripted_server import ScriptedServer

pytestmark = pytest.mark.anyio

DEVICE = "c0ffee000001"
INVALID_TEXT = "hunter22\udcff"
"""Text that Python makes of a command-line byte that is not UTF-8."""
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 # naive on purpose
KEY = "mfk_not-a-key"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server(build_response(200, {})) as running:
        yield running


@pytest.fixture
async def fleet(server: ScriptedServer) -> AsyncIterator[Fleet]:
    async with Fleet(server.url, token=KEY) as fleet:
        yield fleet


async def get_error(call: Callable[[], Awaitable[object]], server: ScriptedServer) -> MalformedInput:
    """Return the `MalformedInput` of a call, and check that nothing was sent."""
    with pytest.raises(MalformedInput) as raised:
        await call()
    assert server.requests == []
    return raised.value


# --- Values ---


@each_row(
    "value",
    [math.nan, math.inf, {"a": [-math.inf]}, object, "\ud800", "\ud800 and more", b"\x01", {1, 2}],
)
async def test_values_that_json_cannot_represent_are_not_written(
    fleet: Fleet, server: ScriptedServer, value: object
) -> None:
    """Check above all that they are not written as null, which triggers commands."""
    with_value = NewRequest(operation=Operation.WRITE_DECODED, identifier="tx-power", value=value)
    with_ext = NewRequest(operation=Operation.WRITE_DECODED, identifier="tx-power", ext={"a": value})
    for call in (
        lambda: fleet.requests.write(DEVICE, "tx-power", value),
        lambda: fleet.requests.write(DEVICE, "tx-power", 4, ext={"a": value}),
        lambda: fleet.requests.send(DEVICE, with_value),
        lambda: fleet.requests.post(DEVICE, with_value),
        lambda: fleet.requests.post(DEVICE, with_ext),
    ):
        assert type(await get_error(call, server)) is UnencodableValue


@each_row("value", [math.nan, 4, object, ["00"], "zz", "0", "\ud800"])
async def test_a_raw_value_must_be_hex_or_bytes(fleet: Fleet, server: ScriptedServer, value: object) -> None:
    assert (await get_error(lambda: fleet.requests.write(DEVICE, "9802", value), server)).field == "value"


@each_row("value", [b"\x01\xff", bytearray(b"\x01\xff"), memoryview(b"\x01\xff"), "01ff"])
async def test_all_bytes_types_are_written_as_hex(
    fleet: Fleet, server: ScriptedServer, value: object
) -> None:
    server.requests.clear()  # those of the previous row
    with pytest.raises(Exception, match="no valid"):  # this server sends an empty object
        await fleet.requests.write(DEVICE, "9802", value)
    assert b'"value":"01ff"' in server.requests[0].body


async def test_a_key_may_be_a_secret_object(fleet: Fleet, server: ScriptedServer) -> None:
    with pytest.raises(Exception, match="no valid"):
        await fleet.requests.read(DEVICE, "8000", key=Secret(b"\x01\xff"), public_key="aa")
    assert b'"publicKey":"aa","key":"01ff"' in server.requests[0].body


# --- Texts ---

TEXTS: dict[str, Callable[[Fleet], Awaitable[object]]] = {
    "name": lambda fleet: fleet.devices.rename(DEVICE, INVALID_TEXT),
    "FriendlyName": lambda fleet: anext(fleet.devices.list(friendly_name=INVALID_TEXT)),
    "Label": lambda fleet: anext(fleet.devices.list(labels=[INVALID_TEXT])),
    "label": lambda fleet: fleet.labels.add(INVALID_TEXT),
    "request": lambda fleet: fleet.requests.show(INVALID_TEXT),
    "key": lambda fleet: fleet.requests.read(DEVICE, "8000", key=INVALID_TEXT),
    "publicKey": lambda fleet: fleet.requests.read(DEVICE, "8000", public_key=INVALID_TEXT),
    "username": lambda fleet: fleet.users.show(INVALID_TEXT),
    "password": lambda fleet: fleet.users.add("me", INVALID_TEXT, "viewer"),
    "current": lambda fleet: fleet.change_password(INVALID_TEXT, "x"),
    "Identifier": lambda fleet: fleet.samples.series(DEVICE, INVALID_TEXT),
    "Actor": lambda fleet: anext(fleet.audit.list(actor=INVALID_TEXT)),
}


@each_row("field", TEXTS)
async def test_text_that_is_not_unicode_is_reported_by_its_field(
    fleet: Fleet, server: ScriptedServer, field: str
) -> None:
    error = await get_error(lambda: TEXTS[field](fleet), server)
    assert (type(error), error.field) == (MalformedText, field)
    assert "hunter22" not in format_everything(error)
    assert error.__context__ is None  # it would hold the whole text


async def test_a_password_that_is_not_unicode_is_reported_at_the_login(server: ScriptedServer) -> None:
    async with Fleet(server.url, user="me", password=INVALID_TEXT) as fleet:
        error = await get_error(fleet.log_in, server)
    assert (error.field, error.__context__) == ("password", None)
    assert "hunter22" not in format_everything(error)


async def test_a_query_that_is_too_long_for_a_url_is_reported(fleet: Fleet, server: ScriptedServer) -> None:
    await get_error(lambda: anext(fleet.devices.list(friendly_name="x" * 70_000)), server)
    ids = [f"{number:012x}" for number in range(4000)]
    for call in (lambda: anext(fleet.devices.list(ids=ids)), lambda: fleet.devices.summary(ids=ids)):
        assert (await get_error(call, server)).field == "ids"


# --- Times, keywords and numbers ---

OTHERS: dict[str, Callable[[Fleet], Any]] = {
    "time": lambda fleet: fleet.requests.ack(DEVICE, "8800", time=NAIVE),
    "since": lambda fleet: anext(fleet.samples.list(DEVICE, since=NAIVE)),
    "until": lambda fleet: fleet.samples.series(DEVICE, "temperature", until="soon"),
    "expires_at": lambda fleet: fleet.api_keys.issue("x", "viewer", NAIVE),
    "accessType": lambda fleet: fleet.requests.read(DEVICE, "8000", access_type="bogus"),
    "type": lambda fleet: fleet.requests.ack(DEVICE, "8800", time="2026-01-01T00:00:00Z", type=7),
    "role": lambda fleet: fleet.users.change("me", role="boss"),
    "timeout": lambda fleet: fleet.requests.read(DEVICE, "8000", timeout=math.nan),
}


@each_row("field", OTHERS)
async def test_invalid_arguments_are_reported_by_their_names(
    fleet: Fleet, server: ScriptedServer, field: str
) -> None:
    error = await get_error(lambda: OTHERS[field](fleet), server)
    assert error.field == field
    assert isinstance(error, MalformedTime) == (field in {"time", "since", "until", "expires_at"})


@each_row("timeout", [math.nan, math.inf, 0, -1])
def test_the_timeout_of_a_fleet_must_be_a_positive_number(timeout: float) -> None:
    with pytest.raises(MalformedInput, match="timeout"):
        Fleet("http://127.0.0.1", token=KEY, timeout=timeout)
