"""Acknowledges samples end to end, after the commit (ack-7 to ack-17, ack-21).

A device keeps its samples until they are acknowledged, and sends what it still has when an ack asks for it.
So nothing is lost as long as the device has it, whatever fails on the way: the radio, the gateway, the
network, this service.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.codes import AckType
from meshfleet.protocol.times import from_millis
from meshfleet.service.backfill import store
from meshfleet.service.backfill.gap_index import CheckSchedule, GapIndex
from meshfleet.service.backfill.metrics import AckCounters
from meshfleet.service.backfill.series import BACKFILL_INTERVAL_MS, SEQ_CYCLE, SeriesState, is_seq_ahead

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.backfill.series import Gap, SeriesKey
    from meshfleet.service.backfill.store import GapRow, SeriesRow
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.transport import Transport


# What the ledger has to write down, every other second.


class SeriesFlush:
    """Series, and their holes, on their way to the database."""

    def __init__(
        self,
        rows: Sequence[SeriesRow],
        gaps: Mapping[SeriesKey, Sequence[GapRow]],
        removed: Collection[SeriesKey],
    ) -> None:
        self._rows = rows
        self._gaps = gaps
        self._removed = removed

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # none of ours
        """Write them."""
        store.delete_series(connection, self._removed)  # first: some may have begun again
        store.upsert_series(connection, self._rows, self._gaps)

    def on_flushed(self) -> None:
        """Nothing else waits for it."""


# Series whose clock nobody believes: they are asked for what is missing, and not in the ledger.

_MAX_IMPLAUSIBLE_SERIES: Final = 20_000
"""How many are remembered; beyond that, those that were not heard for the longest are forgotten."""


class _ImplausibleSeries(Struct, gc=False):
    seq: int
    requested_at: int = 0
    """When a backfill was last asked for; 0: never, so it is asked for what came before we knew of it."""
    has_gap: bool = False


class ImplausibleClocks:
    """Remembers how far they have counted."""

    def __init__(self) -> None:
        self._by_series: dict[SeriesKey, _ImplausibleSeries] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._by_series)

    def needs_backfill(self, key: SeriesKey, seq: int, outage: int, now: int) -> bool:
        """A sample came; tells whether to ask for what is missing before it (ack-11, ack-12)."""
        stray = self._by_series.pop(key, None)
        if stray is None:
            self._add(key, seq)
            return False
        self._by_series[key] = stray  # as the one that was heard last
        if not is_seq_ahead(seq, stray.seq):
            return False  # of a backfill, or once more (ack-21)
        stray.has_gap = stray.has_gap or (seq - stray.seq) % SEQ_CYCLE != 1
        stray.seq = seq
        if now - stray.requested_at < BACKFILL_INTERVAL_MS or not (
            stray.has_gap or stray.requested_at < outage
        ):
            return False
        stray.requested_at, stray.has_gap = now, False
        return True

    def rewind_clock(self, now: int) -> None:
        """Take nothing for later than now: the clock of this machine was set back."""
        for stray in self._by_series.values():
            stray.requested_at = min(stray.requested_at, now)

    def _add(self, key: SeriesKey, seq: int) -> None:
        if len(self._by_series) >= _MAX_IMPLAUSIBLE_SERIES:
            del self._by_series[next(iter(self._by_series))]
        self._by_series[key] = _ImplausibleSeries(seq)


_QOS: Final = 1
_SAMPLES_PER_SLICE: Final = 500
"""Samples that are acknowledged in one go."""
_MAX_BACKLOG: Final = 200
"""Portions that may wait; if there are more, the next batch has to."""
_CONNECT_DELAY_MS: Final = 1_000
"""Milliseconds after which a new connection is noticed. What begins in that time has missed nothing."""
_MAX_GATEWAYS: Final = 50_000
"""Gateways of which it is remembered when they connected; beyond that, those are forgotten that are there
the longest: they were asked long ago."""
_MAX_TIME_TEXTS: Final = 4096
"""How many seconds have their spelling remembered: most samples are of the last few."""


class SampleAcknowledger:
    """Acknowledges samples, and keeps the ledger of what is missing."""

    def __init__(self, transport: Transport, *, prefix: str, now: int) -> None:
        self._transport = transport
        self._topic_prefix = f"{prefix}/mt/gateway/" if prefix else "mt/gateway/"
        self._started_at = self._collected_at = now
        self._connected_at: dict[int, int] = {}
        """When gateways connected: what they had to say before may be lost."""
        self._time_texts: dict[int, str] = {}
        self.series: dict[SeriesKey, SeriesState] = {}
        self.gap_index = GapIndex()
        self.check_schedule = CheckSchedule()
        """When their holes are to be looked at."""
        self._implausible_clocks = ImplausibleClocks()
        self._changed_series: set[SeriesKey] = set()
        self._changed_gaps: set[SeriesKey] = set()
        self._removed_series: set[SeriesKey] = set()
        """Series, those whose holes, and those whose end are not written down yet."""
        self._backlog: deque[tuple[ParsedBatch, int]] = deque()
        """Portions of committed drafts that are to be acknowledged."""
        self._is_sending = False
        self.counts = AckCounters()

    def restore(self, stored: Mapping[SeriesKey, SeriesState]) -> None:
        """Go on with what was known before a start.

        Each hole is looked at soon: what filled it may not have been written down. And nobody could fill it
        while we were away, so it has its time from now on.
        """
        self.series.update(stored)
        for key, series in stored.items():
            series.trusted_time = min(series.time, self._started_at)
            for hole in series.gaps or ():
                hole.last_arrival_at, hole.unchecked_arrivals = self._started_at, 1
            self.gap_index.update(key, series)
            self.check_schedule.schedule(key, key[0], series.due_at)

    def gateway_reconnected(self, gateway: int, now: int) -> None:
        """A gateway has a new connection, since a moment ago."""
        self._connected_at.pop(gateway, None)
        self._connected_at[gateway] = now - _CONNECT_DELAY_MS
        if len(self._connected_at) > _MAX_GATEWAYS:
            del self._connected_at[next(iter(self._connected_at))]

    def on_commit(self, batch: ParsedBatch) -> None:
        """A draft is committed: its samples are acknowledged, many of them in portions."""
        if batch.unacked_samples:
            self._backlog.extend(
                (batch, begin) for begin in range(0, len(batch.unacked_samples), _SAMPLES_PER_SLICE)
            )
            if not self._is_sending:
                self._send_next()
            self._limit_backlog()

    @property
    def has_backlog(self) -> bool:
        """Whether something is committed and not acknowledged yet."""
        return bool(self._backlog)

    def _send_next(self) -> None:
        """Acknowledge a portion; others have their turn before the next."""
        if self._backlog:
            self._acknowledge(*self._backlog.popleft())
        self._is_sending = bool(self._backlog)
        if self._is_sending:
            asyncio.get_running_loop().call_soon(self._send_next)

    def _limit_backlog(self) -> None:
        """Acknowledge those that are too many to wait."""
        while len(self._backlog) > _MAX_BACKLOG:
            self._acknowledge(*self._backlog.popleft())

    def _acknowledge(self, batch: ParsedBatch, begin: int) -> None:
        now, earliest, latest = batch.now, batch.earliest, batch.latest
        messages = []
        for device, path, row in batch.unacked_samples[begin : begin + _SAMPLES_PER_SLICE]:
            time, kind, identifier, seq, gateway, _, _, _ = row
            if earliest <= time <= latest:
                sort = self._record_sample((device, kind, identifier), time, seq, gateway, now)
            else:  # nobody believes it, and it tells nothing of the series
                sort = self._record_implausible((device, kind, identifier), seq, gateway, now)
            messages.append(self._build_ack(device, path, time, gateway, sort))
        self.counts.sent += len(messages)
        self._transport.send(messages)

    def prepare_flush(self, states: PendingStates, now: int) -> SeriesFlush:  # noqa: ARG002 # they tell nothing of series
        """Hand over the series that changed since the last time."""
        if now < self._collected_at:
            self._rewind_clock(now)
        self._collected_at = now
        changed, self._changed_series = self._changed_series, set()
        rewritten, self._changed_gaps = self._changed_gaps, set()
        gone, self._removed_series = self._removed_series, set()
        return SeriesFlush(
            [(*key, each.time, each.seq, each.unfilled) for key in changed for each in (self.series[key],)],
            {key: [_to_gap_row(hole) for hole in self.series[key].gaps or ()] for key in rewritten},
            gone,
        )

    def update_gap(self, key: SeriesKey, gap: Gap, remaining: Iterable[tuple[int, int]], at: int) -> None:
        """What was left of a hole at a moment, by the samples that were stored."""
        series = self.series[key]
        if not any(each is gap for each in series.gaps or ()):
            return  # it has become part of a larger one
        series.replace_gap(gap, remaining, at)
        self._mark_gaps_changed(key)

    def drop_gap(self, key: SeriesKey, gap: Gap, now: int) -> None:
        """A hole is where nothing is kept any more."""
        self.series[key].drop_gap(gap, now)
        self._mark_gaps_changed(key)

    def remove_series(self, key: SeriesKey) -> None:
        """A series is over: nothing of it is kept, and nothing comes."""
        del self.series[key]
        self.gap_index.update(key, None)
        self.check_schedule.remove(key)
        self._changed_series.discard(key)
        self._changed_gaps.discard(key)
        self._removed_series.add(key)

    def _mark_gaps_changed(self, key: SeriesKey) -> None:
        """The holes of a series have changed."""
        self.gap_index.update(key, self.series[key])
        self._changed_series.add(key)
        self._changed_gaps.add(key)

    def _rewind_clock(self, now: int) -> None:
        """Take nothing that we did for later than now: the clock of this machine was set back."""
        self._started_at = min(self._started_at, now)
        self._connected_at = {gateway: min(at, now) for gateway, at in self._connected_at.items()}
        self._implausible_clocks.rewind_clock(now)
        self.check_schedule.clear()
        for key, series in self.series.items():
            series.rewind_clock(now)
            self.check_schedule.schedule(key, key[0], series.due_at)

    def _record_sample(self, key: SeriesKey, time: int, seq: int, gateway: int, now: int) -> AckType:
        """Put a sample into the ledger, and tell how to acknowledge it."""
        series = self.series.get(key)
        if series is None:
            self.series[key] = SeriesState(
                time, seq, requested_at=now, backfill_interval=0
            )  # it begins here (ack-13)
            self._changed_series.add(key)
            return AckType.ACK
        if time > series.time or (time == series.time and (seq - series.seq) % SEQ_CYCLE == 1):
            if not series.is_gap_checked and series.regain_trust(seq, now):
                self._mark_gaps_changed(key)
            missing = series.append(time, seq, now)
        elif series.is_clock_reset(time, seq, now):
            missing = series.append_after_reset(time, seq, now)
        else:
            if series.gaps and series.record_arrival(time, now):
                self.check_schedule.schedule(key, gateway, series.due_at)
            return AckType.ACK  # of a backfill, or out of order, or once more (ack-21)
        if missing:
            self.counts.gaps += 1
            self.check_schedule.schedule(key, gateway, series.due_at)
            self._mark_gaps_changed(key)
        self._changed_series.add(key)
        outage = max(self._started_at, self._connected_at.get(gateway, 0))
        if (series.requested_at < outage or series.gaps) and series.needs_backfill(outage, now):
            series.record_request(now)
            self.counts.backfills += 1
            return AckType.BACKFILL
        return AckType.ACK

    def _record_implausible(self, key: SeriesKey, seq: int, gateway: int, now: int) -> AckType:
        """Tell how to acknowledge a sample whose clock nobody believes."""
        outage = max(self._started_at, self._connected_at.get(gateway, 0))
        if self._implausible_clocks.needs_backfill(key, seq, outage, now):
            self.counts.backfills += 1
            return AckType.BACKFILL
        return AckType.ACK

    def _build_ack(self, device: int, path: str, time: int, gateway: int, ack_type: AckType) -> Publish:
        topic = f"{self._topic_prefix}{gateway:012x}/request/{device:012x}/{path}"
        seconds, millis = divmod(time, 1000)
        text = self._time_texts.get(seconds) or self._format_seconds(seconds)
        return Publish(topic, f'{{"time":"{text}.{millis:03d}Z","type":{ack_type:d}}}'.encode(), _QOS)

    def _format_seconds(self, seconds: int) -> str:
        """A time without its milliseconds. The same ones come again and again."""
        if len(self._time_texts) >= _MAX_TIME_TEXTS:
            self._time_texts.clear()
        text = self._time_texts[seconds] = from_millis(seconds * 1000).isoformat()[:19]
        return text


def _to_gap_row(hole: Gap) -> GapRow:
    return hole.since, hole.until, hole.found_at, hole.lost_at
