"""The embedded broker as the broker of Home Assistant."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.service.homeassistant.link import EmbeddedLink, collect_retained
from meshfleet.service.homeassistant.publisher import Publisher, PublisherTimings
from meshfleet.settings.model import HomeAssistantSettings
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import RunningBroker
from tests.service.homeassistant.fleets import TOPICS, build_plan, build_published_plan, take_all

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.homeassistant.publisher import PublisherSources

pytestmark = pytest.mark.anyio


@pytest.mark.rule("homeassistant-8")
async def test_messages_of_the_service_do_not_count_towards_the_limits(sqlite_database: Database) -> None:
    # One account may retain a tenth of the limits, so no client could retain any of these.
    async with RunningBroker(sqlite_database, BrokerLimits(retained=10, queue_bytes=10_000)) as server:
        messages = [
            Publish(f"meshfleet/{number:012x}/state", bytes(1000), 1, retain=True) for number in range(100)
        ]
        await EmbeddedLink(server.broker).publish(messages)
        await server.restart()
        found: list[Publish] = []
        link = EmbeddedLink(server.broker)
        assert await collect_retained(link, ["meshfleet/+/state"], TOPICS.sync, found.append) == []
        assert sorted(each.topic for each in found) == [each.topic for each in messages]
        await link.close()


@pytest.mark.rule("homeassistant-8")
async def test_a_service_that_starts_again_knows_what_it_has_published(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database) as server:
        link = EmbeddedLink(server.broker)
        plan = build_published_plan()
        plan.republish_all()
        await link.publish(plan.take_queued(1000))
        await server.restart()
        link, later = EmbeddedLink(server.broker), build_plan()
        filters = TOPICS.published_filters
        await collect_retained(
            link, filters, TOPICS.sync, lambda x: later.record_published(x.topic, x.payload)
        )
        later.remove_all()
        assert len(take_all(later)) == 6  # two devices, with three topics each
        await link.close()


@pytest.mark.rule("homeassistant-6")
async def test_a_flood_of_births_is_answered_a_few_times(
    sqlite_database: Database, sources: PublisherSources
) -> None:
    interval = 1.0
    timings = PublisherTimings(jitter=0.0, birth_interval=interval, step=0.001)
    publisher = Publisher(HomeAssistantSettings(broker="embedded"), sources, timings=timings)
    birth = Publish(f"{TOPICS.discovery_prefix}/status", b"online", 1)
    statuses: list[Publish] = []  # one each time that everything is published
    async with RunningBroker(sqlite_database) as server, asyncio.TaskGroup() as tasks:
        server.broker.subscribe(TOPICS.status, statuses.append)
        running = tasks.create_task(publisher.run(EmbeddedLink(server.broker)))
        await eventually_async(lambda: statuses, "the first messages")
        started = time.monotonic()
        for _ in range(50):
            answered = len(statuses)
            await server.broker.publish_all([birth] * 20)
        # One after the connection, one for the first birth, one that waits, and one in each interval.
        assert len(statuses) <= 3 + (time.monotonic() - started) / interval
        await eventually_async(lambda: len(statuses) > answered, "the answer to the last birth")
        running.cancel()
