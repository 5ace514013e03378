"""Report rate and mode of gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.gateways import store
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.ingest.parsed_batch import ParsedBatch

if TYPE_CHECKING:
    from meshfleet.db import Database

MINUTE, HOUR = 60_000, 3_600_000
START = 29_000_000 * MINUTE
G, H = mac_to_int(Mac("02005e000001")), mac_to_int(Mac("02005e000002"))


def build_batch(now: int, *reports: tuple[str, int]) -> ParsedBatch:
    batch = ParsedBatch(now)
    batch.report_kinds += [kind for kind, _ in reports]
    batch.report_gateways += [gateway for _, gateway in reports]
    return batch


def heartbeats(now: int, gateway: int, count: int) -> ParsedBatch:
    return build_batch(now, *([("heartbeat", gateway)] * count))


# --- Report rate ---


class TrafficHarness:
    """Traffic with a manual clock. `ahead` is the number of milliseconds by which the wall clock is ahead."""

    def __init__(self) -> None:
        self.now, self.ahead = START, 0
        self.traffic = GatewayTraffic(lambda: self.now)

    def report(self, gateway: int, count: int, *, at: int) -> None:
        """Commit a number of reports at a time."""
        self.now = START + at
        self.traffic.on_commit(heartbeats(self.now + self.ahead, gateway, count))

    def rate(self, gateway: int, *, at: int) -> float:
        self.now = START + at
        return self.traffic.reports_per_minute(gateway)

    def recent_gateways(self, *, at: int) -> set[int]:
        self.now = START + at
        return self.traffic.recent_gateways()


@pytest.mark.rule("rest-75")
def test_the_rate_is_that_of_the_last_one_to_two_minutes() -> None:
    harness = TrafficHarness()
    harness.report(G, 1000, at=0)
    for second in range(60, 600):
        harness.report(G, 2, at=second * 1000)
        if second >= 120:
            assert harness.rate(G, at=second * 1000 + 999) == pytest.approx(120.0, rel=0.02)
    assert harness.rate(H, at=600_000) == 0.0


def test_the_rate_of_a_gateway_that_stops_reporting_drops_to_zero() -> None:
    harness = TrafficHarness()
    harness.report(G, 120, at=0)
    assert harness.rate(G, at=1000) == 120.0
    assert harness.rate(G, at=MINUTE + MINUTE // 2) == 80.0
    assert harness.rate(G, at=2 * MINUTE) == 0.0
    assert harness.rate(G, at=HOUR) == 0.0


@pytest.mark.parametrize("ahead", [0, -24 * HOUR, 24 * HOUR], ids=["right", "set back", "set ahead"])
def test_gateways_count_as_recent_for_some_minutes(ahead: int) -> None:
    """Set the wall clock meanwhile, which has no effect."""
    harness = TrafficHarness()
    harness.report(G, 1, at=0)
    assert harness.recent_gateways(at=0) == {G}
    harness.ahead = ahead
    harness.report(H, 10, at=10 * MINUTE)
    assert harness.rate(H, at=11 * MINUTE) == 10.0
    assert harness.recent_gateways(at=11 * MINUTE) == {G, H}
    assert harness.recent_gateways(at=20 * MINUTE) == {H}
    assert harness.recent_gateways(at=HOUR) == set()


# --- Mode ---


def claim(database: Database, gateway: int) -> None:
    database.write_now(store.claim_gateway, mac_from_int(gateway), name=None, by=COMMAND_LINE, now=0)


def flush_and_load_mode(
    database: Database, traffic: GatewayTraffic, now: int, gateway: int = G
) -> str | None:
    """Flush the detected modes and return the stored one."""
    flush = traffic.prepare_flush({}, now)
    for _ in range(2):  # a flush may be repeated
        database.write_now(flush.write, ())
    flush.on_flushed()
    return database.read_now(store.load_gateway, mac_from_int(gateway)).mode


@pytest.mark.rule("rest-75")
def test_the_mode_is_detected_by_the_kind_of_report(database: Database) -> None:
    expected = {
        "property": "raw",
        "measurement": "raw",
        "event": "raw",
        "property-decoded": "decoded",
        "measurement-decoded": "decoded",
        "measurement-error-decoded": "decoded",
        "event-decoded": "decoded",
        "heartbeat": None,
        "rssi": None,
        "dfu": None,
        "measurement-error": None,
    }
    modes = {}
    claim(database, G)
    for gateway, kind in enumerate(expected, start=H):
        claim(database, gateway)
        traffic = GatewayTraffic(lambda: START)
        traffic.on_commit(build_batch(START, (kind, gateway)))
        modes[kind] = flush_and_load_mode(database, traffic, START, gateway)
        assert flush_and_load_mode(database, traffic, START, G) is None, "the mode of another gateway changed"
    assert modes == expected


def test_raw_reports_are_ignored_for_an_hour_after_a_decoded_one(sqlite_database: Database) -> None:
    claim(sqlite_database, G)
    traffic = GatewayTraffic(lambda: START)
    traffic.on_commit(build_batch(START, ("measurement", G), ("measurement-decoded", G), ("measurement", G)))
    assert flush_and_load_mode(sqlite_database, traffic, START) == "decoded"
    traffic.on_commit(build_batch(START + HOUR - 1, ("property", G)))
    assert flush_and_load_mode(sqlite_database, traffic, START + HOUR - 1) == "decoded"
    traffic.on_commit(build_batch(START + HOUR, ("property", G)))
    assert flush_and_load_mode(sqlite_database, traffic, START + HOUR) == "raw"


def test_the_mode_is_restored_after_a_restart(sqlite_database: Database) -> None:
    claim(sqlite_database, G)
    first_run, second_run = GatewayTraffic(lambda: START), GatewayTraffic(lambda: START + MINUTE)
    first_run.on_commit(build_batch(START, ("event-decoded", G)))
    assert flush_and_load_mode(sqlite_database, first_run, START) == "decoded"
    second_run.modes.restore(sqlite_database.read_now(store.load_gateway_modes), START + MINUTE)
    second_run.on_commit(build_batch(START + MINUTE, ("measurement", G)))
    assert flush_and_load_mode(sqlite_database, second_run, START + MINUTE) == "decoded"


def test_a_gateway_that_is_claimed_again_soon_has_a_mode(sqlite_database: Database) -> None:
    claim(sqlite_database, G)
    traffic = GatewayTraffic(lambda: START)
    traffic.on_commit(build_batch(START, ("event", G)))
    assert flush_and_load_mode(sqlite_database, traffic, START) == "raw"
    sqlite_database.write_now(store.release_gateway, mac_from_int(G), by=COMMAND_LINE, now=0)
    claim(sqlite_database, G)
    stored_mode = None
    for minute in range(1, 12):
        stored_mode = flush_and_load_mode(sqlite_database, traffic, START + minute * MINUTE)
        traffic.on_commit(build_batch(START + minute * MINUTE, ("event", G)))
    assert stored_mode == "raw"


def test_the_modes_of_many_gateways_are_detected_from_a_few_reports_per_batch(
    sqlite_database: Database,
) -> None:
    traffic = GatewayTraffic(lambda: START)
    gateways = [G + number for number in range(40)]
    for gateway in gateways:
        claim(sqlite_database, gateway)
    for number in range(200):
        rotated = gateways[number % 40 :] + gateways[: number % 40]
        traffic.on_commit(
            build_batch(START + number * 1000, *(("measurement", gateway) for gateway in rotated * 5))
        )
    assert flush_and_load_mode(sqlite_database, traffic, START) == "raw"
    assert {sqlite_database.read_now(store.load_gateway, mac_from_int(each)).mode for each in gateways} == {
        "raw"
    }
