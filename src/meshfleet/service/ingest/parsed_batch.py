"""Parsed batch of MQTT messages: samples, readings and rejects to write in one transaction."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from meshfleet.db.samples import SampleRow
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import RejectedReport

_MAX_AHEAD_MS: Final = 600_000
"""Maximum milliseconds that a plausible reported time is ahead of the service's clock (inclusive)."""

_MAX_BEHIND_MS: Final = 30 * 86_400_000
"""Maximum milliseconds that a plausible reported time is behind the service's clock (inclusive).

No device keeps samples longer.
"""

FRESH_MS: Final = 60_000
"""A report less than this many milliseconds old was sent live, not from a buffer of the device."""

_EMPTY_RANGE: Final = (1, 0)
"""Range (first, last) that contains no time, because the end is before the start."""

UnackedSample: TypeAlias = tuple[int, str, "SampleRow"]
"""Sample to acknowledge: device, ending of the ack topic (such as `ack/0401`), and row of the sample."""


class ParsedBatch:
    """Everything that parsing a batch of MQTT messages has produced.

    Parsing changes nothing else, so messages can be parsed again if their batch could not be committed.
    """

    __slots__ = (
        "_unconfirmed_gateway",
        "acking_gateways",
        "clock_shifts",
        "earliest",
        "encoded_readings",
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
        """Gateways that accept acknowledgements of samples."""
        self.unacked_samples: list[UnackedSample] = []
        """Samples to acknowledge after the commit."""
        self.earliest = now - _MAX_BEHIND_MS
        """Earliest plausible time, Unix time in milliseconds; samples before it are stored, but flagged."""
        self.latest = now + _MAX_AHEAD_MS
        """Latest plausible time, Unix time in milliseconds; samples after it are stored, but flagged."""
        self.clock_shifts = clock_shifts
        """Milliseconds to add to the reported times of gateways with wrong clocks, by gateway."""
        self.is_shift_confirmed = is_shift_confirmed
        """Function that returns whether the clock correction of a gateway is valid for all its reports."""
        self.shift = 0
        """Milliseconds to add to the time of the report that is being parsed; 0 if the clock is right."""
        self._unconfirmed_gateway: int | None = None
        """Gateway of the report that is being parsed if its clock correction is unconfirmed; else None."""
        self.offset_checks: dict[int, bool | None] = {}
        """Result of checking unconfirmed clock corrections against reports of this batch, by gateway.

        True: reports are less than a minute old with the correction. False: they are without the correction.
        None: some reports say True and others False. A gateway without such reports has no entry.
        """
        self.trusted_from, self.trusted_to = self.earliest, self.latest
        """Range of reported times that are stored unchanged; empty while a report needs a correction."""
        self.rows: dict[int, list[SampleRow]] = {}
        self.readings: list[Reading] = []
        self.encoded_readings = b""
        """The readings as the transaction of this batch wrote them to the journal."""
        self.rejects: list[RejectedReport] = []
        self.foreign_names: dict[int, str] = {}
        """Identifier names that are not in the catalogue, by the negative hash that their samples store."""
        self.new_gateways: set[int] = set()
        """Unclaimed gateways to claim automatically in the transaction that writes this batch."""
        self.unclaimed_gateways: set[int] = set()
        """Unclaimed gateways whose reports were rejected."""
        self.implausible_count = 0
        """Number of samples whose time is implausible even after a clock correction."""
        self.report_kinds: list[str] = []
        """Kind of each accepted report."""
        self.report_gateways: list[int] = []
        """Gateway of each accepted report, in the order of `report_kinds`."""

    def set_shift(self, shift: int, *, unconfirmed: int | None = None) -> None:
        """Correct the gateway clock for the reports parsed next: add `shift` milliseconds to their times.

        0 means no correction. If no response of the gateway has confirmed the correction yet, pass the
        gateway as `unconfirmed`. Then a time is corrected only if the corrected time is less than a minute
        ago.
        """
        self.shift, self._unconfirmed_gateway = shift, unconfirmed
        self.trusted_from, self.trusted_to = _EMPTY_RANGE if shift else (self.earliest, self.latest)

    def find_shift(self, time: int) -> int:
        """Return the milliseconds to add to `time`, the Unix time in milliseconds in a report.

        If the clock correction of the gateway is unconfirmed, record in `offset_checks` whether the report
        agrees with the correction.
        """
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
        """Convert a reported time to the service's clock. Return None if the new time is implausible."""
        corrected = time + self.find_shift(time)
        return corrected if self.earliest <= corrected <= self.latest else None
