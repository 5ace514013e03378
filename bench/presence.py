"""Presence of a million devices behind 5,000 gateways: what it costs to know who is there.

Every device sends a heartbeat a minute, at moments that differ a little. Time is simulated: figures are CPU
time of presence alone, without the ingest before it. In the same run all that is heard is put into a plain
dict, as the least that anybody could do.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from bench.process_meter import Process
from meshfleet.db import open_database
from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.presence import store
from meshfleet.service.presence.changes import PresenceCause, PresenceChange
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.presence.tracker import PresenceTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Figures = dict[str, float]

THRESHOLDS: Final = {"core_percent": 3.0}
"""What a million devices may take."""

MILLION: Final = 1_000_000
QUICK: Final = 100_000
DEVICES: Final = 200
"""Behind one gateway."""

_GATEWAY, _DEVICE = 1 << 40, 1 << 41
_START: Final = 1_790_000_000_000
_MINUTE: Final = 60
_KNOWN: Final = 6 * _MINUTE
"""Seconds after which the gaps of all devices are known, and each was looked at."""
_ROUND: Final = 3 * _MINUTE
"""Seconds in which every device is looked at once."""
_BATCHES: Final = 5
"""In a second."""
_FLUSH: Final = 10
"""Seconds between two times that changes are collected, for so many devices."""
_SILENT: Final = 10
"""Every so manieth device falls silent."""
_TURNS: Final = 20
_STORED: Final = 20_000
"""Devices in the database, all of which change."""


def run(*, quick: bool) -> dict[str, Any]:
    """Run a fleet, then let parts of it go and come."""
    size = QUICK if quick else MILLION
    simulation = Simulation(size)
    tables = {
        "steady": {f"{size} devices": _steady(simulation)},
        "gateways": {
            f"one with {DEVICES} devices": _gateways(simulation, 1),
            "all of them": _gateways(simulation, len(simulation.gateways)),
        },
        "silence": {f"one of {_SILENT} devices": _silence(simulation)},
        "written to SQLite": {"changes": _written()},
    }
    return {**tables, "bars": THRESHOLDS}


class Simulation:
    """A fleet whose time goes as fast as presence can follow it."""

    def __init__(self, size: int) -> None:
        gateways = list(range(_GATEWAY, _GATEWAY + size // DEVICES))  # each number once, as ingest has them
        self._beats = [(_DEVICE + number, gateways[number // DEVICES]) for number in range(size)]
        Random(1).shuffle(self._beats)  # noqa: S311 # the same order every time
        self._late = [Random(2).randrange(1000) for _ in range(997)]  # noqa: S311 # and the same moments
        self.gateways = dict.fromkeys(range(_GATEWAY, _GATEWAY + size // DEVICES), 1)
        self.size = size
        self.now = _START
        self.silent: range = range(0)
        """Devices of which nothing is heard."""
        self._heard = {_DEVICE + each: _START + each for each in range(size)}
        """The anchor, with numbers of its own as presence has them."""
        self._memory = Process(os.getpid()).memory
        self.presence = PresenceTracker(GatewayClocks(), external_broker=False, now=self.now)
        self.presence.restore(_known(size))
        self.presence.set_connected_gateways(self.gateways)
        self.reset_counters()

    def reset_counters(self) -> None:
        """Count from now on."""
        self.presence_cpu = self.baseline_cpu = 0.0
        self.beats = 0
        self.collected: list[tuple[float, int]] = []
        """Seconds of CPU time that each collection took, and how many changes it found."""

    def advance(self, seconds: int) -> None:
        """Let time pass."""
        for _ in range(seconds):
            self.now += 1000
            for draft in self._second(self.now // 1000 % _MINUTE):
                self.presence_cpu += _cpu(self.presence.on_commit, draft)
                self.baseline_cpu += _cpu(self._keep, draft)
                self.beats += len(draft.readings)
            if self.now // 1000 % _FLUSH == 0:
                self.collect()

    def collect(self) -> Sequence[PresenceChange]:
        """Collect changes, as a flush does."""
        before = time.process_time()
        entry = self.presence.prepare_flush({}, self.now)
        changes = entry.changes
        self.collected.append((time.process_time() - before, len(changes)))
        return changes

    @property
    def memory(self) -> float:
        """MiB that presence has."""
        gc.collect()
        return Process(os.getpid()).memory - self._memory

    def _second(self, second: int) -> Iterator[ParsedBatch]:
        """What is heard in one of the seconds of a minute."""
        bounds = [
            self.size * (second * _BATCHES + part) // (_MINUTE * _BATCHES) for part in range(_BATCHES + 1)
        ]
        for start, stop in pairwise(bounds):
            draft = ParsedBatch(self.now)
            draft.readings += [
                (
                    ReadingKind.HEARTBEAT,
                    device,
                    gateway,
                    self.now - self._late[(place + self.now) % 997],
                    0,
                    0,
                    False,
                )
                for place, (device, gateway) in enumerate(self._beats[start:stop])
                if device not in self.silent
            ]
            yield draft

    def _keep(self, draft: ParsedBatch) -> None:
        heard = self._heard
        for _, device, _, at, _, _, _ in draft.readings:
            heard[device] = at


def _steady(simulation: Simulation) -> Figures:
    simulation.advance(_KNOWN)
    simulation.reset_counters()
    simulation.advance(_ROUND)
    collected = sum(cpu for cpu, _ in simulation.collected)
    each = MILLION / simulation.size
    return {
        "core_percent": round((simulation.presence_cpu + collected) / _ROUND * 100 * each, 2),
        "cpu_us": round((simulation.presence_cpu + collected) / simulation.beats * 1e6, 3),
        "follow_us": round(simulation.presence_cpu / simulation.beats * 1e6, 3),
        "dict_us": round(simulation.baseline_cpu / simulation.beats * 1e6, 3),
        "of dict": round((simulation.presence_cpu + collected) / simulation.baseline_cpu, 2),
        "collect_ms_max": round(max(cpu for cpu, _ in simulation.collected) * 1e3 * each, 1),
        "MiB": round(simulation.memory * each),
    }


def _gateways(simulation: Simulation, count: int) -> Figures:
    """So many gateways go and come back, again and again."""
    some = list(simulation.gateways)[:count]
    rest = {each: number for each, number in simulation.gateways.items() if each not in set(some)}
    simulation.collect()
    simulation.reset_counters()
    changes = 0
    for _ in range(_TURNS if count == 1 else 1):
        for present in (rest, simulation.gateways):
            simulation.presence.set_connected_gateways(present)
            changes += len(simulation.collect())
    costs = [cpu for cpu, _ in simulation.collected]
    return {
        "changes": changes / len(costs),
        "going_ms": round(statistics.median(costs[::2]) * 1e3, 2),
        "coming_ms": round(statistics.median(costs[1::2]) * 1e3, 2),
        "cpu_us_of_change": round(sum(costs) / changes * 1e6, 2),
    }


def _silence(simulation: Simulation) -> Figures:
    """Some devices fall silent at the same moment, are missed, and come back in the course of a minute."""
    simulation.silent = range(_DEVICE, _DEVICE + simulation.size, _SILENT)
    simulation.reset_counters()
    simulation.advance(_ROUND + _MINUTE + _FLUSH)
    gone = [each for each in simulation.collected if each[1]]
    simulation.silent = range(0)
    simulation.reset_counters()
    simulation.advance(_MINUTE + _FLUSH)
    back = [each for each in simulation.collected if each[1]]
    return {
        "gone": sum(changes for _, changes in gone),
        "collect_ms_max": round(max(cpu for cpu, _ in gone) * 1e3, 1),
        "back": sum(changes for _, changes in back),
        "collect_back_ms_max": round(max(cpu for cpu, _ in back) * 1e3, 1),
    }


def _written() -> Figures:
    """Milliseconds for a thousand changes in one transaction, with all that a device has in the registry."""
    numbers = range(_DEVICE, _DEVICE + _STORED)
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        database = open_database("sqlite", Path(folder))
        try:
            sightings = [
                DeviceObservation(
                    device=mac_from_int(each), at=_START, heard=True, gateway=mac_from_int(_GATEWAY)
                )
                for each in numbers
            ]
            database.write_now(registry.record_observations, sightings)
            came = [
                PresenceChange.to_connected(each, _START, PresenceCause.HEARD, _GATEWAY) for each in numbers
            ]
            went = [
                PresenceChange.to_disconnected(each, _START + 1, PresenceCause.SILENT, _GATEWAY)
                for each in numbers
            ]
            costs, found = [], 0
            for changes in (came, went) * 3:
                before = time.process_time()
                found += len(database.write_now(store.update_presence, changes).written)
                costs.append(time.process_time() - before)
        finally:
            database.close()
    if found < 5 * _STORED:
        raise RuntimeError(f"only {found} changes were written")
    return {"of": _STORED, "ms_per_1000": round(statistics.median(costs[1:]) / _STORED * 1e6, 2)}


def _known(size: int) -> store.PresenceSnapshot:
    """A fleet that was there before a start, with numbers of its own as a database gives them."""
    devices = [(_DEVICE + each, _GATEWAY + each // DEVICES, _MINUTE * 1000) for each in range(size)]
    return store.PresenceSnapshot({_GATEWAY + each for each in range(size // DEVICES)}, devices)


def _cpu(work: Callable[[ParsedBatch], None], draft: ParsedBatch) -> float:
    before = time.process_time()
    work(draft)
    return time.process_time() - before
