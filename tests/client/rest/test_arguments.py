"""Arguments that cannot be right: told as a `WireError`, before anything is sent, and without a secret."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client import Fleet, NewRequest, Operation
from meshfleet.errors.protocol import MalformedText, MalformedTime, UnencodableValue, WireError
from meshfleet.protocol.hex import Secret
from tests.client.rest.scripted_server import build_response, scripted_server
from tests.client.rest.test_secrets import all_of
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.client.rest.scripted_server import ScriptedServer

pytestmark = pytest.mark.anyio

DEVICE = "c0ffee000001"
NO_TEXT = "hunter22\udcff"
"""What a shell makes of a byte that is no UTF-8."""
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 # that is the point
KEY = "mfk_of-nobody"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server(build_response(200, {})) as running:
        yield running


@pytest.fixture
async def fleet(server: ScriptedServer) -> AsyncIterator[Fleet]:
    async with Fleet(server.url, token=KEY) as fleet:
        yield fleet


async def refusal(deed: Callable[[], Awaitable[object]], server: ScriptedServer) -> WireError:
    """The error that a deed begins or ends with, which has asked nobody."""
    with pytest.raises(WireError) as refused:
        await deed()
    assert server.requests == []
    return refused.value


# --- Values ---


@each_row(
    "value",
    [math.nan, math.inf, {"a": [-math.inf]}, object, "\ud800", "\ud800 and more", b"\x01", {1, 2}],
)
async def test_what_json_cannot_say_is_not_written_to_a_name(
    fleet: Fleet, server: ScriptedServer, value: object
) -> None:
    """Above all not as null, which triggers commands."""
    new = NewRequest(operation=Operation.WRITE_DECODED, identifier="tx-power", value=value)
    other = NewRequest(operation=Operation.WRITE_DECODED, identifier="tx-power", ext={"a": value})
    for deed in (
        lambda: fleet.requests.write(DEVICE, "tx-power", value),
        lambda: fleet.requests.write(DEVICE, "tx-power", 4, ext={"a": value}),
        lambda: fleet.requests.send(DEVICE, new),
        lambda: fleet.requests.post(DEVICE, new),
        lambda: fleet.requests.post(DEVICE, other),
    ):
        assert type(await refusal(deed, server)) is UnencodableValue


@each_row("value", [math.nan, 4, object, ["00"], "zz", "0", "\ud800"])
async def test_a_raw_value_is_hex_or_bytes(fleet: Fleet, server: ScriptedServer, value: object) -> None:
    assert (await refusal(lambda: fleet.requests.write(DEVICE, "9802", value), server)).field == "value"


@each_row("value", [b"\x01\xff", bytearray(b"\x01\xff"), memoryview(b"\x01\xff"), "01ff"])
async def test_bytes_of_any_kind_are_written_as_hex(
    fleet: Fleet, server: ScriptedServer, value: object
) -> None:
    server.requests.clear()  # of the row before
    with pytest.raises(Exception, match="no proper"):  # for this server says nothing of use
        await fleet.requests.write(DEVICE, "9802", value)
    assert b'"value":"01ff"' in server.requests[0].body


async def test_a_key_may_be_one_that_hides_itself(fleet: Fleet, server: ScriptedServer) -> None:
    with pytest.raises(Exception, match="no proper"):
        await fleet.requests.read(DEVICE, "8000", key=Secret(b"\x01\xff"), public_key="aa")
    assert b'"publicKey":"aa","key":"01ff"' in server.requests[0].body


# --- Texts ---

TEXTS: dict[str, Callable[[Fleet], Awaitable[object]]] = {
    "name": lambda fleet: fleet.devices.rename(DEVICE, NO_TEXT),
    "FriendlyName": lambda fleet: anext(fleet.devices.list(friendly_name=NO_TEXT)),
    "Label": lambda fleet: anext(fleet.devices.list(labels=[NO_TEXT])),
    "label": lambda fleet: fleet.labels.add(NO_TEXT),
    "request": lambda fleet: fleet.requests.show(NO_TEXT),
    "key": lambda fleet: fleet.requests.read(DEVICE, "8000", key=NO_TEXT),
    "publicKey": lambda fleet: fleet.requests.read(DEVICE, "8000", public_key=NO_TEXT),
    "username": lambda fleet: fleet.users.show(NO_TEXT),
    "password": lambda fleet: fleet.users.add("me", NO_TEXT, "viewer"),
    "current": lambda fleet: fleet.change_password(NO_TEXT, "x"),
    "Identifier": lambda fleet: fleet.samples.series(DEVICE, NO_TEXT),
    "Actor": lambda fleet: anext(fleet.audit.list(actor=NO_TEXT)),
}


@each_row("field", TEXTS)
async def test_text_that_is_not_unicode_is_told_by_its_field(
    fleet: Fleet, server: ScriptedServer, field: str
) -> None:
    refused = await refusal(lambda: TEXTS[field](fleet), server)
    assert (type(refused), refused.field) == (MalformedText, field)
    assert "hunter22" not in all_of(refused)
    assert refused.__context__ is None  # which would hold the text as a whole


async def test_a_password_that_is_not_unicode_is_told_at_the_login(server: ScriptedServer) -> None:
    async with Fleet(server.url, user="me", password=NO_TEXT) as fleet:
        refused = await refusal(fleet.log_in, server)
    assert (refused.field, refused.__context__) == ("password", None)
    assert "hunter22" not in all_of(refused)


async def test_what_is_too_long_for_a_url_is_told(fleet: Fleet, server: ScriptedServer) -> None:
    await refusal(lambda: anext(fleet.devices.list(friendly_name="x" * 70_000)), server)
    ids = [f"{number:012x}" for number in range(4000)]
    for deed in (lambda: anext(fleet.devices.list(ids=ids)), lambda: fleet.devices.summary(ids=ids)):
        assert (await refusal(deed, server)).field == "ids"


# --- Times, words and numbers ---

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
async def test_arguments_of_the_wrong_kind_are_told_by_their_names(
    fleet: Fleet, server: ScriptedServer, field: str
) -> None:
    refused = await refusal(lambda: OTHERS[field](fleet), server)
    assert refused.field == field
    assert isinstance(refused, MalformedTime) == (field in {"time", "since", "until", "expires_at"})


@each_row("timeout", [math.nan, math.inf, 0, -1])
def test_a_fleet_waits_for_a_number_of_seconds(timeout: float) -> None:
    with pytest.raises(WireError, match="timeout"):
        Fleet("http://127.0.0.1", token=KEY, timeout=timeout)
