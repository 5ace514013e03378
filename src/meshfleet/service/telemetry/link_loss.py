"""Estimates from minutes how many readings of a link were expected, and how many were lost (rest-245).

With `seq`, the missing values of `seq` are lost readings. It is not known how real gateways count: each link
may have numbers of its own, or all readings of a device may share one counter, so that the next number goes
to whichever parent reports next. The data tell: under the wrong assumption, numbers seem to be missing, or
there are more readings than numbers. If both are possible, nothing is claimed.

Without `seq`, a link should have as many readings as the parent of the same device that has most in a minute.
Readings of advertisements are compared with each other, and so are those of established links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from meshfleet.rest.telemetry import HeartbeatCount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.ingest.minute_rollup import MinuteSummary, SeqRange

_SEQ_VALUES: Final = 256
_MAX_STEP: Final = _SEQ_VALUES // 2
"""Largest step from one minute to the next that counts; a longer one may have passed 255 more than once."""

_MINUTE_MS: Final = 60_000

_MIN_EXPECTED: Final = 5
"""Minimum number of expected readings from which the way of counting is concluded."""

_CLEAR_DIFFERENCE: Final = 0.15
"""Difference of the loss between both ways of counting from which the lower one is the truth."""

_NEGLIGIBLE_LOSS: Final = 0.05
"""If both ways of counting show less loss than this, it does not matter which one is used."""


class LinkLoss(NamedTuple):
    """Expected readings of a link, and the share of them that was lost; both None if unknown."""

    expected: int | None = None
    loss: float | None = None


class _SeqCount(Struct):
    """Numbers that were sent and received, according to `seq`."""

    sent: int = 0
    received: int = 0

    def add(self, sent: int, received: int) -> None:
        self.sent += sent
        self.received += received

    @property
    def loss(self) -> float:
        return 1 - self.received / self.sent if self.sent else 0.0


class _SeqChain(Struct):
    """Follows the values of `seq` of one counter from minute to minute."""

    last: int = -1
    time: int = 0
    per_minute: float = 0.0

    def count_sent(self, time: int, seqs: SeqRange) -> int:
        """Return how many numbers were sent since the last minute, up to the end of this one."""
        step, elapsed = (seqs.first - self.last) % _SEQ_VALUES, time - self.time
        sent = seqs.span
        # At the usual rate, the counter must not have gone round between both minutes.
        is_near = 0 < elapsed / _MINUTE_MS * max(self.per_minute, 1.0) < _MAX_STEP
        if self.last >= 0 and is_near and 0 < step <= _MAX_STEP:
            sent += step - 1
            self.per_minute = max(self.per_minute, (step + seqs.span - 1) * _MINUTE_MS / elapsed)
        self.last, self.time = (seqs.first + seqs.span - 1) % _SEQ_VALUES, time
        return sent


class _Link(Struct):
    """Readings and numbers of one link, received and expected."""

    chain: _SeqChain
    seq_counts: dict[int, _SeqCount]
    """Numbers of the link by part of the time range."""
    readings: dict[int, int]
    """Received readings by part."""
    expected: dict[int, int]
    """Expected readings by part, if the link were as good as the best one in each minute."""
    linked_before: int = 0
    """Sum of the best numbers of established readings of all minutes up to the last one of the link."""
    heard_before: int = 0
    """Sum of the best numbers of advertisements of all minutes up to the last one of the link."""
    is_linked: bool = False
    is_heard: bool = False


class HeartbeatLoss:
    """Estimates the loss of the heartbeats of a device. Add the minutes in the order of time."""

    def __init__(self) -> None:
        self._chain = _SeqChain()
        self._numbers = _SeqCount()
        self._count = self._numbered = 0
        self._copy_reports = self._copies = 0
        self._time = -1

    def add_minute(self, time: int, minute: MinuteSummary) -> None:
        """Add the heartbeats of one minute, unless it is there already."""
        if time <= self._time:
            return
        self._time = time
        self._count += minute.count
        if minute.seqs is not None:
            self._numbered += minute.count
            self._numbers.add(self._chain.count_sent(time, minute.seqs), minute.seqs.received)
        if minute.copies is not None:
            self._copy_reports += minute.copies[0]
            self._copies += minute.copies[1]

    def build_count(self) -> HeartbeatCount | None:
        """Return the heartbeats and their loss; None if there are none."""
        if not self._count:
            return None
        is_known = self._numbered == self._count  # version 0.1.0 did not store `seq`
        numbers = self._numbers
        return HeartbeatCount(
            count=self._count,
            expected=round(self._count * numbers.sent / numbers.received) if is_known else None,
            loss=round(numbers.loss, 4) if is_known else None,
            copies=round(self._copies / self._copy_reports, 2) if self._copy_reports else None,
        )


class LossEstimator:
    """Estimates the loss of all links of one device. Add the minutes in the order of time.

    The time range is divided into parts, which are the buckets of the links.
    """

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}
        self._shared_chain = _SeqChain()
        self._shared_counts: dict[int, _SeqCount] = {}
        self._linked_total = 0
        self._heard_total = 0
        self._reading_count = self._seq_readings = 0

    def add_minute(self, time: int, part: int, minutes: Mapping[int, MinuteSummary]) -> None:
        """Add all links of the device in one minute, by parent. The minute is in `part` of the time range."""
        best_linked = max((each.linked_count for each in minutes.values()), default=0)
        best_heard = max((each.count - each.linked_count for each in minutes.values()), default=0)
        self._linked_total += best_linked
        self._heard_total += best_heard
        for parent, minute in minutes.items():
            link = self._links.get(parent)
            if link is None:
                link = self._links[parent] = _Link(_SeqChain(), {}, {}, {})
                link.linked_before = self._linked_total - best_linked
                link.heard_before = self._heard_total - best_heard
            self._add_link(link, time, part, minute)
        self._add_shared(time, part, [each.seqs for each in minutes.values() if each.seqs is not None])

    def _add_link(self, link: _Link, time: int, part: int, minute: MinuteSummary) -> None:
        link.is_linked = link.is_linked or minute.linked_count > 0
        link.is_heard = link.is_heard or minute.count > minute.linked_count
        expected = link.is_linked * (self._linked_total - link.linked_before)
        expected += link.is_heard * (self._heard_total - link.heard_before)
        link.linked_before, link.heard_before = self._linked_total, self._heard_total
        link.expected[part] = link.expected.get(part, 0) + expected
        link.readings[part] = link.readings.get(part, 0) + minute.count
        self._reading_count += minute.count
        if (seqs := minute.seqs) is not None:
            self._seq_readings += minute.count
            sent = link.chain.count_sent(time, seqs)
            link.seq_counts.setdefault(part, _SeqCount()).add(sent, seqs.received)

    def _add_shared(self, time: int, part: int, seqs: list[SeqRange]) -> None:
        """Count the numbers of all links together, as if they had one counter."""
        if not seqs:
            return
        spans = {
            each.first: max((other.first - each.first) % _SEQ_VALUES + other.span for other in seqs)
            for each in seqs
        }
        first = min(spans, key=spans.__getitem__)
        received = sum(each.received for each in seqs)
        merged = type(seqs[0])(first, min(spans[first], _SEQ_VALUES), received)
        sent = self._shared_chain.count_sent(time, merged)
        self._shared_counts.setdefault(part, _SeqCount()).add(sent, received)

    def estimate(self, parent: int, part: int | None = None) -> LinkLoss:
        """Return the loss of the link to a parent, in one part of the time range or in all of it."""
        link = self._links[parent]
        readings = _sum(link.readings, part)
        if not readings:
            return LinkLoss()
        if not self._seq_readings:
            expected = max(_sum(link.expected, part), readings)
            return LinkLoss(expected, round(1 - readings / expected, 4))
        counts = self._select_counts(link)
        if counts is None:
            return LinkLoss()
        total = _SeqCount()
        for each in counts.values() if part is None else filter(None, [counts.get(part)]):
            total.add(each.sent, each.received)
        if not total.received:
            return LinkLoss()
        return LinkLoss(round(readings * total.sent / total.received), round(total.loss, 4))

    def _select_counts(self, link: _Link) -> dict[int, _SeqCount] | None:
        """Return the numbers that tell the loss of a link, its own or the shared ones; None if unclear."""
        if self._seq_readings < self._reading_count:
            return None  # some readings have no number
        own, shared = _SeqCount(), _SeqCount()
        for each in self._links.values():
            for count in each.seq_counts.values():
                own.add(count.sent, count.received)
        for count in self._shared_counts.values():
            shared.add(count.sent, count.received)
        if max(own.sent, shared.sent) < _MIN_EXPECTED:
            return None
        if len(self._links) == 1 or shared.received > shared.sent:
            return link.seq_counts
        if max(own.loss, shared.loss) < _NEGLIGIBLE_LOSS or own.loss + _CLEAR_DIFFERENCE < shared.loss:
            return link.seq_counts
        return self._shared_counts if shared.loss + _CLEAR_DIFFERENCE < own.loss else None


def _sum(numbers: Mapping[int, int], part: int | None) -> int:
    return sum(numbers.values()) if part is None else numbers.get(part, 0)
