"""Fleet whose devices report through extenders, with the real parents, presence, rules and probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.alarms import probes, views
from meshfleet.service.alarms.probes import ProbeResult
from meshfleet.service.topology import store as topology_store
from meshfleet.service.topology.parent_tracker import ParentTracker
from tests.service.alarms.alarm_harness import AlarmHarness
from tests.service.ingest.messages import heartbeat, link, mac_to_number

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.rest.alarms import Alarm

_SLOW_MS = 20 * 60_000


class MeshHarness(AlarmHarness):
    """Fleet with a tree: a device reports only if everything between it and its gateway is switched on."""

    def __init__(self, database: Database, directory: Path) -> None:
        super().__init__(database, directory)
        self.parents: dict[str, str] = {}
        """Parent of each device that reports through others."""
        self.slow: set[str] = set()
        """Devices that send a heartbeat every 20 minutes only."""
        self.probed: list[str] = []
        """Devices that were probed."""
        self._track_parents()

    def _track_parents(self) -> None:
        harness = self.presence.ingest_harness
        tracker = ParentTracker(harness.rollups)
        tracker.restore(self.database.read_now(topology_store.load_known_parents))
        harness.ingest.subscribe(tracker)

    async def restart(self) -> None:
        """Restart as after a crash."""
        await self.presence.restart()
        self._track_parents()

    def add_tree(self, number: int, *levels: tuple[str, int]) -> tuple[str, dict[str, list[str]]]:
        """Claim a gateway with extenders.

        Each level is the place of an extender (`""` is the gateway, `0` its first device, `0.1` the second
        one behind that) and the number of devices behind it. Return the gateway and the devices by place.
        """
        gateway, macs = self.add_gateway(number, sum(count for _, count in levels))
        remaining = iter(macs)
        by_place: dict[str, str] = {"": gateway}
        devices: dict[str, list[str]] = {}
        for place, count in levels:
            devices[place] = [next(remaining) for _ in range(count)]
            for index, device in enumerate(devices[place]):
                by_place[f"{place}.{index}".removeprefix(".")] = device
                self.parents[device] = by_place[place]
        return gateway, devices

    def is_reachable(self, device: str) -> bool:
        """Return whether a device and everything between it and its gateway is switched on."""
        node: str | None = device
        while node is not None:
            if node in self.off:
                return False
            node = self.parents.get(node)
        return True

    def build_reports(self, device: str, gateway: str, at: int) -> list[Publish]:
        """Build a heartbeat and the reading of the parent. Slow devices are heard rarely."""
        if not self.is_reachable(device) or (device in self.slow and at % _SLOW_MS > 60_000):
            return []
        reports = [heartbeat(at, device=device, gateway=gateway)]
        if (parent := self.parents.get(device)) is not None:
            reports.append(link(at, -60, parent, device=device, gateway=gateway))
        return reports

    async def step(self, *, evaluates: bool = True) -> None:
        """Advance the clock by a step. Probes of the step before have their results now."""
        for each in self.database.read_now(probes.list_awaited, self.now):
            mac = mac_from_int(each.device)
            self.probed.append(mac)
            result = ProbeResult.ANSWERED if self.is_reachable(mac) else ProbeResult.LOST
            self.database.write_now(probes.store_result, each.device, result, self.now)
        await super().step(evaluates=evaluates)

    def show(self) -> list[Alarm]:
        """Return the REST bodies of all alarms, oldest first."""
        numbers = [each.id for each in self.alarms()]
        return self.database.read_now(lambda connection: views.load_alarms(connection, numbers, now=self.now))

    def count_member_alarms(self) -> dict[str, int]:
        """Count in how many alarms that are not over each device is a member."""
        found: dict[str, int] = {}
        for alarm in self.alarms():
            for each in self.members(alarm.id):
                found[each] = found.get(each, 0) + 1
        return found


def to_number(mac: str) -> int:
    """Return the stored number of a MAC."""
    return mac_to_number(mac)
