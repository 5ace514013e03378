"""Reports as live events: made of what ingest has committed, when somebody listens."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples.sample import Sample
from meshfleet.service.ingest.notes import known
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.telemetry.rows import shown
from meshfleet.wire.ids import number_mac
from meshfleet.wire.rest.live import LiveHeartbeat, LiveLink, LiveSample
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sqlalchemy import Connection

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.followers import Entry
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.live.devices import Devices
    from meshfleet.service.live.hub import Hub
    from meshfleet.service.live.want import Interest

_AT_ONCE: Final = 500
"""Events that are made in one go; between them others have their turn."""

_WAITING: Final = 10_000
"""Reports that may wait to become events. If there are more, listeners are told that they miss some."""


class _News(NamedTuple):
    data: LiveSample | LiveHeartbeat | LiveLink
    device: int
    gateway: int


class Reports:
    """A `Follower` that tells reports, and whose states they change."""

    def __init__(self, hub: Hub, devices: Devices) -> None:
        self._hub = hub
        self._devices = devices
        self._interest = hub.interest["report"]
        self._waiting: deque[tuple[Iterator[_News], int]] = deque()
        self._count = 0
        hub.feed(self._publish)

    def follow(self, draft: Draft) -> None:
        """Remember a draft, which becomes events in a moment."""
        if not self._interest:
            return
        self._waiting.append((_news(draft, self._interest), len(draft.seen)))
        self._count += len(draft.seen)
        if self._count > _WAITING:
            self._waiting.clear()
            self._count = 0
            self._hub.publish_loss("report", "there are more reports than can be told")
        self._hub.wake()

    def collect(self, notes: Notes, now: int) -> Entry:  # noqa: ARG002 # as followers are asked
        """Once they are written, let states be told that reports have changed."""
        if not self._hub.interest["device"]:
            return _Changed(self._devices, ())
        return _Changed(self._devices, [number for device in notes for number in _owners(notes, device)])

    def _publish(self) -> bool:
        left = _AT_ONCE
        while self._waiting and left:
            news, count = self._waiting[0]
            for made in islice(news, left):
                self._hub.publish("report", made.data, device=made.device, gateway=made.gateway)
                left -= 1
            if left:
                self._waiting.popleft()
                self._count -= count
        return bool(self._waiting)


class _Changed(NamedTuple):
    """What is to be told when the flush is committed; there is nothing to write."""

    devices: Devices
    numbers: Collection[int]

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write nothing."""

    def written(self) -> None:
        """Let them be told."""
        if self.numbers:
            self.devices.touch_routinely(self.numbers)


def _owners(notes: Notes, device: int) -> tuple[int, ...]:
    """Whose states a note may change: in DFU mode a device may have the address behind its own."""
    return (device,) if known(notes[device].at) is not None else (device, device - 1)


def _news(draft: Draft, interest: Interest) -> Iterator[_News]:
    """The events of a draft that somebody may want, made one by one."""
    for device, rows in draft.rows.items():
        for row in rows:
            if interest.includes(device, row[4]):
                yield _News(_sample(device, Sample(*row), draft.names), device, row[4])
    for reading in draft.readings:
        kind, device, gateway = reading[:3]
        if kind <= ReadingKind.DFU and interest.includes(device, gateway):
            yield _News(_reading(reading), device, gateway)


def _sample(device: int, sample: Sample, names: dict[int, str]) -> LiveSample:
    row = shown(sample, names)
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


def _reading(reading: Reading) -> LiveHeartbeat | LiveLink:
    kind, device, gateway, time, value, other, unreachable = reading
    if kind == ReadingKind.HEARTBEAT:
        return LiveHeartbeat(
            device=f"bmac-{device:012x}", gateway=number_mac(gateway), time=write_millis(time), status=value
        )
    return LiveLink(
        device=f"bmac-{device:012x}",
        gateway=number_mac(gateway),
        kind="dfu" if kind == ReadingKind.DFU else "rssi",
        time=write_millis(time),
        parent=number_mac(other),
        rssi=value,
        unreachable=unreachable,
    )
