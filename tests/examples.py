"""How many examples a property tries that has a number of its own."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_MORE: Final = 4
"""How many times as many `make test-all PART=search` tries."""


def examples(count: int) -> int:
    """Return a number for `max_examples`: this one, or a multiple of it where examples are new every time."""
    return count if settings().derandomize else _MORE * count
