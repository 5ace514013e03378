"""Alarms over MQTT: what clients of others get from the embedded broker, and from another one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete

from meshfleet.db.tables import notification_route
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.rest.accounts import Role
from meshfleet.rest.channels import ChannelKind
from meshfleet.service.actor import SERVICE
from meshfleet.service.notifications import channel_commands
from meshfleet.service.notifications.mqtt_publisher import MqttDeliverer
from meshfleet.settings import Settings
from tests.eventually import eventually_async
from tests.mqtt.client.test_paho import Paho
from tests.servers import Mosquitto
from tests.service.alarms.alarm_harness import MINUTE
from tests.service.embedded_broker.mqtt_accounts import MqttAccounts
from tests.service.embedded_broker.running_broker import RunningBroker
from tests.service.external_broker.storing_consumer import RunningClient, StoringConsumer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.transport import ReportSource
    from tests.mqtt.client.test_paho import ReceivedMessage
    from tests.service.notifications.fleet_harness import NotifiedLog

pytestmark = pytest.mark.anyio


@pytest.fixture
def accounts(database: Database) -> Iterator[MqttAccounts]:
    created = MqttAccounts(database)
    yield created
    created.close()


def publish_to(log: NotifiedLog, source: ReportSource, prefix: str = "") -> str:
    """Add a channel that publishes all alarms through a source. Return its id."""
    log.notifications.deliverers[ChannelKind.MQTT] = MqttDeliverer(source, prefix=prefix, timeout=5)
    channel = log.notifications.add_mqtt()
    log.notifications.add_route(channel, cleared=False)
    return channel


async def receive(paho: Paho, count: int) -> list[ReceivedMessage]:
    return await asyncio.to_thread(paho.receive, count)


async def watch(paho: Paho, topic_filter: str) -> None:
    await asyncio.to_thread(paho.subscribe, topic_filter, 1)


@pytest.mark.rule("rest-295")
async def test_an_alarm_is_retained_until_it_is_over(log: NotifiedLog, accounts: MqttAccounts) -> None:
    viewer = accounts.person(Role.VIEWER)
    async with RunningBroker(accounts, Settings(topic_prefix="site")) as running:
        publish_to(log, running.endpoint, "site")
        address = ("127.0.0.1", running.port)
        paho = await asyncio.to_thread(Paho, address, user=viewer.user, password=viewer.password)
        await watch(paho, "site/meshfleet/alarms/+")
        gateway, _ = log.add_gateway(1)
        log.set_gateway(gateway, connected=False)
        await log.pass_time(6 * MINUTE)
        [opened] = await receive(paho, 1)
        assert (opened.topic, opened.qos) == ("site/meshfleet/alarms/alarm-1", 1)
        body = json.loads(opened.payload)
        assert body["sentence"].startswith("Gateway Gateway 1 is offline")
        assert (body["id"], body["state"], body["memberCount"]) == ("alarm-1", "open", 1)
        later = await asyncio.to_thread(Paho, address, user=viewer.user, password=viewer.password)
        await watch(later, opened.topic)
        [retained] = await receive(later, 1)
        assert (retained.payload, retained.retain) == (opened.payload, True)
        log.set_gateway(gateway, connected=True)
        await log.pass_time(4 * MINUTE)
        cleared, removed = await receive(paho, 2)
        assert json.loads(cleared.payload)["state"] == "cleared"
        assert (removed.topic, removed.payload) == (opened.topic, b"")
        assert len(running.broker.retained) == 0
        for each in (paho, later):
            await asyncio.to_thread(each.__exit__)


@pytest.mark.rule("rest-295")
async def test_what_a_deleted_channel_has_retained_is_removed(
    log: NotifiedLog, accounts: MqttAccounts
) -> None:
    async with RunningBroker(accounts) as running:
        channel = publish_to(log, running.endpoint)
        gateway, _ = log.add_gateway(1)
        log.set_gateway(gateway, connected=False)
        await log.pass_time(6 * MINUTE)
        assert len(running.broker.retained) == 1
        log.execute(delete(notification_route))
        number = int(channel.removeprefix("channel-"))
        published = log.database.write_now(channel_commands.delete_channel, number, by=SERVICE, now=log.now)
        await log.notifications.notifier.withdraw(published)
        assert (published, len(running.broker.retained)) == ({1}, 0)


async def test_alarms_wait_for_a_broker_that_is_away(log: NotifiedLog, tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        host, port = mosquitto.address
        consumer = StoringConsumer(log.database)
        async with RunningClient(BrokerAddress(host=host, port=port), consumer) as running:
            await running.wait_until_ready()
            publish_to(log, running.client)
            mosquitto.stop()
            await eventually_async(
                lambda: running.client.unavailable_reason is not None, "the loss of the connection"
            )
            gateway, _ = log.add_gateway(1)
            log.set_gateway(gateway, connected=False)
            await log.pass_time(6 * MINUTE)
            assert log.notifications.states() == {"waiting": 1}
            mosquitto.start()
            await eventually_async(lambda: running.client.unavailable_reason is None, "a new connection")
            await log.pass_time(6 * MINUTE)
            assert log.notifications.states() == {"sent": 1}
            paho = await asyncio.to_thread(Paho, (host, port))
            await watch(paho, "meshfleet/alarms/+")
            [retained] = await receive(paho, 1)
            assert (json.loads(retained.payload)["id"], retained.retain) == ("alarm-1", True)
            await asyncio.to_thread(paho.__exit__)
