"""Updates that fail on request, in the ways in which they do fail."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from meshfleet.gateway.world.noise import bits, key_of, noise

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core


class _Way(Enum):
    POWER_LOST = auto()
    IMAGE_BROKEN = auto()
    ROLLED_BACK = auto()


class Mishap:
    """What will go wrong with one update."""

    __slots__ = ("_percent", "_way")

    def __init__(self, dice: int) -> None:
        self._way = tuple(_Way)[dice % len(_Way)]
        self._percent = 5 + dice // len(_Way) % 90

    def loses_power_at(self, percent: int) -> bool:
        """Whether the power fails while the image arrives."""
        return self._way is _Way.POWER_LOST and percent >= self._percent

    @property
    def breaks_image(self) -> bool:
        """Whether what has arrived is not what was sent."""
        return self._way is _Way.IMAGE_BROKEN

    @property
    def rolls_back(self) -> bool:
        """Whether the new version does not start."""
        return self._way is _Way.ROLLED_BACK


class Mishaps:
    """Decides which updates of a gateway fail."""

    def __init__(self, core: Core) -> None:
        self._fraction = core.settings.faults.update_fail
        self._key = key_of(core.key, "updates")
        self._count = 0

    def next(self) -> Mishap | None:
        """What goes wrong with the next update, if anything."""
        self._count += 1
        if noise(self._key, self._count) >= self._fraction:
            return None
        return Mishap(bits(self._key + 1, self._count))
