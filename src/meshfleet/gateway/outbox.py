"""What a gateway publishes, after faults have had their way with it."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final
from zlib import crc32

from msgspec.structs import replace

from meshfleet.gateway.world.noise import key_of, noise
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from meshfleet.gateway.faults import Faults
    from meshfleet.gateway.world.agenda import Agenda
    from meshfleet.gateway.world.clock import Clock

_OVERTAKEN: Final = 2.0
"""Seconds that a reordered message is late, at most."""

_QOS: Final = 1
"""gateway-2. Nothing is retained (gateway-3)."""

_SEQ = re.compile(rb'"seq":(\d+)')


class Outbox:
    """Messages that wait to be published."""

    def __init__(self, faults: Faults, agenda: Agenda, clock: Clock, key: int) -> None:
        self._faults = faults
        self._agenda = agenda
        self._clock = clock
        self._key = key_of(key, "faults")
        self._luck = 0
        self._counts: dict[str, int] = {}
        self._life = 0
        self._ready: list[Publish] = []
        self._troubled = faults.touches_messages
        self.is_open = True
        """Whether there is a gateway to publish anything: not while it restarts."""

    def put(self, topic: str, payload: bytes) -> None:
        """Publish a message, if nothing happens to it."""
        if not self.is_open:
            return
        if self._troubled:
            self._put_troubled(Publish(topic, payload, _QOS))
        else:
            self._ready.append(Publish(topic, payload, _QOS))

    def take(self) -> list[Publish]:
        """Everything that is ready."""
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        """Lose what is late, and whatever comes until it is open again: the gateway goes down."""
        self.is_open = False
        self._life += 1

    def _put_troubled(self, message: Publish) -> None:
        faults = self._faults
        # Counted for each topic: else every response would move the trouble of all that follows.
        count = self._counts[message.topic] = self._counts.get(message.topic, 0) + 1
        self._luck = crc32(message.topic.encode()) + count
        if self._happens(faults.loss, 1):
            return
        if self._happens(faults.quoted_seq, 2):
            message = replace(message, payload=_SEQ.sub(rb'"seq":"\1"', message.payload, count=1))
        if self._happens(faults.broken_json, 3):
            message = replace(message, payload=message.payload[: 2 * len(message.payload) // 3])
        late = faults.delay
        if self._happens(faults.reorder, 4):
            late += _OVERTAKEN * self._dice(5)
        self._publish(message, late)
        if self._happens(faults.duplicate, 6):
            self._publish(message, late)

    def _publish(self, message: Publish, late: float) -> None:
        if late:
            self._agenda.after(late * self._clock.speed, partial(self._arrive, message, self._life))
        else:
            self._ready.append(message)

    def _arrive(self, message: Publish, life: int, _t: float) -> None:
        if life == self._life:
            self._ready.append(message)

    def _happens(self, fraction: float, what: int) -> bool:
        return fraction > 0.0 and self._dice(what) < fraction

    def _dice(self, what: int) -> float:
        return noise(self._key + what, self._luck)
