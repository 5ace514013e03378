"""Reports as typed values."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.reports import ReportFilter, ReportSubscription
from meshfleet.errors.mqtt import SubscriptionRefused
from meshfleet.errors.protocol import MalformedInput, MalformedMac
from meshfleet.mqtt.client import BrokerAddress, MqttClient, Publish
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.reports import REPORT_TYPES, Heartbeat, MeasurementError
from meshfleet.protocol.topics import TopicCodec
from tests.client.mesh.gateways import DEVICE, GATEWAY, LONG, collect_reports, gateway_on
from tests.client.mesh.paho_client import connected_paho_client
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import RunningBroker, report
from tests.mqtt.client.proxy import FAST_RECONNECT
from tests.mqtt.client.scripted_broker import wait_until
from tests.row_tables import each_row
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.client.mesh.reports import Report
    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

OTHER_GATEWAY = f"{int(GATEWAY, 16) + 1:012x}"


def heartbeat(seq: int, *, topic: str = report(kind="heartbeat")) -> Publish:
    body = {"time": "2026-01-01T00:00:00.000Z", "seq": seq, "status": 0}
    return Publish(topic, json.dumps(body).encode(), 1)


def seqs(reports: list[Report]) -> list[int]:
    return [each.body.seq for each in reports if isinstance(each.body, Heartbeat)]


async def publish(broker: str, *messages: Publish, gateway: str = GATEWAY) -> None:
    """Publish messages as a gateway."""
    address = BrokerAddress.parse(broker.replace("://", f"://{gateway}:any@"))
    async with MqttClient(address, gateway, clean=True, options=FAST_RECONNECT) as link:
        await link.publish_all(messages)


async def _publish_until_received(first: asyncio.Task[Report], broker: str, *messages: Publish) -> None:
    """Publish messages until a report is received: a test cannot see when a subscription is active."""

    async def probe() -> bool:
        if not first.done():
            await publish(broker, *messages)
        return first.done()

    await eventually_async(probe, "the first report")


async def wait_until_subscribed(
    mesh: Mesh, broker: str, reports: AsyncIterator[Report]
) -> asyncio.Task[Report]:
    """Request the first report, and publish heartbeats until one is received."""
    first = asyncio.ensure_future(anext(reports))
    await _publish_until_received(first, broker, heartbeat(255))
    assert mesh.rejected == 0
    return first


@each_row("mode", ["raw", "decoded"])
async def test_reports_of_a_gateway_are_typed(broker: str, mode: str) -> None:
    before = datetime.now(UTC)
    async with gateway_on(broker, mode, devices=10, speed=600) as gateway, Mesh(broker) as mesh:
        expected = {Kind.HEARTBEAT, Kind.RSSI, Kind(f"property{'' if mode == 'raw' else '-decoded'}")}
        received = await collect_reports(
            mesh.reports(), lambda received: expected <= {each.kind for each in received}
        )
    for each in received:
        assert each.gateway == gateway.mac
        assert each.device in {gateway.mac, *gateway.devices}
        assert type(each.body) is REPORT_TYPES[each.kind]
        assert (each.identifier is None) == (not each.kind.has_identifier)
        assert before <= each.received <= datetime.now(UTC)
    assert mesh.rejected == 0


async def test_reports_can_be_filtered_by_gateway_device_and_kind(broker: str) -> None:
    async with gateway_on(broker, devices=10) as gateway, Mesh(broker) as mesh:
        device = gateway.devices[0]
        filtered = mesh.reports(
            gateway=gateway.mac.upper(), device=f"bmac-{device}", kinds=[Kind.HEARTBEAT, "rssi"]
        )
        received = await collect_reports(
            filtered, lambda received: len({each.kind for each in received}) == 2
        )
        assert {each.device for each in received} == {device}
        assert {each.kind for each in received} == {Kind.HEARTBEAT, Kind.RSSI}
        (other,) = await collect_reports(mesh.reports(gateway=gateway.mac, kinds="property"), 1)
        assert other.kind is Kind.PROPERTY


async def test_invalid_filters_are_refused_at_once(broker: str) -> None:
    mesh = Mesh(broker)
    with pytest.raises(MalformedInput, match="'weather' is not one of heartbeat, dfu"):
        mesh.reports(kinds=["weather"])
    with pytest.raises(MalformedMac):
        mesh.reports(gateway="02")


async def test_a_measurement_error_by_name_counts_as_decoded(broker: str) -> None:
    body = b'{"time":"2026-01-01T00:00:00Z","seq":"7","error":9}'
    async with Mesh(broker) as mesh:
        reports = mesh.reports(kinds=[Kind.MEASUREMENT_ERROR_DECODED])
        first = asyncio.ensure_future(anext(reports))
        await _publish_until_received(
            first,
            broker,
            Publish(report(kind="measurement-error/8800"), body, 1),
            Publish(report(kind="measurement-error/temperature"), body, 1),
        )
        await reports.aclose()
    received = first.result()
    assert (received.kind, received.identifier) == (Kind.MEASUREMENT_ERROR_DECODED, "temperature")
    assert isinstance(received.body, MeasurementError)
    assert received.body.seq == 7


async def test_undecodable_reports_are_skipped_counted_and_not_quoted_in_the_log(
    broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "5ec2e7"  # noqa: S105 # not a real secret
    undecodable = [
        Publish(report(kind="heartbeat"), f'{{"{secret}":1}}'.encode(), 1),
        Publish(report(kind="heartbeat"), b"\xff", 1),
        Publish(report(kind="heartbeat"), b"{" + b" " * 70_000, 1),
        Publish(report(kind="weather"), secret.encode(), 1),
        Publish(report(device="no-mac", kind="heartbeat"), b"{}", 1),
        Publish(report(kind="measurement/8800"), f'{{"seq":"{secret}"}}'.encode(), 1),
    ]
    async with Mesh(broker) as mesh, aclosing(mesh.reports()) as reports:
        await wait_until_subscribed(mesh, broker, reports)
        await publish(broker, *undecodable, heartbeat(7))
        async with asyncio.timeout(LONG):
            while (await anext(reports)).body.seq != 7:  # type: ignore[union-attr] # all are heartbeats
                pass
        assert mesh.rejected == len(undecodable)
    assert mesh.rejected == len(undecodable)
    assert "cannot be decoded" in caplog.text
    assert secret not in caplog.text


async def test_an_oversized_message_is_rejected_and_later_ones_are_received(tmp_path: Path) -> None:
    with Mosquitto(tmp_path, "set_tcp_nodelay true") as mosquitto:
        broker = f"mqtt://127.0.0.1:{mosquitto.address.port}"
        async with Mesh(broker) as mesh, aclosing(mesh.reports()) as reports:
            await wait_until_subscribed(mesh, broker, reports)
            await publish(broker, Publish(report(kind="heartbeat"), b" " * 2_000_000, 1), heartbeat(7))
            async with asyncio.timeout(LONG):
                while (await anext(reports)).body.seq != 7:  # type: ignore[union-attr] # as above
                    pass
            assert mesh.rejected == 1


async def test_other_clients_receive_the_same_reports(broker: str) -> None:
    async with (
        gateway_on(broker) as gateway,
        Mesh(broker) as mesh,
        connected_paho_client(BrokerAddress.parse(broker).port, gateway.mac) as other,
    ):
        received = await collect_reports(mesh.reports(gateway=gateway.mac), 20)
        topics = {f"mt/gateway/{each.gateway}/device/{each.device}/{each.kind}" for each in received}
        await wait_until(
            lambda: all(any(each.startswith(topic) for each in other.report_topics()) for topic in topics)
        )


async def test_each_iterator_has_its_own_connection(broker: str) -> None:
    async with gateway_on(broker), Mesh(broker) as mesh:
        first, second = await asyncio.gather(
            collect_reports(mesh.reports(kinds=Kind.HEARTBEAT), 5),
            collect_reports(mesh.reports(kinds=Kind.RSSI), 5),
        )
    assert {each.kind for each in first} == {Kind.HEARTBEAT}
    assert {each.kind for each in second} == {Kind.RSSI}


async def test_closing_the_mesh_ends_its_iterators(broker: str) -> None:
    async def collect() -> list[Report]:
        return [each async for each in mesh.reports()]

    async with gateway_on(broker):
        async with Mesh(broker) as mesh:
            receiving = asyncio.create_task(collect())
            await collect_reports(mesh.reports(), 3)
        async with asyncio.timeout(LONG):
            await receiving


async def test_a_slow_consumer_does_not_delay_requests(broker: str) -> None:
    async with gateway_on(broker) as gateway, Mesh(broker) as mesh, aclosing(mesh.reports()) as reports:
        await anext(reports)
        async with connected_paho_client(BrokerAddress.parse(broker).port, gateway.mac) as other:
            await wait_until(lambda: len(other.report_topics()) > 50)
            responses = await asyncio.gather(
                *(mesh.read(gateway.mac, gateway.devices[0], "8000", timeout=LONG) for _ in range(50))
            )
            assert {response.status for response in responses} == {0}
        backlog = [await anext(reports) for _ in range(60)]
        times = [each.body.time for each in backlog if each.kind is Kind.HEARTBEAT]
        assert times == sorted(times)


async def test_a_client_without_read_access_gets_an_error(sqlite_database: Database) -> None:
    """Subscribe as a gateway, which may read its own topics only, to those of another one."""
    async with RunningBroker(sqlite_database) as broker:
        address = BrokerAddress(host="127.0.0.1", port=broker.port, user=OTHER_GATEWAY, password="correct")  # noqa: S106 # the password of every account
        reports = ReportSubscription(address, OTHER_GATEWAY, TopicCodec(), clean=True, options=FAST_RECONNECT)
        with pytest.raises(SubscriptionRefused, match=f"mt/gateway/{GATEWAY}/device/"):
            await anext(reports.receive(ReportFilter.parse(GATEWAY, DEVICE, ())))
        viewer = f"mqtt://viewer:correct@127.0.0.1:{broker.port}"
        async with gateway_on(f"mqtt://127.0.0.1:{broker.port}", password="correct"), Mesh(viewer) as mesh:  # noqa: S106
            assert len(await collect_reports(mesh.reports(gateway=GATEWAY), 3)) == 3
