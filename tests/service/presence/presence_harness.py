"""Presence without a database: a manual clock, gateways that connect, and devices that report."""

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
"""Seconds between two checks of presence."""


class HeartbeatSource(NamedTuple):
    """Device that sends heartbeats every `every` seconds; its clock is `clock_error` seconds ahead."""

    device: str
    every: int = 60
    gateway: str = A
    clock_error: int = 0


class PresenceHarness:
    """Tracker with a manual clock. The given gateways are connected to the embedded broker."""

    def __init__(
        self,
        *gateways: str,
        external_broker: bool = False,
        snapshot: PresenceSnapshot | None = None,
        unresponsive: bool = False,
    ) -> None:
        """Create a harness.

        With `unresponsive`, gateway A never responds, so that only reports tell its time.
        """
        self.now = NOON
        self._connected: dict[int, int] = {}
        self._last_connections: dict[int, int] = {}
        self.clocks = GatewayClocks(self._connection_of)
        if unresponsive:
            self.clocks.mark_unresponsive(mac_to_number(A))
        self.tracker = PresenceTracker(self.clocks, external_broker=external_broker, now=self.now)
        self.changes: list[PresenceChange] = []
        """All changes so far."""
        self._parser = ReportParser("", None)
        self._numbers = count(1)
        self._last_beats: dict[HeartbeatSource, int] = {}
        """Time of the last heartbeat of each source."""
        if snapshot is not None:
            self.tracker.restore(snapshot)
        if gateways:
            self.connect(*gateways)
            self.collect_changes()
            self.changes.clear()

    def connect(self, *gateways: str) -> None:
        """Start new connections of gateways. The tracker applies them with the next flush."""
        for gateway in gateways:
            self._connected[mac_to_number(gateway)] = self._last_connections[mac_to_number(gateway)] = next(
                self._numbers
            )
        self.poll_gateways()

    def disconnect(self, *gateways: str) -> None:
        """End connections."""
        for gateway in gateways:
            del self._connected[mac_to_number(gateway)]
        self.poll_gateways()

    def poll_gateways(self) -> None:
        """Report the connected gateways to the tracker, as the poll of the embedded broker does."""
        self.tracker.set_connected_gateways(dict(self._connected))

    def commit(self, *messages: Publish) -> None:
        """Commit reports as one batch."""
        batch = ParsedBatch(
            self.now, clock_shifts=self.clocks.shifts, is_shift_confirmed=self.clocks.is_confirmed
        )
        self._parser.parse(messages, batch)
        assert batch.rejects == []
        self.tracker.on_commit(batch)

    def _connection_of(self, gateway: int) -> int | None:
        return self._last_connections.get(gateway, 0) if self._last_connections else None

    def collect_changes(self) -> list[PresenceChange]:
        """Return the changes since the last call."""
        flush = self.tracker.prepare_flush({}, self.now)
        new = list(flush.changes)
        self.changes += new
        return new

    def commit_and_collect(self, *messages: Publish) -> list[PresenceChange]:
        """Commit reports and return the changes."""
        self.commit(*messages)
        return self.collect_changes()

    def advance(self, seconds: int, *sources: HeartbeatSource) -> list[PresenceChange]:
        """Advance the time while devices send heartbeats, and return the changes."""
        count_before = len(self.changes)
        for each in sources:
            self._last_beats.setdefault(each, self.now)
        for _ in range(STEP, seconds + 1, STEP):
            self.now += STEP * SECOND
            self.commit_and_collect(*(self._build_heartbeat(each) for each in sources if self._is_due(each)))
        return self.changes[count_before:]

    def _is_due(self, source: HeartbeatSource) -> bool:
        return abs(self.now - self._last_beats[source]) >= source.every * SECOND

    def _build_heartbeat(self, source: HeartbeatSource) -> Publish:
        self._last_beats[source] = self.now
        return heartbeat(self.now + source.clock_error * SECOND, device=source.device, gateway=source.gateway)

    def is_connected(self, device: str) -> bool:
        """Return whether a device is connected."""
        return self.tracker.find_connected(mac_to_number(device)) is not None

    def interval(self, device: str) -> int:
        """Return the usual milliseconds between two heartbeats of a connected device."""
        last_seen = self.tracker.find_connected(mac_to_number(device))
        assert last_seen is not None
        return last_seen.interval


def summarize(changes: list[PresenceChange]) -> list[tuple[str, bool, str]]:
    """Return device, connection state and cause of each change."""
    return [(f"{each.device:012x}", each.connected, str(each.cause)) for each in changes]
