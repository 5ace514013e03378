"""How much of something one may have: so much at once, and then so much in a second."""

from __future__ import annotations


class Allowance:
    """What is left, by the clock of the caller."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = self._left = burst
        self._per_second = per_second
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take some, and tell how many seconds too early that is."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second) - amount
        self._at = now
        return max(0.0, -self._left / self._per_second)
