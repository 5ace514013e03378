"""Acknowledges samples to their devices after the commit (ack-7 to ack-17, ack-21).

A device keeps its samples until they are acknowledged, and sends them again when an ack requests a backfill.
So no sample is lost if the radio, the gateway, the network or this service fails for a while.
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
from meshfleet.service.backfill.gap_index import GapCheckSchedule, GapIndex
from meshfleet.service.backfill.series import BACKFILL_INTERVAL_MS, SEQ_CYCLE, SeriesState, is_seq_ahead
from meshfleet.service.backfill.store import GapRow, SeriesRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.backfill.series import Gap, SeriesKey, TimeRange
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.transport import Transport


class SeriesFlush:
    """Part of an ingest flush that writes changed series of samples and their gaps to the database."""

    def __init__(
        self,
        rows: Sequence[SeriesRow],
        gaps: Mapping[SeriesKey, Sequence[GapRow]],
        removed: Collection[SeriesKey],
    ) -> None:
        self._rows = rows
        self._gaps = gaps
        self._removed = removed

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # new devices have no series
        """Write the changed series and gaps in the transaction of the flush."""
        store.delete_series(connection, self._removed)  # first: a removed series may have started again
        store.upsert_series(connection, self._rows, self._gaps)

    def on_flushed(self) -> None:
        """Do nothing: no state of series in memory depends on the commit of a flush."""


# Series whose samples have implausible times: missing samples are requested, but gaps are not recorded.

_MAX_IMPLAUSIBLE_SERIES: Final = 20_000
"""Maximum number of tracked series with implausible times.

If there are more, the series whose last sample arrived first is dropped.
"""


class _ImplausibleSeriesState(Struct, gc=False):
    """Last sequence number and backfill request of a series whose samples have implausible times."""

    seq: int
    requested_at: int = 0
    """Unix time in milliseconds of the last backfill request; 0 if the series never requested one."""
    has_gap: bool = False
    """Whether samples are missing since the last backfill request."""


class ImplausibleClocks:
    """Detects missing samples in series whose samples have implausible times, from sequence numbers only."""

    def __init__(self) -> None:
        self._by_series: dict[SeriesKey, _ImplausibleSeriesState] = {}

    def __len__(self) -> int:
        """Return the number of tracked series."""
        return len(self._by_series)

    def record_sample(self, key: SeriesKey, seq: int, outage_end: int, now: int) -> bool:
        """Record a sample of a series. Return whether its ack must request a backfill (ack-11, ack-12).

        `outage_end` is the Unix time in milliseconds at which the last outage of the gateway or the service
        ended.
        """
        series = self._by_series.pop(key, None)
        if series is None:
            self._start_series(key, seq)
            return False
        self._by_series[key] = series  # moved to the end, as it has the newest sample
        if not is_seq_ahead(seq, series.seq):
            return False  # part of a backfill, or a duplicate (ack-21)
        series.has_gap = series.has_gap or (seq - series.seq) % SEQ_CYCLE != 1
        series.seq = seq
        if now - series.requested_at < BACKFILL_INTERVAL_MS or not (
            series.has_gap or series.requested_at < outage_end
        ):
            return False
        series.requested_at, series.has_gap = now, False
        return True

    def rewind_clock(self, now: int) -> None:
        """Limit the times of backfill requests to now, after the clock of this machine was set back."""
        for series in self._by_series.values():
            series.requested_at = min(series.requested_at, now)

    def _start_series(self, key: SeriesKey, seq: int) -> None:
        """Start tracking a series. If there are too many, drop the series whose last sample is oldest."""
        if len(self._by_series) >= _MAX_IMPLAUSIBLE_SERIES:
            del self._by_series[next(iter(self._by_series))]
        self._by_series[key] = _ImplausibleSeriesState(seq)


_QOS: Final = 1
_SAMPLES_PER_SLICE: Final = 500
"""Number of samples to acknowledge before the event loop runs other tasks."""
_MAX_BACKLOG: Final = 200
"""Maximum number of slices of samples that wait to be acknowledged.

Slices above the maximum are acknowledged at once, which delays the next batch of reports.
"""
_CONNECT_DELAY_MS: Final = 1_000
"""Maximum milliseconds from the MQTT connection of a gateway until a poll detects the connection."""
_MAX_GATEWAYS: Final = 50_000
"""Maximum number of gateways whose connection time is kept.

If there are more, the earliest connection time is dropped: the backfill after it was requested long ago.
"""
_MAX_TIME_TEXTS: Final = 4096
"""Maximum number of cached timestamp strings (one per second); most samples are only seconds old."""


class AckCounters:
    """Counts since the service started."""

    def __init__(self) -> None:
        self.sent = 0
        """Number of acks sent, with or without a backfill request."""
        self.backfills = 0
        """Number of acks that requested a backfill."""
        self.gaps = 0
        """Number of gaps found."""


class SampleAcknowledger:
    """Sends the acks of committed samples, and records the gaps in each series of samples."""

    def __init__(self, transport: Transport, *, prefix: str, now: int) -> None:
        self._transport = transport
        self._topic_prefix = f"{prefix}/mt/gateway/" if prefix else "mt/gateway/"
        self._started_at = self._collected_at = now
        self._connected_at: dict[int, int] = {}
        """Unix time in milliseconds of each gateway's last connection; earlier reports may be lost."""
        self._time_texts: dict[int, str] = {}
        self.series: dict[SeriesKey, SeriesState] = {}
        self.gap_index = GapIndex()
        self.check_schedule = GapCheckSchedule()
        """Schedule of the gap checks."""
        self._implausible_clocks = ImplausibleClocks()
        self._changed_series: set[SeriesKey] = set()
        """Series that the next flush writes to the database."""
        self._changed_gaps: set[SeriesKey] = set()
        """Series whose gaps the next flush writes to the database."""
        self._removed_series: set[SeriesKey] = set()
        """Series that the next flush deletes from the database."""
        self._backlog: deque[tuple[ParsedBatch, int]] = deque()
        """Slices of samples to acknowledge: a committed batch, and the index of the slice's first sample."""
        self._is_sending = False
        self.counts = AckCounters()

    def restore(self, stored: Mapping[SeriesKey, SeriesState]) -> None:
        """Load the series of samples that the previous process stored.

        Every gap is checked soon, because it may have been filled just before the service stopped. No sample
        could arrive while the service was down, so the hour until a gap counts as lost starts again.
        """
        self.series.update(stored)
        for key, series in stored.items():
            series.trusted_time = min(series.time, self._started_at)
            for gap in series.gaps or ():
                gap.last_arrival_at, gap.unchecked_arrivals = self._started_at, 1
            self.gap_index.update(key, series)
            self.check_schedule.schedule(key, key[0], series.next_check_at)

    def record_gateway_connection(self, gateway: int, now: int) -> None:
        """Record that a gateway has connected to the broker in the last second."""
        self._connected_at.pop(gateway, None)
        self._connected_at[gateway] = now - _CONNECT_DELAY_MS
        if len(self._connected_at) > _MAX_GATEWAYS:
            del self._connected_at[next(iter(self._connected_at))]

    def on_commit(self, batch: ParsedBatch) -> None:
        """Acknowledge the samples of a committed batch: first one slice, the others after other tasks."""
        if batch.unacked_samples:
            self._backlog.extend(
                (batch, start) for start in range(0, len(batch.unacked_samples), _SAMPLES_PER_SLICE)
            )
            if not self._is_sending:
                self._send_next()
            while len(self._backlog) > _MAX_BACKLOG:
                self._acknowledge_slice(*self._backlog.popleft())

    @property
    def has_backlog(self) -> bool:
        """Whether some committed samples are not acknowledged yet."""
        return bool(self._backlog)

    def _send_next(self) -> None:
        """Acknowledge one slice of samples. Schedule the next slice after other tasks of the event loop."""
        if self._backlog:
            self._acknowledge_slice(*self._backlog.popleft())
        self._is_sending = bool(self._backlog)
        if self._is_sending:
            asyncio.get_running_loop().call_soon(self._send_next)

    def _acknowledge_slice(self, batch: ParsedBatch, start: int) -> None:
        """Record up to 500 samples of a batch, from index `start`, in their series, and send their acks."""
        now, earliest, latest = batch.now, batch.earliest, batch.latest
        messages = []
        for device, path, row in batch.unacked_samples[start : start + _SAMPLES_PER_SLICE]:
            time, kind, identifier, seq, gateway, _, _, _ = row
            if earliest <= time <= latest:
                ack_type = self._record_sample((device, kind, identifier), time, seq, gateway, now)
            else:  # a sample with an implausible time cannot be ordered by time
                ack_type = self._record_implausible((device, kind, identifier), seq, gateway, now)
            messages.append(self._build_ack(device, path, time, gateway, ack_type))
        self.counts.sent += len(messages)
        self._transport.send(messages)

    def prepare_flush(self, states: PendingStates, now: int) -> SeriesFlush:  # noqa: ARG002 # states do not affect series
        """Return the flush part that writes the series and gaps that changed since the last flush."""
        if now < self._collected_at:
            self._handle_clock_set_back(now)
        self._collected_at = now
        changed, self._changed_series = self._changed_series, set()
        gap_keys, self._changed_gaps = self._changed_gaps, set()
        removed, self._removed_series = self._removed_series, set()
        return SeriesFlush(
            [
                (*key, series.time, series.seq, series.unfilled)
                for key in changed
                for series in (self.series[key],)
            ],
            {key: [GapRow.from_gap(gap) for gap in self.series[key].gaps or ()] for key in gap_keys},
            removed,
        )

    def update_gap(self, key: SeriesKey, gap: Gap, remaining: Iterable[TimeRange], at: int) -> None:
        """Replace a gap, checked at `at`, by the time ranges in which samples are still missing.

        Do nothing if the gap was merged into another during the check.
        """
        series = self.series[key]
        if not any(current is gap for current in series.gaps or ()):
            return  # the gap was merged into a larger one meanwhile
        series.replace_gap(gap, remaining, at)
        self._mark_gaps_changed(key)

    def drop_gap(self, key: SeriesKey, gap: Gap, now: int) -> None:
        """Drop a gap whose missing samples would be older than the retention of samples."""
        self.series[key].drop_gap(gap, now)
        self._mark_gaps_changed(key)

    def remove_series(self, key: SeriesKey) -> None:
        """Remove a series that has ended: all its samples were deleted, and no new ones arrive."""
        del self.series[key]
        self.gap_index.update(key, None)
        self.check_schedule.remove(key)
        self._changed_series.discard(key)
        self._changed_gaps.discard(key)
        self._removed_series.add(key)

    def _mark_gaps_changed(self, key: SeriesKey) -> None:
        """Count the gaps of a series again. The next flush writes the series and its gaps."""
        self.gap_index.update(key, self.series[key])
        self._changed_series.add(key)
        self._changed_gaps.add(key)

    def _handle_clock_set_back(self, now: int) -> None:
        """Limit all times of series to now, after the clock of this machine was set back."""
        self._started_at = min(self._started_at, now)
        self._connected_at = {gateway: min(at, now) for gateway, at in self._connected_at.items()}
        self._implausible_clocks.rewind_clock(now)
        self.check_schedule.clear()
        for key, series in self.series.items():
            series.rewind_clock(now)
            self.check_schedule.schedule(key, key[0], series.next_check_at)

    def _record_sample(self, key: SeriesKey, time: int, seq: int, gateway: int, now: int) -> AckType:
        """Record a sample in its series. Return the ack type: with or without a backfill request."""
        series = self.series.get(key)
        if series is None:
            # A series starts with its first sample (ack-13).
            self.series[key] = SeriesState(time, seq, requested_at=now, backfill_interval=0)
            self._changed_series.add(key)
            return AckType.ACK
        if time > series.time or (time == series.time and (seq - series.seq) % SEQ_CYCLE == 1):
            if not series.is_gap_checked and series.regain_trust(seq, now):
                self._mark_gaps_changed(key)
            has_gap = series.append(time, seq, now)
        elif series.is_clock_reset(time, seq, now):
            has_gap = series.append_after_reset(time, seq, now)
        else:
            if series.gaps and series.record_arrival(time, now):
                self.check_schedule.schedule(key, gateway, series.next_check_at)
            return AckType.ACK  # part of a backfill, out of order, or a duplicate (ack-21)
        if has_gap:
            self.counts.gaps += 1
            self.check_schedule.schedule(key, gateway, series.next_check_at)
            self._mark_gaps_changed(key)
        self._changed_series.add(key)
        outage_end = max(self._started_at, self._connected_at.get(gateway, 0))
        if (series.requested_at < outage_end or series.gaps) and series.needs_backfill(outage_end, now):
            series.record_request(now)
            self.counts.backfills += 1
            return AckType.BACKFILL
        return AckType.ACK

    def _record_implausible(self, key: SeriesKey, seq: int, gateway: int, now: int) -> AckType:
        """Record a sample with an implausible time. Return the ack type, with or without backfill request."""
        outage_end = max(self._started_at, self._connected_at.get(gateway, 0))
        if self._implausible_clocks.record_sample(key, seq, outage_end, now):
            self.counts.backfills += 1
            return AckType.BACKFILL
        return AckType.ACK

    def _build_ack(self, device: int, path: str, time: int, gateway: int, ack_type: AckType) -> Publish:
        """Build the MQTT message that acknowledges a sample. `path` is the ending of the ack topic."""
        topic = f"{self._topic_prefix}{gateway:012x}/request/{device:012x}/{path}"
        seconds, millis = divmod(time, 1000)
        text = self._time_texts.get(seconds) or self._format_seconds(seconds)
        return Publish(topic, f'{{"time":"{text}.{millis:03d}Z","type":{ack_type:d}}}'.encode(), _QOS)

    def _format_seconds(self, seconds: int) -> str:
        """Format a Unix time in seconds, and cache the string, because many samples have the same second."""
        if len(self._time_texts) >= _MAX_TIME_TEXTS:
            self._time_texts.clear()
        text = self._time_texts[seconds] = from_millis(seconds * 1000).isoformat()[:19]
        return text
