"""Failures between devices and the database: every sample is stored in the end, and only once.

Devices buffer their samples until they are acknowledged. Each test lets one component fail, checks that
samples got lost on their way, and waits until none is missing: the radio, a gateway, the network, the
service, the database, or all of them. `make test` runs those of the service; the others belong to parts of
`make test-all`.
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

NO_RADIO = Faults(loss=1.0)
"""Nothing gets through."""
POOR_RADIO = Faults(loss=0.2, duplicate=0.2, reorder=0.2, quoted_seq=0.2, broken_json=0.1)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as running:
        yield running


@pytest.fixture
async def site(service: ServiceProcess) -> AsyncIterator[BufferingSite]:
    async with BufferingSite(service) as running:
        yield running


@pytest.fixture
def reader(service: ServiceProcess) -> Iterator[SampleReader]:
    with closing(SampleReader(service)) as running:
        yield running


async def wait_for_versions(site: BufferingSite, reader: SampleReader) -> None:
    """Wait until the gateways have reported versions that support acks, and all series are checked."""

    async def have_reported_versions() -> bool:
        return await reader.versions() == {"2.4.0"}

    await eventually_async(have_reported_versions)
    site.speed_up()
    await site.make_samples(3)
    for device, identifiers in site.reported.items():
        for identifier in identifiers:
            await eventually_async(partial(reader.complete_up_to, device, identifier))


async def check_all_stored(site: BufferingSite, reader: SampleReader, pending: set[tuple[Mac, str]]) -> None:
    """Check that all samples are stored, except for events that may still be buffered."""
    assert site.total > 100
    for device in site.recorded:
        await wait_until_stored(site, reader, device, {each for mac, each in pending if mac == device})


async def wait_until_stored(
    site: BufferingSite, reader: SampleReader, device: Mac, pending: set[str]
) -> None:
    """Wait until the service has stored all samples of a device, and reports the series as complete."""
    recorded = [each for each in site.recorded[device] if each.identifier not in pending]
    newest = {each.identifier: each.time for each in recorded if each.kind == "measurement"}
    assert newest.keys() == set(site.measured[device])

    async def is_complete() -> bool:
        stored = [each for each in await reader.samples(device) if each.identifier not in pending]
        complete = {each: await reader.complete_up_to(device, each) for each in newest}
        differences = [
            sorted(set(recorded) - set(stored))[:5],
            sorted(set(stored) - set(recorded))[:5],
            len(stored) - len(set(stored)),
            [each for each in await reader.gaps(device) if each["identifier"] not in pending],
            {each: (time, newest[each]) for each, time in complete.items() if time != newest[each]},
        ]
        assert not any(differences), differences
        return True

    await eventually_async(is_complete, f"all samples of {device}")


def count_buffered(site: BufferingSite) -> int:
    """Count the samples that are only in the buffers of devices, as far as the devices know."""
    return sum(map(len, site.buffered.values()))


# --- One component fails ---


@pytest.mark.part("variants")
async def test_samples_lost_by_the_radio_are_stored_when_it_works_again(
    site: BufferingSite, reader: SampleReader
) -> None:
    async with site.running():
        await wait_for_versions(site, reader)
    async with site.running(NO_RADIO):
        site.speed_up()
        await site.make_samples(4)
        assert count_buffered(site) > 50
    async with site.running():
        site.speed_up()
        pending = await site.drain()
    await check_all_stored(site, reader, pending)


@pytest.mark.part("variants")
async def test_samples_lost_in_crashes_of_gateways_are_stored_in_the_end(
    service: ServiceProcess, site: BufferingSite, reader: SampleReader
) -> None:
    """Restart the service, because it requests missing samples only once per minute."""
    async with site.running():
        await wait_for_versions(site, reader)
    async with site.running(Faults(crash=0.4)):
        site.speed_up()
        await site.make_samples(10)
    async with site.running():
        site.speed_up()
        await restart(service)
        pending = await site.drain()
    await check_all_stored(site, reader, pending)


@pytest.mark.part("variants")
async def test_samples_lost_by_the_network_are_stored_when_it_works_again(
    site: BufferingSite, reader: SampleReader
) -> None:
    async with site.running():
        await wait_for_versions(site, reader)
        site.network.stall()
        await site.make_samples(4)
        assert count_buffered(site) > 50
        await site.network.cut()
        await site.make_samples(2)
        site.network.resume()
        pending = await site.drain()
    await check_all_stored(site, reader, pending)


@pytest.mark.part("variants")
async def test_samples_taken_while_the_service_was_killed_are_stored_after_its_restart(
    service: ServiceProcess, site: BufferingSite, reader: SampleReader
) -> None:
    async with site.running():
        await wait_for_versions(site, reader)
        for _ in range(2):
            await asyncio.to_thread(service.kill)
            await site.make_samples(4)
            assert count_buffered(site) > 50
            await asyncio.to_thread(service.start)
            await site.make_samples(4)
        pending = await site.drain()
    await check_all_stored(site, reader, pending)


@pytest.mark.part("variants")
async def test_samples_taken_while_the_database_file_was_locked_are_stored_and_acknowledged_afterwards(
    service: ServiceProcess, site: BufferingSite, reader: SampleReader
) -> None:
    async with site.running():
        await wait_for_versions(site, reader)
        with closing(sqlite3.connect(service.data / "meshfleet.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await site.make_samples(6)
            assert count_buffered(site) > 50
        pending = await site.drain()
    await check_all_stored(site, reader, pending)


@pytest.mark.part("variants")
async def test_samples_taken_while_the_database_server_was_stopped_are_stored_and_acknowledged_afterwards(
    tmp_path: Path,
) -> None:
    with (
        postgresql_directory() as directory,
        PostgreSQL(directory) as server,
        ServiceProcess(
            tmp_path, *loopback_options("--mqtt"), "--database", f"{server.url}/postgres"
        ) as service,
        closing(SampleReader(service)) as reader,
    ):
        async with BufferingSite(service) as site:
            async with site.running():
                await wait_for_versions(site, reader)
                await asyncio.to_thread(server.stop)
                await site.make_samples(6)
                assert count_buffered(site) > 50
                await asyncio.to_thread(server.start)
                pending = await site.drain()
            await check_all_stored(site, reader, pending)


# --- All components fail ---


@pytest.mark.part("long")
async def test_every_sample_is_stored_in_the_end_whatever_fails_at_the_same_time(
    service: ServiceProcess, site: BufferingSite, reader: SampleReader
) -> None:
    async with site.running():
        await wait_for_versions(site, reader)
    async with site.running(add_faults(POOR_RADIO, crash=1.0)):
        site.speed_up()
        await site.make_samples(3)
        await site.network.cut()
        await asyncio.to_thread(service.kill)
        await site.make_samples(3)
        await asyncio.to_thread(service.start)
        await site.make_samples(3)
    async with site.running():
        site.speed_up()
        await restart(service)
        pending = await site.drain()
    await check_all_stored(site, reader, pending)


async def restart(service: ServiceProcess) -> None:
    """Stop the service, and start it again."""
    await asyncio.to_thread(service.stop)
    await asyncio.to_thread(service.start)


def add_faults(faults: Faults, **more: float) -> Faults:
    """Return the faults with further ones."""
    fields = {name: getattr(faults, name) for name in faults.__struct_fields__}
    return Faults(**{**fields, **more})
