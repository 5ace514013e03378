"""Whatever fails between a device and the database: every sample is stored in the end, and once.

Devices keep their samples until they are acknowledged. Each story lets one part fail, sees that samples got
lost on their way, and waits until nothing is missing: the radio, a gateway, the network, the service, the
database, all of them. `make test` has the service and all of them; the others are a part of their own.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator import Faults
from tests.eventually import eventually_async
from tests.scenarios.buffering_site import BufferingSite, SampleReader
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import PostgreSQL, postgresql_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.protocol.ids import Mac

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-7", "ack-9", "ack-11", "ack-15", "ack-21")]

DEAD = Faults(loss=1.0)
"""Nothing gets through."""
POOR = Faults(loss=0.2, duplicate=0.2, reorder=0.2, quoted_seq=0.2, broken_json=0.1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as running:
        yield running


@pytest.fixture
async def town(service: ServiceProcess) -> AsyncIterator[BufferingSite]:
    async with BufferingSite(service) as made:
        yield made


@pytest.fixture
def reader(service: ServiceProcess) -> Iterator[SampleReader]:
    with closing(SampleReader(service)) as reading:
        yield reading


async def wait_for_versions(town: BufferingSite, reader: SampleReader) -> None:
    """Let devices work, with gateways that have told that they know acks, until the ledger has all series."""

    async def all_tell_their_versions() -> bool:
        return await reader.versions() == {"2.4.0"}

    await eventually_async(all_tell_their_versions)
    town.speed_up()
    await town.make_samples(3)
    for device, identifiers in town.reported.items():
        for each in identifiers:
            await eventually_async(partial(reader.complete_up_to, device, each))


async def check_all_stored(town: BufferingSite, reader: SampleReader, pending: set[tuple[Mac, str]]) -> None:
    """See that all is stored when the world has come to its end, but for events that may be pending."""
    assert town.total > 100
    for device in town.made:
        await wait_until_stored(town, reader, device, {each for mac, each in pending if mac == device})


async def wait_until_stored(
    town: BufferingSite, reader: SampleReader, device: Mac, pending: set[str]
) -> None:
    """Wait until the service has all of a device, and says so."""
    made = [each for each in town.made[device] if each.identifier not in pending]
    newest = {each.identifier: each.time for each in made if each.kind == "measurement"}
    assert newest.keys() == set(town.measured[device])

    async def is_settled() -> bool:
        stored = [each for each in await reader.samples(device) if each.identifier not in pending]
        complete = {each: await reader.complete_up_to(device, each) for each in newest}
        faults = [
            sorted(set(made) - set(stored))[:5],
            sorted(set(stored) - set(made))[:5],
            len(stored) - len(set(stored)),
            [each for each in await reader.gaps(device) if each["identifier"] not in pending],
            {each: (told, newest[each]) for each, told in complete.items() if told != newest[each]},
        ]
        assert not any(faults), faults
        return True

    await eventually_async(is_settled, f"that {device} is settled")


def lost(town: BufferingSite) -> int:
    """How many samples are only in the memories of devices, or not known to be anywhere else."""
    return sum(map(len, town.buffered.values()))


# --- One part fails ---


@pytest.mark.part("variants")
async def test_what_the_radio_lost_comes_when_it_is_back(town: BufferingSite, reader: SampleReader) -> None:
    async with town.running():
        await wait_for_versions(town, reader)
    async with town.running(DEAD):
        town.speed_up()
        await town.make_samples(4)
        assert lost(town) > 50
    async with town.running():
        town.speed_up()
        pending = await town.drain()
    await check_all_stored(town, reader, pending)


@pytest.mark.part("variants")
async def test_what_gateways_lost_in_crashes_comes_in_the_end(
    service: ServiceProcess, town: BufferingSite, reader: SampleReader
) -> None:
    """One ask per minute does not do for so many crashes; so the service starts anew, and asks once more."""
    async with town.running():
        await wait_for_versions(town, reader)
    async with town.running(Faults(crash=0.4)):
        town.speed_up()
        await town.make_samples(10)
    async with town.running():
        town.speed_up()
        await restart(service)
        pending = await town.drain()
    await check_all_stored(town, reader, pending)


@pytest.mark.part("variants")
async def test_what_the_network_lost_comes_when_it_is_back(town: BufferingSite, reader: SampleReader) -> None:
    async with town.running():
        await wait_for_versions(town, reader)
        town.network.stall()
        await town.make_samples(4)
        assert lost(town) > 50
        await town.network.cut()
        await town.make_samples(2)
        town.network.resume()
        pending = await town.drain()
    await check_all_stored(town, reader, pending)


async def test_what_came_while_the_service_was_dead_is_stored_when_it_is_back(
    service: ServiceProcess, town: BufferingSite, reader: SampleReader
) -> None:
    async with town.running():
        await wait_for_versions(town, reader)
        for _ in range(2):
            await asyncio.to_thread(service.kill)
            await town.make_samples(4)
            assert lost(town) > 50
            await asyncio.to_thread(service.start)
            await town.make_samples(4)
        pending = await town.drain()
    await check_all_stored(town, reader, pending)


@pytest.mark.part("variants")
async def test_what_came_while_the_file_was_locked_is_stored_and_acknowledged_afterwards(
    service: ServiceProcess, town: BufferingSite, reader: SampleReader
) -> None:
    async with town.running():
        await wait_for_versions(town, reader)
        with closing(sqlite3.connect(service.data / "meshfleet.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await town.make_samples(6)
            assert lost(town) > 50
        pending = await town.drain()
    await check_all_stored(town, reader, pending)


@pytest.mark.part("variants")
async def test_what_came_while_the_database_server_was_away_is_stored_and_acknowledged_afterwards(
    tmp_path: Path,
) -> None:
    with (
        postgresql_directory() as folder,
        PostgreSQL(folder) as server,
        ServiceProcess(
            tmp_path, *loopback_options("--mqtt"), "--database", f"{server.url}/postgres"
        ) as service,
        closing(SampleReader(service)) as reader,
    ):
        async with BufferingSite(service) as town:
            async with town.running():
                await wait_for_versions(town, reader)
                await asyncio.to_thread(server.stop)
                await town.make_samples(6)
                assert lost(town) > 50
                await asyncio.to_thread(server.start)
                pending = await town.drain()
            await check_all_stored(town, reader, pending)


# --- All of them fail ---


async def test_whatever_fails_at_the_same_time_every_sample_is_stored_in_the_end(
    service: ServiceProcess, town: BufferingSite, reader: SampleReader
) -> None:
    async with town.running():
        await wait_for_versions(town, reader)
    async with town.running(replaced_by(POOR, crash=1.0)):
        town.speed_up()
        await town.make_samples(3)
        await town.network.cut()
        await asyncio.to_thread(service.kill)
        await town.make_samples(3)
        await asyncio.to_thread(service.start)
        await town.make_samples(3)
    async with town.running():
        town.speed_up()
        await restart(service)
        pending = await town.drain()
    await check_all_stored(town, reader, pending)


async def restart(service: ServiceProcess) -> None:
    """Stop the service, and start it once more."""
    await asyncio.to_thread(service.stop)
    await asyncio.to_thread(service.start)


def replaced_by(faults: Faults, **more: float) -> Faults:
    """The same faults and one more."""
    given = {name: getattr(faults, name) for name in faults.__struct_fields__}
    return Faults(**{**given, **more})
