"""A program of somebody who uses the SDK, both faces of it, and a bit of everything."""

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
    RequestAnswer,
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


async def look_around(fleet: Fleet) -> list[Device]:
    """Lists, each thing in them, and what may be missing."""
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
    """People, keys, gateways."""
    user = await fleet.users.add("me", "correct-horse", Role.VIEWER)
    issued = await fleet.api_keys.issue(user.username, user.role, datetime.now(UTC) + timedelta(days=1))
    claim = await fleet.gateways.claim(GATEWAY, "Lobby")
    await fleet.labels.add(claim.mac, devices=[DEVICE])
    await fleet.api_keys.revoke(issued.id)
    return fleet.session


async def ask(fleet: Fleet) -> int:
    """Requests through a service, and how they can end."""
    try:
        answer: RequestAnswer = check(await fleet.requests.read(DEVICE, "8000", timeout=3))
        await fleet.requests.write(DEVICE, "tx-power", -4, gateway=GATEWAY, priority=Priority.HIGH)
    except Declined as declined:
        return declined.status
    except Unanswered as unanswered:
        return int(unanswered.sent)
    wish = NewRequest(operation=Operation.READ_DECODED, identifier="temperature", timeout_ms=1000)
    record = await fleet.requests.show((await fleet.requests.post(DEVICE, wish)).id)
    return answer.status if record.state is RequestState.DONE else Status.TIMEOUT


async def follow(fleet: Fleet) -> str:
    """Live events, told apart by what they say."""
    async for event in fleet.live(types=("report", "resync"), ids=[DEVICE]):
        one: Event = event
        match one.data:
            case LiveSample(name=name, gateway=gateway):
                return name or gateway
            case Resync(reason=reason):
                return reason
    return ""


async def listen(mesh: Mesh) -> Report | None:
    """Reports at a broker, and acks."""
    async with aclosing(mesh.reports(kinds=[Kind.MEASUREMENT, "event"], session="mine")) as reports:
        async for report in reports:
            age: timedelta = report.received - report.body.time
            await mesh.acknowledge(report, AckType.BACKFILL if age > timedelta(hours=1) else AckType.ACK)
            if mesh.rejected:
                return report
    return None


async def name_what_is_told(fleet: Fleet, sort: Sort, about: EventType, kind: SampleKind) -> EventData | None:
    """All that a service takes and gives has a name to annotate it with."""
    choice: GatewayChoice = (await fleet.requests.read(DEVICE, "8000")).choice
    health: Health = await fleet.operations.health()
    named = [choice.reason, health.status, *[each.id async for each in fleet.devices.list(sort=sort)]]
    named += [each.time async for each in fleet.samples.list(DEVICE, kinds=kind)]
    async for event in fleet.live(about):
        if event.id in named:
            return event.data
    return None


async def name_what_is_reported(mesh: Mesh, since: Moment) -> int:
    """The same of gateways, and what reports hold."""
    answer: ReadResponse | ReadDecodedResponse = await mesh.read(GATEWAY, DEVICE, "8000")
    response: Response = await mesh.write(GATEWAY, DEVICE, "9802", b"\x00", key="00", priority=1)
    await mesh.ack(GATEWAY, DEVICE, "8800", time=since)
    async for report in mesh.reports():
        match report.body:
            case reports.Rssi(rssi=rssi):
                return rssi
    return answer.status + response.status


async def ask_a_gateway(mesh: Mesh) -> bytes:
    """Requests at a broker: an answer that is checked has what was asked for, or something is unset."""
    version = check(await mesh.apiversion(GATEWAY)).version
    value = check(await mesh.read(GATEWAY, DEVICE, "8000")).value
    if not isinstance(value, str) or not version:
        return b""
    response = check(await mesh.write(GATEWAY, DEVICE, "9802", bytes.fromhex(value), timeout=1.5))
    return str(response.time).encode()


def wait(url: str, authorities: Path) -> list[Device]:
    """The blocking face: the same names, without await."""
    with blocking.Fleet(url, token="mfk_", tls_ca=authorities) as fleet:  # noqa: S106 # of nobody
        answer: RequestAnswer = check(fleet.requests.write(DEVICE, "8000", "00", gateway=None))
        for event in fleet.live(types="report"):
            one: Event = event
            if one.type == str(answer.status):
                break
        return list(fleet.devices.list(labels="a", connected=fleet.me().role is Role.ADMIN))


def wait_for_a_gateway() -> Report | None:
    """The same at a broker, and what tests use."""
    with emulated_gateway(devices=3, faults={"silent": 1}) as gateway, blocking.Mesh(gateway.broker) as mesh:
        known: EmulatedGateway = gateway
        version = mesh.apiversion(known.mac).version
        for report in mesh.reports(gateway=known.mac, device=known.devices[0]):
            if version:
                return report
    return None


async def bring_a_fleet() -> RunningFleet:
    """A service for tests, with `async with`."""
    async with running_fleet(gateways=2) as place, Fleet(place.url, user=place.user, password="") as fleet:
        await fleet.operations.ready()
        return place
