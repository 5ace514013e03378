"""A draft: all that a batch of messages means, before anything of it is written down."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import Reject

_AHEAD: Final = 600_000
"""Milliseconds that a report's time may be ahead of ours; clocks differ, but not by more."""

_BEHIND: Final = 30 * 86_400_000
"""Milliseconds that it may be behind: no device keeps samples for longer."""

_NONE: Final = (1, 0)
"""A span of times in which there is none."""

Acked: TypeAlias = tuple[int, str, "Row"]
"""A device, how requests about the series end (`ack/0401`, perhaps), and a sample of it."""


class Draft:
    """What a batch means. Nobody has seen it yet: it can be thrown away and made again."""

    __slots__ = (
        "acked",
        "acking",
        "earliest",
        "gateways",
        "latest",
        "names",
        "newcomers",
        "now",
        "plain_from",
        "plain_to",
        "readings",
        "rejects",
        "rows",
        "seen",
        "shift",
        "shifts",
        "strangers",
        "strays",
    )

    def __init__(
        self, now: int, acking: Container[int] = (), shifts: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.now = now
        self.acking = acking
        """Gateways that take acknowledgements of samples."""
        self.acked: list[Acked] = []
        """Samples to be acknowledged to them once they are committed."""
        self.earliest = now - _BEHIND
        self.latest = now + _AHEAD
        """What is not between these is kept, and not believed."""
        self.shifts = shifts
        """Milliseconds that correct the times of gateways whose clocks are wrong."""
        self.shift = 0
        """The one of the gateway whose report is being read."""
        self.plain_from, self.plain_to = self.earliest, self.latest
        """Reported times that are believed as they are; none while the clock of the gateway is wrong."""
        self.rows: dict[int, list[Row]] = {}
        self.readings: list[Reading] = []
        self.rejects: list[Reject] = []
        self.names: dict[int, str] = {}
        """Names that the catalogue does not know."""
        self.newcomers: set[int] = set()
        """Gateways that were not known before."""
        self.strangers: set[int] = set()
        """Gateways that nobody has claimed, and that may not come by themselves."""
        self.strays = 0
        """How many times are not believed."""
        self.seen: list[str] = []
        """The kinds of all reports."""
        self.gateways: list[int] = []
        """Who brought each of them."""

    def correct(self, shift: int) -> None:
        """Correct the times of what is read from now on by so many milliseconds; 0: they are right."""
        self.shift = shift
        self.plain_from, self.plain_to = _NONE if shift else (self.earliest, self.latest)

    def place(self, time: int) -> int | None:
        """Return when a report of this time was made by our clock, or None if that is not believed."""
        corrected = time + self.shift
        return corrected if self.earliest <= corrected <= self.latest else None
