"""`/readyz` of a service that cannot work: the reason, until the problem is gone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from meshfleet.protocol.times import format_millis
from tests.databases import create_database
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.stored_samples import count_samples
from tests.service.embedded_broker.running_broker import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = "02005e000001", "c0ffee0000a1"

_FULL_DISK = """
CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER fill_disk BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION fill_disk();
"""


@pytest.mark.rule("rest-160")
async def test_a_failing_flush_is_reported_until_it_succeeds(postgresql_server: str, tmp_path: Path) -> None:
    address = create_database(postgresql_server, "refusing")
    with (
        ServiceProcess(tmp_path, *loopback_options("--mqtt"), "--database", address) as service,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        gateway = await service.connect(service.claim(GATEWAY))
        connection.execute("ALTER TABLE reject RENAME TO elsewhere")  # only used by a flush
        await until(lambda: service.unready_reasons() == ["schema"])
        topic = f"mt/gateway/{GATEWAY}/device/{DEVICE}/measurement/8800"
        gateway.send(Publish(topic, _build_payload("0100"), 1, packet_id=1))
        assert await gateway.expect(Puback) == Puback(1)
        connection.execute("ALTER TABLE elsewhere RENAME TO reject")
        await until(service.is_ready)
        assert count_samples(service, DEVICE) == 1
        await service.disconnect_all()
        code, errors = service.stop()
    assert (code, "DELETE" in errors) == (0, False), errors
    assert "device states cannot be written: UndefinedTable" in errors


@pytest.mark.rule("rest-160")
async def test_a_full_disk_of_the_database_server_is_reported_until_there_is_space(
    postgresql_server: str, tmp_path: Path
) -> None:
    """Raise the error code of the server in a trigger, because filling a real disk needs privileges."""
    address = create_database(postgresql_server, "full_disk")
    with (
        ServiceProcess(tmp_path, *loopback_options("--mqtt"), "--database", address) as service,
        psycopg.connect(address, autocommit=True) as connection,
    ):
        gateway = await service.connect(service.claim(GATEWAY))
        connection.execute(_FULL_DISK.format(table="reading_journal"))
        topic = f"mt/gateway/{GATEWAY}/device/{DEVICE}/measurement/8800"
        gateway.send(Publish(topic, _build_payload("0100"), 1, packet_id=1))
        await until(lambda: service.unready_reasons() == ["disk-full"])
        connection.execute("DROP FUNCTION fill_disk CASCADE")
        assert await gateway.expect(Puback) == Puback(1)
        await until(service.is_ready)
        await service.disconnect_all()
        # Jobs write regularly, also while no reports arrive.
        connection.execute(_FULL_DISK.format(table="job_engine"))
        await until(lambda: service.unready_reasons() == ["disk-full"])
        connection.execute("DROP FUNCTION fill_disk CASCADE")
        await until(service.is_ready)
        code, errors = service.stop()
    assert (code, errors.count("jobs cannot continue")) == (0, 1), errors
    assert "jobs cannot continue, retrying: the database is unavailable: could not extend file" in errors


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a temporary file system of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(disk)]
    if subprocess.run(["/usr/bin/mount", *options], check=False, capture_output=True).returncode:
        message = "needs the privilege to mount a file system"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    yield disk
    subprocess.run(["/usr/bin/umount", str(disk)], check=True)


@pytest.mark.part("long")
@pytest.mark.rule("rest-160")
async def test_a_full_disk_is_reported_until_there_is_space(small_disk: Path) -> None:
    with ServiceProcess(small_disk, *loopback_options("--mqtt")) as service:
        await until(service.is_ready)
        gateway = await service.connect(service.claim(GATEWAY))
        filler = small_disk / "rest"
        with pytest.raises(OSError, match="No space left"):
            _fill_disk(filler)
        for number in range(100):  # more than fits into the pages that SQLite has allocated
            topic = f"mt/gateway/{GATEWAY}/device/c0ffee0001{number:02x}/measurement/8800"
            gateway.send(Publish(topic, _build_payload("01" * 500), 1, packet_id=number + 1))
        await until(lambda: service.unready_reasons() == ["disk-full"])
        filler.unlink()
        await until(service.is_ready)
        for number in range(100):
            assert await gateway.expect(Puback) == Puback(number + 1)
        await service.disconnect_all()
        assert service.stop()[0] == 0


@pytest.mark.part("long")
@pytest.mark.rule("rest-160")
async def test_a_database_lock_of_another_program_is_reported_until_it_is_released(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        await until(service.is_ready)
        other = sqlite3.connect(service.data / "meshfleet.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await until(lambda: service.unready_reasons() == ["database-locked"])
        other.close()
        await until(service.is_ready)
        assert service.stop()[0] == 0


def _fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _build_payload(value: str) -> bytes:
    at = format_millis(time.time_ns() // 1_000_000)
    return f'{{"time":"{at}","seq":1,"value":"{value}"}}'.encode()
