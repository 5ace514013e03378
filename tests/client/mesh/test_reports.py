"""Reports as typed values, one after the other."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.reports import Reports, Wish
from meshfleet.errors import MalformedMac, SubscriptionRefused, WireError
from meshfleet.link import Address, Link, Publish
from meshfleet.wire.codes import Kind
from meshfleet.wire.reports import STRUCTS, Heartbeat, MeasurementError
from meshfleet.wire.topics import Topics
from tests.broker.stage import Stage, report
from tests.client.mesh.ground import DEVICE, GATEWAY, LONG, hear, on
from tests.client.mesh.passer_by import passer_by
from tests.eventually import eventually_async
from tests.link.proxy import EAGER
from tests.link.scripted import until
from tests.servers import Mosquitto
from tests.tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.client.mesh.reports import Report
    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

OTHER = f"{int(GATEWAY, 16) + 1:012x}"


def heartbeat(seq: int, *, topic: str = report(kind="heartbeat")) -> Publish:
    body = {"time": "2026-01-01T00:00:00.000Z", "seq": seq, "status": 0}
    return Publish(topic, json.dumps(body).encode(), 1)


def seqs(reports: list[Report]) -> list[int]:
    return [each.body.seq for each in reports if isinstance(each.body, Heartbeat)]


async def say(broker: str, *messages: Publish, gateway: str = GATEWAY) -> None:
    """Publish as a gateway."""
    address = Address.parse(broker.replace("://", f"://{gateway}:any@"))
    async with Link(address, gateway, clean=True, options=EAGER) as link:
        await link.publish_all(messages)


async def _say_until(first: asyncio.Task[Report], broker: str, *messages: Publish) -> None:
    """Publish the same messages until a report was heard: a test does not see when a subscription holds."""

    async def probe() -> bool:
        if not first.done():
            await say(broker, *messages)
        return first.done()

    await eventually_async(probe, "the first report")


async def listening(mesh: Mesh, broker: str, reports: AsyncIterator[Report]) -> asyncio.Task[Report]:
    """Ask for the first report, and wait until the subscription holds: probes come until one is heard."""
    first = asyncio.ensure_future(anext(reports))
    await _say_until(first, broker, heartbeat(255))
    assert mesh.rejected == 0
    return first


@each_row("mode", ["raw", "decoded"])
async def test_reports_of_a_gateway_come_typed(broker: str, mode: str) -> None:
    before = datetime.now(UTC)
    async with on(broker, mode, devices=10, speed=600) as gateway, Mesh(broker) as mesh:
        wanted = {Kind.HEARTBEAT, Kind.RSSI, Kind(f"property{'' if mode == 'raw' else '-decoded'}")}
        heard = await hear(mesh.reports(), lambda heard: wanted <= {each.kind for each in heard})
    for each in heard:
        assert each.gateway == gateway.mac
        assert each.device in {gateway.mac, *gateway.devices}
        assert type(each.body) is STRUCTS[each.kind]
        assert (each.identifier is None) == (not each.kind.has_identifier)
        assert before <= each.received <= datetime.now(UTC)
    assert mesh.rejected == 0


async def test_reports_are_chosen_by_gateway_device_and_kind(broker: str) -> None:
    async with on(broker, devices=10) as gateway, Mesh(broker) as mesh:
        device = gateway.devices[0]
        chosen = mesh.reports(
            gateway=gateway.mac.upper(), device=f"bmac-{device}", kinds=[Kind.HEARTBEAT, "rssi"]
        )
        heard = await hear(chosen, lambda heard: len({each.kind for each in heard}) == 2)
        assert {each.device for each in heard} == {device}
        assert {each.kind for each in heard} == {Kind.HEARTBEAT, Kind.RSSI}
        (other,) = await hear(mesh.reports(gateway=gateway.mac, kinds="property"), 1)
        assert other.kind is Kind.PROPERTY


async def test_wrong_choices_are_told_at_once(broker: str) -> None:
    mesh = Mesh(broker)
    with pytest.raises(WireError, match="'weather' is none of heartbeat, dfu"):
        mesh.reports(kinds=["weather"])
    with pytest.raises(MalformedMac):
        mesh.reports(gateway="02")


async def test_a_measurement_error_by_name_counts_as_decoded(broker: str) -> None:
    body = b'{"time":"2026-01-01T00:00:00Z","seq":"7","error":9}'
    async with Mesh(broker) as mesh:
        reports = mesh.reports(kinds=[Kind.MEASUREMENT_ERROR_DECODED])
        first = asyncio.ensure_future(anext(reports))
        await _say_until(
            first,
            broker,
            Publish(report(kind="measurement-error/8800"), body, 1),
            Publish(report(kind="measurement-error/temperature"), body, 1),
        )
        await reports.aclose()
    heard = first.result()
    assert (heard.kind, heard.identifier) == (Kind.MEASUREMENT_ERROR_DECODED, "temperature")
    assert isinstance(heard.body, MeasurementError)
    assert heard.body.seq == 7


async def test_what_cannot_be_read_is_skipped_counted_and_not_shown(
    broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "5ec2e7"  # noqa: S105 # any text will do
    rubbish = [
        Publish(report(kind="heartbeat"), f'{{"{secret}":1}}'.encode(), 1),
        Publish(report(kind="heartbeat"), b"\xff", 1),
        Publish(report(kind="heartbeat"), b"{" + b" " * 70_000, 1),
        Publish(report(kind="weather"), secret.encode(), 1),
        Publish(report(device="nobody", kind="heartbeat"), b"{}", 1),
        Publish(report(kind="measurement/8800"), f'{{"seq":"{secret}"}}'.encode(), 1),
    ]
    async with Mesh(broker) as mesh, aclosing(mesh.reports()) as reports:
        await listening(mesh, broker, reports)
        await say(broker, *rubbish, heartbeat(7))
        async with asyncio.timeout(LONG):
            while (await anext(reports)).body.seq != 7:  # type: ignore[union-attr] # all are heartbeats
                pass
        assert mesh.rejected == len(rubbish)
    assert mesh.rejected == len(rubbish)
    assert "cannot be read" in caplog.text
    assert secret not in caplog.text


async def test_a_message_too_large_to_be_taken_is_rejected_and_others_follow(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, "set_tcp_nodelay true") as mosquitto:
        broker = f"mqtt://127.0.0.1:{mosquitto.address.port}"
        async with Mesh(broker) as mesh, aclosing(mesh.reports()) as reports:
            await listening(mesh, broker, reports)
            await say(broker, Publish(report(kind="heartbeat"), b" " * 2_000_000, 1), heartbeat(7))
            async with asyncio.timeout(LONG):
                while (await anext(reports)).body.seq != 7:  # type: ignore[union-attr] # as above
                    pass
            assert mesh.rejected == 1


async def test_other_clients_hear_the_same_reports(broker: str) -> None:
    async with (
        on(broker) as gateway,
        Mesh(broker) as mesh,
        passer_by(Address.parse(broker).port, gateway.mac) as other,
    ):
        heard = await hear(mesh.reports(gateway=gateway.mac), 20)
        topics = {f"mt/gateway/{each.gateway}/device/{each.device}/{each.kind}" for each in heard}
        await until(lambda: all(any(each.startswith(topic) for each in other.reported()) for topic in topics))


async def test_iterators_have_connections_of_their_own(broker: str) -> None:
    async with on(broker), Mesh(broker) as mesh:
        first, second = await asyncio.gather(
            hear(mesh.reports(kinds=Kind.HEARTBEAT), 5), hear(mesh.reports(kinds=Kind.RSSI), 5)
        )
    assert {each.kind for each in first} == {Kind.HEARTBEAT}
    assert {each.kind for each in second} == {Kind.RSSI}


async def test_closing_the_mesh_ends_its_iterators(broker: str) -> None:
    async def listen() -> list[Report]:
        return [each async for each in mesh.reports()]

    async with on(broker):
        async with Mesh(broker) as mesh:
            listener = asyncio.create_task(listen())
            await hear(mesh.reports(), 3)
        async with asyncio.timeout(LONG):
            await listener


async def test_a_slow_consumer_holds_up_no_requests(broker: str) -> None:
    async with on(broker) as gateway, Mesh(broker) as mesh, aclosing(mesh.reports()) as reports:
        await anext(reports)
        async with passer_by(Address.parse(broker).port, gateway.mac) as other:
            await until(lambda: len(other.reported()) > 50)
            answers = await asyncio.gather(
                *(mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG) for _ in range(50))
            )
            assert {answer.status for answer in answers} == {0}
        behind = [await anext(reports) for _ in range(60)]
        times = [each.body.time for each in behind if each.kind is Kind.HEARTBEAT]
        assert times == sorted(times)


async def test_who_may_not_read_is_told(sqlite_database: Database) -> None:
    """A gateway reads its own topics alone; here it comes with the name of another."""
    async with Stage(sqlite_database) as stage:
        place = Address(host="127.0.0.1", port=stage.port, user=OTHER, password="correct")  # noqa: S106 # of all
        reports = Reports(place, OTHER, Topics(), clean=True, options=EAGER)
        with pytest.raises(SubscriptionRefused, match=f"mt/gateway/{GATEWAY}/device/"):
            await anext(reports.hear(Wish.parse(GATEWAY, DEVICE, ())))
        viewer = f"mqtt://viewer:correct@127.0.0.1:{stage.port}"
        async with on(f"mqtt://127.0.0.1:{stage.port}", password="correct"), Mesh(viewer) as mesh:  # noqa: S106
            assert len(await hear(mesh.reports(gateway=GATEWAY), 3)) == 3
    sqlite_database.close()
