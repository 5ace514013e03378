"""Comparison and formatting of percentages.

A limit such as 2.2 has no exact binary form: 2.2 * 1500 is a little more than 3300, so 33 of 1500 devices
would miss a gate of 2.2 % in floating point. Limits are therefore compared as decimal numbers, as users typed
them.
"""

from __future__ import annotations

from fractions import Fraction


def reaches_percent(part: int, whole: int, percent: float) -> bool:
    """Return whether `part` is at least `percent` % of `whole`; always True if `part` and `whole` are 0."""
    return 100 * part >= Fraction(str(percent)) * whole


def format_percent(percent: float) -> str:
    """Format a percentage without rounding: 99.99999 is not printed as 100."""
    return f"{percent:.10f}".rstrip("0").rstrip(".") + " %"


def format_progress(progress: int, finished: int) -> str:
    """Format the rounded-down progress of a job: "< 1 %" instead of "0 %" if some devices have finished."""
    return f"{progress} %" if progress or not finished else "< 1 %"
