"""Number of examples of property tests that do not use the default."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

DEFAULT_EXAMPLES: Final = 50
"""Examples of a property test in `make test`, if it does not set a number."""

FAST_EXAMPLES: Final = 10
"""Examples of a property test in `make test-fast`."""

_SEARCH_FACTOR: Final = 4
"""Factor by which `make test-all PART=search` tries more examples."""


def examples(count: int) -> int:
    """Return a value for `max_examples`: this number, fewer for `make test-fast`, more if they are random."""
    if not settings().derandomize:
        return _SEARCH_FACTOR * count
    return max(1, count * settings().max_examples // DEFAULT_EXAMPLES)
