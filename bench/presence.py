"""CPU time of presence tracking for a million devices behind 5,000 gateways.

Every device sends a heartbeat per minute, at slightly varying times. Time is simulated: metrics are the CPU
time of presence alone, without the ingest before it. As the anchor, the same heartbeats are stored in a plain
dict in the same run.
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

    Metrics = dict[str, float]

THRESHOLDS: Final = {"core_percent": 3.0}
"""Limits for a million devices."""

MILLION: Final = 1_000_000
QUICK: Final = 100_000
DEVICES: Final = 200
"""Devices per gateway."""

_GATEWAY, _DEVICE = 1 << 40, 1 << 41
_START: Final = 1_790_000_000_000
_MINUTE: Final = 60
_WARM_UP: Final = 6 * _MINUTE
"""Seconds after which the intervals of all devices are known, and each was checked."""
_ROUND: Final = 3 * _MINUTE
"""Seconds in which every device is checked once."""
_BATCHES: Final = 5
"""Batches per second."""
_FLUSH: Final = 10
"""Seconds between two collections of changes."""
_SILENT: Final = 10
"""Every n-th device falls silent."""
_TURNS: Final = 20
_STORED: Final = 20_000
"""Devices in the database whose presence changes."""


def run(*, quick: bool) -> dict[str, Any]:
    """Run a fleet, then disconnect and reconnect parts of it."""
    size = QUICK if quick else MILLION
    simulation = Simulation(size)
    tables = {
        "steady": {f"{size} devices": _measure_steady(simulation)},
        "gateways": {
            f"one with {DEVICES} devices": _measure_gateways(simulation, 1),
            "all of them": _measure_gateways(simulation, len(simulation.gateways)),
        },
        "silence": {f"one of {_SILENT} devices": _measure_silence(simulation)},
        "written to SQLite": {"changes": _measure_writes()},
    }
    return {**tables, "bars": THRESHOLDS}


class Simulation:
    """Fleet with simulated time, which runs as fast as presence can process it."""

    def __init__(self, size: int) -> None:
        gateways = list(
            range(_GATEWAY, _GATEWAY + size // DEVICES)
        )  # one int object per gateway, as in the ingest
        self._beats = [(_DEVICE + number, gateways[number // DEVICES]) for number in range(size)]
        Random(1).shuffle(self._beats)  # noqa: S311 # the same order every time
        self._delays = [Random(2).randrange(1000) for _ in range(997)]  # noqa: S311 # the same delays every time
        self.gateways = dict.fromkeys(range(_GATEWAY, _GATEWAY + size // DEVICES), 1)
        self.size = size
        self.now = _START
        self.silent: range = range(0)
        """Devices that send nothing."""
        self._heard = {_DEVICE + each: _START + each for each in range(size)}
        """Anchor: last time of each device, with int objects of its own as in presence."""
        self._memory = Process(os.getpid()).memory
        self.presence = PresenceTracker(GatewayClocks(), external_broker=False, now=self.now)
        self.presence.restore(_build_snapshot(size))
        self.presence.set_connected_gateways(self.gateways)
        self.reset_counters()

    def reset_counters(self) -> None:
        """Reset the counters."""
        self.presence_cpu = self.baseline_cpu = 0.0
        self.beats = 0
        self.collected: list[tuple[float, int]] = []
        """CPU seconds and number of changes of each collection."""

    def advance(self, seconds: int) -> None:
        """Advance the simulated time."""
        for _ in range(seconds):
            self.now += 1000
            for batch in self._batches_of_second(self.now // 1000 % _MINUTE):
                self.presence_cpu += _measure_cpu(self.presence.on_commit, batch)
                self.baseline_cpu += _measure_cpu(self._store_in_dict, batch)
                self.beats += len(batch.readings)
            if self.now // 1000 % _FLUSH == 0:
                self.collect()

    def collect(self) -> Sequence[PresenceChange]:
        """Collect the changes, as a flush does."""
        before = time.process_time()
        entry = self.presence.prepare_flush({}, self.now)
        changes = entry.changes
        self.collected.append((time.process_time() - before, len(changes)))
        return changes

    @property
    def memory(self) -> float:
        """Memory of presence in MiB."""
        gc.collect()
        return Process(os.getpid()).memory - self._memory

    def _batches_of_second(self, second: int) -> Iterator[ParsedBatch]:
        """Yield the batches of heartbeats of one second of a minute."""
        bounds = [
            self.size * (second * _BATCHES + part) // (_MINUTE * _BATCHES) for part in range(_BATCHES + 1)
        ]
        for start, stop in pairwise(bounds):
            batch = ParsedBatch(self.now)
            batch.readings += [
                (
                    ReadingKind.HEARTBEAT,
                    device,
                    gateway,
                    self.now - self._delays[(index + self.now) % 997],
                    0,
                    0,
                    0,
                )
                for index, (device, gateway) in enumerate(self._beats[start:stop])
                if device not in self.silent
            ]
            yield batch

    def _store_in_dict(self, batch: ParsedBatch) -> None:
        last_times = self._heard
        for _, device, _, at, _, _, _ in batch.readings:
            last_times[device] = at


def _measure_steady(simulation: Simulation) -> Metrics:
    simulation.advance(_WARM_UP)
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


def _measure_gateways(simulation: Simulation, count: int) -> Metrics:
    """Disconnect and reconnect a number of gateways repeatedly."""
    affected = list(simulation.gateways)[:count]
    rest = {each: number for each, number in simulation.gateways.items() if each not in set(affected)}
    simulation.collect()
    simulation.reset_counters()
    changes = 0
    for _ in range(_TURNS if count == 1 else 1):
        for connected in (rest, simulation.gateways):
            simulation.presence.set_connected_gateways(connected)
            changes += len(simulation.collect())
    costs = [cpu for cpu, _ in simulation.collected]
    return {
        "changes": changes / len(costs),
        "going_ms": round(statistics.median(costs[::2]) * 1e3, 2),
        "coming_ms": round(statistics.median(costs[1::2]) * 1e3, 2),
        "cpu_us_of_change": round(sum(costs) / changes * 1e6, 2),
    }


def _measure_silence(simulation: Simulation) -> Metrics:
    """Let some devices fall silent, wait until they count as disconnected, and let them report again."""
    simulation.silent = range(_DEVICE, _DEVICE + simulation.size, _SILENT)
    simulation.reset_counters()
    simulation.advance(_ROUND + _MINUTE + _FLUSH)
    disconnected = [each for each in simulation.collected if each[1]]
    simulation.silent = range(0)
    simulation.reset_counters()
    simulation.advance(_MINUTE + _FLUSH)
    reconnected = [each for each in simulation.collected if each[1]]
    return {
        "gone": sum(changes for _, changes in disconnected),
        "collect_ms_max": round(max(cpu for cpu, _ in disconnected) * 1e3, 1),
        "back": sum(changes for _, changes in reconnected),
        "collect_back_ms_max": round(max(cpu for cpu, _ in reconnected) * 1e3, 1),
    }


def _measure_writes() -> Metrics:
    """Measure the time of presence changes in one transaction, with complete registry rows."""
    numbers = range(_DEVICE, _DEVICE + _STORED)
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        database = open_database("sqlite", Path(folder))
        try:
            observations = [
                DeviceObservation(
                    device=mac_from_int(each), at=_START, heard=True, gateway=mac_from_int(_GATEWAY)
                )
                for each in numbers
            ]
            database.write_now(registry.record_observations, observations)
            connects = [
                PresenceChange.to_connected(each, _START, PresenceCause.HEARD, _GATEWAY) for each in numbers
            ]
            disconnects = [
                PresenceChange.to_disconnected(each, _START + 1, PresenceCause.SILENT, _GATEWAY)
                for each in numbers
            ]
            costs, written = [], 0
            for changes in (connects, disconnects) * 3:
                before = time.process_time()
                written += len(database.write_now(store.update_presence, changes).written)
                costs.append(time.process_time() - before)
        finally:
            database.close()
    if written < 5 * _STORED:
        raise RuntimeError(f"only {written} changes were written")
    return {"of": _STORED, "ms_per_1000": round(statistics.median(costs[1:]) / _STORED * 1e6, 2)}


def _build_snapshot(size: int) -> store.PresenceSnapshot:
    """Build the stored presence of the fleet, with int objects of its own as from a database."""
    devices = [
        store.ConnectedDevice(_DEVICE + each, _GATEWAY + each // DEVICES, _MINUTE * 1000)
        for each in range(size)
    ]
    return store.PresenceSnapshot({_GATEWAY + each for each in range(size // DEVICES)}, devices)


def _measure_cpu(work: Callable[[ParsedBatch], None], batch: ParsedBatch) -> float:
    before = time.process_time()
    work(batch)
    return time.process_time() - before
