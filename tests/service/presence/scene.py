"""Presence without a database: a clock that the test moves, gateways that connect, devices that report."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.service.ingest.draft import Draft
from meshfleet.service.ingest.reading import Reader
from meshfleet.service.presence.clocks import Clocks
from meshfleet.service.presence.presence import Presence
from tests.service.ingest.messages import A, heartbeat, number

if TYPE_CHECKING:
    from meshfleet.service.presence.model import Change
    from meshfleet.service.presence.store import Known
    from meshfleet.wire.mqtt.packets import Publish

NOON = 1_700_049_600_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000

STEP = 5
"""Seconds between two looks at who is there."""


class Pulse(NamedTuple):
    """A device that sends a heartbeat again and again, in seconds; `off` is how wrong the clock of it is."""

    device: str
    every: int = 60
    gateway: str = A
    off: int = 0


class Scene:
    """What presence is told, and what it says. Gateways that are named are connected, if a broker knows."""

    def __init__(
        self, *gateways: str, by_hearing: bool = False, known: Known | None = None, silent: bool = False
    ) -> None:
        """`silent`: gateway A never answers, so that only reports tell its time."""
        self.now = NOON
        self._connected: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self.clocks = Clocks(self._connection_of)
        if silent:
            self.clocks.miss_answer(number(A))
        self.presence = Presence(self.clocks, by_hearing=by_hearing, now=self.now)
        self.changes: list[Change] = []
        """All so far."""
        self._reader = Reader("", None)
        self._numbers = count(1)
        self._beaten: dict[Pulse, int] = {}
        """When each pulse was last felt."""
        if known is not None:
            self.presence.restore(known)
        if gateways:
            self.connect(*gateways)
            self.look()
            self.changes.clear()

    def connect(self, *gateways: str) -> None:
        """Begin new connections of gateways; another look has to be taken until anybody knows."""
        for gateway in gateways:
            self._connected[number(gateway)] = self._last[number(gateway)] = next(self._numbers)
        self.call_roll()

    def disconnect(self, *gateways: str) -> None:
        """End connections."""
        for gateway in gateways:
            del self._connected[number(gateway)]
        self.call_roll()

    def call_roll(self) -> None:
        """Tell which gateways are connected, where a broker of ours knows."""
        self.presence.arrive(dict(self._connected))

    def take(self, *messages: Publish) -> None:
        """Let reports come, as one batch."""
        draft = Draft(self.now, shifts=self.clocks.shifts, is_proved=self.clocks.is_proved)
        self._reader.read(messages, draft)
        assert draft.rejects == []
        self.presence.follow(draft)

    def _connection_of(self, gateway: int) -> int | None:
        return self._last.get(gateway, 0) if self._last else None

    def look(self) -> list[Change]:
        """Who came and went since the last time."""
        entry = self.presence.collect({}, self.now)
        new = list(entry.changes)
        self.changes += new
        return new

    def see(self, *messages: Publish) -> list[Change]:
        """Let reports come, and look at once."""
        self.take(*messages)
        return self.look()

    def go_on(self, seconds: int, *pulses: Pulse) -> list[Change]:
        """Let time pass while devices send heartbeats, and tell what changed."""
        before = len(self.changes)
        for each in pulses:
            self._beaten.setdefault(each, self.now)
        for _ in range(STEP, seconds + 1, STEP):
            self.now += STEP * SECOND
            self.see(*(self._beat(each) for each in pulses if self._is_due(each)))
        return self.changes[before:]

    def _is_due(self, pulse: Pulse) -> bool:
        return abs(self.now - self._beaten[pulse]) >= pulse.every * SECOND

    def _beat(self, pulse: Pulse) -> Publish:
        self._beaten[pulse] = self.now
        return heartbeat(self.now + pulse.off * SECOND, device=pulse.device, gateway=pulse.gateway)

    def has(self, device: str) -> bool:
        """Whether a device is connected."""
        return self.presence.believes_in(number(device)) is not None

    def interval(self, device: str) -> int:
        """Milliseconds that usually pass between heartbeats of a device that is connected."""
        rhythm = self.presence.believes_in(number(device))
        assert rhythm is not None
        return rhythm.interval


def brief(changes: list[Change]) -> list[tuple[str, bool, str]]:
    """Who came or went, and why."""
    return [(f"{each.device:012x}", each.connected, str(each.cause)) for each in changes]
