"""Numbers of bytes as text for people."""

from __future__ import annotations

from typing import Final

_UNIT_STEP: Final = 1000


def format_bytes(size: float) -> str:
    """Format a number of bytes with a unit, such as 2.0 GB."""
    for unit in ("bytes", "kB", "MB"):
        if size < _UNIT_STEP:
            return f"{size:.0f} {unit}"
        size /= _UNIT_STEP
    return f"{size:.1f} GB"
