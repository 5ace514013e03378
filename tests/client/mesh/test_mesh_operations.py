"""All seven operations through `Mesh`, with an emulated gateway in both modes, on two brokers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.errors.protocol import (
    GatewayTooOld,
    MalformedInput,
    MalformedMac,
    MalformedTime,
    UnencodableValue,
)
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


async def test_apiversion_returns_the_version(gateway: EmulatedGateway, mesh: Mesh) -> None:
    response = await mesh.apiversion(gateway.mac, timeout=LONG)
    assert (response.status, response.version) == (Status.OK, Version(2, 4, 0))


@pytest.mark.rule("request-24")
async def test_a_property_is_read_raw_by_hex_and_decoded_by_name(
    gateway: EmulatedGateway, mesh: Mesh
) -> None:
    raw = await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)
    assert isinstance(raw, ReadResponse)
    decoded = await mesh.read(gateway.mac, gateway.devices[0], "model-number", timeout=LONG)
    assert isinstance(decoded, ReadDecodedResponse)
    assert (raw.status, decoded.status) == (Status.OK, Status.OK)
    assert int(str(raw.value), 16) == decoded.value
    assert raw.id != decoded.id


async def test_raw_writes_can_be_read_decoded_and_vice_versa(gateway: EmulatedGateway, mesh: Mesh) -> None:
    device = gateway.devices[0]
    assert (await mesh.write(gateway.mac, device, TX_POWER, "FC", timeout=LONG)).status == Status.OK
    assert (await mesh.read(gateway.mac, device, "tx-power", timeout=LONG)).value == -4
    assert (await mesh.write(gateway.mac, device, "tx-power", 4, timeout=LONG)).status == Status.OK
    assert (await mesh.read(gateway.mac, device, TX_POWER, timeout=LONG)).value == "04"
    assert (await mesh.write(gateway.mac, device, TX_POWER, b"\x00", timeout=LONG)).status == Status.OK
    assert (await mesh.read(gateway.mac, device, "tx-power", timeout=LONG)).value == 0


async def test_null_is_written_to_commands_and_a_gateway_is_a_device_too(
    gateway: EmulatedGateway, mesh: Mesh
) -> None:
    for identifier in ("8302", "request-property-reporting"):
        response = await mesh.write(gateway.mac, gateway.mac, identifier, timeout=LONG)
        assert response.status in {Status.OK, Status.BUSY}  # the second may arrive while the first is running


async def test_macs_and_device_ids_are_accepted_in_any_case(gateway: EmulatedGateway, mesh: Mesh) -> None:
    device = f"BMAC-{gateway.devices[0].upper()}"
    response = await mesh.read(f"bmac-{gateway.mac}", device, "8000", priority=4, timeout=LONG)
    assert response.status == Status.OK


def _is_same(report: Report, other: Report) -> bool:
    return report.body == other.body and report.identifier == other.identifier


@each_row("method", ["ack", "acknowledge"])
async def test_an_ack_with_backfill_resends_unacknowledged_samples(
    gateway: EmulatedGateway, mesh: Mesh, method: str
) -> None:
    """Test `ack` for raw reports and `ack-decoded` for decoded ones, by the gateway's mode."""
    kinds = (Kind.MEASUREMENT, Kind.MEASUREMENT_DECODED)
    received: list[Report] = []
    async with asyncio.timeout(LONG):
        async for report in mesh.reports(device=gateway.mac, kinds=kinds):
            if any(_is_same(report, before) for before in received):
                break  # an older sample, sent again
            received.append(report)
            same_series = [each for each in received if each.identifier == report.identifier]
            if len(same_series) != 3:
                continue
            if method == "acknowledge":
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


async def test_only_measurements_and_events_can_be_acknowledged(gateway: EmulatedGateway, mesh: Mesh) -> None:
    (heartbeat,) = await collect_reports(mesh.reports(kinds=Kind.HEARTBEAT, gateway=gateway.mac), 1)
    with pytest.raises(MalformedInput, match="not heartbeat"):
        await mesh.acknowledge(heartbeat)


async def test_the_status_for_an_unknown_device_is_returned(gateway: EmulatedGateway, mesh: Mesh) -> None:
    response = await mesh.read(gateway.mac, "02005e00ffff", "8000", timeout=LONG)
    assert (response.status, response.origin) == (Status.UNREACHABLE, Origin.GATEWAY)


async def test_the_status_for_a_silent_device_is_returned(broker: str, mesh: Mesh) -> None:
    async with gateway_on(broker, faults={"silent": 1}) as gateway:
        response = await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)
    assert response.status == Status.TIMEOUT


async def test_concurrent_requests_get_their_own_responses(gateway: EmulatedGateway, mesh: Mesh) -> None:
    devices = [*gateway.devices, gateway.mac] * 25
    responses = await asyncio.gather(
        *(mesh.read(gateway.mac, device, "mac-address", timeout=LONG) for device in devices)
    )
    assert [response.value for response in responses] == devices


async def test_requests_use_the_topic_prefix() -> None:
    async with (
        emulated_gateway(prefix="site/7", speed=100) as gateway,
        Mesh(gateway.broker, prefix="site/7") as mesh,
    ):
        assert (await mesh.apiversion(gateway.mac, timeout=LONG)).status == Status.OK
        assert {each.gateway for each in await collect_reports(mesh.reports(), 3)} == {gateway.mac}


# --- Arguments that are refused before anything is sent ---


@pytest.mark.rule("version-12")
async def test_an_old_gateway_gets_no_unsupported_requests_once_its_version_is_known(
    broker: str, mesh: Mesh
) -> None:
    async with gateway_on(broker, api_version="2.0.0") as gateway:
        version_response = await mesh.apiversion(gateway.mac, timeout=LONG)
        assert version_response.version == Version(2, 0, 0)
        with pytest.raises(GatewayTooOld, match="extenderId"):
            await mesh.read(gateway.mac, gateway.devices[0], "8000", extender_id=gateway.devices[1])
        with pytest.raises(GatewayTooOld, match="ack"):
            await mesh.ack(gateway.mac, gateway.devices[0], "8800", time=datetime.now(UTC))
        assert (await mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG)).status == Status.OK


@pytest.fixture
async def mesh_without_gateway() -> AsyncIterator[Mesh]:
    """Return a mesh without a gateway: a request that is sent would time out."""
    async with running_broker("") as port, Mesh(f"mqtt://127.0.0.1:{port}") as connected:
        yield connected


async def test_invalid_arguments_are_reported_by_field_and_never_sent(mesh_without_gateway: Mesh) -> None:
    cases: list[tuple[str, object]] = [
        ("gateway", mesh_without_gateway.read("no-mac", GATEWAY, "8000")),
        ("device", mesh_without_gateway.read(GATEWAY, "02:00:5e:00:00:01", "8000")),
        ("identifier", mesh_without_gateway.read(GATEWAY, GATEWAY, "a/b")),
        ("priority", mesh_without_gateway.read(GATEWAY, GATEWAY, "8000", priority=5)),
        ("priority", mesh_without_gateway.apiversion(GATEWAY, priority=-1)),
        ("accessType", mesh_without_gateway.read(GATEWAY, GATEWAY, "8000", access_type="open")),
        ("extenderId", mesh_without_gateway.read(GATEWAY, GATEWAY, "8000", extender_id="near")),
        ("key", mesh_without_gateway.read(GATEWAY, GATEWAY, "8000", key="secret")),
        ("publicKey", mesh_without_gateway.write(GATEWAY, GATEWAY, "8000", "00", public_key="123")),
        ("value", mesh_without_gateway.write(GATEWAY, GATEWAY, "9802", "abc")),
        ("value", mesh_without_gateway.write(GATEWAY, GATEWAY, "9802", 4)),
        ("value", mesh_without_gateway.write(GATEWAY, GATEWAY, "tx-power", object())),
        ("value", mesh_without_gateway.write(GATEWAY, GATEWAY, "tx-power", float("nan"))),
        ("payload", mesh_without_gateway.write(GATEWAY, GATEWAY, "tx-power", "4" * 70_000)),
        ("value", mesh_without_gateway.write(GATEWAY, GATEWAY, "tx-power", "\ud800")),
        ("ext", mesh_without_gateway.write(GATEWAY, GATEWAY, "9802", "04", ext={})),
        ("ext", mesh_without_gateway.write(GATEWAY, GATEWAY, "tx-power", 4, ext={"a": b""})),
        ("type", mesh_without_gateway.ack(GATEWAY, GATEWAY, "8800", time=datetime.now(UTC), type=3)),
    ]
    for field, call in cases:
        with pytest.raises(MalformedInput) as raised:
            await call  # type: ignore[misc] # all are coroutines
        assert raised.value.field == field
        assert "secret" not in str(raised.value)
    assert mesh_without_gateway.pending == 0


async def test_errors_have_specific_classes(mesh_without_gateway: Mesh) -> None:
    with pytest.raises(MalformedMac):
        await mesh_without_gateway.apiversion("12")
    with pytest.raises(UnencodableValue):
        await mesh_without_gateway.write(GATEWAY, GATEWAY, "tx-power", {1, timedelta})
    for timeout in (0.0, -1.0, float("nan")):
        with pytest.raises(MalformedInput, match="positive number of seconds"):
            await mesh_without_gateway.apiversion(GATEWAY, timeout=timeout)
    with pytest.raises(MalformedTime):
        await mesh_without_gateway.ack(GATEWAY, GATEWAY, "8800", time=datetime(2026, 1, 1))  # noqa: DTZ001 # naive on purpose
    with pytest.raises(MalformedTime):
        await mesh_without_gateway.ack(GATEWAY, GATEWAY, "8800", time="soon")
    with pytest.raises(MalformedInput, match="'bogus' is not one of unprovisioned, legacy"):
        await mesh_without_gateway.read(GATEWAY, GATEWAY, "8000", access_type="bogus")
    with pytest.raises(TypeError, match="prioritty"):
        await mesh_without_gateway.read(GATEWAY, GATEWAY, "8000", prioritty=1)  # type: ignore[call-arg] # misspelt on purpose


@each_row("value", [float("nan"), 4, object, "zz"])
async def test_a_raw_value_must_be_hex_or_bytes(mesh_without_gateway: Mesh, value: object) -> None:
    with pytest.raises(MalformedInput) as raised:
        await mesh_without_gateway.write(GATEWAY, GATEWAY, TX_POWER, value)
    assert raised.value.field == "value"


async def test_requests_to_all_gateways_are_refused(mesh_without_gateway: Mesh) -> None:
    for call in (
        mesh_without_gateway.apiversion("f" * 12),
        mesh_without_gateway.read("F" * 12, GATEWAY, "8000"),
    ):
        with pytest.raises(MalformedInput, match="must be one gateway"):
            await call
    assert mesh_without_gateway.pending == 0
