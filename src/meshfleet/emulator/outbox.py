"""MQTT messages that an emulated gateway publishes, with injected faults applied."""

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
"""Maximum seconds by which the fault `reorder` delays a message."""

_QOS: Final = 1
"""QoS of all published messages (gateway-2), none of which is retained (gateway-3)."""

_SEQ = re.compile(rb'"seq":(\d+)')


class Outbox:
    """Queue of MQTT messages to publish, with fault injection."""

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
        """Whether messages are accepted. It is False while the gateway restarts."""

    def put(self, topic: str, payload: bytes) -> None:
        """Queue a message to publish, unless the gateway is restarting or a fault drops the message."""
        if not self.is_open:
            return
        if self._has_faults:
            self._put_with_faults(Publish(topic, payload, _QOS))
        else:
            self._ready.append(Publish(topic, payload, _QOS))

    def drain(self) -> list[Publish]:
        """Remove and return all messages that are ready to publish."""
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Discard delayed messages when the gateway restarts. Reject new messages until `is_open` is set."""
        self.is_open = False
        self._boot_count += 1

    def _put_with_faults(self, message: Publish) -> None:
        """Drop, change, delay or repeat a message as the injected faults decide, and queue the result."""
        faults = self._faults
        # Counted per topic: otherwise each response would shift the faults of all later messages.
        count = self._counts[message.topic] = self._counts.get(message.topic, 0) + 1
        self._fault_seed = crc32(message.topic.encode()) + count
        if self._fault_occurs(faults.loss, 1):
            return
        if self._fault_occurs(faults.quoted_seq, 2):
            message = replace(message, payload=_SEQ.sub(rb'"seq":"\1"', message.payload, count=1))
        if self._fault_occurs(faults.broken_json, 3):
            message = replace(message, payload=message.payload[: 2 * len(message.payload) // 3])
        delay_seconds = faults.delay
        if self._fault_occurs(faults.reorder, 4):
            delay_seconds += _MAX_REORDER_SECONDS * self._get_random_fraction(5)
        self._queue(message, delay_seconds)
        if self._fault_occurs(faults.duplicate, 6):
            self._queue(message, delay_seconds)

    def _queue(self, message: Publish, delay_seconds: float) -> None:
        """Queue a message to publish, after a delay in wall-clock seconds."""
        if delay_seconds:
            self._scheduler.after(
                delay_seconds * self._clock.speed, partial(self._queue_delayed, message, self._boot_count)
            )
        else:
            self._ready.append(message)

    def _queue_delayed(self, message: Publish, boot_count: int, _sim_time: float) -> None:
        """Queue a delayed message, unless the gateway has restarted since."""
        if boot_count == self._boot_count:
            self._ready.append(message)

    def _fault_occurs(self, fraction: float, salt: int) -> bool:
        """Return whether a fault with this probability occurs for the current message.

        `salt` is a different number for each fault, so that the faults are independent.
        """
        return fraction > 0.0 and self._get_random_fraction(salt) < fraction

    def _get_random_fraction(self, salt: int) -> float:
        """Return a repeatable random number from 0 to below 1 for the current message and fault `salt`."""
        return uniform_noise(self._key + salt, self._fault_seed)
