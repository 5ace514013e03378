"""Reports as live events: made of what ingest has committed, when somebody listens."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples.sample import StoredSample
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.live import LiveHeartbeat, LiveLink, LiveSample
from meshfleet.service.ingest.pending_state import time_or_none
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.telemetry.rest_sample import to_rest_sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.subscribers import FlushPart
    from meshfleet.service.live.device_events import DeviceEvents
    from meshfleet.service.live.filters import Interest
    from meshfleet.service.live.hub import EventHub

_BATCH_SIZE: Final = 500
"""Events that are made in one go; between them others have their turn."""

_MAX_PENDING: Final = 10_000
"""Reports that may wait to become events. If there are more, listeners are told that they miss some."""


class _ReportEvent(NamedTuple):
    data: LiveSample | LiveHeartbeat | LiveLink
    device: int
    gateway: int


class ReportEvents:
    """A `Follower` that tells reports, and whose states they change."""

    def __init__(self, hub: EventHub, devices: DeviceEvents) -> None:
        self._hub = hub
        self._devices = devices
        self._interest = hub.interest["report"]
        self._waiting: deque[tuple[Iterator[_ReportEvent], int]] = deque()
        self._count = 0
        hub.add_source(self._publish)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Remember a draft, which becomes events in a moment."""
        if not self._interest:
            return
        self._waiting.append((_iter_events(batch, self._interest), len(batch.report_kinds)))
        self._count += len(batch.report_kinds)
        if self._count > _MAX_PENDING:
            self._waiting.clear()
            self._count = 0
            self._hub.publish_loss("report", "there are more reports than can be told")
        self._hub.wake()

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:  # noqa: ARG002 # as followers are asked
        """Once they are written, let states be told that reports have changed."""
        if not self._hub.interest["device"]:
            return _ReportedDevices(self._devices, ())
        return _ReportedDevices(
            self._devices, [number for device in states for number in _list_owners(states, device)]
        )

    def _publish(self) -> bool:
        left = _BATCH_SIZE
        while self._waiting and left:
            news, count = self._waiting[0]
            for made in islice(news, left):
                self._hub.publish("report", made.data, device=made.device, gateway=made.gateway)
                left -= 1
            if left:
                self._waiting.popleft()
                self._count -= count
        return bool(self._waiting)


class _ReportedDevices(NamedTuple):
    """What is to be told when the flush is committed; there is nothing to write."""

    devices: DeviceEvents
    numbers: Collection[int]

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write nothing."""

    def on_flushed(self) -> None:
        """Let them be told."""
        if self.numbers:
            self.devices.mark_reported(self.numbers)


def _list_owners(notes: PendingStates, device: int) -> tuple[int, ...]:
    """Whose states a note may change: in DFU mode a device may have the address behind its own."""
    return (device,) if time_or_none(notes[device].reported_at) is not None else (device, device - 1)


def _iter_events(draft: ParsedBatch, interest: Interest) -> Iterator[_ReportEvent]:
    """The events of a draft that somebody may want, made one by one."""
    for device, rows in draft.rows.items():
        for row in rows:
            if interest.includes(device, row[4]):
                yield _ReportEvent(
                    _to_live_sample(device, StoredSample(*row), draft.foreign_names), device, row[4]
                )
    for reading in draft.readings:
        kind, device, gateway = reading[:3]
        if kind <= ReadingKind.DFU and interest.includes(device, gateway):
            yield _ReportEvent(_to_live_reading(reading), device, gateway)


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
    kind, device, gateway, time, value, other, unreachable = reading
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
        unreachable=unreachable,
    )
