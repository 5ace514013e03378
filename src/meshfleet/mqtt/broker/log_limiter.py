"""Limits repeated log lines, so that no client can fill the log."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class _LogWindow:
    """Counters of the log lines and events of one key since the time `started_at`, in seconds."""

    __slots__ = ("lines", "started_at", "suppressed")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.lines = 0
        self.suppressed = 0


class LogLimiter:
    """Allows `lines` log lines per key within `seconds`, and counts the events that were not logged.

    Remembers at most `keys` keys; beyond that, the oldest key is forgotten.
    """

    def __init__(
        self,
        *,
        lines: int = 1,
        seconds: float = 60.0,
        keys: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines = lines
        self._seconds = seconds
        self._keys = keys
        self._clock = clock
        self._windows: OrderedDict[Hashable, _LogWindow] = OrderedDict()

    def count(self, key: Hashable) -> int:
        """Count an event of a key.

        Return the number of events since the last log line of the key, or 0 if the event must not be logged.
        """
        now = self._clock()
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _LogWindow(now)
            if len(self._windows) > self._keys:
                self._windows.popitem(last=False)
        elif now - window.started_at >= self._seconds:
            window.started_at, window.lines = now, 0
            self._windows.move_to_end(key)
        window.suppressed += 1
        if window.lines >= self._lines:
            return 0
        window.lines += 1
        events, window.suppressed = window.suppressed, 0
        return events
