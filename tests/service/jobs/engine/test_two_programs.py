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

from meshfleet.link import Address, Link
from meshfleet.wire.ids import DeviceId, device_id
from meshfleet.wire.topics import RequestTopic, Topics
from tests.cli.outside import PATIENCE, url
from tests.databases import make_database
from tests.eventually import eventually_async
from tests.link.proxy import EAGER
from tests.scenarios.serving import Service
from tests.scenarios.updating import Desk
from tests.servers import Mosquitto
from tests.service.jobs.engine.beside import Beside, sender_of
from tests.service.jobs.engine.estate import Estate
from tests.service.jobs.engine.truth import begin, check

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
    return make_database(postgresql_server, f"two_programs_{next(_numbers)}")


@pytest.fixture
def service(tmp_path: Path, mosquitto: Mosquitto, database: str) -> Iterator[Service]:
    with Service(tmp_path, "--broker", url(mosquitto), "--database", database) as running:
        yield running


class Wire:
    """Every request that the broker passes on: who asks, and which devices are told to begin."""

    def __init__(self, mosquitto: Mosquitto) -> None:
        self._address = Address(host=mosquitto.address.host, port=mosquitto.address.port)
        self.asked: Counter[str] = Counter()
        """How much each program has asked."""
        self.begun: Counter[DeviceId] = Counter()
        """How often each device was told to begin."""

    @asynccontextmanager
    async def heard(self) -> AsyncIterator[None]:
        """Listen."""
        async with Link(self._address, "wire", clean=True, options=EAGER) as link:
            await link.subscribe("mt/gateway/+/request/#")
            listening = asyncio.create_task(self._listen(link))
            try:
                yield
            finally:
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening

    async def _listen(self, link: Link) -> None:
        topics = Topics()
        async for received in link:
            for message in received.messages:
                topic = topics.parse(message.topic)
                assert isinstance(topic, RequestTopic)
                content = msgspec.json.decode(message.payload)
                self.asked[sender_of(content.get("id", ""))] += 1  # acks have none
                self.begun[device_id(topic.device)] += topic.identifier == "start-firmware-update"
            received.acknowledge()

    async def goes_on(self, sender: str) -> None:
        """Wait until a program asks something more."""
        before = self.asked[sender]
        patience = LEASE + PATIENCE
        await eventually_async(lambda: self.asked[sender] != before, "another request", patience=patience)


async def _beside(database: str, mosquitto: Mosquitto) -> Beside:
    return await asyncio.to_thread(Beside, database, url(mosquitto))


async def test_a_job_survives_kills_of_either_of_two_programs(
    service: Service, mosquitto: Mosquitto, database: str
) -> None:
    estate, desk, wire = Estate(service, at=mosquitto.address), Desk(service), Wire(mosquitto)
    chance = random.Random(5)  # noqa: S311 # no secret
    async with estate.life(), wire.heard():
        with await _beside(database, mosquitto) as beside:  # killed at the end
            job = await begin(estate, desk, "download", per_gateway=2)
            await asyncio.sleep(chance.uniform(0, 3))  # at any moment
            await asyncio.to_thread(service.kill)
            await wire.goes_on(beside.sender)
            await asyncio.to_thread(service.start)
            await asyncio.sleep(chance.uniform(0, 1))
        with await _beside(database, mosquitto):
            await asyncio.sleep(chance.uniform(0, 3))
        await check(estate, desk, job)
    # Whoever is told to begin while it does so says that it is busy: then these would be more.
    told = {device: times for device, times in wire.begun.items() if times}
    assert told == {device: estate.begun(device) for device in told}
    assert len(told) == estate.size
