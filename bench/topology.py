"""Time to answer the topology of a gateway: now with 500 and 10,000 devices, and in the past with 500.

Each device has six links, of which one is established. A present answer is read from memory: links, tree,
dominators, REST body and JSON. A past answer reads a day's minutes from the sample store. The anchor finds
the devices that a node cuts off in the obvious way: one search through the mesh for each node.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.db import open_database
from meshfleet.db.samples import open_sample_store
from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store as gateway_store
from meshfleet.service.ingest.readings import CHANNEL_SHIFT, ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.topology import views
from meshfleet.service.topology.reader import TopologyReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.topology.tree import Tree

THRESHOLDS: Final = {"500 devices, now, ms": 50.0}

_GATEWAY: Final = 0x02005E000001
_FIRST: Final = 0xCA5BDA000000
_USUAL, _MANY = 500, 10_000
_CHILDREN: Final = 4
_LINKS: Final = 6
_MINUTE: Final = 60_000
_NOW: Final = 1_763_500_000_000 - 1_763_500_000_000 % _MINUTE
_HISTORY_MINUTES, _QUICK_HISTORY_MINUTES = 24 * 60, 60
_ROUNDS, _QUICK_ROUNDS = 15, 5


def run(*, quick: bool) -> dict[str, Any]:
    """Measure present and past answers, and the anchor."""
    return {
        "one answer": asyncio.run(_measure(quick=quick)),
        "bars": THRESHOLDS,
    }


async def _measure(*, quick: bool) -> dict[str, dict[str, float]]:
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    rows = {}
    for count in (_USUAL, _MANY):
        with TemporaryDirectory() as folder, closing(open_database("sqlite", Path(folder))) as database:
            rollups = Rollups()
            rollups.add(1, list(_build_readings(count, _NOW)), _NOW)
            with closing(open_sample_store(database, Path(folder), {}, now=_NOW)) as samples:
                _claim(database)
                reader = _open_reader(database, samples, rollups)
                await reader.read_tree(_GATEWAY)  # reads the time before the start, only once
                rows[f"{count:,} devices, now"] = await _time_answers(reader, None, rounds)
                tree = await reader.read_tree(_GATEWAY)
                if count == _USUAL:
                    rows["anchor: cut off by a search for each node"] = _time_anchor(tree)
                    await _write_history(database, samples, count, quick=quick)
                    past = _NOW - 30 * _MINUTE
                    rows[f"{count:,} devices, past"] = await _time_answers(reader, past, min(rounds, 5))
    return rows


def _open_reader(database: Database, samples: SampleStore, rollups: Rollups) -> TopologyReader:
    return TopologyReader(database, samples, rollups=rollups, parents={}, now=lambda: _NOW + 1)


async def _time_answers(reader: TopologyReader, at: int | None, rounds: int) -> dict[str, float]:
    """Return the median time of an answer, and its size."""
    times, cpu = [], []
    nodes, size = 0, 0
    for _ in range(rounds):
        started, cpu_started = time.perf_counter(), time.process_time()
        tree = await reader.read_tree(_GATEWAY, at)
        size = len(msgspec.json.encode(views.build_topology(tree, _NOW)))
        times.append(time.perf_counter() - started)
        cpu.append(time.process_time() - cpu_started)
        nodes = len(tree.nodes)
    return {
        "ms": round(statistics.median(times) * 1000, 1),
        "cpu_ms": round(statistics.median(cpu) * 1000, 1),
        "nodes": nodes,
        "kib": round(size / 1024),
    }


def _time_anchor(tree: Tree) -> dict[str, float]:
    """Find what each node cuts off by a search for each node. Return the time."""
    below: dict[int, list[int]] = {}
    for device, choice in tree.choices.items():
        for parent in choice.usable:
            below.setdefault(parent, []).append(device)
    started = time.perf_counter()
    for removed in tree.nodes:
        found, stack = {tree.gateway}, [tree.gateway] if removed != tree.gateway else []
        while stack:
            for device in below.get(stack.pop(), ()):
                if device != removed and device not in found:
                    found.add(device)
                    stack.append(device)
    return {"ms": round((time.perf_counter() - started) * 1000, 1), "nodes": len(tree.nodes)}


def _build_readings(count: int, at: int) -> Iterator[Reading]:
    """Yield one reading of each link of a mesh in which each node has four children."""
    numbers = Random(1)  # noqa: S311 # not a secret
    for index in range(count):
        parent = _GATEWAY if index < _CHILDREN else _FIRST + index // _CHILDREN - 1
        yield ReadingKind.LINK, _FIRST + index, _GATEWAY, at, numbers.randint(-85, -50), parent, 0
        if index > _CHILDREN:
            yield ReadingKind.LINK, parent, _GATEWAY, at, numbers.randint(-85, -50), _FIRST + index, 0
        for _ in range(_LINKS - 1):
            other = _FIRST + numbers.randrange(count)
            channel = numbers.randint(1, 3) << CHANNEL_SHIFT
            yield ReadingKind.LINK, _FIRST + index, _GATEWAY, at, numbers.randint(-95, -60), other, channel


def _claim(database: Database) -> None:
    gateway = mac_from_int(_GATEWAY)
    database.write_now(gateway_store.claim_gateway, gateway, name=None, by=COMMAND_LINE, now=_NOW)


async def _write_history(database: Database, samples: SampleStore, count: int, *, quick: bool) -> None:
    """Write the minutes of links, up to a day."""
    gateway = mac_from_int(_GATEWAY)
    observations = [
        DeviceObservation(device=mac_from_int(_FIRST + index), at=_NOW, heard=False, gateway=gateway)
        for index in range(count)
    ]
    database.write_now(registry.record_observations, observations)
    minutes = _QUICK_HISTORY_MINUTES if quick else _HISTORY_MINUTES
    for minute in range(minutes, 0, -1):
        at = _NOW - minute * _MINUTE
        rollups = Rollups()
        rollups.add(1, list(_build_readings(count, at)), at)
        rows = rollups.close_ended_minutes(at + 10 * _MINUTE)
        number = database.write_now(samples.write, rows, at)
        samples.publish_committed(number, rows)
        if minute % 60 == 0:
            await samples.maintain(at)
