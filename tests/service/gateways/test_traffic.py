"""How much gateways report, and whether raw or decoded."""

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


def draft(now: int, *reports: tuple[str, int]) -> ParsedBatch:
    made = ParsedBatch(now)
    made.report_kinds += [kind for kind, _ in reports]
    made.report_gateways += [gateway for _, gateway in reports]
    return made


def heartbeats(now: int, gateway: int, count: int) -> ParsedBatch:
    return draft(now, *([("heartbeat", gateway)] * count))


# --- How much ---


class TrafficHarness:
    """Traffic with a clock that the test moves. `ahead` is how wrong the clock on the wall is."""

    def __init__(self) -> None:
        self.now, self.ahead = START, 0
        self.traffic = GatewayTraffic(lambda: self.now)

    def report(self, gateway: int, count: int, *, at: int) -> None:
        """Let so many reports come at a time."""
        self.now = START + at
        self.traffic.on_commit(heartbeats(self.now + self.ahead, gateway, count))

    def rate(self, gateway: int, *, at: int) -> float:
        self.now = START + at
        return self.traffic.reports_per_minute(gateway)

    def heard(self, *, at: int) -> set[int]:
        self.now = START + at
        return self.traffic.recent_gateways()


@pytest.mark.rule("rest-75")
def test_the_rate_is_that_of_the_last_one_to_two_minutes() -> None:
    counted = TrafficHarness()
    counted.report(G, 1000, at=0)
    for second in range(60, 600):
        counted.report(G, 2, at=second * 1000)
        if second >= 120:
            assert counted.rate(G, at=second * 1000 + 999) == pytest.approx(120.0, rel=0.02)
    assert counted.rate(H, at=600_000) == 0.0


def test_a_gateway_that_stops_reporting_has_no_rate_soon() -> None:
    counted = TrafficHarness()
    counted.report(G, 120, at=0)
    assert counted.rate(G, at=1000) == 120.0
    assert counted.rate(G, at=MINUTE + MINUTE // 2) == 80.0
    assert counted.rate(G, at=2 * MINUTE) == 0.0
    assert counted.rate(G, at=HOUR) == 0.0


@pytest.mark.parametrize("ahead", [0, -24 * HOUR, 24 * HOUR], ids=["right", "set back", "set ahead"])
def test_who_was_heard_lately_is_known_and_who_was_not_is_forgotten(ahead: int) -> None:
    """Also if the clock of the machine is set meanwhile."""
    counted = TrafficHarness()
    counted.report(G, 1, at=0)
    assert counted.heard(at=0) == {G}
    counted.ahead = ahead
    counted.report(H, 10, at=10 * MINUTE)
    assert counted.rate(H, at=11 * MINUTE) == 10.0
    assert counted.heard(at=11 * MINUTE) == {G, H}
    assert counted.heard(at=20 * MINUTE) == {H}
    assert counted.heard(at=HOUR) == set()


# --- Raw or decoded ---


def claim(database: Database, gateway: int) -> None:
    database.write_now(store.claim_gateway, mac_from_int(gateway), name=None, by=COMMAND_LINE, now=0)


def mode(database: Database, traffic: GatewayTraffic, now: int, gateway: int = G) -> str | None:
    """The mode that is shown after what is known was written."""
    entry = traffic.prepare_flush({}, now)
    for _ in range(2):  # it may have to be tried again
        database.write_now(entry.write, ())
    entry.on_flushed()
    return database.read_now(store.load_gateway, mac_from_int(gateway)).mode


@pytest.mark.rule("rest-75")
def test_what_a_gateway_reports_tells_its_mode(database: Database) -> None:
    told = {
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
    found = {}
    claim(database, G)
    for gateway, kind in enumerate(told, start=H):
        claim(database, gateway)
        traffic = GatewayTraffic(lambda: START)
        traffic.on_commit(draft(START, (kind, gateway)))
        found[kind] = mode(database, traffic, START, gateway)
        assert mode(database, traffic, START, G) is None, "another one says nothing"
    assert found == told


def test_a_raw_report_of_a_gateway_that_decodes_says_nothing_for_an_hour(sqlite_database: Database) -> None:
    claim(sqlite_database, G)
    traffic = GatewayTraffic(lambda: START)
    traffic.on_commit(draft(START, ("measurement", G), ("measurement-decoded", G), ("measurement", G)))
    assert mode(sqlite_database, traffic, START) == "decoded"
    traffic.on_commit(draft(START + HOUR - 1, ("property", G)))
    assert mode(sqlite_database, traffic, START + HOUR - 1) == "decoded"
    traffic.on_commit(draft(START + HOUR, ("property", G)))
    assert mode(sqlite_database, traffic, START + HOUR) == "raw"
    sqlite_database.close()


def test_after_a_start_the_mode_is_as_it_was(sqlite_database: Database) -> None:
    claim(sqlite_database, G)
    before, after = GatewayTraffic(lambda: START), GatewayTraffic(lambda: START + MINUTE)
    before.on_commit(draft(START, ("event-decoded", G)))
    assert mode(sqlite_database, before, START) == "decoded"
    after.modes.restore(sqlite_database.read_now(store.load_modes), START + MINUTE)
    after.on_commit(draft(START + MINUTE, ("measurement", G)))
    assert mode(sqlite_database, after, START + MINUTE) == "decoded"
    sqlite_database.close()


def test_a_gateway_that_was_claimed_anew_has_a_mode_again_soon(sqlite_database: Database) -> None:
    claim(sqlite_database, G)
    traffic = GatewayTraffic(lambda: START)
    traffic.on_commit(draft(START, ("event", G)))
    assert mode(sqlite_database, traffic, START) == "raw"
    sqlite_database.write_now(store.release_gateway, mac_from_int(G), by=COMMAND_LINE, now=0)
    claim(sqlite_database, G)
    shown = None
    for minute in range(1, 12):
        shown = mode(sqlite_database, traffic, START + minute * MINUTE)
        traffic.on_commit(draft(START + minute * MINUTE, ("event", G)))
    assert shown == "raw"
    sqlite_database.close()


def test_the_modes_of_many_gateways_are_learned_from_a_few_reports_of_each_batch(
    sqlite_database: Database,
) -> None:
    traffic = GatewayTraffic(lambda: START)
    gateways = [G + number for number in range(40)]
    for gateway in gateways:
        claim(sqlite_database, gateway)
    for number in range(200):
        turned = gateways[number % 40 :] + gateways[: number % 40]
        traffic.on_commit(draft(START + number * 1000, *(("measurement", gateway) for gateway in turned * 5)))
    assert mode(sqlite_database, traffic, START) == "raw"
    assert {sqlite_database.read_now(store.load_gateway, mac_from_int(each)).mode for each in gateways} == {
        "raw"
    }
    sqlite_database.close()
