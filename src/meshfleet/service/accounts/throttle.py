"""Delays logins after failed logins, against password guessing (auth-13 to auth-15).

Failures are counted per user name and client address, whether or not the user exists, so that clients cannot
detect which users exist. The names that failed from one address are counted, too, so that trying name after
name is delayed as well. Failures from other addresses never delay the owner of an account.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

_FREE_FAILURES: Final = 5
"""Number of failed logins of a user name from one address that cause no delay."""

_MAX_DELAY_SECONDS: Final = 300
"""Longest delay after a failed login, in seconds."""

_FAILURE_LIFETIME_SECONDS: Final = 3600
"""Seconds after which a failed login no longer counts."""

_MAX_ENTRIES: Final = 50_000
"""Maximum number of stored failure counts; the oldest are dropped, so that a flood fills no memory."""


class ThrottleDecision(NamedTuple):
    """Delays of a login attempt, in seconds."""

    wait: int
    """Seconds until the user name may log in from this client address; 0 if it may log in now."""
    wait_if_failed: int
    """Seconds to wait if this attempt fails too, because many names have failed from this address."""


class _Entry(NamedTuple):
    """Number of failed logins in a row, and the time of the last one (monotonic seconds)."""

    failures: int
    last: float
    """Time of the last failed login in seconds of the monotonic clock."""


# Name and address; the name None stands for all names of the address.
_Key = tuple[str | None, str | None]


class LoginThrottle:
    """Counts failed logins and computes delays. Callers pass monotonic times in seconds."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()

    def count_attempt(self, name: str, address: str | None, now: float) -> ThrottleDecision:
        """Return the delays of a login attempt. Count the attempt as failed unless it must wait.

        Call `clear_failures` after a successful login. The attempt is counted before the password check, so
        that concurrent attempts count too.
        """
        decision = ThrottleDecision(
            self._compute_delay((name, address), now), self._compute_delay((None, address), now)
        )
        if not decision.wait and self._add_failure((name, address), now) == 1:
            self._add_failure((None, address), now)
        return decision

    def delay_after_failure(self, address: str | None, now: float) -> int:
        """Return the seconds to wait after a failed login from this address, without counting an attempt."""
        return self._compute_delay((None, address), now)

    def clear_failures(self, name: str, address: str | None) -> None:
        """Reset the failed logins of a user name from a client address after a successful login."""
        entry = self._entries.pop((name, address), None)
        address_entry = self._entries.get((None, address))
        if entry is not None and address_entry is not None:
            self._entries[(None, address)] = address_entry._replace(
                failures=max(0, address_entry.failures - 1)
            )

    def withdraw_attempt(self, name: str, address: str | None) -> None:
        """Take back a counted login attempt from this address, because the password could not be checked."""
        entry = self._entries.get((name, address))
        if entry is None or entry.failures <= 1:
            self.clear_failures(name, address)
        else:
            self._entries[(name, address)] = entry._replace(failures=entry.failures - 1)

    def _compute_delay(self, key: _Key, now: float) -> int:
        """Return the seconds until the next attempt is allowed; 0 if it is allowed now."""
        failures, last = self._entries.get(key, _Entry(0, now))
        if failures < _FREE_FAILURES:
            return 0
        delay: int = min(2 ** min(failures - _FREE_FAILURES, 30), _MAX_DELAY_SECONDS)
        return max(0, int(last + delay - now + 0.999))

    def _add_failure(self, key: _Key, now: float) -> int:
        """Count a failed login. Return the number of failures, without those too long ago to count."""
        failures, last = self._entries.pop(key, _Entry(0, now))
        entry = _Entry(1 if now - last > _FAILURE_LIFETIME_SECONDS else failures + 1, now)
        self._entries[key] = entry
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)
        return entry.failures
