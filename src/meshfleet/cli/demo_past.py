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

from meshfleet.cli.demo import BUILDINGS, DAY, fill, site_of
from meshfleet.cli.demo_memory import Memory
from meshfleet.db.samples import NO_SEQ, SampleKind, open_samples
from meshfleet.gateway import Clock, Mode, Settings
from meshfleet.gateway.core import Core
from meshfleet.gateway.memory import save
from meshfleet.gateway.world import radio
from meshfleet.gateway.world.noise import noise
from meshfleet.gateway.world.properties import motion_event
from meshfleet.gateway.world.senses import sense
from meshfleet.service import clock
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.ingest.values import raw_reader
from meshfleet.service.presence import store as presence
from meshfleet.service.presence.model import Cause, Change
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import Identifier, mac_number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.cli.demo import Building
    from meshfleet.db import Database
    from meshfleet.db.samples import Row, SampleStore
    from meshfleet.gateway.world.device import Device
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.wire.ids import Mac

_HOUR: Final = 3600.0
_BEGINNING: Final = -DAY / 1000
"""Seconds, as all that follows; the world begins to live at 0."""

_MEASURED: Final = ((_BEGINNING, -_HOUR, 90.0), (-_HOUR, 0.0, 15.0))
"""From when until when something was measured, and how often. A chart takes a silence for a gap if it is more
than three times as long as usual: close to now that is measured by what is reported live, every 6 seconds."""

_HEARD: Final = ((-6 * _HOUR, -_HOUR, 180.0), (-_HOUR, 0.0, 60.0))
"""The same for the radio, which is rolled up by the minute whoever reports it."""

_HEARERS: Final = 4
"""As many nodes as report how well they hear a device."""

_OUTAGE: Final = (BUILDINGS[0].gateway, -5.0 * _HOUR, -4.75 * _HOUR)
"""A gateway that somebody unplugged for a while: charts have a gap there."""

_BEATS: Final = 24 * 60
"""Of a device in a day. With the next one it tells its properties."""

_MOTION: Final = Identifier("8810")
_STORED: Final = {
    each: (identifier_number(each), raw_reader(each))
    for each in map(Identifier, ("8800", "8801", "8802", "8803", "8810", "8813"))
}
"""How identifiers are stored, and how their values are read."""


def fill_with_past(database: Database, data: Path) -> dict[Mac, str]:
    """Put the demo into an empty registry, with a day that its devices have lived through, up to now."""
    now = clock.now()
    # As if the store had been open all the time: so what is written is put in order at once, and no later
    # start has to read it again.
    with closing(open_samples(database, data, {}, now=now - DAY)) as store:
        past = _Past(store, Memory(data / "demo"), now)
        passwords = fill(database, still=False, past=past)
        past.committed()
        asyncio.run(store.make_room(now))
    return passwords


class _Past:
    """A day of all devices, before it is written down and after."""

    def __init__(self, store: SampleStore, memory: Memory, until: int) -> None:
        self.until = until
        self._store = store
        self._rows: dict[int, list[Row]] = {}
        self._changes: list[Change] = []
        self._number: int | None = None
        """Of what was written; None if nothing was."""
        for building in BUILDINGS:
            core = Core(Settings(mac=building.gateway), site_of(building), Clock(0))
            self._live(core, building)
            memory.put(building.gateway, save(core))
        self._changes.sort(key=attrgetter("at"))

    def _live(self, core: Core, building: Building) -> None:
        self._changes += _changes_of_gateway(building, self.until)
        for device in core.devices.values():
            if device.battery_level(0.0):
                rows = list(_rows(core, device, building, self.until))
                self._rows[mac_number(device.mac)] = rows
                self._changes += _changes(device, rows, building, self.until)

    def write(self, connection: Connection) -> None:
        """Write it down."""
        presence.write(connection, self._changes)
        self._number = self._store.write(connection, self._rows, self.until)

    def committed(self) -> None:
        """It is."""
        if self._number is not None:
            self._store.committed(self._number, self._rows)


def _changes_of_gateway(building: Building, now: int) -> Iterator[Change]:
    """When a gateway came and went, as presence would have seen it."""
    gateway = mac_number(building.gateway)
    for came, went in _connected(building, now):
        yield Change.came(gateway, came, Cause.CONNECTION, gateway)
        yield Change.went(gateway, went, Cause.CONNECTION, gateway)


def _changes(device: Device, rows: list[Row], building: Building, now: int) -> Iterator[Change]:
    """The same of a device: it goes with its gateway, and is back when it is heard."""
    number, gateway = mac_number(device.mac), mac_number(building.gateway)
    heard = [_at(t, now) for t in _moments(device, _MEASURED)]
    heard += [row[0] for row in rows if row[1] == SampleKind.EVENT]
    for came, went in _connected(building, now):
        yield Change.came(number, min(each for each in heard if each >= came), Cause.HEARD, gateway)
        yield Change.went(number, went, Cause.GATEWAY, gateway)


def _connected(building: Building, now: int) -> list[tuple[int, int]]:
    """From when until when a gateway was there."""
    gateway, begin, end = _OUTAGE
    there = [(_BEGINNING, begin), (end, 0.0)] if building.gateway == gateway else [(_BEGINNING, 0.0)]
    return [(_at(came, now), _at(went, now)) for came, went in there]


def _at(t: float, now: int) -> int:
    """A moment of the world, in milliseconds since 1970."""
    return now + floor(t * 1000)


def _rows(core: Core, device: Device, building: Building, now: int) -> Iterator[Row]:
    """All that is kept of a device."""
    gateway, is_decoded = mac_number(building.gateway), building.mode is Mode.DECODED
    for t, kind, identifier, raw in _lived(device):
        if not _is_lost(building, t):
            series, read = _STORED[identifier]
            number, octets, more = read(raw.hex())
            told = None if is_decoded else octets
            yield _at(t, now), kind, series, NO_SEQ, gateway, number, told, more
    rollups = Rollups()
    rollups.add(0, list(_readings(core, device, building, now)), 0)
    yield from rollups.close(now).get(mac_number(device.mac), ())  # without the minute that is not over yet


def _lived(device: Device) -> Iterator[tuple[float, SampleKind, Identifier, bytes]]:
    """Let a device live up to 0; gives what it measures, and what happens to it."""
    turns = _BEGINNING + device.lingers() if device.product.motion else inf
    for t in _moments(device, _MEASURED):
        while turns <= t:
            device.turn(turns)
            yield turns, SampleKind.EVENT, _MOTION, motion_event(device)
            turns += device.lingers()
        device.beats += 1
        for identifier in device.product.measured:
            yield t, SampleKind.MEASUREMENT, identifier, sense(device, identifier, t)
    device.beats = _BEATS


def _readings(core: Core, device: Device, building: Building, now: int) -> Iterator[Reading]:
    """How well others hear a device."""
    mesh, node = core.mesh, device.node
    number, gateway = mac_number(device.mac), mac_number(building.gateway)
    heard = [
        (i, mac_number(hearer.mac), hearer is node.parent or hearer.parent is node)
        for i, hearer in enumerate(node.hearers)
        if hearer.depth >= 0
    ]
    heard = [(i, parent, linked) for i, parent, linked in heard if linked or i < _HEARERS]
    for n, t in enumerate(_moments(device, _HEARD)):
        if _is_lost(building, t):
            continue
        time = _at(t, now)
        for i, parent, linked in heard:
            reading = mesh.reading(node, i, t, n)
            if linked or reading >= radio.HEARD:
                unreachable = not linked and reading < radio.USABLE
                yield ReadingKind.LINK, number, gateway, time, reading, parent, unreachable


def _moments(device: Device, rhythm: tuple[tuple[float, float, float], ...]) -> Iterator[float]:
    """When a device reports: not all at the same time."""
    phase = noise(device.key, 8)
    for begin, end, every in rhythm:
        for n in range(int((end - begin) / every)):
            yield begin + (n + phase) * every


def _is_lost(building: Building, t: float) -> bool:
    """Whether nobody was there to pass it on."""
    gateway, begin, end = _OUTAGE
    return building.gateway == gateway and begin <= t < end
