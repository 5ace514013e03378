"""Number of examples of property tests that do not use the default."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_SEARCH_FACTOR: Final = 4
"""Factor by which `make test-all PART=search` tries more examples."""


def examples(count: int) -> int:
    """Return a value for `max_examples`: this number, or a multiple of it if examples are random."""
    return count if settings().derandomize else _SEARCH_FACTOR * count
