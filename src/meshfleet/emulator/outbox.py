"""What a gateway publishes, after faults have had their way with it."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec.structs import replace

from meshfleet.emulator.simulation.noise import derive_noise_key, uniform_noise
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from meshfleet.emulator.settings import Faults
    from meshfleet.emulator.simulation.clock import SimulatedClock, SimulationScheduler

_MAX_REORDER_SECONDS: Final = 2.0
"""Seconds that a reordered message is late, at most."""

_QOS: Final = 1
"""gateway-2. Nothing is retained (gateway-3)."""

_SEQ = re.compile(rb'"seq":(\d+)')


class Outbox:
    """Messages that wait to be published."""

    def __init__(
        self, faults: Faults, scheduler: SimulationScheduler, clock: SimulatedClock, key: int
    ) -> None:
        self._faults = faults
        self._scheduler = scheduler
        self._clock = clock
        self._key = derive_noise_key(key, "faults")
        self._fault_seed = 0
        self._counts: dict[str, int] = {}
        self._boot_count = 0
        self._ready: list[Publish] = []
        self._has_faults = faults.affects_messages
        self.is_open = True
        """Whether there is a gateway to publish anything: not while it restarts."""

    def put(self, topic: str, payload: bytes) -> None:
        """Publish a message, if nothing happens to it."""
        if not self.is_open:
            return
        if self._has_faults:
            self._put_with_faults(Publish(topic, payload, _QOS))
        else:
            self._ready.append(Publish(topic, payload, _QOS))

    def drain(self) -> list[Publish]:
        """Everything that is ready."""
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Lose what is late, and whatever comes until it is open again: the gateway goes down."""
        self.is_open = False
        self._boot_count += 1

    def _put_with_faults(self, message: Publish) -> None:
        faults = self._faults
        # Counted for each topic: else every response would move the trouble of all that follows.
        count = self._counts[message.topic] = self._counts.get(message.topic, 0) + 1
        self._fault_seed = crc32(message.topic.encode()) + count
        if self._happens(faults.loss, 1):
            return
        if self._happens(faults.quoted_seq, 2):
            message = replace(message, payload=_SEQ.sub(rb'"seq":"\1"', message.payload, count=1))
        if self._happens(faults.broken_json, 3):
            message = replace(message, payload=message.payload[: 2 * len(message.payload) // 3])
        late = faults.delay
        if self._happens(faults.reorder, 4):
            late += _MAX_REORDER_SECONDS * self._dice(5)
        self._publish(message, late)
        if self._happens(faults.duplicate, 6):
            self._publish(message, late)

    def _publish(self, message: Publish, late: float) -> None:
        if late:
            self._scheduler.after(
                late * self._clock.speed, partial(self._publish_delayed, message, self._boot_count)
            )
        else:
            self._ready.append(message)

    def _publish_delayed(self, message: Publish, life: int, _t: float) -> None:
        if life == self._boot_count:
            self._ready.append(message)

    def _happens(self, fraction: float, what: int) -> bool:
        return fraction > 0.0 and self._dice(what) < fraction

    def _dice(self, what: int) -> float:
        return uniform_noise(self._key + what, self._fault_seed)
