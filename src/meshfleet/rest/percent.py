"""Percentages that are compared with a limit, and written down beside it.

A limit such as 2.2 has no exact binary form: 2.2 * 1500 is a little more than 3300, so 33 of 1500 devices
would miss a gate of 2.2 % in floating point. Limits are therefore compared as the decimal numbers that people
typed.
"""

from __future__ import annotations

from fractions import Fraction


def reaches_percent(part: int, whole: int, percent: float) -> bool:
    """Return whether `part` of `whole` is at least so many percent. None of none reaches every limit."""
    return 100 * part >= Fraction(str(percent)) * whole


def format_percent(percent: float) -> str:
    """Write a limit in full: 99.99999 is not 100."""
    return f"{percent:.10f}".rstrip("0").rstrip(".") + " %"


def format_progress(progress: int, finished: int) -> str:
    """Write the progress of a job, which REST rounds down: 0 is not said of a job with finished devices."""
    return f"{progress} %" if progress or not finished else "< 1 %"
