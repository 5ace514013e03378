"""What is told of executions that are in another state, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Changed(NamedTuple):
    """An execution that is in another state now."""

    job: int
    device: int
    gateway: int | None


Tell = Callable[[Sequence[int], Sequence[Changed]], None]
"""Hears which jobs and which executions have changed."""


def nobody(_jobs: Sequence[int], _changed: Sequence[Changed]) -> None:
    """Nobody listens."""
