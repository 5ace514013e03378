"""Test of two processes that run the jobs of one database: when one is killed, the other continues."""

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
"""Seconds after which the other process takes over the requests of a killed one."""

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


class RequestMonitor:
    """Monitor of all requests on the broker: their senders, and the devices that are started."""

    def __init__(self, mosquitto: Mosquitto) -> None:
        self._address = BrokerAddress(host=mosquitto.address.host, port=mosquitto.address.port)
        self.request_counts: Counter[str] = Counter()
        """Number of requests by sender."""
        self.start_counts: Counter[DeviceId] = Counter()
        """Number of start commands by device."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Record requests within the block."""
        async with MqttClient(self._address, "wire", clean=True, options=FAST_RECONNECT) as client:
            await client.subscribe("mt/gateway/+/request/#")
            task = asyncio.create_task(self._receive(client))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _receive(self, client: MqttClient) -> None:
        topics = TopicCodec()
        async for received in client:
            for message in received.messages:
                topic = topics.parse(message.topic)
                assert isinstance(topic, RequestTopic)
                content = msgspec.json.decode(message.payload)
                self.request_counts[sender_of(content.get("id", ""))] += 1  # acknowledgments have no id
                self.start_counts[to_device_id(topic.device)] += topic.identifier == "start-firmware-update"
            received.acknowledge()

    async def wait_for_request(self, sender: str) -> None:
        """Wait for another request of a sender."""
        before = self.request_counts[sender]
        patience = LEASE + TEST_TIMEOUT
        await eventually_async(
            lambda: self.request_counts[sender] != before, "another request", patience=patience
        )


async def _start_second_runner(database: str, mosquitto: Mosquitto) -> SecondRunner:
    return await asyncio.to_thread(SecondRunner, database, broker_url(mosquitto))


async def test_a_job_survives_kills_of_either_of_two_processes(
    service: ServiceProcess, mosquitto: Mosquitto, database: str
) -> None:
    site, operator, monitor = (
        EmulatedSite(service, at=mosquitto.address),
        OperatorClient(service),
        RequestMonitor(mosquitto),
    )
    rng = random.Random(5)  # noqa: S311 # not used for secrets
    async with site.running(), monitor.running():
        with await _start_second_runner(database, mosquitto) as second_runner:  # killed at the end
            job = await create_job(site, operator, "download", per_gateway=2)
            await asyncio.sleep(rng.uniform(0, 3))  # at any moment
            await asyncio.to_thread(service.kill)
            await monitor.wait_for_request(second_runner.sender)
            await asyncio.to_thread(service.start)
            await asyncio.sleep(rng.uniform(0, 1))
        with await _start_second_runner(database, mosquitto):
            await asyncio.sleep(rng.uniform(0, 3))
        await check_finished_job(site, operator, job)
    # A device that gets a second start reports busy: then there would be more commands than updates.
    start_counts = {device: times for device, times in monitor.start_counts.items() if times}
    assert start_counts == {device: site.count_started(device) for device in start_counts}
    assert len(start_counts) == site.size
