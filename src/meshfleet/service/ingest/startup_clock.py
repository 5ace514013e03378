"""The clock of this machine after a start at which it was days behind the newest stored state.

Either it is not set yet, as on a machine that starts in 1970, or the states were stored by a clock that was
ahead and has been corrected since. A clock before this program was written is not set, unless states are from
such a time as well: then this machine never has the right time. Of a later clock time tells: one that is not
set yet is set within minutes.
"""

from __future__ import annotations

from typing import Final

_PLAUSIBLE_LAG_MS: Final = 7 * 86_400_000
"""Milliseconds that a clock may be behind the newest state and count as right at once: it was set back."""

_SETTLE_MS: Final = 600_000
"""Milliseconds after which a clock that was not set counts as right, however far it is behind."""

_RELEASE_TIME: Final = 1_793_491_200_000
"""The beginning of November 2026, before which nobody ran this program with a clock that was set."""

_JUMP_MS: Final = 60_000
"""Milliseconds between two looks, which are seconds apart, by which the clock must have been set."""


class StartupClock:
    """Decides when the clock of this machine counts as right. All calls bring the time that it shows."""

    def __init__(self, newest: int, now: int) -> None:
        """`newest` is the time of the newest stored state."""
        self._right_from = newest - _PLAUSIBLE_LAG_MS
        self._plausible_from = _RELEASE_TIME if newest >= _RELEASE_TIME else 0
        self._set_at = self._seen_at = now

    def is_trusted(self, now: int) -> bool:
        """Tell whether the clock is near the newest state, or has run for long enough without a jump."""
        if abs(now - self._seen_at) > _JUMP_MS:
            self._set_at = now
        self._seen_at = now
        is_plausible = now >= self._plausible_from
        return now >= self._right_from or (is_plausible and now - self._set_at >= _SETTLE_MS)
