"""Parsed batch of messages: everything to be written for it in one transaction."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from meshfleet.db.samples import SampleRow
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import RejectedReport

_MAX_AHEAD_MS: Final = 600_000
"""Milliseconds that a reported time may be ahead of the service's clock."""

_MAX_BEHIND_MS: Final = 30 * 86_400_000
"""Milliseconds that a reported time may be behind: no device keeps samples for longer."""

FRESH_MS: Final = 60_000
"""Milliseconds after which a report is no longer a sign of life."""

_EMPTY_RANGE: Final = (1, 0)
"""Empty range of times."""

UnackedSample: TypeAlias = tuple[int, str, "SampleRow"]
"""Device, ending of the ack topic (such as `ack/0401`), and the sample."""


class ParsedBatch:
    """Result of parsing a batch.

    It has no effect until it is committed: it can be discarded and parsed again.
    """

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
        """Gateways that accept acknowledgments of samples."""
        self.unacked_samples: list[UnackedSample] = []
        """Samples to acknowledge after the commit."""
        self.earliest = now - _MAX_BEHIND_MS
        self.latest = now + _MAX_AHEAD_MS
        """Limits of plausible times. Samples outside are stored, but flagged."""
        self.clock_shifts = clock_shifts
        """Corrections in milliseconds for gateways with wrong clocks."""
        self.is_shift_confirmed = is_shift_confirmed
        """Function that returns whether the correction of a gateway is valid for all its reports."""
        self.shift = 0
        """Correction for the gateway whose report is being parsed."""
        self._unconfirmed_gateway: int | None = None
        """Gateway of `shift`, if that correction is unconfirmed; otherwise None."""
        self.offset_checks: dict[int, bool | None] = {}
        """Whether unconfirmed corrections are valid according to fresh reports, by gateway.

        None: the reports contradict each other.
        """
        self.trusted_from, self.trusted_to = self.earliest, self.latest
        """Range of reported times that need no check; empty while the gateway's clock is wrong."""
        self.rows: dict[int, list[SampleRow]] = {}
        self.readings: list[Reading] = []
        self.rejects: list[RejectedReport] = []
        self.foreign_names: dict[int, str] = {}
        """Names that are not in the catalogue, by number."""
        self.new_gateways: set[int] = set()
        """Gateways to register with this batch."""
        self.unclaimed_gateways: set[int] = set()
        """Unclaimed gateways that may not register themselves."""
        self.implausible_count = 0
        """Number of implausible times."""
        self.report_kinds: list[str] = []
        """Kind of each report."""
        self.report_gateways: list[int] = []
        """Gateway of each report."""

    def set_shift(self, shift: int, *, unconfirmed: int | None = None) -> None:
        """Correct the times of the following reports by `shift` milliseconds; 0: no correction.

        `unconfirmed` is the gateway if its correction is unconfirmed: then it applies only to reports that
        are fresh after correction.
        """
        self.shift, self._unconfirmed_gateway = shift, unconfirmed
        self.trusted_from, self.trusted_to = _EMPTY_RANGE if shift else (self.earliest, self.latest)

    def find_shift(self, time: int) -> int:
        """Return the milliseconds that correct a report of this time."""
        if self._unconfirmed_gateway is None:
            return self.shift
        age = self.now - time
        is_fresh_if_shifted = abs(age - self.shift) < FRESH_MS
        if is_fresh_if_shifted or abs(age) < FRESH_MS:
            expected = self.offset_checks.setdefault(self._unconfirmed_gateway, is_fresh_if_shifted)
            if expected is not is_fresh_if_shifted:
                self.offset_checks[self._unconfirmed_gateway] = None
        return self.shift if is_fresh_if_shifted else 0

    def correct_time(self, time: int) -> int | None:
        """Return the time of a report by the service's clock, or None if it is implausible."""
        corrected = time + self.find_shift(time)
        return corrected if self.earliest <= corrected <= self.latest else None
