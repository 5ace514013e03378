"""Slowing down who guesses passwords (auth-13 to auth-15).

Failures are counted for each name at each address, whether or not there is such a user: both must look the
same. Besides, the names that failed at one address are counted, and who tries name after name is told to
wait too. Somebody else's failures at another address never touch the owner of an account.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

_FREE_FAILURES: Final = 5
"""Failures without any consequence."""

_MAX_DELAY_SECONDS: Final = 300
"""Seconds."""

_FAILURE_LIFETIME_SECONDS: Final = 3600
"""Seconds after which a failure no longer counts."""

_MAX_ENTRIES: Final = 50_000
"""Entries; of more the oldest are dropped, so that nobody fills our memory with names."""


class ThrottleDecision(NamedTuple):
    """What becomes of an attempt, in seconds."""

    wait: int
    """How long the name must wait at this address; 0 lets the attempt happen."""
    wait_if_failed: int
    """How long to wait if it fails, because of all the names that failed at this address."""


class _Entry(NamedTuple):
    failures: int
    last: float


_Key = tuple[str | None, str | None]


class LoginThrottle:
    """Counts failures. Knows no clock: every call brings the time, in seconds."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()

    def count_attempt(self, name: str, address: str | None, now: float) -> ThrottleDecision:
        """Whether an attempt may be made.

        It counts as failed until `succeeded` says otherwise: many attempts at once are as many attempts.
        """
        verdict = ThrottleDecision(self._delay((name, address), now), self._delay((None, address), now))
        if not verdict.wait and self._count((name, address), now) == 1:
            self._count((None, address), now)
        return verdict

    def delay_after_failure(self, address: str | None, now: float) -> int:
        """Return how long to wait after a failure at this address, without counting an attempt."""
        return self._delay((None, address), now)

    def clear_failures(self, name: str, address: str | None) -> None:
        """Forget the failures of somebody who got in after all."""
        mine = self._entries.pop((name, address), None)
        names = self._entries.get((None, address))
        if mine is not None and names is not None:
            self._entries[(None, address)] = names._replace(failures=max(0, names.failures - 1))

    def withdraw_attempt(self, name: str, address: str | None) -> None:
        """An attempt was not made after all: nobody looked at the password."""
        mine = self._entries.get((name, address))
        if mine is None or mine.failures <= 1:
            self.clear_failures(name, address)
        else:
            self._entries[(name, address)] = mine._replace(failures=mine.failures - 1)

    def _delay(self, key: _Key, now: float) -> int:
        failures, last = self._entries.get(key, _Entry(0, now))
        if failures < _FREE_FAILURES:
            return 0
        delay: int = min(2 ** min(failures - _FREE_FAILURES, 30), _MAX_DELAY_SECONDS)
        return max(0, int(last + delay - now + 0.999))

    def _count(self, key: _Key, now: float) -> int:
        failures, last = self._entries.pop(key, _Entry(0, now))
        entry = _Entry(1 if now - last > _FAILURE_LIFETIME_SECONDS else failures + 1, now)
        self._entries[key] = entry
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)
        return entry.failures
