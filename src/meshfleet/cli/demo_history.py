"""The past of the demo: what its devices reported during the day before somebody looked at them.

The same world, at moments before its beginning: what devices sense follows from the time alone, so the past
leads up to what they report once they live. It was lived at the pace of life, not at that of the demo. It
is stored as the ingest would have stored it, but without `seq`: nobody waits for what is missing there. It
ends when the demo starts: then all gateways are away, until they connect.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from math import floor, inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from meshfleet.cli.demo_data import BUILDINGS, DAY_MS, build_site, fill_registry
from meshfleet.cli.demo_device_state import DeviceStateStore
from meshfleet.db.samples import NO_SEQ, SampleKind, open_sample_store
from meshfleet.emulator import EmulatorSettings, ReportMode, SimulatedClock
from meshfleet.emulator.context import EmulatorContext
from meshfleet.emulator.flash_memory import save_devices
from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.noise import uniform_noise
from meshfleet.emulator.simulation.properties import encode_motion_event
from meshfleet.emulator.simulation.sensors import read_sensor
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Identifier, mac_to_int
from meshfleet.service import clock
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.ingest.sample_values import build_raw_decoder
from meshfleet.service.presence import store as presence
from meshfleet.service.presence.changes import PresenceCause, PresenceChange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.cli.demo_data import Building
    from meshfleet.db import Database
    from meshfleet.db.samples import SampleRow, SampleStore
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.protocol.ids import Mac
    from meshfleet.service.ingest.readings import Reading

_HOUR_SECONDS: Final = 3600.0
_START_SECONDS: Final = -DAY_MS / 1000
"""Seconds, as all that follows; the world begins to live at 0."""

_MEASUREMENT_SCHEDULE: Final = ((_START_SECONDS, -_HOUR_SECONDS, 90.0), (-_HOUR_SECONDS, 0.0, 15.0))
"""From when until when something was measured, and how often. A chart takes a silence for a gap if it is more
than three times as long as usual: close to now that is measured by what is reported live, every 6 seconds."""

_LINK_SCHEDULE: Final = ((-6 * _HOUR_SECONDS, -_HOUR_SECONDS, 180.0), (-_HOUR_SECONDS, 0.0, 60.0))
"""The same for the radio, which is rolled up by the minute whoever reports it."""

_MAX_LINKS: Final = 4
"""As many nodes as report how well they hear a device."""

_OUTAGE: Final = (BUILDINGS[0].gateway, -5.0 * _HOUR_SECONDS, -4.75 * _HOUR_SECONDS)
"""A gateway that somebody unplugged for a while: charts have a gap there."""

_HEARTBEATS_PER_DAY: Final = 24 * 60
"""Of a device in a day. With the next one it tells its properties."""

_MOTION: Final = Identifier("8810")
_SERIES_BY_IDENTIFIER: Final = {
    each: (identifier_to_int(each), build_raw_decoder(each))
    for each in map(Identifier, ("8800", "8801", "8802", "8803", "8810", "8813"))
}
"""How identifiers are stored, and how their values are read."""


def fill_registry_with_history(database: Database, data: Path) -> dict[Mac, str]:
    """Put the demo into an empty registry, with a day that its devices have lived through, up to now."""
    now = clock.now()
    # As if the store had been open all the time: so what is written is put in order at once, and no later
    # start has to read it again.
    with closing(open_sample_store(database, data, {}, now=now - DAY_MS)) as store:
        past = _SimulatedDay(store, DeviceStateStore(data / "demo"), now)
        passwords = fill_registry(database, static=False, history=past)
        past.on_committed()
        asyncio.run(store.ensure_capacity(now))
    return passwords


class _SimulatedDay:
    """A day of all devices, before it is written down and after."""

    def __init__(self, store: SampleStore, device_states: DeviceStateStore, until: int) -> None:
        self.until = until
        self._store = store
        self._rows: dict[int, list[SampleRow]] = {}
        self._changes: list[PresenceChange] = []
        self._commit_number: int | None = None
        """Of what was written; None if nothing was."""
        for building in BUILDINGS:
            core = EmulatorContext(
                EmulatorSettings(mac=building.gateway), build_site(building), SimulatedClock(0)
            )
            self._simulate_building(core, building)
            device_states.save(building.gateway, save_devices(core))
        self._changes.sort(key=attrgetter("at"))

    def _simulate_building(self, core: EmulatorContext, building: Building) -> None:
        self._changes += _gateway_changes(building, self.until)
        for device in core.devices.values():
            if device.battery_level(0.0):
                rows = list(_rows(core, device, building, self.until))
                self._rows[mac_to_int(device.mac)] = rows
                self._changes += _device_changes(device, rows, building, self.until)

    def write(self, connection: Connection) -> None:
        """Write it down."""
        presence.update_presence(connection, self._changes)
        self._commit_number = self._store.write(connection, self._rows, self.until)

    def on_committed(self) -> None:
        """It is."""
        if self._commit_number is not None:
            self._store.publish_committed(self._commit_number, self._rows)


def _gateway_changes(building: Building, now: int) -> Iterator[PresenceChange]:
    """When a gateway came and went, as presence would have seen it."""
    gateway = mac_to_int(building.gateway)
    for came, went in _connected_periods(building, now):
        yield PresenceChange.to_connected(gateway, came, PresenceCause.CONNECTION, gateway)
        yield PresenceChange.to_disconnected(gateway, went, PresenceCause.CONNECTION, gateway)


def _device_changes(
    device: SimulatedDevice, rows: list[SampleRow], building: Building, now: int
) -> Iterator[PresenceChange]:
    """The same of a device: it goes with its gateway, and is back when it is heard."""
    number, gateway = mac_to_int(device.mac), mac_to_int(building.gateway)
    heard = [_to_millis(t, now) for t in _report_times(device, _MEASUREMENT_SCHEDULE)]
    heard += [row[0] for row in rows if row[1] == SampleKind.EVENT]
    for came, went in _connected_periods(building, now):
        yield PresenceChange.to_connected(
            number, min(each for each in heard if each >= came), PresenceCause.HEARD, gateway
        )
        yield PresenceChange.to_disconnected(number, went, PresenceCause.GATEWAY, gateway)


def _connected_periods(building: Building, now: int) -> list[tuple[int, int]]:
    """From when until when a gateway was there."""
    gateway, begin, end = _OUTAGE
    there = [(_START_SECONDS, begin), (end, 0.0)] if building.gateway == gateway else [(_START_SECONDS, 0.0)]
    return [(_to_millis(came, now), _to_millis(went, now)) for came, went in there]


def _to_millis(t: float, now: int) -> int:
    """A moment of the world, in milliseconds since 1970."""
    return now + floor(t * 1000)


def _rows(
    core: EmulatorContext, device: SimulatedDevice, building: Building, now: int
) -> Iterator[SampleRow]:
    """All that is kept of a device."""
    gateway, is_decoded = mac_to_int(building.gateway), building.mode is ReportMode.DECODED
    for t, kind, identifier, raw in _simulate_samples(device):
        if not _is_during_outage(building, t):
            series, read = _SERIES_BY_IDENTIFIER[identifier]
            number, octets, more = read(raw.hex())
            told = None if is_decoded else octets
            yield _to_millis(t, now), kind, series, NO_SEQ, gateway, number, told, more
    rollups = Rollups()
    rollups.add(0, list(_link_readings(core, device, building, now)), 0)
    yield from rollups.close_due(now).get(
        mac_to_int(device.mac), ()
    )  # without the minute that is not over yet


def _simulate_samples(device: SimulatedDevice) -> Iterator[tuple[float, SampleKind, Identifier, bytes]]:
    """Let a device live up to 0; gives what it measures, and what happens to it."""
    turns = _START_SECONDS + device.next_motion_delay() if device.product.motion_code else inf
    for t in _report_times(device, _MEASUREMENT_SCHEDULE):
        while turns <= t:
            device.toggle_motion(turns)
            yield turns, SampleKind.EVENT, _MOTION, encode_motion_event(device)
            turns += device.next_motion_delay()
        device.heartbeats += 1
        for identifier in device.product.measurements:
            yield t, SampleKind.MEASUREMENT, identifier, read_sensor(device, identifier, t)
    device.heartbeats = _HEARTBEATS_PER_DAY


def _link_readings(
    core: EmulatorContext, device: SimulatedDevice, building: Building, now: int
) -> Iterator[Reading]:
    """How well others hear a device."""
    mesh, node = core.mesh, device.node
    number, gateway = mac_to_int(device.mac), mac_to_int(building.gateway)
    heard = [
        (i, mac_to_int(hearer.mac), hearer is node.parent or hearer.parent is node)
        for i, hearer in enumerate(node.receivers)
        if hearer.depth >= 0
    ]
    heard = [(i, parent, linked) for i, parent, linked in heard if linked or i < _MAX_LINKS]
    for n, t in enumerate(_report_times(device, _LINK_SCHEDULE)):
        if _is_during_outage(building, t):
            continue
        time = _to_millis(t, now)
        for i, parent, linked in heard:
            reading = mesh.measure_rssi(node, i, t, n)
            if linked or reading >= radio.MIN_AUDIBLE_DBM:
                unreachable = not linked and reading < radio.MIN_USABLE_DBM
                yield ReadingKind.LINK, number, gateway, time, reading, parent, unreachable


def _report_times(
    device: SimulatedDevice, schedule: tuple[tuple[float, float, float], ...]
) -> Iterator[float]:
    """When a device reports: not all at the same time."""
    phase = uniform_noise(device.noise_key, 8)
    for begin, end, every in schedule:
        for n in range(int((end - begin) / every)):
            yield begin + (n + phase) * every


def _is_during_outage(building: Building, t: float) -> bool:
    """Whether nobody was there to pass it on."""
    gateway, begin, end = _OUTAGE
    return building.gateway == gateway and begin <= t < end
