"""Presence without a database: a clock that the test moves, gateways that connect, devices that report."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.parser import ReportParser
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.presence.tracker import PresenceTracker
from tests.service.ingest.messages import A, heartbeat, mac_to_number

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.presence.changes import PresenceChange
    from meshfleet.service.presence.store import PresenceSnapshot

NOON = 1_700_049_600_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000

STEP = 5
"""Seconds between two looks at who is there."""


class HeartbeatSource(NamedTuple):
    """A device that sends a heartbeat again and again, in seconds; `off` is how wrong the clock of it is."""

    device: str
    every: int = 60
    gateway: str = A
    clock_error: int = 0


class PresenceHarness:
    """What presence is told, and what it says. Gateways that are named are connected, if a broker knows."""

    def __init__(
        self,
        *gateways: str,
        external_broker: bool = False,
        snapshot: PresenceSnapshot | None = None,
        unresponsive: bool = False,
    ) -> None:
        """`silent`: gateway A never answers, so that only reports tell its time."""
        self.now = NOON
        self._connected: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self.clocks = GatewayClocks(self._connection_of)
        if unresponsive:
            self.clocks.mark_unresponsive(mac_to_number(A))
        self.tracker = PresenceTracker(self.clocks, external_broker=external_broker, now=self.now)
        self.changes: list[PresenceChange] = []
        """All so far."""
        self._reader = ReportParser("", None)
        self._numbers = count(1)
        self._beaten: dict[HeartbeatSource, int] = {}
        """When each pulse was last felt."""
        if snapshot is not None:
            self.tracker.restore(snapshot)
        if gateways:
            self.connect(*gateways)
            self.collect_changes()
            self.changes.clear()

    def connect(self, *gateways: str) -> None:
        """Begin new connections of gateways; another look has to be taken until anybody knows."""
        for gateway in gateways:
            self._connected[mac_to_number(gateway)] = self._last[mac_to_number(gateway)] = next(self._numbers)
        self.poll_gateways()

    def disconnect(self, *gateways: str) -> None:
        """End connections."""
        for gateway in gateways:
            del self._connected[mac_to_number(gateway)]
        self.poll_gateways()

    def poll_gateways(self) -> None:
        """Tell which gateways are connected, where a broker of ours knows."""
        self.tracker.set_connected_gateways(dict(self._connected))

    def commit(self, *messages: Publish) -> None:
        """Let reports come, as one batch."""
        draft = ParsedBatch(
            self.now, clock_shifts=self.clocks.shifts, is_shift_confirmed=self.clocks.is_confirmed
        )
        self._reader.parse(messages, draft)
        assert draft.rejects == []
        self.tracker.on_commit(draft)

    def _connection_of(self, gateway: int) -> int | None:
        return self._last.get(gateway, 0) if self._last else None

    def collect_changes(self) -> list[PresenceChange]:
        """Who came and went since the last time."""
        entry = self.tracker.prepare_flush({}, self.now)
        new = list(entry.changes)
        self.changes += new
        return new

    def commit_and_collect(self, *messages: Publish) -> list[PresenceChange]:
        """Let reports come, and look at once."""
        self.commit(*messages)
        return self.collect_changes()

    def advance(self, seconds: int, *pulses: HeartbeatSource) -> list[PresenceChange]:
        """Let time pass while devices send heartbeats, and tell what changed."""
        before = len(self.changes)
        for each in pulses:
            self._beaten.setdefault(each, self.now)
        for _ in range(STEP, seconds + 1, STEP):
            self.now += STEP * SECOND
            self.commit_and_collect(*(self._beat(each) for each in pulses if self._is_due(each)))
        return self.changes[before:]

    def _is_due(self, pulse: HeartbeatSource) -> bool:
        return abs(self.now - self._beaten[pulse]) >= pulse.every * SECOND

    def _beat(self, pulse: HeartbeatSource) -> Publish:
        self._beaten[pulse] = self.now
        return heartbeat(self.now + pulse.clock_error * SECOND, device=pulse.device, gateway=pulse.gateway)

    def is_connected(self, device: str) -> bool:
        """Whether a device is connected."""
        return self.tracker.find_connected(mac_to_number(device)) is not None

    def interval(self, device: str) -> int:
        """Milliseconds that usually pass between heartbeats of a device that is connected."""
        rhythm = self.tracker.find_connected(mac_to_number(device))
        assert rhythm is not None
        return rhythm.interval


def summarize(changes: list[PresenceChange]) -> list[tuple[str, bool, str]]:
    """Who came or went, and why."""
    return [(f"{each.device:012x}", each.connected, str(each.cause)) for each in changes]
