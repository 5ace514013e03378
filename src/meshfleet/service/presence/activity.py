"""Signs of life: what reports tell of who is there (report-48, report-49)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.parsed_batch import FRESH_MS
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.presence.gateway_clocks import NEGLIGIBLE_OFFSET_MS
from meshfleet.service.presence.last_seen import KEPT_INTERVAL_BYTES, MAX_INTERVAL_MS, pack_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db.samples import SampleRow
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.presence.gateway_clocks import GatewayClocks
    from meshfleet.service.presence.last_seen import LastSeen, LastSeenIndex

_MAX_DFU_ADDRESSES: Final = 10_000
"""Unknown addresses in DFU mode that are looked up at once."""


class ActivityDetector:
    """Hears devices in committed drafts. The hottest part of presence: it is there for every report."""

    def __init__(self, last_seen: LastSeenIndex, clocks: GatewayClocks, *, external_broker: bool) -> None:
        """`by_hearing`: gateways are on another broker, and connected when they are heard."""
        self._last_seen = last_seen
        self.clocks = clocks
        self._external_broker = external_broker
        self.returned_devices: set[int] = set()
        """Devices that are heard and were not connected."""
        self.gateways: set[int] = set()
        """All that are connected, or were."""
        self.dfu_addresses: dict[int, int] = {}
        """Unknown addresses that advertise in DFU mode, each with the gateway that hears it."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """A draft is committed."""
        for gateway, holds in batch.offset_checks.items():
            self.clocks.check_offset(gateway, batch.now, holds=holds)
        fresh: set[int] = set()
        self._detect_by_samples(batch, fresh)
        self._detect_by_readings(batch, fresh)
        if self._external_broker:
            self.gateways.update(batch.report_gateways)
            for gateway in fresh:
                self.mark_heard(gateway, gateway, batch.now)

    def _detect_by_samples(self, batch: ParsedBatch, fresh: set[int]) -> None:
        """Hear devices by their samples, and add the gateways that brought what is fresh."""
        now, rhythms, doubts = batch.now, self._last_seen.devices, self.clocks.suspects
        for device, rows in batch.rows.items():
            time, _, _, _, gateway, _, _, more = rows[-1]
            # As `is_fresh`, written out: of nearly all reports this is all that there is to do.
            if (
                -NEGLIGIBLE_OFFSET_MS < now - time < FRESH_MS
                and (more is None or more.shift is None)
                and gateway not in doubts
            ):
                fresh.add(gateway)
                rhythm = rhythms.get(device)
                if rhythm is not None and rhythm.gateway == gateway and rhythm.connected:
                    rhythm.heard_at = now
                else:
                    self.mark_heard(device, gateway, now)
            else:
                fresh |= self._detect_by_suspect_samples(device, rows, now)

    def _detect_by_suspect_samples(self, device: int, rows: Sequence[SampleRow], now: int) -> set[int]:
        """Hear a device by samples of a clock that is wrong or in doubt. Some may be heartbeats."""
        fresh: set[int] = set()
        for time, kind, _, _, gateway, _, _, more in rows:
            at = time if more is None or more.shift is None else time + more.shift
            if self.clocks.is_fresh(gateway, at, now, self._last_seen.clock_source(device, gateway)):
                fresh.add(gateway)
                rhythm = self.mark_heard(device, gateway, now)
                if kind == SampleKind.HEARTBEAT:
                    rhythm.record_heartbeat(gateway, at)
        return fresh

    def _detect_by_readings(self, batch: ParsedBatch, fresh: set[int]) -> None:
        """Hear devices by their readings, whose times are corrected already."""
        link, heard, by_hearing = ReadingKind.LINK, ReadingKind.FIRST_SAMPLE, self._external_broker
        now, doubts, find = batch.now, self.clocks.suspects, self._last_seen.devices.get
        for kind, device, gateway, time, _, _, _ in batch.readings:
            rhythm = find(device)
            if (
                rhythm is None
                or not rhythm.connected
                or rhythm.gateway != gateway
                or kind > link
                or not -NEGLIGIBLE_OFFSET_MS < now - time < FRESH_MS
                or gateway in doubts
                or by_hearing
            ):
                if kind < heard:  # else of a sample, which has been followed, by its own time
                    self._detect_by_reading(kind, device, gateway, time, now, fresh)
                continue
            # Of nearly all readings this is all that there is to do; `hear` and `beat` are written out.
            rhythm.heard_at = now
            if not kind:
                gap = time - rhythm.heartbeat_at
                if 0 < gap <= MAX_INTERVAL_MS and gateway == rhythm.heartbeat_gateway:
                    rhythm.heartbeat_at = time
                    rhythm.packed_intervals = (
                        pack_interval(gap) + rhythm.packed_intervals[:KEPT_INTERVAL_BYTES]
                    )
                else:
                    rhythm.record_heartbeat(gateway, time)

    def _detect_by_reading(  # noqa: PLR0913, PLR0917 # the parts of a reading
        self, kind: int, device: int, gateway: int, time: int, now: int, fresh: set[int]
    ) -> None:
        """Hear a device by a reading that needs a closer look."""
        if not self.clocks.is_fresh(gateway, time, now, self._last_seen.clock_source(device, gateway)):
            return
        fresh.add(gateway)
        if kind == ReadingKind.DFU and device not in self._last_seen.devices:
            if (
                len(self.dfu_addresses) < _MAX_DFU_ADDRESSES
            ):  # perhaps of somebody whom the database knows (report-46)
                self.dfu_addresses[device] = gateway
            return
        rhythm = self.mark_heard(device, gateway, now)
        if kind == ReadingKind.HEARTBEAT:
            rhythm.record_heartbeat(gateway, time)

    def mark_heard(self, device: int, gateway: int, now: int) -> LastSeen:
        """The way for a device that is new, or was away, or has another gateway than before."""
        rhythm = self._last_seen.devices.get(device)
        if rhythm is None:
            rhythm = self._last_seen.add(device, gateway, now)
        if device != gateway and self._external_broker and device in self.gateways:
            return rhythm  # others hear its radio, which does not say that it reaches us
        self._last_seen.mark_heard(device, gateway, now)
        if not rhythm.connected or device == gateway:
            self.returned_devices.add(device)
        return rhythm
