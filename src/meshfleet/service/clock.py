"""The time, as the service knows it."""

from __future__ import annotations

import time
from collections.abc import Callable

Now = Callable[[], int]
"""Tells the time in milliseconds since 1970."""


def now() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000
