"""Publishes reports of committed ingest batches as live events while there are subscribers."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples.sample import ROW_GATEWAY, SampleKind, SampleRow, StoredSample
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.live import LiveHeartbeat, LiveLink, LiveSample
from meshfleet.service.ingest.readings import UNREACHABLE, Reading, ReadingKind
from meshfleet.service.telemetry.rest_sample import to_rest_sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.subscribers import FlushPart
    from meshfleet.service.live.device_events import DeviceEvents
    from meshfleet.service.live.filters import Interest
    from meshfleet.service.live.hub import EventHub

_BATCH_SIZE: Final = 500
"""Maximum number of live events built from reports before each delivery to subscribers."""

_MAX_PENDING: Final = 10_000
"""Maximum number of reports waiting to be published. If there are more, subscribers get a `resync`."""


class _ReportEvent(NamedTuple):
    """Report as a live event, with the fields that filters check."""

    data: LiveSample | LiveHeartbeat | LiveLink
    device: int
    gateway: int


class ReportEvents:
    """Publishes committed reports as live events, and marks the devices whose states the reports change.

    The class is a `CommitSubscriber` of ingest.
    """

    def __init__(self, hub: EventHub, devices: DeviceEvents) -> None:
        self._hub = hub
        self._devices = devices
        self._interest = hub.interest["report"]
        self._batches: deque[tuple[Iterator[_ReportEvent], int]] = deque()
        """Queued batches: the events not published yet, and the number of reports in the batch."""
        self._pending_count = 0
        hub.add_source(self._publish_pending)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Queue the reports of a committed batch for publication as live events."""
        if not self._interest:
            return
        self._batches.append((_build_events(batch, self._interest), len(batch.report_kinds)))
        self._pending_count += len(batch.report_kinds)
        if self._pending_count > _MAX_PENDING:
            self._batches.clear()
            self._pending_count = 0
            self._hub.publish_loss("report", "too many reports at once")
        self._hub.schedule_delivery()

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:  # noqa: ARG002 # signature of CommitSubscriber
        """Return a flush part that marks the devices of `states` as changed after the commit."""
        if not self._hub.interest["device"]:
            return _ReportedDevicesMarker(self._devices, ())
        return _ReportedDevicesMarker(
            self._devices,
            [device for address, state in states.items() for device in state.list_possible_owners(address)],
        )

    def _publish_pending(self) -> bool:
        """Publish up to 500 queued reports. Return whether more are queued."""
        remaining = _BATCH_SIZE
        while self._batches and remaining:
            events, count = self._batches[0]
            for event in islice(events, remaining):
                self._hub.publish("report", event.data, device=event.device, gateway=event.gateway)
                remaining -= 1
            if remaining:
                self._batches.popleft()
                self._pending_count -= count
        return bool(self._batches)


class _ReportedDevicesMarker(NamedTuple):
    """Part of an ingest flush that stores nothing, but marks devices as changed after the commit."""

    devices: DeviceEvents
    numbers: Collection[int]

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Do nothing: this flush part has no data to store."""

    def on_flushed(self) -> None:
        """Mark the reporting devices as changed, to publish them as live events."""
        if self.numbers:
            self.devices.mark_reported(self.numbers)


def _build_events(batch: ParsedBatch, interest: Interest) -> Iterator[_ReportEvent]:
    """Yield a live event for each report of a batch that a filter may match."""
    for device, rows in batch.rows.items():
        for row in rows:
            gateway = row[ROW_GATEWAY]
            if interest.includes(device, gateway):
                yield _ReportEvent(_to_live_row(device, row, batch.foreign_names), device, gateway)
    for reading in batch.readings:
        kind, device, gateway = reading[:3]
        if kind <= ReadingKind.DFU and interest.includes(device, gateway):
            yield _ReportEvent(_to_live_reading(reading), device, gateway)


def _to_live_row(device: int, row: SampleRow, names: dict[int, str]) -> LiveSample | LiveHeartbeat | LiveLink:
    """Convert a stored sample to the data of its live event."""
    sample = StoredSample(*row)
    # A heartbeat or RSSI is a row instead of a reading if its time is implausible.
    if sample.kind == SampleKind.HEARTBEAT:
        kind, parent = ReadingKind.HEARTBEAT, 0
    elif sample.kind == SampleKind.LINK:
        kind, parent = ReadingKind.LINK, sample.identifier
    else:
        return _to_live_sample(device, sample, names)
    value = int(sample.number or 0)
    return _to_live_reading((kind, device, sample.gateway, sample.time, value, parent, 0))


def _to_live_sample(device: int, sample: StoredSample, names: dict[int, str]) -> LiveSample:
    row = to_rest_sample(sample, names)
    return LiveSample(
        device=f"bmac-{device:012x}",
        gateway=row.gateway,
        kind=row.kind,
        identifier=row.identifier,
        name=row.name,
        time=row.time,
        seq=row.seq,
        value=row.value,
        raw=row.raw,
        ext=row.ext,
        error=row.error,
        error_ext=row.error_ext,
        clock=row.clock,
        corrected_time=row.corrected_time,
    )


def _to_live_reading(reading: Reading) -> LiveHeartbeat | LiveLink:
    kind, device, gateway, time, value, other, flags = reading
    if kind == ReadingKind.HEARTBEAT:
        return LiveHeartbeat(
            device=f"bmac-{device:012x}",
            gateway=mac_from_int(gateway),
            time=format_millis(time),
            status=value,
        )
    return LiveLink(
        device=f"bmac-{device:012x}",
        gateway=mac_from_int(gateway),
        kind="dfu" if kind == ReadingKind.DFU else "rssi",
        time=format_millis(time),
        parent=mac_from_int(other),
        rssi=value,
        unreachable=bool(flags & UNREACHABLE),
    )
