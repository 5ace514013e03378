"""Updates that fail on request, in the ways in which they do fail."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from meshfleet.emulator.simulation.noise import derive_noise_key, noise_bits, uniform_noise

if TYPE_CHECKING:
    from meshfleet.emulator.context import EmulatorContext


class _FaultKind(Enum):
    POWER_LOST = auto()
    IMAGE_BROKEN = auto()
    ROLLED_BACK = auto()


class UpdateFault:
    """What will go wrong with one update."""

    __slots__ = ("_kind", "_percent")

    def __init__(self, dice: int) -> None:
        self._kind = tuple(_FaultKind)[dice % len(_FaultKind)]
        self._percent = 5 + dice // len(_FaultKind) % 90

    def loses_power_at(self, percent: int) -> bool:
        """Whether the power fails while the image arrives."""
        return self._kind is _FaultKind.POWER_LOST and percent >= self._percent

    @property
    def breaks_image(self) -> bool:
        """Whether what has arrived is not what was sent."""
        return self._kind is _FaultKind.IMAGE_BROKEN

    @property
    def rolls_back(self) -> bool:
        """Whether the new version does not start."""
        return self._kind is _FaultKind.ROLLED_BACK


class UpdateFaultInjector:
    """Decides which updates of a gateway fail."""

    def __init__(self, core: EmulatorContext) -> None:
        self._fraction = core.settings.faults.update_fail
        self._key = derive_noise_key(core.noise_key, "updates")
        self._count = 0

    def next_fault(self) -> UpdateFault | None:
        """What goes wrong with the next update, if anything."""
        self._count += 1
        if uniform_noise(self._key, self._count) >= self._fraction:
            return None
        return UpdateFault(noise_bits(self._key + 1, self._count))
