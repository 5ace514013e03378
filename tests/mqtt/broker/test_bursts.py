"""Bursts: a subscriber that acknowledges what it receives gets every message of a burst."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Disconnect, Puback, Publish
from tests.mqtt.broker.messages import numbered_payloads, publish
from tests.mqtt.broker.running_broker import REPORTS, RunningBroker, report

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio


async def receive_and_acknowledge(client: RawClient, count: int) -> list[Publish]:
    """Receive this many messages and acknowledge each one, as `mosquitto_sub -q 1` does."""
    received = []
    for _ in range(count):
        received.append(message := await client.expect(Publish))
        client.send(Puback(message.packet_id))
    return received


@pytest.mark.rule("broker-24")
async def test_a_burst_of_1500_reports_reaches_every_subscriber_completely_and_in_order(
    server: RunningBroker,
) -> None:
    clean = await server.subscriber("viewer", REPORTS)
    persistent = await server.subscriber("viewer-2", REPORTS, clean=False)
    absent = await server.subscriber("viewer-3", REPORTS, clean=False)
    absent.send(Disconnect())
    await absent.receive_until_closed()
    gateway, burst = await server.gateway(), numbered_payloads(1500)
    await publish(gateway, *burst)  # no subscriber has acknowledged anything yet
    absent = await server.client("viewer-3", clean=False)
    received = await asyncio.gather(
        *(receive_and_acknowledge(each, 1500) for each in (clean, persistent, absent))
    )
    assert [[message.payload for message in each] for each in received] == [burst] * 3
    for client in (clean, persistent, absent):
        assert await client.receive_until_pong() == []
    assert server.broker.quotas.queued_bytes == 0


@pytest.mark.rule("broker-24")
async def test_60_gateways_that_send_a_backlog_of_50_reports_cut_no_subscriber_off(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    macs = [f"02005e00{number:04x}" for number in range(60)]
    gateways = [await server.gateway(mac) for mac in macs]
    await asyncio.gather(
        *(
            publish(gateway, *numbered_payloads(50), topic=report(mac))
            for mac, gateway in zip(macs, gateways, strict=True)
        )
    )
    received: dict[str, list[bytes]] = {report(mac): [] for mac in macs}
    for message in await receive_and_acknowledge(viewer, 60 * 50):
        received[message.topic].append(message.payload)
    assert received == {report(mac): numbered_payloads(50) for mac in macs}
    assert await viewer.receive_until_pong() == []
