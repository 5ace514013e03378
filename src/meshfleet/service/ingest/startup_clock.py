"""Check of this machine's clock after a start at which it was days behind the newest stored state.

Either it is not set yet, as on a machine that starts in 1970, or the states were stored by a clock that was
ahead and has been corrected since. A clock before the release of this program is not set, unless the states
are from such a time as well: then this machine never has the right time. A later clock is trusted after some
minutes without a jump: if it were not set yet, it would have been set by then.
"""

from __future__ import annotations

from typing import Final

_PLAUSIBLE_LAG_MS: Final = 7 * 86_400_000
"""Milliseconds that a clock may be behind the newest state and still be trusted at once: it was set back."""

_SETTLE_MS: Final = 600_000
"""Milliseconds after which a clock is trusted, however far behind it is."""

_RELEASE_TIME: Final = 1_793_491_200_000
"""Start of November 2026: before that this program did not exist."""

_JUMP_MS: Final = 60_000
"""Milliseconds by which the clock must differ between two checks, seconds apart, to have been set."""


class StartupClock:
    """Rule that decides when the clock of this machine is trusted. Every call passes its time."""

    def __init__(self, newest: int, now: int) -> None:
        """Start at the time `now`; `newest` is the time of the newest stored state."""
        self._trusted_from = newest - _PLAUSIBLE_LAG_MS
        self._plausible_from = _RELEASE_TIME if newest >= _RELEASE_TIME else 0
        self._set_at = self._checked_at = now

    def is_trusted(self, now: int) -> bool:
        """Return whether the clock is near the newest state, or has run long enough without a jump."""
        if abs(now - self._checked_at) > _JUMP_MS:
            self._set_at = now
        self._checked_at = now
        is_plausible = now >= self._plausible_from
        return now >= self._trusted_from or (is_plausible and now - self._set_at >= _SETTLE_MS)
