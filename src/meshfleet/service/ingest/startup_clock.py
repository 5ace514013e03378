"""Decides when to trust this machine's clock if it was days behind the newest stored state at the start.

Either the clock is not set yet, as on a machine that starts in 1970. Or the clock was ahead when the states
were stored, and has been corrected since. A clock before the release date of this program is not set yet,
unless the newest stored state is from before the release as well: then this machine never has the right time.
A clock after the release date is trusted after 10 minutes without a jump: NTP would have set it by then.
"""

from __future__ import annotations

from typing import Final

_PLAUSIBLE_LAG_MS: Final = 7 * 86_400_000
"""Maximum milliseconds behind the newest stored state at which a clock is trusted at once (inclusive)."""

_SETTLE_MS: Final = 600_000
"""Milliseconds without a jump after which a clock is trusted, however far behind stored states it is."""

_RELEASE_TIME: Final = 1_793_491_200_000
"""Start of November 2026, as Unix time in milliseconds: a clock that shows an earlier time is not set."""

_JUMP_MS: Final = 60_000
"""The clock jumped (was set) if it changed by more than this many milliseconds from check to check.

Checks are seconds apart.
"""


class StartupClock:
    """Decides when the clock of this machine is trusted. The caller passes the clock's time as `now`."""

    def __init__(self, newest_state_time: int, now: int) -> None:
        """Create with the times of the newest stored state and of the clock, Unix times in milliseconds."""
        self._trusted_from = newest_state_time - _PLAUSIBLE_LAG_MS
        self._plausible_from = _RELEASE_TIME if newest_state_time >= _RELEASE_TIME else 0
        self._set_at = self._checked_at = now

    def is_trusted(self, now: int) -> bool:
        """Return whether the clock is near the newest stored state, or ran long enough without a jump."""
        if abs(now - self._checked_at) > _JUMP_MS:
            self._set_at = now
        self._checked_at = now
        is_plausible = now >= self._plausible_from
        return now >= self._trusted_from or (is_plausible and now - self._set_at >= _SETTLE_MS)
