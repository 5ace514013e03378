"""Bursts: a subscriber that acknowledges what it gets is owed all of it, however much comes at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Disconnect, Puback, Publish
from tests.mqtt.broker.messages import numbered_payloads, publish
from tests.mqtt.broker.running_broker import REPORTS, report

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio


async def take(client: RawClient, count: int) -> list[Publish]:
    """Receive so many messages and acknowledge each as it comes, as `mosquitto_sub -q 1` does."""
    come = []
    for _ in range(count):
        come.append(message := await client.expect(Publish))
        client.send(Puback(message.packet_id))
    return come


@pytest.mark.rule("broker-24")
async def test_a_burst_of_1500_reports_reaches_every_subscriber_whole_and_in_order(
    stage: RunningBroker,
) -> None:
    watching = await stage.subscriber("viewer", REPORTS)
    kept = await stage.subscriber("viewer-2", REPORTS, clean=False)
    absent = await stage.subscriber("viewer-3", REPORTS, clean=False)
    absent.send(Disconnect())
    await absent.receive_until_closed()
    gateway, burst = await stage.gateway(), numbered_payloads(1500)
    await publish(gateway, *burst)  # without a PUBACK of any subscriber
    absent = await stage.client("viewer-3", clean=False)
    came = await asyncio.gather(*(take(each, 1500) for each in (watching, kept, absent)))
    assert [[message.payload for message in each] for each in came] == [burst] * 3
    for client in (watching, kept, absent):
        assert await client.receive_until_pong() == []
    assert stage.broker.quotas.queued_bytes == 0


@pytest.mark.rule("broker-24")
async def test_60_gateways_that_empty_a_backlog_of_50_cut_nobody_off(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    macs = [f"02005e00{number:04x}" for number in range(60)]
    gateways = [await stage.gateway(mac) for mac in macs]
    await asyncio.gather(
        *(
            publish(gateway, *numbered_payloads(50), topic=report(mac))
            for mac, gateway in zip(macs, gateways, strict=True)
        )
    )
    came: dict[str, list[bytes]] = {report(mac): [] for mac in macs}
    for message in await take(viewer, 60 * 50):
        came[message.topic].append(message.payload)
    assert came == {report(mac): numbered_payloads(50) for mac in macs}
    assert await viewer.receive_until_pong() == []
