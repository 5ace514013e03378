"""A draft: all that a batch of messages means, before anything of it is written down."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import Reject

_AHEAD: Final = 600_000
"""Milliseconds that a report's time may be ahead of ours; clocks differ, but not by more."""

_BEHIND: Final = 30 * 86_400_000
"""Milliseconds that it may be behind: no device keeps samples for longer."""

FRESH: Final = 60_000
"""Milliseconds after which a report is no sign of life any more."""

_NONE: Final = (1, 0)
"""A span of times in which there is none."""

Acked: TypeAlias = tuple[int, str, "Row"]
"""A device, how requests about the series end (`ack/0401`, perhaps), and a sample of it."""


class Draft:
    """What a batch means. Nobody has seen it yet: it can be thrown away and made again."""

    __slots__ = (
        "_unproved",
        "acked",
        "acking",
        "earliest",
        "gateways",
        "is_proved",
        "latest",
        "names",
        "newcomers",
        "now",
        "offset_checks",
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
        self,
        now: int,
        acking: Container[int] = (),
        shifts: Mapping[int, int] = MappingProxyType({}),
        is_proved: Callable[[int], bool] = lambda _gateway: True,
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
        self.is_proved = is_proved
        """Tells whether the correction of a gateway holds for all that it reports; see `Clocks`."""
        self.shift = 0
        """The one of the gateway whose report is being read."""
        self._unproved: int | None = None
        """That gateway, if its correction is not proved."""
        self.offset_checks: dict[int, bool | None] = {}
        """Whether corrections that are not proved hold, by gateway, as far as fresh reports tell; None: they
        contradict each other."""
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

    def correct(self, shift: int, *, unproved: int | None = None) -> None:
        """Correct the times of what is read from now on by so many milliseconds; 0: they are right.

        `unproved` is the gateway if its correction is not proved: it applies only to reports that are fresh
        by it.
        """
        self.shift, self._unproved = shift, unproved
        self.plain_from, self.plain_to = _NONE if shift else (self.earliest, self.latest)

    def shift_of(self, time: int) -> int:
        """Return the milliseconds that correct a report of this time."""
        if self._unproved is None:
            return self.shift
        age = self.now - time
        is_fresh_by_it = abs(age - self.shift) < FRESH
        if is_fresh_by_it or abs(age) < FRESH:
            holds = self.offset_checks.setdefault(self._unproved, is_fresh_by_it)
            if holds is not is_fresh_by_it:
                self.offset_checks[self._unproved] = None
        return self.shift if is_fresh_by_it else 0

    def place(self, time: int) -> int | None:
        """Return when a report of this time was made by our clock, or None if that is not believed."""
        corrected = time + self.shift_of(time)
        return corrected if self.earliest <= corrected <= self.latest else None
