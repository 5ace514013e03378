"""Simulated history of the demo: samples and connection changes in the day before the demo's first start.

The simulation computes the history at negative simulated times. Sensor values depend only on the time, so
the live reports of the devices continue the history smoothly. The history has real speed, not the
higher speed of the demo. Samples are stored as ingest would store them, but without `seq`, so that no gaps
are detected. The history ends when the demo starts, with all gateways disconnected.
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
from meshfleet.service.ingest.readings import CHANNEL_SHIFT, UNREACHABLE, ReadingKind
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
"""Start of the history, in seconds of simulated time; the demo starts at 0."""

_MEASUREMENT_SCHEDULE: Final = ((_START_SECONDS, -_HOUR_SECONDS, 90.0), (-_HOUR_SECONDS, 0.0, 15.0))
"""Periods of measurements: begin and end (seconds of simulated time), and interval in seconds.

The interval is shorter in the last hour: charts show a gap if no sample arrives for more than three usual
intervals, and the usual interval in charts of recent times is the 6 seconds of live reports.
"""

_LINK_SCHEDULE: Final = ((-6 * _HOUR_SECONDS, -_HOUR_SECONDS, 180.0), (-_HOUR_SECONDS, 0.0, 60.0))
"""Periods of RSSI reports: begin and end (seconds of simulated time), and interval in seconds."""

_MAX_LINKS: Final = 4
"""Maximum number of mesh nodes, besides parent and children, that report the RSSI of a device."""

_OUTAGE: Final = (BUILDINGS[0].gateway, -5.0 * _HOUR_SECONDS, -4.75 * _HOUR_SECONDS)
"""Gateway, begin and end (seconds of simulated time) of an outage, which charts show as a gap."""

_HEARTBEATS_PER_DAY: Final = 24 * 60
"""Number of heartbeats per day. A device with this count reports its properties with the next heartbeat."""

_MOTION: Final = Identifier("8810")
_SERIES_BY_IDENTIFIER: Final = {
    each: (identifier_to_int(each), build_raw_decoder(each))
    for each in map(Identifier, ("8800", "8801", "8802", "8803", "8810", "8813"))
}
"""Number under which an identifier is stored, and the decoder of raw values, for each identifier."""


def fill_registry_with_history(database: Database, data: Path) -> dict[Mac, str]:
    """Insert the demo, with one day of history, into a database without devices.

    Return the passwords of the gateways by MAC.
    """
    now = clock.now()
    # The store is opened with yesterday's time, so that the history counts as old and is flushed at once.
    # Otherwise every later start would have to read it from the journal.
    with closing(open_sample_store(database, data, {}, now=now - DAY_MS)) as store:
        history = SimulatedDay(store, DeviceStateStore(data / "demo"), now)
        passwords = fill_registry(database, static=False, history=history)
        history.publish_rows()
        asyncio.run(store.ensure_capacity(now))
    return passwords


class SimulatedDay:
    """Simulates one day of all devices of the demo, and writes the samples and connection changes."""

    def __init__(self, store: SampleStore, device_states: DeviceStateStore, until: int) -> None:
        self.until = until
        """End of the simulated day (Unix time in milliseconds)."""
        self._store = store
        self._rows: dict[int, list[SampleRow]] = {}
        self._changes: list[PresenceChange] = []
        self._commit_number: int | None = None
        """Batch number that the sample store returned for the samples; None before `write`."""
        for building in BUILDINGS:
            context = EmulatorContext(
                EmulatorSettings(mac=building.gateway), build_site(building), SimulatedClock(0)
            )
            self._simulate_building(context, building)
            device_states.save(building.gateway, save_devices(context))
        self._changes.sort(key=attrgetter("at"))

    def _simulate_building(self, context: EmulatorContext, building: Building) -> None:
        self._changes += _gateway_changes(building, self.until)
        for device in context.devices.values():
            if device.battery_level(0.0):
                rows = list(_sample_rows(context, device, building, self.until))
                self._rows[mac_to_int(device.mac)] = rows
                self._changes += _device_changes(device, rows, building, self.until)

    def write(self, connection: Connection) -> None:
        """Insert the samples and connection changes of devices that the database already contains."""
        presence.update_presence(connection, self._changes)
        self._commit_number = self._store.write(connection, self._rows, self.until)

    def publish_rows(self) -> None:
        """Make the samples visible to readers. Call this after the transaction of `write` is committed."""
        if self._commit_number is not None:
            self._store.publish_committed(self._commit_number, self._rows)


def _gateway_changes(building: Building, now: int) -> Iterator[PresenceChange]:
    """Yield the connects and disconnects of a building's gateway in the simulated day."""
    gateway = mac_to_int(building.gateway)
    for connected_at, disconnected_at in _connected_periods(building, now):
        yield PresenceChange.to_connected(gateway, connected_at, PresenceCause.CONNECTION, gateway)
        yield PresenceChange.to_disconnected(gateway, disconnected_at, PresenceCause.CONNECTION, gateway)


def _device_changes(
    device: SimulatedDevice, rows: list[SampleRow], building: Building, now: int
) -> Iterator[PresenceChange]:
    """Yield the connects and disconnects of a device in the simulated day.

    A device disconnects when its gateway disconnects, and connects with the device's next report.
    """
    number, gateway = mac_to_int(device.mac), mac_to_int(building.gateway)
    heard_at = [_to_millis(t, now) for t in _report_times(device, _MEASUREMENT_SCHEDULE)]
    heard_at += [row[0] for row in rows if row[1] == SampleKind.EVENT]
    for connected_at, disconnected_at in _connected_periods(building, now):
        yield PresenceChange.to_connected(
            number, min(each for each in heard_at if each >= connected_at), PresenceCause.HEARD, gateway
        )
        yield PresenceChange.to_disconnected(number, disconnected_at, PresenceCause.GATEWAY, gateway)


def _connected_periods(building: Building, now: int) -> list[tuple[int, int]]:
    """Return begin and end (Unix time in milliseconds) of the periods in which a gateway was connected."""
    gateway, begin, end = _OUTAGE
    periods = (
        [(_START_SECONDS, begin), (end, 0.0)] if building.gateway == gateway else [(_START_SECONDS, 0.0)]
    )
    return [
        (_to_millis(connected_at, now), _to_millis(disconnected_at, now))
        for connected_at, disconnected_at in periods
    ]


def _to_millis(simulated_seconds: float, now: int) -> int:
    """Convert simulated time to Unix time in milliseconds; `now` is the Unix time of the demo's start."""
    return now + floor(simulated_seconds * 1000)


def _sample_rows(
    context: EmulatorContext, device: SimulatedDevice, building: Building, now: int
) -> Iterator[SampleRow]:
    """Yield all simulated samples of a device as rows for the sample store."""
    gateway, is_decoded = mac_to_int(building.gateway), building.mode is ReportMode.DECODED
    for t, kind, identifier, raw in _simulate_samples(device):
        if not _is_during_outage(building, t):
            series, decode = _SERIES_BY_IDENTIFIER[identifier]
            number, octets, ext = decode(raw.hex())
            stored_raw = None if is_decoded else octets
            yield _to_millis(t, now), kind, series, NO_SEQ, gateway, number, stored_raw, ext
    rollups = Rollups()
    rollups.add(0, list(_link_readings(context, device, building, now)), 0)
    yield from rollups.close_ended_minutes(now).get(mac_to_int(device.mac), ())  # without the current minute


def _simulate_samples(device: SimulatedDevice) -> Iterator[tuple[float, SampleKind, Identifier, bytes]]:
    """Simulate a device until the demo starts. Yield simulated time, kind, identifier and raw value."""
    next_motion = _START_SECONDS + device.next_motion_delay() if device.product.motion_code else inf
    for t in _report_times(device, _MEASUREMENT_SCHEDULE):
        while next_motion <= t:
            device.toggle_motion(next_motion)
            yield next_motion, SampleKind.EVENT, _MOTION, encode_motion_event(device)
            next_motion += device.next_motion_delay()
        device.heartbeats += 1
        for identifier in device.product.measurements:
            yield t, SampleKind.MEASUREMENT, identifier, read_sensor(device, identifier, t)
    device.heartbeats = _HEARTBEATS_PER_DAY


def _link_readings(
    context: EmulatorContext, device: SimulatedDevice, building: Building, now: int
) -> Iterator[Reading]:
    """Yield RSSI readings of a device at other mesh nodes, as input of the per-minute roll-ups."""
    mesh, node = context.mesh, device.node
    number, gateway = mac_to_int(device.mac), mac_to_int(building.gateway)
    receivers = [
        (i, mac_to_int(receiver.mac), receiver is node.parent or receiver.parent is node)
        for i, receiver in enumerate(node.receivers)
        if receiver.depth >= 0
    ]
    receivers = [(i, parent, linked) for i, parent, linked in receivers if linked or i < _MAX_LINKS]
    for n, t in enumerate(_report_times(device, _LINK_SCHEDULE)):
        if _is_during_outage(building, t):
            continue
        time = _to_millis(t, now)
        for i, parent, linked in receivers:
            reading = mesh.measure_rssi(node, i, t, n)
            if linked or reading >= radio.MIN_AUDIBLE_DBM:
                flags = 0 if linked else (1 + n % 3) << CHANNEL_SHIFT
                if not linked and reading < radio.MIN_USABLE_DBM:
                    flags |= UNREACHABLE
                yield ReadingKind.LINK, number, gateway, time, reading, parent, flags


def _report_times(
    device: SimulatedDevice, schedule: tuple[tuple[float, float, float], ...]
) -> Iterator[float]:
    """Yield the simulated times, in seconds, at which a device reports; they differ between devices."""
    phase = uniform_noise(device.noise_key, 8)
    for begin, end, interval in schedule:
        for n in range(int((end - begin) / interval)):
            yield begin + (n + phase) * interval


def _is_during_outage(building: Building, simulated_seconds: float) -> bool:
    """Return whether the building's gateway was disconnected at a simulated time."""
    gateway, begin, end = _OUTAGE
    return building.gateway == gateway and begin <= simulated_seconds < end
