"""Parsed batch of messages: samples, readings and rejects to write in one transaction."""

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
"""Milliseconds that a reported time may be behind the service's clock: no device keeps samples longer."""

FRESH_MS: Final = 60_000
"""Maximum age in milliseconds of a report that proves that its device is connected."""

_EMPTY_RANGE: Final = (1, 0)
"""Range that contains no time: its end is before its start."""

UnackedSample: TypeAlias = tuple[int, str, "SampleRow"]
"""Sample to acknowledge: its device, the ending of the ack topic (such as `ack/0401`), and its row."""


class ParsedBatch:
    """Everything that parsing a batch of messages has produced.

    Parsing changes nothing else, so a batch can be discarded and parsed again before it is committed.
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
        """Limits of plausible times. A sample with a time outside of these limits is stored, but flagged."""
        self.clock_shifts = clock_shifts
        """Corrections in milliseconds for gateways with wrong clocks."""
        self.is_shift_confirmed = is_shift_confirmed
        """Function that returns whether the correction of a gateway is valid for all its reports."""
        self.shift = 0
        """Milliseconds to add to the time of the report that is being parsed; 0 if the clock is right."""
        self._unconfirmed_gateway: int | None = None
        """Gateway of the report that is being parsed if its correction is unconfirmed; else None."""
        self.offset_checks: dict[int, bool | None] = {}
        """Result of checking unconfirmed clock corrections against this batch, by gateway.

        True: with the correction, reports are less than a minute old. False: without it. None: some reports
        say True and others False. Gateways without such reports have no entry.
        """
        self.trusted_from, self.trusted_to = self.earliest, self.latest
        """Range of times that are stored unchanged; empty while the parsed report needs a correction."""
        self.rows: dict[int, list[SampleRow]] = {}
        self.readings: list[Reading] = []
        self.rejects: list[RejectedReport] = []
        self.foreign_names: dict[int, str] = {}
        """Identifier names that are not in the catalogue, by the negative hash that their samples store."""
        self.new_gateways: set[int] = set()
        """Unclaimed gateways that are claimed automatically in the transaction of this batch."""
        self.unclaimed_gateways: set[int] = set()
        """Unclaimed gateways whose reports were rejected."""
        self.implausible_count = 0
        """Number of samples with an implausible time, even after correction."""
        self.report_kinds: list[str] = []
        """Kind of each accepted report."""
        self.report_gateways: list[int] = []
        """Gateway of each accepted report, in the same order."""

    def set_shift(self, shift: int, *, unconfirmed: int | None = None) -> None:
        """Correct the times of the following reports by `shift` milliseconds; 0: no correction.

        Pass the gateway as `unconfirmed` if no response has confirmed its correction yet. Then the correction
        applies only to reports that are less than a minute old if corrected.
        """
        self.shift, self._unconfirmed_gateway = shift, unconfirmed
        self.trusted_from, self.trusted_to = _EMPTY_RANGE if shift else (self.earliest, self.latest)

    def find_shift(self, time: int) -> int:
        """Return the milliseconds to add to a reported time, and check an unconfirmed correction."""
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
        """Convert a reported time to the service's clock. Return None if the result is implausible."""
        corrected = time + self.find_shift(time)
        return corrected if self.earliest <= corrected <= self.latest else None
