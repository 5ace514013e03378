"""History of the demo: the samples and connections of the day before its first start."""

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
from meshfleet.service.ingest.minute_rollup import decode_minute
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.parser import ReportParser
from meshfleet.service.ingest.sample_values import from_sample_value, to_sample_value
from meshfleet.service.presence.routes import list_connectivity_changes
from tests.databases import fresh_database
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from meshfleet.cli.demo_data import Building
    from meshfleet.db import Database
    from meshfleet.rest.devices import ConnectivityChange

OFFICE = BUILDINGS[0]
KINDS = frozenset(SampleKind)
MINUTE = 60_000


class History:
    """Stored samples of the demo's devices, after its first start."""

    def __init__(self, database: Database, data: Path) -> None:
        self.database = database
        self.data = data
        self.before = clock.now()
        DemoSetup(data, static=False).fill_database(database)
        self.after = clock.now()
        self.samples = read_samples(database, data)

    def samples_of(self, mac: Mac, *kinds: SampleKind) -> list[StoredSample]:
        return [each for each in self.samples[mac] if each.kind in kinds]


def read_samples(database: Database, data: Path) -> dict[Mac, list[StoredSample]]:
    """Return all samples of the demo's devices by MAC, in the order of time."""
    macs = [
        mac for each in BUILDINGS for mac in (each.gateway, *(one.mac for one in build_site(each).devices))
    ]

    async def read_all() -> dict[Mac, list[StoredSample]]:
        with closing(open_sample_store(database, data, {}, now=clock.now())) as store:
            return {mac: await store.read(_query_all(mac), list) for mac in macs}

    return asyncio.run(read_all())


def _query_all(mac: Mac) -> SampleQuery:
    return SampleQuery(device=mac_to_int(mac), kinds=KINDS, since=0, until=2**45)


@pytest.fixture(scope="module")
def demo(
    request: pytest.FixtureRequest, database_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    """Start a demo for the first time; tests must not change it."""
    with closing(fresh_database(request, database_kind)) as database:
        yield History(database, tmp_path_factory.mktemp("demo"))


def intervals(samples: Iterable[StoredSample]) -> list[int]:
    """Return the milliseconds between consecutive samples, longest first."""
    times = sorted({each.time for each in samples})
    return sorted((later - earlier for earlier, later in pairwise(times)), reverse=True)


@pytest.mark.rule("rest-178")
def test_running_devices_have_a_day_of_measurements(demo: History) -> None:
    for building in BUILDINGS:
        for device_spec in build_site(building).devices:
            measured = demo.samples_of(device_spec.mac, SampleKind.MEASUREMENT)
            expected = device_spec.product.measurements if device_spec.battery else ()
            assert {each.identifier for each in measured} == {int(each, 16) for each in expected}
            if expected:
                assert measured[-1].time - measured[0].time > DAY_MS - 3 * MINUTE
                assert demo.after - measured[-1].time < MINUTE


def test_samples_lie_between_the_installation_and_now(demo: History) -> None:
    for samples in demo.samples.values():
        for each in samples:
            assert demo.before - DAY_MS <= each.time < demo.after
            assert each.seq == NO_SEQ
            assert each.more is None or each.more.clock is None


def test_an_outage_of_a_gateway_leaves_a_gap(demo: History) -> None:
    for building in BUILDINGS:
        for device_spec in build_site(building).devices:
            if device_spec.battery:
                longest, second, *_ = intervals(demo.samples_of(device_spec.mac, SampleKind.MEASUREMENT))
                assert second < 2 * MINUTE
                assert (longest > 14 * MINUTE) == (building is OFFICE)


def test_links_are_reported_by_nodes_in_range(demo: History) -> None:
    for building in BUILDINGS:
        mesh = SimulatedMesh(build_site(building))
        for device_spec in build_site(building).devices:
            node, links = mesh.nodes[device_spec.mac], demo.samples_of(device_spec.mac, SampleKind.LINK)
            receivers = {each.identifier for each in links}
            assert receivers <= {mac_to_int(each.mac) for each in node.receivers}
            if device_spec.battery and node.parent is not None:
                assert mac_to_int(node.parent.mac) in receivers
            for each in links:
                minute = decode_minute(each)
                assert minute is not None
                assert each.time % MINUTE == 0
                assert each.time <= minute.last_at < each.time + MINUTE <= demo.after
                assert minute.min <= minute.last <= minute.max
                assert -110 < minute.last < -20


# --- Connections ---


def connectivity_changes(demo: History, mac: Mac) -> list[ConnectivityChange]:
    """Return the connects and disconnects of a device, oldest first."""
    found = demo.database.read_now(list_connectivity_changes, mac_to_int(mac), before=None, limit=1000)
    return [each.body for each in reversed(found)]


def connected_periods(changes: Iterable[ConnectivityChange]) -> list[tuple[int, int]]:
    """Return begin and end of the periods in which a device was connected."""
    times = [(_millis(each.time), each.connected) for each in changes]
    assert times == sorted(times)
    assert [connected for _, connected in times] == [True, False] * (len(times) // 2)
    return [(begin, end) for (begin, _), (end, _) in zip(times[::2], times[1::2], strict=True)]


def _millis(text: str) -> int:
    return to_millis(parse_time(text))


def test_samples_lie_in_connected_periods(demo: History) -> None:
    for building in BUILDINGS:
        for device_spec in build_site(building).devices:
            periods = connected_periods(connectivity_changes(demo, device_spec.mac))
            assert bool(periods) == bool(device_spec.battery)
            for each in demo.samples_of(device_spec.mac, SampleKind.MEASUREMENT, SampleKind.EVENT):
                assert any(begin <= each.time < end for begin, end in periods)


def test_devices_disconnect_with_their_gateway_and_connect_with_a_report(demo: History) -> None:
    for building in BUILDINGS:
        gateway = connectivity_changes(demo, building.gateway)
        assert {(each.cause, each.gateway) for each in gateway} == {("connection", building.gateway)}
        periods = connected_periods(gateway)
        assert periods[0][0] + DAY_MS == periods[-1][1] <= demo.after
        outages = [later - earlier for (_, earlier), (later, _) in pairwise(periods)]
        assert outages == ([15 * MINUTE] if building is OFFICE else [])
        for device_spec in build_site(building).devices:
            changes = connectivity_changes(demo, device_spec.mac)
            assert {(each.connected, each.cause) for each in changes} <= {(True, "heard"), (False, "gateway")}
            for (connected_at, disconnected_at), (first, last) in zip(
                periods, connected_periods(changes), strict=False
            ):
                assert connected_at <= first < connected_at + 2 * MINUTE
                assert disconnected_at == last


@pytest.mark.rule("rest-53")
def test_no_device_is_connected_when_the_demo_starts(demo: History) -> None:
    assert demo.database.read_now(summary.count_devices, DeviceFilter()).connected == 0
    device = demo.database.read_now(listing.load_device, OFFICE.gateway)
    assert (
        _millis(device.connectivity.timestamp)
        == connected_periods(connectivity_changes(demo, OFFICE.gateway))[-1][1]
    )


# --- Form of the stored samples ---


def run_building(building: Building, data: Path) -> list[tuple[int, StoredSample]]:
    """Run a building for some minutes, and return its samples as the ingest stores them."""
    settings = EmulatorSettings(mac=building.gateway, mode=building.mode)
    gateway = DeviceStateStore(data / "demo").restore_gateway(
        settings, build_site(building), SimulatedClock(clock.now(), 10.0)
    )
    batch = ParsedBatch(clock.now())
    ReportParser("", None).parse(gateway.advance(600.0), batch)
    assert not batch.rejects
    return [(device, StoredSample(*row)) for device, rows in batch.rows.items() for row in rows]


def present_fields(sample: StoredSample) -> tuple[bool, bool, bool]:
    """Return whether a sample has a raw value, a text and additional fields."""
    more = sample.more
    has_text, has_ext = (False, False) if more is None else (more.text is not None, more.ext is not None)
    return sample.raw is not None, has_text, has_ext


@each_row("building", BUILDINGS)
def test_history_and_live_samples_have_the_same_fields(building: Building, demo: History) -> None:
    kinds = (SampleKind.MEASUREMENT, SampleKind.EVENT)
    device_specs = build_site(building).devices
    before = {
        (mac_to_int(each.mac), sample.kind, sample.identifier): present_fields(sample)
        for each in device_specs
        for sample in demo.samples_of(each.mac, *kinds)
    }
    now = {
        (device, sample.kind, sample.identifier): present_fields(sample)
        for device, sample in run_building(building, demo.data)
        if sample.kind in kinds
    }
    same = {each for each in before if each in now}
    assert {kind for _, kind, _ in same} == set(kinds)
    assert {each: before[each] for each in same} == {each: now[each] for each in same}
    assert {each for each in before if each[1] == SampleKind.MEASUREMENT} <= same


def test_values_are_those_decoded_by_the_catalogue(demo: History) -> None:
    for building in BUILDINGS:
        for device_spec in build_site(building).devices:
            for each in demo.samples_of(device_spec.mac, SampleKind.MEASUREMENT, SampleKind.EVENT):
                assert each.gateway == mac_to_int(building.gateway)
                if building.mode is ReportMode.DECODED:
                    assert each.raw is None
                    assert from_sample_value(each.number, each.more) is not None
                    continue
                assert each.raw is not None
                decoded = BUILTIN_CATALOGUE.decode(Identifier(f"{each.identifier:04x}"), each.raw)
                assert (each.number, each.more) == to_sample_value(decoded.value, decoded.ext)


@each_row("building", BUILDINGS)
def test_live_values_continue_those_of_the_history(building: Building, demo: History) -> None:
    max_steps = {0x8800: 0.3, 0x8801: 0.5, 0x8802: 2.0, 0x8813: 2}
    first: dict[tuple[int, int], StoredSample] = {}
    for device, sample in run_building(building, demo.data):
        if sample.kind == SampleKind.MEASUREMENT:
            first.setdefault((device, sample.identifier), sample)
    compared = set()
    for device_spec in build_site(building).devices:
        last = {each.identifier: each for each in demo.samples_of(device_spec.mac, SampleKind.MEASUREMENT)}
        for identifier in last.keys() & max_steps.keys():
            live = first[mac_to_int(device_spec.mac), identifier]
            assert live.seq == 0
            assert live.number == pytest.approx(last[identifier].number, abs=max_steps[identifier])
            compared.add(identifier)
    assert compared == max_steps.keys()


# --- Restarts ---


def test_a_second_start_adds_nothing(demo: History) -> None:
    DemoSetup(demo.data, static=False).fill_database(demo.database)
    restarted = read_samples(demo.database, demo.data)
    assert {mac: len(each) for mac, each in restarted.items()} == {
        mac: len(each) for mac, each in demo.samples.items()
    }


CRASH_POINTS = {
    "simulation": "meshfleet.cli.demo_history.save_devices",
    "samples": "meshfleet.db.samples.sqlite_store.SqliteSampleStore.write",
    "compaction": "meshfleet.db.samples.sqlite_store.SqliteSampleStore.ensure_capacity",
    "firmware": "meshfleet.service.firmware.store.release_firmware",
}
"""Functions in which a first start may be interrupted."""


class _Crash(Exception):
    pass


MAIN_CRASH_POINT = "samples"
OTHER_CRASH_POINTS = [
    pytest.param(each, marks=pytest.mark.part("variants"))
    for each in CRASH_POINTS
    if each != MAIN_CRASH_POINT
]


@pytest.mark.parametrize("crash_point", [MAIN_CRASH_POINT, *OTHER_CRASH_POINTS])
def test_an_interrupted_first_start_is_repeated_completely(
    crash_point: str, sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, thread = resolve_name(CRASH_POINTS[crash_point]), current_thread()

    def crash(*args: object, **kwargs: object) -> object:
        if current_thread() is not thread:
            return original(*args, **kwargs)  # called by the service that other tests share
        raise _Crash

    with monkeypatch.context() as patch:
        patch.setattr(CRASH_POINTS[crash_point], crash)
        with pytest.raises(_Crash):
            DemoSetup(tmp_path, static=False).fill_database(sqlite_database)
    restarted = History(sqlite_database, tmp_path)
    for building in BUILDINGS:
        assert len(connected_periods(connectivity_changes(restarted, building.gateway))) == 1 + (
            building is OFFICE
        )
        for device_spec in build_site(building).devices:
            assert bool(restarted.samples_of(device_spec.mac, SampleKind.LINK)) == bool(device_spec.battery)
            if device_spec.battery:
                longest, *_, shortest = intervals(
                    restarted.samples_of(device_spec.mac, SampleKind.MEASUREMENT)
                )
                assert (longest > 14 * MINUTE) == (building is OFFICE)
                assert shortest > 14_000  # no duplicates
    records = sqlite_database.read_now(
        firmware.list_firmware, firmware.FirmwareFilter(), before=None, limit=10
    )
    assert Counter(each.state for each in records) == {"released": 4, "draft": 1}
    assert sqlite_database.read_now(summary.count_devices, DeviceFilter()).total == 64


def test_a_static_demo_has_no_history(database: Database, tmp_path: Path) -> None:
    for static in (True, False):
        DemoSetup(tmp_path, static=static).fill_database(database)
        assert not any(read_samples(database, tmp_path).values())


def test_other_devices_get_no_history(database: Database, tmp_path: Path) -> None:
    database.write_now(registry.record_observations, [DeviceObservation(device=Mac("c0ffee000001"), at=1)])
    DemoSetup(tmp_path, static=False).fill_database(database)
    assert not any(read_samples(database, tmp_path).values())
    assert not (tmp_path / "demo").exists()
