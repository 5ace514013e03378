"""Measures how long the current commit of reports takes, to detect a database or thread that hangs."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CommitTimer:
    """Measures how long the current commit of reports has taken. There is one commit at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a timer. `clock` returns monotonic seconds."""
        self._clock = clock
        self._started_at: float | None = None

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the commit that runs in this context, until it succeeds or fails."""
        self._started_at = self._clock()
        try:
            yield
        finally:
            self._started_at = None

    def is_progressing(self, max_seconds: float) -> bool:
        """Return whether no commit is running, or the running one has taken less than `max_seconds`."""
        return self._started_at is None or self._clock() - self._started_at < max_seconds
