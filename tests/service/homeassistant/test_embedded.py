"""The embedded broker as the broker of Home Assistant."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.service import clock
from meshfleet.service.api import RestApi
from meshfleet.service.homeassistant.link import EmbeddedLink, collect_retained
from meshfleet.service.homeassistant.publisher import Publisher, PublisherSources, PublisherTimings
from meshfleet.service.reload import SettingsReloader
from meshfleet.service.runtime import open_service_samples
from meshfleet.service.systemd import SystemdNotifier
from meshfleet.settings.model import HomeAssistantSettings, Settings
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import RunningBroker
from tests.service.homeassistant.fleets import TOPICS, build_plan, build_published_plan, take_all
from tests.service.http.running_service import QUICK_HASHER

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database

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
async def test_a_flood_of_births_is_answered_a_few_times(sqlite_database: Database, tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, homeassistant=HomeAssistantSettings(broker="embedded"))
    reloader = SettingsReloader(settings, lambda: settings, SystemdNotifier({}))
    interval = 1.0
    timings = PublisherTimings(jitter=0.0, birth_interval=interval, step=0.001)
    birth = Publish(f"{TOPICS.discovery_prefix}/status", b"online", 1)
    statuses: list[Publish] = []  # one each time that everything is published
    async with RunningBroker(sqlite_database) as server:
        with closing(open_service_samples(sqlite_database, settings)) as samples:
            api = RestApi(sqlite_database, settings, samples, reloader=reloader, hasher=QUICK_HASHER)
            sources = PublisherSources(
                sqlite_database, samples, api.traffic, api.request_facade, "http://127.0.0.1", clock.now
            )
            publisher = Publisher(settings.homeassistant, sources, timings=timings)
            server.broker.subscribe(TOPICS.status, statuses.append)
            async with asyncio.TaskGroup() as tasks:
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
