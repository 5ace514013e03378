"""A draft: all that a batch of messages means, before anything of it is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Container

    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import Reject

_AHEAD: Final = 600_000
"""Milliseconds that a report's time may be ahead of ours; clocks differ, but not by more."""

_BEHIND: Final = 30 * 86_400_000
"""Milliseconds that it may be behind: no device keeps samples for longer."""


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
        "readings",
        "rejects",
        "rows",
        "seen",
        "strangers",
        "strays",
    )

    def __init__(self, now: int, acking: Container[int] = ()) -> None:
        self.now = now
        self.acking = acking
        """Gateways that take acknowledgements of samples."""
        self.acked: list[Acked] = []
        """Samples to be acknowledged to them once they are committed."""
        self.earliest = now - _BEHIND
        self.latest = now + _AHEAD
        """What is not between these is kept, and not believed."""
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
