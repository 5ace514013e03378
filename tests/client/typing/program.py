"""Program that uses a bit of everything of the SDK, both asynchronous and blocking."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from meshfleet.client import (
    AckType,
    Device,
    Fleet,
    Kind,
    LiveSample,
    Mesh,
    NewRequest,
    Operation,
    Priority,
    RequestOutcome,
    RequestState,
    Resync,
    Role,
    Status,
    blocking,
    check,
    reports,
)
from meshfleet.errors import Declined, Unanswered
from meshfleet.testing import emulated_gateway, running_fleet

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.client import (
        Event,
        EventData,
        EventType,
        GatewayChoice,
        Health,
        Moment,
        ReadDecodedResponse,
        ReadResponse,
        Report,
        Response,
        SampleKind,
        Session,
        Sort,
    )
    from meshfleet.testing import EmulatedGateway, RunningFleet

DEVICE, GATEWAY = "c0ffee000001", "02005e000001"


async def list_everything(fleet: Fleet) -> list[Device]:
    """Use lists, their items, and values that may be missing."""
    summary = await fleet.devices.summary(labels=["a", "b"], connected=True)
    shares: dict[str, int] = {each.value: each.count for each in summary.models}
    detail = await fleet.devices.show(DEVICE)
    battery: int | None = detail.live.battery
    async for sample in fleet.samples.list(DEVICE, kinds=["event"], since=datetime.now(UTC)):
        seq: int | None = sample.seq
        shares[sample.time] = seq or 0
    async for line in fleet.samples.csv(DEVICE, identifier="temperature"):
        shares[line.partition(",")[0]] = battery or 0
    return [each async for each in fleet.devices.list(labels="a", model_number="0018", sort="-id")]


async def administer(fleet: Fleet) -> Session | None:
    """Use users, API keys, gateways and labels."""
    user = await fleet.users.add("me", "correct-horse", Role.VIEWER)
    issued = await fleet.api_keys.issue(user.username, user.role, datetime.now(UTC) + timedelta(days=1))
    claim = await fleet.gateways.claim(GATEWAY, "Lobby")
    await fleet.labels.add(claim.mac, devices=[DEVICE])
    await fleet.api_keys.revoke(issued.id)
    return fleet.session


async def send_requests(fleet: Fleet) -> int:
    """Use requests through a service, and all their outcomes."""
    try:
        response: RequestOutcome = check(await fleet.requests.read(DEVICE, "8000", timeout=3))
        await fleet.requests.write(DEVICE, "tx-power", -4, gateway=GATEWAY, priority=Priority.HIGH)
    except Declined as declined:
        return declined.status
    except Unanswered as unanswered:
        return int(unanswered.sent)
    request = NewRequest(operation=Operation.READ_DECODED, identifier="temperature", timeout_ms=1000)
    record = await fleet.requests.show((await fleet.requests.post(DEVICE, request)).id)
    return response.status if record.state is RequestState.DONE else Status.TIMEOUT


async def receive_events(fleet: Fleet) -> str:
    """Use live events, distinguished by their data."""
    async for event in fleet.live(types=("report", "resync"), ids=[DEVICE]):
        one: Event = event
        match one.data:
            case LiveSample(name=name, gateway=gateway):
                return name or gateway
            case Resync(reason=reason):
                return reason
    return ""


async def receive_reports(mesh: Mesh) -> Report | None:
    """Use reports and acks over a broker."""
    async with aclosing(mesh.reports(kinds=[Kind.MEASUREMENT, "event"], session="mine")) as reports:
        async for report in reports:
            age: timedelta = report.received - report.body.time
            await mesh.acknowledge(report, AckType.BACKFILL if age > timedelta(hours=1) else AckType.ACK)
            if mesh.rejected:
                return report
    return None


async def annotate_rest_values(
    fleet: Fleet, sort: Sort, about: EventType, kind: SampleKind
) -> EventData | None:
    """Check that all values that a service accepts and returns have types for annotations."""
    choice: GatewayChoice = (await fleet.requests.read(DEVICE, "8000")).choice
    health: Health = await fleet.operations.health()
    named = [choice.reason, health.status, *[each.id async for each in fleet.devices.list(sort=sort)]]
    named += [each.time async for each in fleet.samples.list(DEVICE, kinds=kind)]
    async for event in fleet.live(about):
        if event.id in named:
            return event.data
    return None


async def annotate_mqtt_values(mesh: Mesh, since: Moment) -> int:
    """Check that all values of gateways and reports have types for annotations."""
    read_response: ReadResponse | ReadDecodedResponse = await mesh.read(GATEWAY, DEVICE, "8000")
    write_response: Response = await mesh.write(GATEWAY, DEVICE, "9802", b"\x00", key="00", priority=1)
    await mesh.ack(GATEWAY, DEVICE, "8800", time=since)
    async for report in mesh.reports():
        match report.body:
            case reports.Rssi(rssi=rssi):
                return rssi
    return read_response.status + write_response.status


async def send_mqtt_requests(mesh: Mesh) -> bytes:
    """Use requests over a broker: a checked response has its value, or a field is unset."""
    version = check(await mesh.apiversion(GATEWAY)).version
    value = check(await mesh.read(GATEWAY, DEVICE, "8000")).value
    if not isinstance(value, str) or not version:
        return b""
    response = check(await mesh.write(GATEWAY, DEVICE, "9802", bytes.fromhex(value), timeout=1.5))
    return str(response.time).encode()


def use_blocking_fleet(url: str, authorities: Path) -> list[Device]:
    """Use the blocking SDK, which has the same names without await."""
    with blocking.Fleet(url, token="mfk_", tls_ca=authorities) as fleet:  # noqa: S106 # not a real key
        response: RequestOutcome = check(fleet.requests.write(DEVICE, "8000", "00", gateway=None))
        for event in fleet.live(types="report"):
            one: Event = event
            if one.type == str(response.status):
                break
        return list(fleet.devices.list(labels="a", connected=fleet.me().role is Role.ADMIN))


def use_blocking_mesh() -> Report | None:
    """Use the blocking SDK over a broker, with an emulated gateway."""
    with emulated_gateway(devices=3, faults={"silent": 1}) as gateway, blocking.Mesh(gateway.broker) as mesh:
        emulated: EmulatedGateway = gateway
        version = mesh.apiversion(emulated.mac).version
        for report in mesh.reports(gateway=emulated.mac, device=emulated.devices[0]):
            if version:
                return report
    return None


async def run_fleet() -> RunningFleet:
    """Use a service for tests, with `async with`."""
    async with (
        running_fleet(gateways=2) as running,
        Fleet(running.url, user=running.user, password="") as fleet,
    ):
        await fleet.operations.ready()
        return running
