"""Reads the links of the devices of a gateway, now or in the past, and builds the topology from them.

The present is in memory. The past is read from the minutes of links in the database: those of all devices
that belonged to the gateway, in the hour before. After a start, the present of a gateway is read once in this
way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.db.samples.sample import SampleKind, WindowQuery
from meshfleet.service.ingest.minute_rollup import decode_minute
from meshfleet.service.ingest.recent_links import KEPT_MS, Links, LinkState, keep_newest
from meshfleet.service.topology import store
from meshfleet.service.topology.link_choice import choose_links
from meshfleet.service.topology.tree import HeardDevice, Tree, build_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore, StoredSample
    from meshfleet.db.samples.sample import DeviceSample
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.rollups import Rollups

_DEVICES_PER_READ: Final = 200
"""Number of devices whose links are read together; then other tasks and readers have their turn."""

_KINDS: Final = frozenset({int(SampleKind.LINK), int(SampleKind.HEARTBEAT)})

_MINUTE_MS: Final = 60_000


class TopologyReader:
    """Reads the topology of gateways, now or in the past."""

    def __init__(
        self,
        database: Database,
        samples: SampleStore,
        *,
        rollups: Rollups,
        parents: Mapping[int, int],
        now: Now,
    ) -> None:
        """Create a reader. `parents` are the known parents of devices, which the caller keeps up to date."""
        self._database = database
        self._samples = samples
        self._rollups = rollups
        self._parents = parents
        self._now = now
        self._started_at = now()
        self._loaded_gateways: set[int] = set()
        """Gateways whose links of the time before the start are in memory."""
        self._load_lock = asyncio.Lock()

    async def read_tree(self, gateway: int, at: int | None = None) -> Tree:
        """Read the topology of a gateway at a time, by default now. Raise `NotFound` if it is not claimed."""
        await self._database.read(store.check_gateway, gateway)
        now = self._now()
        if at is None or at >= now:
            links = await self._collect_present(gateway, now)
            return await self._build(gateway, links, now, self._parents)
        links = await self._read_links(gateway, at)
        return await self._build(gateway, links, at, {})

    async def find_gateway(self, device: int) -> int | None:
        """Return the gateway to which a device belongs now; None if the device was not heard recently."""
        now = self._now()
        stored_gateway = await self._database.read(store.load_device_gateway, device)
        if stored_gateway is not None:
            await self._load_stored(stored_gateway, now)
        intervals = await self._database.read(store.load_intervals, [device])
        choice = choose_links(
            device, self._rollups.get_links(device), now=now, interval=min(intervals[device], KEPT_MS)
        )
        return None if choice is None else choice.home

    async def _collect_present(self, gateway: int, now: int) -> dict[int, Links]:
        """Return the present links of the devices that a gateway reports, by device."""
        await self._load_stored(gateway, now)
        links: dict[int, Links] = {}
        for devices in _split(sorted(self._rollups.recent.list_devices(gateway))):
            links |= {device: self._rollups.get_links(device) for device in devices}
            await asyncio.sleep(0)
        return links

    async def _load_stored(self, gateway: int, now: int) -> None:
        """Load the links from before the start of this process into memory, once for each gateway."""
        if gateway in self._loaded_gateways or now - self._started_at > KEPT_MS:
            return
        async with self._load_lock:
            if gateway not in self._loaded_gateways:
                self._rollups.recent.add_stored(await self._read_links(gateway, self._started_at))
                self._loaded_gateways.add(gateway)

    async def _read_links(self, gateway: int, at: int) -> dict[int, Links]:
        """Read the links of the devices of a gateway in the hour before a time, by device."""
        links: dict[int, Links] = {}
        for devices in _split(await self._database.read(store.list_devices, gateway, at)):
            # Before the stored minutes: then a minute that is committed in between is read twice, not missed.
            unwritten = [
                (device, sample)
                for device in devices
                for sample in self._rollups.list_unwritten_minutes(device, _KINDS)
                if at - KEPT_MS < sample.time <= at
            ]
            query = WindowQuery(devices=devices, kinds=_KINDS, since=at - KEPT_MS + 1, until=at + 1)
            stored = await self._samples.read_window(query, _collect_links)
            for device, sample in unwritten:
                _add_sample(stored.setdefault(device, {}), sample)
            links |= stored
        return links

    async def _build(
        self, gateway: int, links: Mapping[int, Links], at: int, parents: Mapping[int, int]
    ) -> Tree:
        intervals = await self._database.read(store.load_intervals, list(links))
        known = {device: parents.get(device) for device in links}  # copied: the thread must not see changes
        return await asyncio.to_thread(_build_tree, gateway, links, intervals, known, at)


def _build_tree(
    gateway: int,
    links: Mapping[int, Links],
    intervals: Mapping[int, int],
    parents: Mapping[int, int | None],
    at: int,
) -> Tree:
    """Build the tree of the devices that belong to a gateway."""
    return build_tree(gateway, _list_heard(gateway, links, intervals, parents, at))


def _list_heard(
    gateway: int,
    links: Mapping[int, Links],
    intervals: Mapping[int, int],
    parents: Mapping[int, int | None],
    at: int,
) -> Iterator[HeardDevice]:
    """Yield the devices that belong to a gateway and were heard recently."""
    for device, device_links in links.items():
        interval = max(intervals[device], _MINUTE_MS)
        choice = choose_links(device, device_links, now=at, interval=interval)
        if choice is not None and choice.home == gateway:
            rate = sum(link.count for link in device_links.values()) * _MINUTE_MS / interval
            yield HeardDevice(device, choice, parents.get(device), rate)


def _collect_links(samples: Iterator[DeviceSample]) -> dict[int, Links]:
    """Collect the newest minute of each link, by device."""
    found: dict[int, Links] = {}
    for device, sample in samples:
        _add_sample(found.setdefault(device, {}), sample)
    return found


def _add_sample(links: Links, sample: StoredSample) -> None:
    """Add a minute to the links of its device, unless its time is implausible."""
    minute = decode_minute(sample)
    if minute is None or sample.number is None:
        return
    is_link = sample.kind == SampleKind.LINK
    keep_newest(
        links,
        sample.identifier,
        LinkState(
            sample.gateway,
            minute.last_at,
            minute.last if is_link else 0,
            sample.number if is_link else 0.0,
            unreachable=minute.unreachable,
            linked_at=minute.newest_linked_at if is_link else 0,
            count=minute.count,
        ),
    )


def _split(devices: Sequence[int]) -> Iterable[Sequence[int]]:
    """Split a list of devices into parts that are read together."""
    return (devices[start : start + _DEVICES_PER_READ] for start in range(0, len(devices), _DEVICES_PER_READ))
