"""The past of the demo: a day that its devices have lived through before anybody looks at them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pkgutil import resolve_name
from threading import current_thread
from typing import TYPE_CHECKING

import pytest

from meshfleet.cli.demo_data import BUILDINGS, DAY_MS, build_site
from meshfleet.cli.demo_device_state import DeviceStateStore
from meshfleet.cli.demo_service import DemoSetup
from meshfleet.db.samples import NO_SEQ, SampleKind, SampleQuery, StoredSample, open_sample_store
from meshfleet.emulator import EmulatorSettings, ReportMode, SimulatedClock, SimulatedMesh
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, Mac, mac_to_int
from meshfleet.protocol.times import parse_time, to_millis
from meshfleet.service import clock
from meshfleet.service.devices import listing, registry, summary
from meshfleet.service.devices.model import DeviceFilter, DeviceObservation
from meshfleet.service.firmware import store as firmware
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.parser import ReportParser
from meshfleet.service.ingest.rollups import decode_minute
from meshfleet.service.ingest.sample_values import from_sample_value, to_sample_value
from meshfleet.service.presence.routes import list_connectivity_changes
from tests.databases import fresh_database
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from meshfleet.cli.demo_data import Building
    from meshfleet.db import Database
    from meshfleet.rest import ConnectivityChange

OFFICE = BUILDINGS[0]
KINDS = frozenset(SampleKind)
MINUTE = 60_000


class Past:
    """What a store has of the demo's devices."""

    def __init__(self, database: Database, data: Path) -> None:
        self.database = database
        self.data = data
        self.before = clock.now()
        DemoSetup(data, static=False).fill(database)
        self.after = clock.now()
        self.samples = stored(database, data)

    def of(self, mac: Mac, *kinds: SampleKind) -> list[StoredSample]:
        return [each for each in self.samples[mac] if each.kind in kinds]


def stored(database: Database, data: Path) -> dict[Mac, list[StoredSample]]:
    """All samples of all devices of the demo, those of one device in the order of time."""
    macs = [
        mac for each in BUILDINGS for mac in (each.gateway, *(one.mac for one in build_site(each).devices))
    ]

    async def read_all() -> dict[Mac, list[StoredSample]]:
        with closing(open_sample_store(database, data, {}, now=clock.now())) as store:
            return {mac: await store.read(_everything(mac), list) for mac in macs}

    return asyncio.run(read_all())


def _everything(mac: Mac) -> SampleQuery:
    return SampleQuery(device=mac_to_int(mac), kinds=KINDS, since=0, until=2**45)


@pytest.fixture(scope="module")
def past(
    request: pytest.FixtureRequest, database_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    """Of a demo that was started for the first time, and is left as it is."""
    with closing(fresh_database(request, database_kind)) as database:
        yield Past(database, tmp_path_factory.mktemp("past"))


def silences(samples: Iterable[StoredSample]) -> list[int]:
    """Milliseconds from one to the next, the longest first."""
    times = sorted({each.time for each in samples})
    return sorted((later - earlier for earlier, later in pairwise(times)), reverse=True)


@pytest.mark.rule("rest-178")
def test_whoever_lives_has_measured_for_a_day(past: Past) -> None:
    for building in BUILDINGS:
        for fixture in build_site(building).devices:
            measured = past.of(fixture.mac, SampleKind.MEASUREMENT)
            told = fixture.product.measurements if fixture.battery else ()
            assert {each.identifier for each in measured} == {int(each, 16) for each in told}
            if told:
                assert measured[-1].time - measured[0].time > DAY_MS - 3 * MINUTE
                assert past.after - measured[-1].time < MINUTE


def test_nothing_lies_in_the_future_or_before_the_devices_were_put_up(past: Past) -> None:
    for samples in past.samples.values():
        for each in samples:
            assert past.before - DAY_MS <= each.time < past.after
            assert each.seq == NO_SEQ
            assert each.more is None or each.more.clock is None


def test_a_gateway_that_was_away_leaves_a_gap(past: Past) -> None:
    for building in BUILDINGS:
        for fixture in build_site(building).devices:
            if fixture.battery:
                longest, second, *_ = silences(past.of(fixture.mac, SampleKind.MEASUREMENT))
                assert second < 2 * MINUTE
                assert (longest > 14 * MINUTE) == (building is OFFICE)


def test_who_hears_a_device_in_the_mesh_has_heard_it(past: Past) -> None:
    for building in BUILDINGS:
        mesh = SimulatedMesh(build_site(building))
        for fixture in build_site(building).devices:
            node, links = mesh.nodes[fixture.mac], past.of(fixture.mac, SampleKind.LINK)
            heard = {each.identifier for each in links}
            assert heard <= {mac_to_int(each.mac) for each in node.receivers}
            if fixture.battery and node.parent is not None:
                assert mac_to_int(node.parent.mac) in heard
            for each in links:
                minute = decode_minute(each)
                assert minute is not None
                assert each.time % MINUTE == 0
                assert each.time <= minute.last_at < each.time + MINUTE <= past.after
                assert minute.min <= minute.last <= minute.max
                assert -110 < minute.last < -20


# --- Who was there ---


def history(past: Past, mac: Mac) -> list[ConnectivityChange]:
    """When a device was connected, the oldest change first."""
    found = past.database.read_now(list_connectivity_changes, mac_to_int(mac), before=None, limit=1000)
    return [each.body for each in reversed(found)]


def stretches(changes: Iterable[ConnectivityChange]) -> list[tuple[int, int]]:
    """From when until when it was."""
    times = [(_millis(each.time), each.connected) for each in changes]
    assert times == sorted(times)
    assert [connected for _, connected in times] == [True, False] * (len(times) // 2)
    return [(begin, end) for (begin, _), (end, _) in zip(times[::2], times[1::2], strict=True)]


def _millis(text: str) -> int:
    return to_millis(parse_time(text))


def test_what_is_stored_came_while_its_device_was_connected(past: Past) -> None:
    for building in BUILDINGS:
        for fixture in build_site(building).devices:
            there = stretches(history(past, fixture.mac))
            assert bool(there) == bool(fixture.battery)
            for each in past.of(fixture.mac, SampleKind.MEASUREMENT, SampleKind.EVENT):
                assert any(begin <= each.time < end for begin, end in there)


def test_devices_go_with_their_gateway_and_come_back_when_they_are_heard(past: Past) -> None:
    for building in BUILDINGS:
        gateway = history(past, building.gateway)
        assert {(each.cause, each.gateway) for each in gateway} == {("connection", building.gateway)}
        there = stretches(gateway)
        assert there[0][0] + DAY_MS == there[-1][1] <= past.after
        away = [later - earlier for (_, earlier), (later, _) in pairwise(there)]
        assert away == ([15 * MINUTE] if building is OFFICE else [])
        for fixture in build_site(building).devices:
            changes = history(past, fixture.mac)
            assert {(each.connected, each.cause) for each in changes} <= {(True, "heard"), (False, "gateway")}
            for (came, went), (first, last) in zip(there, stretches(changes), strict=False):
                assert came <= first < came + 2 * MINUTE
                assert went == last


@pytest.mark.rule("rest-53")
def test_nobody_is_connected_when_life_begins(past: Past) -> None:
    assert past.database.read_now(summary.count_devices, DeviceFilter()).connected == 0
    known = past.database.read_now(listing.load_device, OFFICE.gateway)
    assert _millis(known.connectivity.timestamp) == stretches(history(past, OFFICE.gateway))[-1][1]


# --- As it would have been stored ---


def lived(building: Building, data: Path) -> list[tuple[int, StoredSample]]:
    """Samples of the first minutes of a building's life, as the ingest stores them."""
    settings = EmulatorSettings(mac=building.gateway, mode=building.mode)
    gateway = DeviceStateStore(data / "demo").restore_gateway(
        settings, build_site(building), SimulatedClock(clock.now(), 10.0)
    )
    draft = ParsedBatch(clock.now())
    ReportParser("", None).parse(gateway.advance(600.0), draft)
    assert not draft.rejects
    return [(device, StoredSample(*row)) for device, rows in draft.rows.items() for row in rows]


def looks(sample: StoredSample) -> tuple[bool, bool, bool]:
    """Which of its fields a sample has."""
    more = sample.more
    has_text, has_ext = (False, False) if more is None else (more.text is not None, more.ext is not None)
    return sample.raw is not None, has_text, has_ext


@each_row("building", BUILDINGS)
def test_what_was_looks_like_what_is(building: Building, past: Past) -> None:
    kinds = (SampleKind.MEASUREMENT, SampleKind.EVENT)
    fixtures = build_site(building).devices
    before = {
        (mac_to_int(each.mac), sample.kind, sample.identifier): looks(sample)
        for each in fixtures
        for sample in past.of(each.mac, *kinds)
    }
    now = {
        (device, sample.kind, sample.identifier): looks(sample)
        for device, sample in lived(building, past.data)
        if sample.kind in kinds
    }
    same = {each for each in before if each in now}
    assert {kind for _, kind, _ in same} == set(kinds)
    assert {each: before[each] for each in same} == {each: now[each] for each in same}
    assert {each for each in before if each[1] == SampleKind.MEASUREMENT} <= same


def test_values_are_what_the_catalogue_reads(past: Past) -> None:
    for building in BUILDINGS:
        for fixture in build_site(building).devices:
            for each in past.of(fixture.mac, SampleKind.MEASUREMENT, SampleKind.EVENT):
                assert each.gateway == mac_to_int(building.gateway)
                if building.mode is ReportMode.DECODED:
                    assert each.raw is None
                    assert from_sample_value(each.number, each.more) is not None
                    continue
                assert each.raw is not None
                read = BUILTIN_CATALOGUE.decode(Identifier(f"{each.identifier:04x}"), each.raw)
                assert (each.number, each.more) == to_sample_value(read.value, read.ext)


@each_row("building", BUILDINGS)
def test_life_goes_on_where_the_past_ends(building: Building, past: Past) -> None:
    steps = {0x8800: 0.3, 0x8801: 0.5, 0x8802: 2.0, 0x8813: 2}
    first: dict[tuple[int, int], StoredSample] = {}
    for device, sample in lived(building, past.data):
        if sample.kind == SampleKind.MEASUREMENT:
            first.setdefault((device, sample.identifier), sample)
    compared = set()
    for fixture in build_site(building).devices:
        last = {each.identifier: each for each in past.of(fixture.mac, SampleKind.MEASUREMENT)}
        for identifier in last.keys() & steps.keys():
            begun = first[mac_to_int(fixture.mac), identifier]
            assert begun.seq == 0
            assert begun.number == pytest.approx(last[identifier].number, abs=steps[identifier])
            compared.add(identifier)
    assert compared == steps.keys()


# --- Once, and only there ---


def test_a_second_start_adds_nothing(past: Past) -> None:
    DemoSetup(past.data, static=False).fill(past.database)
    again = stored(past.database, past.data)
    assert {mac: len(each) for mac, each in again.items()} == {
        mac: len(each) for mac, each in past.samples.items()
    }


CRASH_POINTS = {
    "living": "meshfleet.cli.demo_history.save_devices",
    "samples": "meshfleet.db.samples.sqlite_store.SqliteSampleStore.write",
    "order": "meshfleet.db.samples.sqlite_store.SqliteSampleStore.ensure_capacity",
    "firmware": "meshfleet.service.firmware.store.release_firmware",
}
"""What a first start may be at when it dies."""


class _Died(Exception):
    pass


ONE_OF_THEM = "samples"
OTHERS = [
    pytest.param(each, marks=pytest.mark.part("variants")) for each in CRASH_POINTS if each != ONE_OF_THEM
]


@pytest.mark.parametrize("death", [ONE_OF_THEM, *OTHERS])
def test_a_first_start_that_dies_is_begun_again_whole(
    death: str, sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, here = resolve_name(CRASH_POINTS[death]), current_thread()

    def die(*given: object, **named: object) -> object:
        if current_thread() is not here:
            return done(*given, **named)  # of the service that other tests share
        raise _Died

    with monkeypatch.context() as dying:
        dying.setattr(CRASH_POINTS[death], die)
        with pytest.raises(_Died):
            DemoSetup(tmp_path, static=False).fill(sqlite_database)
    again = Past(sqlite_database, tmp_path)
    for building in BUILDINGS:
        assert len(stretches(history(again, building.gateway))) == 1 + (building is OFFICE)
        for fixture in build_site(building).devices:
            assert bool(again.of(fixture.mac, SampleKind.LINK)) == bool(fixture.battery)
            if fixture.battery:
                longest, *_, shortest = silences(again.of(fixture.mac, SampleKind.MEASUREMENT))
                assert (longest > 14 * MINUTE) == (building is OFFICE)
                assert shortest > 14_000  # nothing twice
    offered = sqlite_database.read_now(
        firmware.list_firmware, firmware.FirmwareFilter(), before=None, limit=10
    )
    assert Counter(each.state for each in offered) == {"released": 4, "draft": 1}
    assert sqlite_database.read_now(summary.count_devices, DeviceFilter()).total == 64


def test_a_fleet_that_stands_still_has_no_past(database: Database, tmp_path: Path) -> None:
    for still in (True, False):
        DemoSetup(tmp_path, static=still).fill(database)
        assert not any(stored(database, tmp_path).values())


def test_devices_of_somebody_else_get_no_past(database: Database, tmp_path: Path) -> None:
    database.write_now(registry.record_observations, [DeviceObservation(device=Mac("c0ffee000001"), at=1)])
    DemoSetup(tmp_path, static=False).fill(database)
    assert not any(stored(database, tmp_path).values())
    assert not (tmp_path / "demo").exists()
