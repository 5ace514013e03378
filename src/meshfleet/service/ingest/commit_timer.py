"""Measures how long commits of reports take, to detect a database or thread that hangs or is too slow."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REMEMBERED_SECONDS: Final = 60.0
"""Seconds for which the lag of the last commit counts: without reports there is none."""


class CommitTimer:
    """Measures how long the current commit of reports has taken. There is one commit at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a timer. `clock` returns monotonic seconds."""
        self._clock = clock
        self._started_at: float | None = None
        self._waiting_since: float | None = None
        """When the oldest report was received that is not committed yet, also between two attempts."""
        self._last_lag = 0.0
        self._committed_at = -_REMEMBERED_SECONDS

    @contextmanager
    def measure(self, received_at: float | None = None) -> Iterator[None]:
        """Measure the commit that runs in this context, until it succeeds or fails.

        `received_at` is the time on the clock at which the first of the reports was received.
        """
        self._started_at = self._clock()
        self._waiting_since = received_at
        try:
            yield
            self._record_success()
        finally:
            self._started_at = None

    def _record_success(self) -> None:
        self._committed_at = self._clock()
        if self._waiting_since is not None:
            self._last_lag = self._committed_at - self._waiting_since
            self._waiting_since = None

    def compute_lag(self) -> float:
        """Return for how many seconds the oldest report has waited for its commit.

        If none waits, return how long the last one waited, unless that was long ago.
        """
        now = self._clock()
        waiting = 0.0 if self._waiting_since is None else now - self._waiting_since
        return max(waiting, self._last_lag if now - self._committed_at < _REMEMBERED_SECONDS else 0.0)

    def is_progressing(self, max_seconds: float) -> bool:
        """Return whether no commit is running, or the running one has taken less than `max_seconds`."""
        return self._started_at is None or self._clock() - self._started_at < max_seconds
