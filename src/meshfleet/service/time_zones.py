"""Names of time zones that users may choose."""

from __future__ import annotations

from functools import cache
from zoneinfo import available_timezones


@cache
def list_time_zones() -> frozenset[str]:
    """Return the names of all time zones. Looking for them takes milliseconds: they are files."""
    return frozenset(available_timezones())
