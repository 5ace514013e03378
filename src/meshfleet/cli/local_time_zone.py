"""Time zone of this machine, for what is sent at a time of day."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from zoneinfo import available_timezones

_LOCAL: Final = Path("/etc/localtime")


def find_local_time_zone() -> str:
    """Return the name of the time zone of this machine; `UTC` if it has none of the usual names."""
    parts = _LOCAL.resolve().parts
    candidates = [os.environ.get("TZ", "").removeprefix(":")]
    if "zoneinfo" in parts:
        candidates.append("/".join(parts[parts.index("zoneinfo") + 1 :]))
    known = available_timezones()
    return next((each for each in candidates if each in known), "UTC")
