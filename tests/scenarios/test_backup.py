"""Backups of a service that receives reports: what was acknowledged before their moment is in them, once."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Self

import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttClient
from meshfleet.protocol.times import parse_millis
from tests.cli.programs import run_command
from tests.databases import create_database, create_empty_database
from tests.scenarios.report_source import ReportSource
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.stored_samples import load_samples
from tests.service.embedded_broker.running_broker import until

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.mqtt.codec.packets import Publish
    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.anyio

GATEWAYS = [f"02005e00000{number}" for number in range(1, 4)]
REPORTS_PER_BATCH = 25
MIN_REPORTS = 2_000
"""Reports to be acknowledged before a backup, and after it."""


_numbers = count(1)


class Ledger:
    """Gateways that report as fast as they are acknowledged, and record when each report was."""

    def __init__(self, service: ServiceProcess, gateways: list[Credentials]) -> None:
        self.entries: list[LedgerEntry] = []
        self._service = service
        self._gateways = gateways
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._report(gateway)) for gateway in self._gateways]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for_reports(self, number: int = MIN_REPORTS) -> None:
        """Wait until this number of further reports is acknowledged."""
        target = len(self.entries) + number
        await until(lambda: len(self.entries) >= target or any(task.done() for task in self._tasks))
        assert not any(task.done() for task in self._tasks), self._tasks

    async def _report(self, who: Credentials) -> None:
        source = ReportSource(who.user)
        host, port = self._service.mqtt["mqtt"]
        address = BrokerAddress(host=host, port=port, user=who.user, password=who.password)
        async with MqttClient(address, who.user) as client:
            while True:
                messages = source.next_messages(REPORTS_PER_BATCH)
                await client.publish_all(messages)
                now = time.time_ns() // 1_000_000
                self.entries += {LedgerEntry(*_parse(message), now) for message in messages}


class LedgerEntry(NamedTuple):
    """Acknowledged report."""

    device: str
    time: str
    acknowledged_at: int


def _parse(message: Publish) -> tuple[str, str]:
    return message.topic.split("/")[4], json.loads(message.payload)["time"]


@pytest.fixture
def database_urls(request: pytest.FixtureRequest, database_kind: str) -> tuple[str, str]:
    """Return the databases of the original and of the restored service."""
    if database_kind == "sqlite":
        return "sqlite", "sqlite"
    server: str = request.getfixturevalue("postgresql_server")
    number = next(_numbers)
    return create_database(server, f"original_{number}"), create_empty_database(server, f"restored_{number}")


@pytest.mark.both_databases
async def test_a_backup_under_load_has_everything_acknowledged_before_its_moment_once(
    tmp_path: Path, database_urls: tuple[str, str]
) -> None:
    original_url, restored_url = database_urls
    options = [*loopback_options("--mqtt")]
    file = tmp_path / "backup.tar"
    with ServiceProcess(tmp_path / "original", *options, "--database", original_url) as service:
        gateways = [service.claim(mac) for mac in GATEWAYS]
        place = ("--data", str(service.data), "--database", original_url)
        async with Ledger(service, gateways) as ledger:
            await ledger.wait_for_reports()
            written = await asyncio.to_thread(run_command, "backup", str(file), *place, "--json")
            assert written.exit_code == 0, written.output
            await ledger.wait_for_reports()

    moment = parse_millis(json.loads(written.stdout)["moment"])
    acknowledged = {entry[:2] for entry in ledger.entries if entry.acknowledged_at < moment}
    reported = {entry[:2] for entry in ledger.entries}
    assert MIN_REPORTS <= len(acknowledged) < len(reported)

    data = tmp_path / "restored" / "data"
    place = ("--data", str(data), "--database", restored_url)
    restored = run_command("restore", str(file), *place)
    assert restored.exit_code == 0, restored.output
    with ServiceProcess(tmp_path / "restored", *options, "--database", restored_url) as service:
        stored = [
            (device, sample.time)
            for device in {device for device, _ in reported}
            for sample in load_samples(service, device)
        ]
        missing = acknowledged.difference(stored)
        assert not missing, f"{len(missing)} of {len(acknowledged)} are missing: {sorted(missing)[:3]}"
        assert len(stored) == len(set(stored)), "some are stored twice"
        gateway = await service.connect(gateways[0])  # with its old password
        await gateway.close()
