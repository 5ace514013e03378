"""A draft: all that a batch of messages means, before anything of it is written down."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from meshfleet.db.samples import SampleRow
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import RejectedReport

_MAX_AHEAD_MS: Final = 600_000
"""Milliseconds that a report's time may be ahead of ours; clocks differ, but not by more."""

_MAX_BEHIND_MS: Final = 30 * 86_400_000
"""Milliseconds that it may be behind: no device keeps samples for longer."""

FRESH_MS: Final = 60_000
"""Milliseconds after which a report is no sign of life any more."""

_EMPTY_RANGE: Final = (1, 0)
"""A span of times in which there is none."""

UnackedSample: TypeAlias = tuple[int, str, "SampleRow"]
"""A device, how requests about the series end (`ack/0401`, perhaps), and a sample of it."""


class ParsedBatch:
    """What a batch means. Nobody has seen it yet: it can be thrown away and made again."""

    __slots__ = (
        "_unconfirmed_gateway",
        "acking_gateways",
        "clock_shifts",
        "earliest",
        "foreign_names",
        "implausible_count",
        "is_shift_confirmed",
        "latest",
        "new_gateways",
        "now",
        "offset_checks",
        "readings",
        "rejects",
        "report_gateways",
        "report_kinds",
        "rows",
        "shift",
        "trusted_from",
        "trusted_to",
        "unacked_samples",
        "unclaimed_gateways",
    )

    def __init__(
        self,
        now: int,
        acking_gateways: Container[int] = (),
        clock_shifts: Mapping[int, int] = MappingProxyType({}),
        is_shift_confirmed: Callable[[int], bool] = lambda _gateway: True,
    ) -> None:
        self.now = now
        self.acking_gateways = acking_gateways
        """Gateways that take acknowledgements of samples."""
        self.unacked_samples: list[UnackedSample] = []
        """Samples to be acknowledged to them once they are committed."""
        self.earliest = now - _MAX_BEHIND_MS
        self.latest = now + _MAX_AHEAD_MS
        """What is not between these is kept, and not believed."""
        self.clock_shifts = clock_shifts
        """Milliseconds that correct the times of gateways whose clocks are wrong."""
        self.is_shift_confirmed = is_shift_confirmed
        """Tells whether the correction of a gateway holds for all that it reports; see `Clocks`."""
        self.shift = 0
        """The one of the gateway whose report is being read."""
        self._unconfirmed_gateway: int | None = None
        """That gateway, if its correction is not proved."""
        self.offset_checks: dict[int, bool | None] = {}
        """Whether corrections that are not proved hold, by gateway, as far as fresh reports tell; None: they
        contradict each other."""
        self.trusted_from, self.trusted_to = self.earliest, self.latest
        """Reported times that are believed as they are; none while the clock of the gateway is wrong."""
        self.rows: dict[int, list[SampleRow]] = {}
        self.readings: list[Reading] = []
        self.rejects: list[RejectedReport] = []
        self.foreign_names: dict[int, str] = {}
        """Names that the catalogue does not know."""
        self.new_gateways: set[int] = set()
        """Gateways that were not known before."""
        self.unclaimed_gateways: set[int] = set()
        """Gateways that nobody has claimed, and that may not come by themselves."""
        self.implausible_count = 0
        """How many times are not believed."""
        self.report_kinds: list[str] = []
        """The kinds of all reports."""
        self.report_gateways: list[int] = []
        """Who brought each of them."""

    def set_shift(self, shift: int, *, unconfirmed: int | None = None) -> None:
        """Correct the times of what is read from now on by so many milliseconds; 0: they are right.

        `unproved` is the gateway if its correction is not proved: it applies only to reports that are fresh
        by it.
        """
        self.shift, self._unconfirmed_gateway = shift, unconfirmed
        self.trusted_from, self.trusted_to = _EMPTY_RANGE if shift else (self.earliest, self.latest)

    def find_shift(self, time: int) -> int:
        """Return the milliseconds that correct a report of this time."""
        if self._unconfirmed_gateway is None:
            return self.shift
        age = self.now - time
        is_fresh_by_it = abs(age - self.shift) < FRESH_MS
        if is_fresh_by_it or abs(age) < FRESH_MS:
            holds = self.offset_checks.setdefault(self._unconfirmed_gateway, is_fresh_by_it)
            if holds is not is_fresh_by_it:
                self.offset_checks[self._unconfirmed_gateway] = None
        return self.shift if is_fresh_by_it else 0

    def correct_time(self, time: int) -> int | None:
        """Return when a report of this time was made by our clock, or None if that is not believed."""
        corrected = time + self.find_shift(time)
        return corrected if self.earliest <= corrected <= self.latest else None
