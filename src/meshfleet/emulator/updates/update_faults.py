"""Injected faults of firmware updates, of the kinds that occur in practice."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from meshfleet.emulator.simulation.noise import derive_noise_key, noise_bits, uniform_noise

if TYPE_CHECKING:
    from meshfleet.emulator.context import EmulatorContext


class _FaultKind(Enum):
    """Kind of an injected update fault."""

    POWER_LOST = auto()
    IMAGE_BROKEN = auto()
    ROLLED_BACK = auto()


class UpdateFault:
    """Injected fault of one firmware update: power loss, corrupt image or rollback."""

    __slots__ = ("_kind", "_percent")

    def __init__(self, random_bits: int) -> None:
        self._kind = tuple(_FaultKind)[random_bits % len(_FaultKind)]
        self._percent = 5 + random_bits // len(_FaultKind) % 90

    def loses_power_at(self, percent: int) -> bool:
        """Return whether the device loses power at this percentage of the transfer."""
        return self._kind is _FaultKind.POWER_LOST and percent >= self._percent

    @property
    def breaks_image(self) -> bool:
        """Whether the fault corrupts the received image."""
        return self._kind is _FaultKind.IMAGE_BROKEN

    @property
    def rolls_back(self) -> bool:
        """Whether the new firmware version fails to start, so that the device rolls back."""
        return self._kind is _FaultKind.ROLLED_BACK


class UpdateFaultInjector:
    """Selects which firmware updates of a gateway fail, and with which fault."""

    def __init__(self, context: EmulatorContext) -> None:
        self._fraction = context.settings.faults.update_fail
        self._key = derive_noise_key(context.noise_key, "updates")
        self._count = 0

    def select_next_fault(self) -> UpdateFault | None:
        """Return the injected fault of the next firmware update, or None for no fault."""
        self._count += 1
        if uniform_noise(self._key, self._count) >= self._fraction:
            return None
        return UpdateFault(noise_bits(self._key + 1, self._count))
