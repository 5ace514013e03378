"""Numbers and durations in sentences."""

from __future__ import annotations

from typing import Final

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS


def format_duration(milliseconds: int) -> str:
    """Format a duration with its largest unit, such as `25 min`."""
    for size, unit in ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min")):
        if milliseconds >= 2 * size or (size == _MINUTE_MS and milliseconds >= size):
            return f"{milliseconds // size} {unit}"
    return f"{max(milliseconds, 0) // 1000} s"


def format_span(milliseconds: int) -> str:
    """Format a duration with two units, such as `2 h 5 min`."""
    for size, unit, part, small in ((_DAY_MS, "d", _HOUR_MS, "h"), (_HOUR_MS, "h", _MINUTE_MS, "min")):
        if milliseconds >= size:
            rest = milliseconds % size // part
            return f"{milliseconds // size} {unit}" + (f" {rest} {small}" if rest else "")
    return format_duration(milliseconds)


def count(number: int, noun: str) -> str:
    """Return a number with a noun in singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
