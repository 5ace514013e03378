"""Detects from committed reports which devices and gateways are active (report-48, report-49)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples import SampleKind, SampleRow
from meshfleet.service.ingest.parsed_batch import FRESH_MS, ParsedBatch
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.presence.gateway_clocks import NEGLIGIBLE_OFFSET_MS, GatewayClocks
from meshfleet.service.presence.last_seen import KEPT_INTERVAL_BYTES, MAX_INTERVAL_MS, pack_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.service.presence.last_seen import LastSeen, LastSeenIndex

_MAX_DFU_ADDRESSES: Final = 10_000
"""Maximum number of unknown DFU addresses that one flush looks up in the database."""


class ActivityDetector:
    """Marks the devices of committed reports as active. Performance-critical: runs for every report."""

    def __init__(self, last_seen: LastSeenIndex, clocks: GatewayClocks, *, external_broker: bool) -> None:
        """Create a detector.

        With `external_broker`, gateways connect to another MQTT broker, and a gateway counts as connected
        while its reports arrive.
        """
        self._last_seen = last_seen
        self.clocks = clocks
        self._external_broker = external_broker
        self.returned_devices: set[int] = set()
        """Devices that reported although they count as disconnected; the next flush marks them connected.

        A report of a gateway about itself adds the gateway, even if the gateway counts as connected.
        """
        self.gateways: set[int] = set()
        """All gateways that are connected or were connected before."""
        self.dfu_addresses: dict[int, int] = {}
        """Unknown addresses that advertise in DFU mode, each with the gateway that received the address."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """Mark the devices whose samples or readings are in a committed batch as active."""
        for gateway, is_valid in batch.offset_checks.items():
            self.clocks.check_offset(gateway, batch.now, agrees=is_valid)
        fresh_gateways: set[int] = set()
        self._mark_devices_of_samples(batch, fresh_gateways)
        self._mark_devices_of_readings(batch, fresh_gateways)
        if self._external_broker:
            self.gateways.update(batch.report_gateways)
            for gateway in fresh_gateways:
                self.mark_heard(gateway, gateway, batch.now)

    def _mark_devices_of_samples(self, batch: ParsedBatch, fresh_gateways: set[int]) -> None:
        """Mark the devices as active whose samples in the batch are less than a minute old.

        Add the gateways of these samples to `fresh_gateways`.
        """
        now, devices, suspects = batch.now, self._last_seen.devices, self.clocks.suspects
        for device, rows in batch.rows.items():
            time, _, _, _, gateway, _, _, details = rows[-1]
            # `is_fresh`, inlined: for almost all reports nothing else is to be done.
            if (
                -NEGLIGIBLE_OFFSET_MS < now - time < FRESH_MS
                and (details is None or details.shift is None)
                and gateway not in suspects
            ):
                fresh_gateways.add(gateway)
                last_seen = devices.get(device)
                if last_seen is not None and last_seen.gateway == gateway and last_seen.connected:
                    last_seen.heard_at = now
                else:
                    self.mark_heard(device, gateway, now)
            else:
                fresh_gateways |= self._mark_device_by_suspect_samples(device, rows, now)

    def _mark_device_by_suspect_samples(self, device: int, rows: Sequence[SampleRow], now: int) -> set[int]:
        """Mark a device as active if one of its samples is less than a minute old.

        The clock of the sample's gateway is or may be wrong, so each sample is checked. Some samples may be
        heartbeats. Return the gateways of samples that are less than a minute old.
        """
        fresh_gateways: set[int] = set()
        for time, kind, _, _, gateway, _, _, details in rows:
            corrected_time = time if details is None or details.shift is None else time + details.shift
            if self.clocks.is_fresh(
                gateway, corrected_time, now, self._last_seen.find_clock_source(device, gateway)
            ):
                fresh_gateways.add(gateway)
                last_seen = self.mark_heard(device, gateway, now)
                if kind == SampleKind.HEARTBEAT:
                    last_seen.record_heartbeat(gateway, corrected_time)
        return fresh_gateways

    def _mark_devices_of_readings(self, batch: ParsedBatch, fresh_gateways: set[int]) -> None:
        """Mark the devices as active whose readings in the batch are less than a minute old.

        Add the gateways of these readings to `fresh_gateways`. The times of readings are already corrected.
        """
        last_link_kind, first_sample_kind = ReadingKind.LINK, ReadingKind.FIRST_SAMPLE
        is_external = self._external_broker
        now, suspects, find_last_seen = batch.now, self.clocks.suspects, self._last_seen.devices.get
        for kind, device, gateway, time, _, _, _ in batch.readings:
            last_seen = find_last_seen(device)
            if (
                last_seen is None
                or not last_seen.connected
                or last_seen.gateway != gateway
                or kind > last_link_kind
                or not -NEGLIGIBLE_OFFSET_MS < now - time < FRESH_MS
                or gateway in suspects
                or is_external
            ):
                if kind < first_sample_kind:  # else it belongs to a sample, which was handled above
                    self._mark_device_by_reading(kind, device, gateway, time, now, fresh_gateways)
                continue
            # For almost all readings nothing else is to be done; both methods of `LastSeen` are inlined.
            last_seen.heard_at = now
            if not kind:
                interval = time - last_seen.heartbeat_at
                if 0 < interval <= MAX_INTERVAL_MS and gateway == last_seen.heartbeat_gateway:
                    last_seen.heartbeat_at = time
                    last_seen.packed_intervals = (
                        pack_interval(interval) + last_seen.packed_intervals[:KEPT_INTERVAL_BYTES]
                    )
                else:
                    last_seen.record_heartbeat(gateway, time)

    def _mark_device_by_reading(  # noqa: PLR0913, PLR0917 # the parts of a reading
        self, kind: int, device: int, gateway: int, time: int, now: int, fresh_gateways: set[int]
    ) -> None:
        """Mark a device as active if a reading of the device is less than a minute old.

        The caller handles most readings with inlined code, and calls this only for the others.
        """
        if not self.clocks.is_fresh(gateway, time, now, self._last_seen.find_clock_source(device, gateway)):
            return
        fresh_gateways.add(gateway)
        if kind == ReadingKind.DFU and device not in self._last_seen.devices:
            # The address may belong to a device in the database (report-46).
            if len(self.dfu_addresses) < _MAX_DFU_ADDRESSES:
                self.dfu_addresses[device] = gateway
            return
        last_seen = self.mark_heard(device, gateway, now)
        if kind == ReadingKind.HEARTBEAT:
            last_seen.record_heartbeat(gateway, time)

    def mark_heard(self, device: int, gateway: int, now: int) -> LastSeen:
        """Record that a device was received through a gateway. Add the device if it is new."""
        last_seen = self._last_seen.devices.get(device)
        if last_seen is None:
            last_seen = self._last_seen.add(device, gateway, now)
        if device != gateway and self._external_broker and device in self.gateways:
            return last_seen  # other gateways receive its radio, which does not prove its MQTT connection
        self._last_seen.mark_heard(device, gateway, now)
        if not last_seen.connected or device == gateway:
            self.returned_devices.add(device)
        return last_seen
