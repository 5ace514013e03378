"""How long to wait before the next try to reach a broker."""

from __future__ import annotations

from random import uniform
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


class Delays(Struct, frozen=True, kw_only=True):
    """Seconds between tries to connect.

    They grow, so that a broker in trouble is left in peace, and are jittered, so that a thousand gateways do
    not come back in the same moment.
    """

    first: float = 0.5
    most: float = 60.0
    steady_after: float = 30.0
    """A connection that held this long was a good one: after it the delays begin anew."""

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.most:
            raise ValueError("delays grow from more than nothing: 0 < first <= most")

    def __iter__(self) -> Iterator[float]:
        """The delays after one failure and the next: anything up to a limit that doubles."""
        limit = self.first
        while True:
            yield uniform(limit / 2, limit)  # noqa: S311 # spreads load, guards nothing
            limit = min(2 * limit, self.most)
