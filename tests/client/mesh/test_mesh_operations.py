"""All seven operations through `Mesh`, with an emulated gateway in both modes, on two brokers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.errors.protocol import GatewayTooOld, MalformedMac, MalformedTime, UnencodableValue, WireError
from meshfleet.protocol.codes import AckType, Kind, Origin, Status
from meshfleet.protocol.ids import Version
from meshfleet.protocol.responses import ReadDecodedResponse, ReadResponse
from meshfleet.testing import emulated_gateway
from meshfleet.testing.broker import running_broker
from tests.client.mesh.gateways import GATEWAY, LONG, collect_reports, gateway_on
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.client.mesh.reports import Report
    from meshfleet.testing import EmulatedGateway

pytestmark = pytest.mark.anyio

TX_POWER = "9802"


@pytest.fixture(params=["raw", "decoded"])
async def gateway(broker: str, request: pytest.FixtureRequest) -> AsyncIterator[EmulatedGateway]:
    async with gateway_on(broker, request.param) as running:
        yield running


@pytest.fixture
async def mesh(broker: str) -> AsyncIterator[Mesh]:
    async with Mesh(broker) as connected:
        yield connected
    assert connected.pending == 0


async def test_apiversion_tells_the_version(gateway: EmulatedGateway, mesh: Mesh) -> None:
    answer = await mesh.apiversion(gateway.mac, timeout=LONG)
    assert (answer.status, answer.version) == (Status.OK, Version(2, 4, 0))


@pytest.mark.rule("request-24")
async def test_a_property_is_read_raw_by_its_hex_and_decoded_by_its_name(
    gateway: EmulatedGateway, mesh: Mesh
) -> None:
    raw = await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)
    assert isinstance(raw, ReadResponse)
    decoded = await mesh.read(gateway.mac, gateway.devices[0], "model-number", timeout=LONG)
    assert isinstance(decoded, ReadDecodedResponse)
    assert (raw.status, decoded.status) == (Status.OK, Status.OK)
    assert int(str(raw.value), 16) == decoded.value
    assert raw.id != decoded.id


async def test_what_is_written_raw_is_read_decoded_and_the_other_way_round(
    gateway: EmulatedGateway, mesh: Mesh
) -> None:
    device = gateway.devices[0]
    assert (await mesh.write(gateway.mac, device, TX_POWER, "FC", timeout=LONG)).status == Status.OK
    assert (await mesh.read(gateway.mac, device, "tx-power", timeout=LONG)).value == -4
    assert (await mesh.write(gateway.mac, device, "tx-power", 4, timeout=LONG)).status == Status.OK
    assert (await mesh.read(gateway.mac, device, TX_POWER, timeout=LONG)).value == "04"
    assert (await mesh.write(gateway.mac, device, TX_POWER, b"\x00", timeout=LONG)).status == Status.OK
    assert (await mesh.read(gateway.mac, device, "tx-power", timeout=LONG)).value == 0


async def test_null_is_written_to_commands_and_the_gateway_is_a_device_too(
    gateway: EmulatedGateway, mesh: Mesh
) -> None:
    for identifier in ("8302", "request-property-reporting"):
        answer = await mesh.write(gateway.mac, gateway.mac, identifier, timeout=LONG)
        assert answer.status in {Status.OK, Status.BUSY}  # the second may come while the first runs


async def test_names_are_taken_in_any_case_and_as_device_ids(gateway: EmulatedGateway, mesh: Mesh) -> None:
    device = f"BMAC-{gateway.devices[0].upper()}"
    answer = await mesh.read(f"bmac-{gateway.mac}", device, "8000", priority=4, timeout=LONG)
    assert answer.status == Status.OK


def _is_same(report: Report, other: Report) -> bool:
    return report.body == other.body and report.identifier == other.identifier


@each_row("how", ["ack", "acknowledge"])
async def test_an_ack_with_backfill_brings_what_was_not_acknowledged(
    gateway: EmulatedGateway, mesh: Mesh, how: str
) -> None:
    """Both operations, by the mode of the gateway: `ack` for raw reports, `ack-decoded` for decoded ones."""
    kinds = (Kind.MEASUREMENT, Kind.MEASUREMENT_DECODED)
    heard: list[Report] = []
    async with asyncio.timeout(LONG):
        async for report in mesh.reports(device=gateway.mac, kinds=kinds):
            if any(_is_same(report, before) for before in heard):
                break  # an older sample, sent once more
            heard.append(report)
            mine = [each for each in heard if each.identifier == report.identifier]
            if len(mine) != 3:
                continue
            if how == "acknowledge":
                await mesh.acknowledge(report, AckType.BACKFILL)
            else:
                await mesh.ack(
                    gateway.mac,
                    gateway.mac,
                    str(report.identifier),
                    time=report.body.time,
                    type=AckType.BACKFILL,
                    priority=3,
                )


async def test_only_measurements_and_events_are_acknowledged(gateway: EmulatedGateway, mesh: Mesh) -> None:
    (heartbeat,) = await collect_reports(mesh.reports(kinds=Kind.HEARTBEAT, gateway=gateway.mac), 1)
    with pytest.raises(WireError, match="no heartbeat"):
        await mesh.acknowledge(heartbeat)


async def test_the_status_of_a_device_that_is_not_there_passes_through(
    gateway: EmulatedGateway, mesh: Mesh
) -> None:
    answer = await mesh.read(gateway.mac, "02005e00ffff", "8000", timeout=LONG)
    assert (answer.status, answer.origin) == (Status.UNREACHABLE, Origin.GATEWAY)


async def test_the_status_of_a_silent_device_passes_through(broker: str, mesh: Mesh) -> None:
    async with gateway_on(broker, faults={"silent": 1}) as gateway:
        answer = await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)
    assert answer.status == Status.TIMEOUT


async def test_many_requests_at_once_get_their_own_answers(gateway: EmulatedGateway, mesh: Mesh) -> None:
    everybody = [*gateway.devices, gateway.mac] * 25
    answers = await asyncio.gather(
        *(mesh.read(gateway.mac, device, "mac-address", timeout=LONG) for device in everybody)
    )
    assert [answer.value for answer in answers] == everybody


async def test_requests_go_below_the_prefix() -> None:
    async with (
        emulated_gateway(prefix="site/7", speed=100) as gateway,
        Mesh(gateway.broker, prefix="site/7") as mesh,
    ):
        assert (await mesh.apiversion(gateway.mac, timeout=LONG)).status == Status.OK
        assert {each.gateway for each in await collect_reports(mesh.reports(), 3)} == {gateway.mac}


# --- What is refused before anything is sent ---


@pytest.mark.rule("version-12")
async def test_a_gateway_that_is_too_old_is_not_asked_once_its_version_is_known(
    broker: str, mesh: Mesh
) -> None:
    async with gateway_on(broker, api_version="2.0.0") as gateway:
        told = await mesh.apiversion(gateway.mac, timeout=LONG)
        assert told.version == Version(2, 0, 0)
        with pytest.raises(GatewayTooOld, match="extenderId"):
            await mesh.read(gateway.mac, gateway.devices[0], "8000", extender_id=gateway.devices[1])
        with pytest.raises(GatewayTooOld, match="ack"):
            await mesh.ack(gateway.mac, gateway.devices[0], "8800", time=datetime.now(UTC))
        assert (await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)).status == Status.OK


@pytest.fixture
async def alone() -> AsyncIterator[Mesh]:
    """A mesh without a gateway: whatever is sent would wait for ever."""
    async with running_broker("") as port, Mesh(f"mqtt://127.0.0.1:{port}") as connected:
        yield connected


async def test_bad_input_is_told_by_its_field_and_never_sent(alone: Mesh) -> None:
    cases: list[tuple[str, object]] = [
        ("gateway", alone.read("nobody", GATEWAY, "8000")),
        ("device", alone.read(GATEWAY, "02:00:5e:00:00:01", "8000")),
        ("identifier", alone.read(GATEWAY, GATEWAY, "a/b")),
        ("priority", alone.read(GATEWAY, GATEWAY, "8000", priority=5)),
        ("priority", alone.apiversion(GATEWAY, priority=-1)),
        ("accessType", alone.read(GATEWAY, GATEWAY, "8000", access_type="open")),
        ("extenderId", alone.read(GATEWAY, GATEWAY, "8000", extender_id="near")),
        ("key", alone.read(GATEWAY, GATEWAY, "8000", key="secret")),
        ("publicKey", alone.write(GATEWAY, GATEWAY, "8000", "00", public_key="123")),
        ("value", alone.write(GATEWAY, GATEWAY, "9802", "abc")),
        ("value", alone.write(GATEWAY, GATEWAY, "9802", 4)),
        ("value", alone.write(GATEWAY, GATEWAY, "tx-power", object())),
        ("value", alone.write(GATEWAY, GATEWAY, "tx-power", float("nan"))),
        ("payload", alone.write(GATEWAY, GATEWAY, "tx-power", "4" * 70_000)),
        ("value", alone.write(GATEWAY, GATEWAY, "tx-power", "\ud800")),
        ("ext", alone.write(GATEWAY, GATEWAY, "9802", "04", ext={})),
        ("ext", alone.write(GATEWAY, GATEWAY, "tx-power", 4, ext={"a": b""})),
        ("type", alone.ack(GATEWAY, GATEWAY, "8800", time=datetime.now(UTC), type=3)),
    ]
    for field, deed in cases:
        with pytest.raises(WireError) as raised:
            await deed  # type: ignore[misc] # all are coroutines
        assert raised.value.field == field
        assert "secret" not in str(raised.value)
    assert alone.pending == 0


async def test_errors_have_their_classes(alone: Mesh) -> None:
    with pytest.raises(MalformedMac):
        await alone.apiversion("12")
    with pytest.raises(UnencodableValue):
        await alone.write(GATEWAY, GATEWAY, "tx-power", {1, timedelta})
    for timeout in (0.0, -1.0, float("nan")):
        with pytest.raises(WireError, match="more than nothing"):
            await alone.apiversion(GATEWAY, timeout=timeout)
    with pytest.raises(MalformedTime):
        await alone.ack(GATEWAY, GATEWAY, "8800", time=datetime(2026, 1, 1))  # noqa: DTZ001 # that is the point
    with pytest.raises(MalformedTime):
        await alone.ack(GATEWAY, GATEWAY, "8800", time="soon")
    with pytest.raises(WireError, match="'bogus' is not one of unprovisioned, legacy"):
        await alone.read(GATEWAY, GATEWAY, "8000", access_type="bogus")
    with pytest.raises(TypeError, match="prioritty"):
        await alone.read(GATEWAY, GATEWAY, "8000", prioritty=1)  # type: ignore[call-arg] # that is the test


@each_row("value", [float("nan"), 4, object, "zz"])
async def test_a_raw_value_is_hex_or_bytes(alone: Mesh, value: object) -> None:
    with pytest.raises(WireError) as refused:
        await alone.write(GATEWAY, GATEWAY, TX_POWER, value)
    assert refused.value.field == "value"


async def test_all_gateways_at_once_are_not_asked(alone: Mesh) -> None:
    for deed in (alone.apiversion("f" * 12), alone.read("F" * 12, GATEWAY, "8000")):
        with pytest.raises(WireError, match="ask one"):
            await deed
    assert alone.pending == 0
