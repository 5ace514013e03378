"""Metrics of the fleet from the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert

from meshfleet.db.bulk import insert_rows
from meshfleet.db.tables import backup, execution, gateway, tally
from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int
from meshfleet.rest.jobs import ExecutionState, JobState
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.fleet_metrics import FleetMetrics
from meshfleet.service.gateways import store
from meshfleet.service.metric_table import add_integration_metrics
from meshfleet.service.metrics import Metrics
from meshfleet.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database

pytestmark = [pytest.mark.anyio, pytest.mark.rule("rest-161")]

HOUR_MS = 3_600_000
NOW = 1_790_000_000_000
OFFICE, ATTIC = Mac("02005e000001"), Mac("02005e000002")


class Scraper:
    """Metrics of the fleet in a database, with a clock that tests move."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.time = NOW
        self.metrics = Metrics()
        self.fleet = FleetMetrics(database, settings, now=lambda: self.time, monotonic=lambda: self.time)
        self.fleet.register_in(self.metrics)

    def observe(self, *devices: int, behind: Mac = OFFICE, **values: Any) -> None:
        """Add devices to the registry, or change them."""
        observations = [
            DeviceObservation(device=mac_from_int(each), at=NOW, gateway=behind, **values) for each in devices
        ]
        self.database.write_now(registry.record_observations, observations)

    def claim(self, mac: Mac, name: str) -> None:
        """Claim a gateway."""
        self.database.write_now(store.claim_gateway, mac, name=name, by=COMMAND_LINE, now=NOW)

    async def scrape(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the values of all metrics by name and labels, after those before have expired."""
        self.time += HOUR_MS
        return await self.scrape_again()

    async def scrape_again(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the values without waiting."""
        await self.fleet.refresh()
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.metrics.render().decode()):
            for sample in family.samples:
                name = sample.name.removeprefix("meshfleet_")
                values.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
        return values


@pytest.fixture
def scraper(database: Database) -> Scraper:
    return Scraper(database, Settings())


@pytest.mark.both_databases
async def test_each_gateway_that_was_ever_connected_has_a_series(scraper: Scraper) -> None:
    for mac, name in ((OFFICE, 'Head "office"'), (ATTIC, "Attic"), (Mac("02005e000003"), "In its box")):
        scraper.claim(mac, name)
    scraper.observe(mac_to_int(OFFICE), connected=True)
    scraper.observe(mac_to_int(ATTIC), connected=False, behind=ATTIC)
    values = await scraper.scrape()
    assert values["gateway_connected"] == {(OFFICE, 'Head "office"'): 1, (ATTIC, "Attic"): 0}


@pytest.mark.both_databases
async def test_silent_devices_are_counted_by_gateway(scraper: Scraper) -> None:
    scraper.observe(1, 2, 3, connected=False)
    scraper.observe(4, 5, connected=True)
    scraper.observe(6, connected=False, behind=ATTIC)
    scraper.observe(mac_to_int(ATTIC), connected=False, behind=ATTIC)
    values = await scraper.scrape()
    assert values["devices_silent"] == {(OFFICE,): 3, (ATTIC,): 1}, "a gateway is not behind itself"
    assert values["devices"] == {("true",): 2, ("false",): 5}


@pytest.mark.both_databases
async def test_only_the_gateways_with_the_most_silent_devices_have_a_series(scraper: Scraper) -> None:
    for number in range(60):
        devices = range(1000 + 10 * number, 1000 + 10 * number + 1 + number // 20)
        scraper.observe(*devices, connected=False, behind=mac_from_int(100 + number))
    silent = (await scraper.scrape())["devices_silent"]
    assert len(silent) == 50
    assert sorted(silent.values()) == [1] * 10 + [2] * 20 + [3] * 20


async def test_series_of_gateways_can_be_switched_off(scraper: Scraper) -> None:
    scraper.claim(OFFICE, "Office")
    scraper.observe(mac_to_int(OFFICE), connected=True)
    scraper.observe(1, connected=False)
    names = {"gateway_connected", "devices_silent"}
    assert names <= (await scraper.scrape()).keys()
    scraper.fleet.apply_settings(replace(Settings(), metrics_per_gateway=False))
    assert not names & (await scraper.scrape()).keys()
    scraper.fleet.apply_settings(Settings())
    assert names <= (await scraper.scrape()).keys()


async def test_too_many_gateways_have_no_series(scraper: Scraper) -> None:
    gateways = range(1000, 3000)
    scraper.observe(*gateways, connected=True)
    scraper.database.write_now(_insert_gateways, gateways)
    assert len((await scraper.scrape())["gateway_connected"]) == 2000
    scraper.observe(3000, connected=True)
    scraper.database.write_now(_insert_gateways, [3000])
    assert "gateway_connected" not in await scraper.scrape()


def _insert_gateways(connection: Connection, numbers: range | list[int]) -> None:
    rows = [{"device": number, "claimed_at": NOW} for number in numbers]
    connection.execute(insert(gateway), rows)


@pytest.mark.both_databases
async def test_batteries_are_counted_by_level(scraper: Scraper) -> None:
    for number, level in enumerate((0, 5, 6, 15, 16, 25, 50, 51, 100), 1):
        scraper.observe(number, battery=level)
    scraper.observe(100)
    values = await scraper.scrape()
    bounds = {"5.0": 2, "15.0": 4, "25.0": 6, "50.0": 7, "100.0": 9, "+Inf": 9}
    assert values["devices_battery_bucket"] == {(bound,): count for bound, count in bounds.items()}
    assert values["devices_battery_count"] == {(): 9}
    assert values["devices_battery_sum"] == {(): 268}


@pytest.mark.both_databases
async def test_jobs_and_their_devices_are_counted_by_state(scraper: Scraper) -> None:
    values = await scraper.scrape()
    assert values["jobs"] == {(state,): 0 for state in JobState}
    assert values["executions"] == {(state,): 0 for state in ExecutionState}
    tallies = [(1, 0, "SUCCEEDED", 3), (1, 1, "SUCCEEDED", 4), (2, 0, "QUEUED", 5)]
    scraper.database.write_now(insert_rows, tally, tallies)
    counts = (await scraper.scrape())["executions"]
    assert {state: count for (state,), count in counts.items() if count} == {"SUCCEEDED": 7, "QUEUED": 5}


def _insert_execution(connection: Connection, job: int, device: int, state: str, updated_at: int) -> None:
    numbers = dict.fromkeys(("wave", "due", "attempt", "progress", "tries", "beats", "version"), 0)
    values = {"job": job, "device": device, "state": state, "updated_at": updated_at, "is_read": False}
    connection.execute(insert(execution).values(**numbers, **values))


@pytest.mark.both_databases
async def test_a_job_waits_since_the_last_change_of_its_running_updates(scraper: Scraper) -> None:
    assert (await scraper.scrape())["job_oldest_waiting_seconds"] == {(): 0}
    executions = [
        (1, 1, "TRANSFERRING", NOW - 9000),
        (1, 2, "APPLYING", NOW - 2000),
        (2, 3, "DISPATCHED", NOW - 3000),
        (2, 4, "QUEUED", NOW - 50_000),  # it waits for its turn
        (3, 5, "STAGED", NOW - 60_000),  # it waits for a user
        (3, 6, "SUCCEEDED", NOW - 70_000),
    ]
    for each in executions:
        scraper.database.write_now(_insert_execution, *each)
    waited = (await scraper.scrape())["job_oldest_waiting_seconds"][()]
    assert waited == (scraper.time - NOW) / 1000 + 3


@pytest.mark.both_databases
async def test_the_usual_interval_of_backups_is_their_median(scraper: Scraper) -> None:
    times = [day * 24 * HOUR_MS for day in (1, 2, 3, 9)]
    records = [(at, at, 0, True) for at in times[:3]] + [(times[3] - 1, times[3] - 1, 0, False)]
    scraper.database.write_now(insert_rows, backup, records)
    values = await scraper.scrape()
    assert values["backup_timestamp_seconds"] == {(): 3 * 86_400}
    assert "backup_interval_seconds" not in values, "three backups are too few"
    scraper.database.write_now(insert_rows, backup, [(times[3], times[3], 0, True)])
    values = await scraper.scrape()
    assert values["backup_timestamp_seconds"] == {(): 9 * 86_400}
    assert values["backup_interval_seconds"] == {(): 86_400}


async def test_values_are_kept_between_scrapes(scraper: Scraper) -> None:
    """Counts change 15 s after the last ones were loaded, batteries after five minutes."""
    scraper.observe(1, connected=True, battery=3)
    await scraper.scrape()
    scraper.observe(2, connected=True, battery=3)
    shown = []
    for seconds in (14.999, 0.001, 284.999, 0.001):
        scraper.time += round(seconds * 1000)
        values = await scraper.scrape_again()
        shown.append((values["devices"]["true",], values["devices_battery_count"][()]))
    assert shown == [(1, 1), (2, 1), (2, 1), (2, 2)]


async def test_integrations_have_a_queue_and_failures(scraper: Scraper) -> None:
    assert "integration_queue" not in await scraper.scrape()
    queue, failures = [7.0], [0.0]
    add_integration_metrics(scraper.metrics, "influx", lambda: queue[0], lambda: failures[0])
    add_integration_metrics(scraper.metrics, "homeassistant", lambda: 0, lambda: 2)
    failures[0] = 3
    values = await scraper.scrape()
    assert values["integration_queue"] == {("influx",): 7, ("homeassistant",): 0}
    assert values["integration_failures_total"] == {("influx",): 3, ("homeassistant",): 2}
