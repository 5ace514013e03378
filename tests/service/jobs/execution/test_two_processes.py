"""Two programs run the jobs of one database: either is killed at any moment, and the other goes on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttClient
from meshfleet.protocol.ids import DeviceId, to_device_id
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from tests.cli.programs import TEST_TIMEOUT, broker_url
from tests.databases import create_database
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import FAST_RECONNECT
from tests.scenarios.service_process import ServiceProcess
from tests.scenarios.update_site import OperatorClient
from tests.servers import Mosquitto
from tests.service.jobs.execution.emulated_site import EmulatedSite
from tests.service.jobs.execution.second_runner import SecondRunner, sender_of
from tests.service.jobs.execution.site_job import check_finished_job, create_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.part("long"),  # test_two_runners.py is the short one
    pytest.mark.rule("rest-142", "rest-143", "rest-144"),
]

LEASE = 60
"""Seconds after which what a killed program had sent is taken over by the other."""

_numbers = count(1)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


@pytest.fixture
def database(postgresql_server: str) -> str:
    return create_database(postgresql_server, f"two_programs_{next(_numbers)}")


@pytest.fixture
def service(tmp_path: Path, mosquitto: Mosquitto, database: str) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, "--broker", broker_url(mosquitto), "--database", database) as running:
        yield running


class Wire:
    """Every request that the broker passes on: who asks, and which devices are told to begin."""

    def __init__(self, mosquitto: Mosquitto) -> None:
        self._address = BrokerAddress(host=mosquitto.address.host, port=mosquitto.address.port)
        self.asked: Counter[str] = Counter()
        """How much each program has asked."""
        self.begun: Counter[DeviceId] = Counter()
        """How often each device was told to begin."""

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[None]:
        """Listen."""
        async with MqttClient(self._address, "wire", clean=True, options=FAST_RECONNECT) as link:
            await link.subscribe("mt/gateway/+/request/#")
            listening = asyncio.create_task(self._listen(link))
            try:
                yield
            finally:
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening

    async def _listen(self, link: MqttClient) -> None:
        topics = TopicCodec()
        async for received in link:
            for message in received.messages:
                topic = topics.parse(message.topic)
                assert isinstance(topic, RequestTopic)
                content = msgspec.json.decode(message.payload)
                self.asked[sender_of(content.get("id", ""))] += 1  # acks have none
                self.begun[to_device_id(topic.device)] += topic.identifier == "start-firmware-update"
            received.acknowledge()

    async def goes_on(self, sender: str) -> None:
        """Wait until a program asks something more."""
        before = self.asked[sender]
        patience = LEASE + TEST_TIMEOUT
        await eventually_async(lambda: self.asked[sender] != before, "another request", patience=patience)


async def _beside(database: str, mosquitto: Mosquitto) -> SecondRunner:
    return await asyncio.to_thread(SecondRunner, database, broker_url(mosquitto))


async def test_a_job_survives_kills_of_either_of_two_programs(
    service: ServiceProcess, mosquitto: Mosquitto, database: str
) -> None:
    estate, desk, wire = EmulatedSite(service, at=mosquitto.address), OperatorClient(service), Wire(mosquitto)
    chance = random.Random(5)  # noqa: S311 # no secret
    async with estate.running(), wire.heard():
        with await _beside(database, mosquitto) as beside:  # killed at the end
            job = await create_job(estate, desk, "download", per_gateway=2)
            await asyncio.sleep(chance.uniform(0, 3))  # at any moment
            await asyncio.to_thread(service.kill)
            await wire.goes_on(beside.sender)
            await asyncio.to_thread(service.start)
            await asyncio.sleep(chance.uniform(0, 1))
        with await _beside(database, mosquitto):
            await asyncio.sleep(chance.uniform(0, 3))
        await check_finished_job(estate, desk, job)
    # Whoever is told to begin while it does so says that it is busy: then these would be more.
    told = {device: times for device, times in wire.begun.items() if times}
    assert told == {device: estate.count_started(device) for device in told}
    assert len(told) == estate.size
