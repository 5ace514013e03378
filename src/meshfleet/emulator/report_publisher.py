"""Publishes reports of devices, with raw or decoded values and the fields of the gateway's API version."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from meshfleet.emulator.settings import ReportMode
from meshfleet.emulator.simulation.radio import MIN_USABLE_DBM
from meshfleet.emulator.simulation.sample_buffer import DeviceSample
from meshfleet.errors.protocol import UndecodableValue, UnknownIdentifier
from meshfleet.protocol import api_versions, reports
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.hex import format_hex
from meshfleet.protocol.times import from_millis

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from meshfleet.emulator.outbox import Outbox
    from meshfleet.emulator.settings import EmulatorSettings
    from meshfleet.emulator.simulation.clock import SimulatedClock
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.simulation.sensors import SensorFailure
    from meshfleet.protocol.identifiers import DecodedValue, IdentifierCatalogue
    from meshfleet.protocol.ids import Identifier, Mac
    from meshfleet.protocol.topics import TopicCodec

_DECODED = {
    Kind.PROPERTY: Kind.PROPERTY_DECODED,
    Kind.MEASUREMENT: Kind.MEASUREMENT_DECODED,
    Kind.MEASUREMENT_ERROR: Kind.MEASUREMENT_ERROR_DECODED,
    Kind.EVENT: Kind.EVENT_DECODED,
}


class _SampleBodies(NamedTuple):
    """Payload types of a report with a sample, for raw and for decoded values."""

    raw: Callable[..., reports.Report]
    decoded: Callable[..., reports.Report]


_SAMPLE_BODIES = {
    Kind.MEASUREMENT: _SampleBodies(reports.Measurement, reports.MeasurementDecoded),
    Kind.EVENT: _SampleBodies(reports.Event, reports.EventDecoded),
}
"""Payload types of reports with samples, by report kind."""


class ReportPublisher:
    """Publishes the reports of one gateway: assigns times and sequence numbers, and encodes the reports."""

    def __init__(
        self,
        settings: EmulatorSettings,
        topics: TopicCodec,
        catalogue: IdentifierCatalogue,
        *,
        outbox: Outbox,
        clock: SimulatedClock,
    ) -> None:
        self._decodes = settings.mode is ReportMode.DECODED
        self._catalogue = catalogue
        self._outbox = outbox
        self._clock = clock
        self._topic_prefix = topics.report_filter(settings.mac).removesuffix("#")
        self._has_last_count = api_versions.is_supported(
            "report", Kind.HEARTBEAT, "lastCount", settings.api_version
        )
        self._buffers_samples = api_versions.is_supported(
            "request", Operation.ACK, None, settings.api_version
        )
        self.count = 0
        """Number of reports that the gateway has created so far."""

    def publish_heartbeat(self, device: SimulatedDevice, sim_time: float) -> None:
        """Publish a heartbeat of a device."""
        self._publish_report(
            device,
            Kind.HEARTBEAT,
            reports.Heartbeat(
                time=self._clock.wall_time(sim_time),
                seq=device.next_seq(Kind.HEARTBEAT),
                status=device.heartbeat_status(sim_time),
                last_count=device.received_copies if self._has_last_count else UNSET,
            ),
        )

    def publish_dfu(self, device: SimulatedDevice, parent: MeshNode, rssi: int, sim_time: float) -> None:
        """Publish that the node `parent` receives a device in DFU mode. The topic has its regular MAC."""
        self._publish_report(
            device, Kind.DFU, reports.Dfu(time=self._clock.wall_time(sim_time), parent=parent.mac, rssi=rssi)
        )

    def publish_rssi(
        self, device: SimulatedDevice, parent: Mac, rssi: int, channel: int | None, sim_time: float
    ) -> None:
        """Publish the RSSI of a device at the node `parent`. `channel` is None for a mesh link."""
        report = reports.Rssi(
            time=self._clock.wall_time(sim_time),
            parent=parent,
            rssi=rssi,
            channel=UNSET if channel is None else channel,
            seq=device.next_seq(Kind.RSSI),
            # Over an established link the device is reachable, however weak this reading is.
            unreachable=(channel is not None and rssi < MIN_USABLE_DBM)
            or (device.is_connected and device.node.depth < 0),
        )
        self._publish_report(device, Kind.RSSI, report)

    def publish_property(
        self, device: SimulatedDevice, identifier: Identifier, raw: bytes, sim_time: float
    ) -> None:
        """Publish the value of a property of a device."""
        time, seq = self._clock.wall_time(sim_time), device.next_seq(Kind.PROPERTY, identifier)
        if (decoded := self._decode(identifier, raw)) is None:
            report: reports.Report = reports.Property(time=time, value=format_hex(raw), seq=seq)
            self._publish_report(device, Kind.PROPERTY, report, identifier)
        else:
            ext = UNSET if decoded.ext is None else decoded.ext
            report = reports.PropertyDecoded(time=time, value=decoded.value, ext=ext, seq=seq)
            self._publish_decoded_report(device, Kind.PROPERTY, report, identifier)

    def publish_measurement(
        self,
        device: SimulatedDevice,
        identifier: Identifier,
        raw: bytes,
        sim_time: float,
        *,
        is_received: bool,
    ) -> None:
        """Publish a measurement of a device if the gateway received it by radio (`is_received`).

        If the API version has acks, the device also keeps the measurement until it is acknowledged.
        """
        sample = DeviceSample(
            self._clock.wall_millis(sim_time), device.next_seq(Kind.MEASUREMENT, identifier), raw
        )
        if self._buffers_samples:
            device.sample_buffer(Kind.MEASUREMENT, identifier).add(sample)
        if is_received:
            self._publish_sample_at(
                device, Kind.MEASUREMENT, identifier, sample, self._clock.wall_time(sim_time)
            )

    def publish_event(
        self,
        device: SimulatedDevice,
        identifier: Identifier,
        raw: bytes | None,
        sim_time: float,
        *,
        is_received: bool = True,
    ) -> None:
        """Publish an event of a device if the gateway received it by radio (`is_received`).

        If the API version has acks, the device also keeps the event until it is acknowledged.
        """
        sample = DeviceSample(self._clock.wall_millis(sim_time), device.next_seq(Kind.EVENT, identifier), raw)
        if self._buffers_samples:
            device.sample_buffer(Kind.EVENT, identifier).add(sample)
        if is_received:
            self.publish_sample(device, Kind.EVENT, identifier, sample)

    def publish_sample(
        self, device: SimulatedDevice, kind: Kind, identifier: Identifier, sample: DeviceSample
    ) -> None:
        """Publish a measurement or event with the time at which the device recorded it, maybe long ago."""
        self._publish_sample_at(device, kind, identifier, sample, from_millis(sample.millis))

    def _publish_sample_at(
        self,
        device: SimulatedDevice,
        kind: Kind,
        identifier: Identifier,
        sample: DeviceSample,
        time: datetime,
    ) -> None:
        """Publish a measurement or event with `time` as the time in the report.

        The report is decoded in decoded mode, if the layout of the value is known; otherwise it is raw.
        """
        bodies, raw = _SAMPLE_BODIES[kind], sample.value
        decoded = self._decode(identifier, raw or b"")
        if decoded is None:
            value = UNSET if raw is None else format_hex(raw)
            self._publish_report(device, kind, bodies.raw(time=time, seq=sample.seq, value=value), identifier)
        else:
            report = bodies.decoded(
                time=time,
                seq=sample.seq,
                value=UNSET if raw is None else decoded.value,
                ext=UNSET if decoded.ext is None else decoded.ext,
            )
            self._publish_decoded_report(device, kind, report, identifier)

    def publish_measurement_error(
        self, device: SimulatedDevice, identifier: Identifier, failure: SensorFailure, sim_time: float
    ) -> None:
        """Publish that a measurement failed. Raw and decoded mode differ only in the topic."""
        report = reports.MeasurementError(
            time=self._clock.wall_time(sim_time),
            seq=device.next_seq(Kind.MEASUREMENT_ERROR, identifier),
            error=failure.status,
            error_ext=UNSET if failure.detail is None else failure.detail,
        )
        entry = self._catalogue.find(identifier)
        is_decoded = self._decodes and entry is not None and entry.layout is not None
        publish = self._publish_decoded_report if is_decoded else self._publish_report
        publish(device, Kind.MEASUREMENT_ERROR, report, identifier)

    def _decode(self, identifier: Identifier, raw: bytes) -> DecodedValue | None:
        """Decode a raw value. Return None in raw mode, or if the layout of the value is unknown."""
        if not self._decodes:
            return None
        try:
            return self._catalogue.decode(identifier, raw)
        except (UnknownIdentifier, UndecodableValue):
            return None

    def _publish_decoded_report(
        self, device: SimulatedDevice, kind: Kind, report: reports.Report, identifier: Identifier
    ) -> None:
        """Publish a decoded report, on the topic with the name of the identifier."""
        self._publish_report(device, _DECODED[kind], report, self._catalogue[identifier].name)

    def _publish_report(
        self, device: SimulatedDevice, kind: Kind, report: reports.Report, identifier: str | None = None
    ) -> None:
        """Encode a report and put it into the outbox, unless the gateway is restarting."""
        if not self._outbox.is_open:
            return
        # Same topic as `ReportTopic` builds at a quarter of the cost: this is the hottest line of a fleet.
        tail = kind if identifier is None else f"{kind}/{identifier}"
        self._outbox.put(f"{self._topic_prefix}{device.mac}/{tail}", reports.encode_report(kind, report))
        self.count += 1
