"""An image on its way over the air, in steps: links are shared, nodes come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from meshfleet.gateway.world.agenda import Agenda

STEP: Final = 2.0
"""Seconds of transfer between two looks at it."""

MESH_RATE: Final = 300.0
"""Bytes per second that one branch of the mesh carries: a usual image takes ten to fifteen minutes."""

BROADCAST_RATE: Final = 200.0
NORDIC_RATE: Final = 2000.0
"""Straight from the gateway to a device that does nothing else."""
HOST_RATE: Final = 100_000.0
"""Over the wire, to the gateway itself."""

FULL: Final = 100
"""Percent."""

_LONGEST_STANDSTILL: Final = 60.0


class Carrier(Protocol):
    """Who wants an image carried, and decides what becomes of it."""

    def rate(self) -> float:
        """Bytes per second that get through now; 0 is a standstill."""

    def moved(self, percent: int) -> None:
        """So much has arrived."""

    def arrived(self) -> None:
        """All of it has."""

    def lost(self) -> None:
        """It stood still for too long."""


class Transfer:
    """Carries an image."""

    __slots__ = ("_agenda", "_carrier", "_is_stopped", "_sent", "_size", "_standstill")

    def __init__(self, agenda: Agenda, size: int, carrier: Carrier) -> None:
        self._agenda = agenda
        self._size = size
        self._carrier = carrier
        self._sent = 0.0
        self._standstill = 0.0
        self._is_stopped = False
        agenda.after(self._pause(), self._step)

    def stop(self) -> None:
        """Stop without a word: whoever stops it knows."""
        self._is_stopped = True

    def _pause(self) -> float:
        """A step, or less when less is left."""
        rate = self._carrier.rate()
        return min(STEP, (self._size - self._sent) / rate) if rate else STEP

    def _step(self, _t: float) -> None:
        if self._is_stopped:
            return
        rate = self._carrier.rate()
        before = self._percent()
        self._sent = min(self._size, self._sent + rate * STEP)
        self._standstill = 0.0 if rate else self._standstill + STEP
        if (percent := self._percent()) != before:
            self._carrier.moved(percent)
        self._go_on()

    def _go_on(self) -> None:
        if self._is_stopped:
            return  # whoever heard how far it is has stopped it
        if self._sent >= self._size:
            self._carrier.arrived()
        elif self._standstill > _LONGEST_STANDSTILL:
            self._carrier.lost()
        else:
            self._agenda.after(self._pause(), self._step)

    def _percent(self) -> int:
        return int(FULL * self._sent / self._size)
