"""The series that have holes, and how many there are: nobody has to go through all of them to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.acks.series import Key, Series


class Holed:
    """Counts holes, and series that are not gap-checked."""

    def __init__(self) -> None:
        self._counted: dict[Key, tuple[int, int, bool]] = {}
        self.open = 0
        self.lost = 0
        self.unchecked = 0

    def __iter__(self) -> Iterator[Key]:
        """Those that have holes."""
        return iter(self._counted)

    def __len__(self) -> int:
        """How many they are."""
        return len(self._counted)

    def count(self, key: Key, series: Series | None) -> None:
        """The holes of a series have changed; None: it is gone."""
        self._add(self._counted.pop(key, (0, 0, False)), -1)
        if series is not None and (series.holes or not series.is_checked):
            holes = series.holes or ()
            lost = sum(hole.lost_at is not None for hole in holes)
            counted = self._counted[key] = len(holes) - lost, lost, not series.is_checked
            self._add(counted, 1)

    def _add(self, counted: tuple[int, int, bool], sign: int) -> None:
        self.open += sign * counted[0]
        self.lost += sign * counted[1]
        self.unchecked += sign * counted[2]
