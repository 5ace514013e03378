"""One simulated device: its state, and what follows from it.

There may be hundreds of thousands in a process. What most devices never have is None until they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.gateway.world.noise import bits, key_of, noise, wait
from meshfleet.gateway.world.products import Mode
from meshfleet.gateway.world.samples import Samples
from meshfleet.wire.ids import Identifier

if TYPE_CHECKING:
    from meshfleet.gateway.world.node import Node
    from meshfleet.gateway.world.products import Product
    from meshfleet.gateway.world.site import Fixture
    from meshfleet.wire.codes import AccessType, Kind
    from meshfleet.wire.ids import Mac, Version

LOW_BATTERY: Final = 10
"""Percent, below which a device complains."""

_BATTERY_LIFE: Final = 5 * 365 * 24 * 3600.0

ADVERTISEMENTS: Final = 3
"""Copies of every heartbeat that a device sends."""

DOORS_A_BEAT: Final = 4

_STILL: Final = 600.0
_MOVING: Final = 60.0
"""Seconds, on average."""

_MOTION_TIMEOUT = Identifier("8204")


class Reset:
    """Why a device started, as 8102 says it."""

    POWER_ON: Final = 0
    WATCHDOG: Final = 2
    SOFTWARE: Final = 4


class ThroughputTest(Struct):
    """A test in which a device sends packets that say nothing."""

    left: int
    interval: float
    burst: int
    priority: int


class Device:
    """A device, or the gateway as one."""

    __slots__ = (
        "access",
        "battery",
        "beats",
        "booted",
        "copies",
        "doors",
        "faulty",
        "is_away",
        "is_reporting",
        "is_silent",
        "key",
        "mac",
        "mode",
        "moved",
        "node",
        "product",
        "received",
        "reset",
        "samples",
        "seqs",
        "test",
        "transitions",
        "turned",
        "update",
        "values",
        "version",
    )

    def __init__(self, fixture: Fixture, node: Node, seed: int) -> None:
        self.product: Product = fixture.product
        self.mac: Mac = fixture.mac
        self.node = node
        self.key = key_of(seed, fixture.mac)
        self.access: AccessType | None = fixture.access
        self.mode = fixture.mode
        self.version: Version = self.product.firmware
        self.battery = fixture.battery
        self.booted = -float(bits(self.key, 4) % 5_000_000)  # it has hung there for up to two months
        self.reset = Reset.POWER_ON
        self.beats = 0
        self.copies = ADVERTISEMENTS
        """Of the last heartbeat, as many as were heard."""
        self.seqs = bytearray(len(self.product.series))
        self.values: dict[Identifier, bytes] | None = None
        """What was written, or has changed by itself."""
        self.samples: dict[tuple[Kind, Identifier], Samples] | None = None
        self.transitions = 0
        self.turned = 0.0
        """When it last started or stopped moving."""
        self.moved = 0.0
        """Seconds in motion up to then."""
        self.doors = bits(self.key, 5) % 1000
        self.faulty = False
        self.is_silent = False
        self.is_away = False
        """Rebooting, or in the hands of its bootloader."""
        self.is_reporting = False
        self.received = 0
        """Packets of throughput tests."""
        self.test: ThroughputTest | None = None
        self.update: bytes | None = None
        """The raw firmware-update-state (8120); None: idle since it started."""

    @property
    def is_reachable(self) -> bool:
        """Whether it takes requests at all."""
        return not (self.is_silent or self.is_away or self.mode in (Mode.STORAGE, Mode.DFU))

    @property
    def is_connected(self) -> bool:
        """Whether it is meant to hold a link."""
        return self.mode is Mode.CONNECTED

    def next_seq(self, kind: Kind, identifier: Identifier | None = None) -> int:
        """Count a report of a series: 0 to 255, and again."""
        place = self.product.series[kind, identifier]
        seq = self.seqs[place]
        self.seqs[place] = (seq + 1) & 0xFF
        return seq

    def value(self, identifier: Identifier) -> bytes:
        """What a stored property holds."""
        if self.values is not None and identifier in self.values:
            return self.values[identifier]
        return self.product.values[identifier]

    def set_value(self, identifier: Identifier, raw: bytes) -> None:
        """Change a stored property."""
        if self.values is None:
            self.values = {}
        self.values[identifier] = raw

    def samples_of(self, kind: Kind, identifier: Identifier) -> Samples:
        """The samples of a series that wait for their ack."""
        if self.samples is None:
            self.samples = {}
        found = self.samples.get((kind, identifier))
        if found is None:
            found = self.samples[kind, identifier] = Samples()
        return found

    # What follows from the time

    def battery_level(self, t: float) -> int:
        """Percent left; it drains in about five years, unless the device hangs on the mains."""
        if not self.product.battery:
            return 100
        return max(0, self.battery - int(100.0 * t / _BATTERY_LIFE))

    def status(self, t: float) -> int:
        """What the heartbeat says: 2 sensor fault, 1 low battery, 0 fine (gateway-29)."""
        if self.faulty:
            return 2
        return int(self.product.battery and self.battery_level(t) < LOW_BATTERY)

    @property
    def is_moving(self) -> bool:
        """Whether it moves, or sees something move."""
        return self.transitions % 2 == 1

    def seconds_in_motion(self, t: float) -> float:
        """All in all. A report may tell of a moment shortly before the last turn."""
        return self.moved + (max(0.0, t - self.turned) if self.is_moving else 0.0)

    def lingers(self) -> float:
        """Seconds from its last turn to the next one."""
        if not self.is_moving:
            return max(wait(self.key ^ 0xA0, self.transitions, _STILL), 1.0)
        has_timeout = _MOTION_TIMEOUT in self.product.values
        timeout = int.from_bytes(self.value(_MOTION_TIMEOUT), "big") if has_timeout else 60
        return max(wait(self.key ^ 0xA0, self.transitions, _MOVING) + timeout, 1.0)

    def turn(self, t: float) -> None:
        """Start or stop moving."""
        self.moved = self.seconds_in_motion(t)
        self.turned = t
        self.transitions += 1

    def is_asleep(self, t: float) -> bool:
        """Whether it saves power: worn by nobody who moves (gateway-27)."""
        if Identifier("9808") not in self.product.values or not self.product.motion or self.is_moving:
            return False
        return t - self.turned > int.from_bytes(self.value(Identifier("9808")), "big")

    def advertisement_in(self, t: float, n: int) -> float:
        """Seconds until it advertises again, when a waiting extender can connect to it."""
        interval = int.from_bytes(self._advertisement(t)[:2], "big") / 1000.0
        return interval * noise(self.key, n)

    def _advertisement(self, t: float) -> bytes:
        for raised, interval in (("9800", "9805"), ("9801", "9806")):
            if Identifier(raised) in self.product.values and any(self.value(Identifier(raised))):
                return self.value(Identifier(interval)) if interval in self.product.values else b"\0\xc8"
        mode = Identifier("9807" if self.is_asleep(t) else "9804")
        return self.value(mode) if mode in self.product.values else b"\0\xc8"

    def doors_opened(self) -> int:
        """How often a magnet left the range since the last beat."""
        return max(0, bits(self.key ^ 0xD0, self.beats) % (3 * DOORS_A_BEAT) - 2 * DOORS_A_BEAT)

    def restart(self, t: float, cause: int) -> None:
        """Begin anew, with the memory that survives: properties, samples, counters."""
        self.booted = t
        self.reset = cause
        self.test = None
        self.is_reporting = False
        self.received = 0
