"""Handlers that decode report payloads, one for each topic ending (kind and identifier).

The handlers are the most often called functions of the service. To be fast, they repeat code instead of
calling shared functions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.db.samples import NO_SEQ, ClockFlag, SampleExtras, SampleKind, SampleRow
from meshfleet.db.samples.sample import ROW_EXTRAS, ROW_TIME
from meshfleet.errors.protocol import MalformedTime
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.reports import REPORT_DECODERS
from meshfleet.protocol.times import to_millis
from meshfleet.service.ingest.device_facts import FACT_VALIDATORS
from meshfleet.service.ingest.readings import (
    CHANNEL_BASE,
    CHANNEL_SHIFT,
    COPIES_SHIFT,
    SEQ_SHIFT,
    UNREACHABLE,
    ReadingKind,
)
from meshfleet.service.ingest.sample_values import build_raw_decoder, from_sample_value, to_sample_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.protocol.topics import ReportTopic
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.sample_values import SampleNumber

    HandlePayload: TypeAlias = Callable[[ParsedBatch, int, int, bytes], None]
    """Function (batch, device, gateway, payload): adds a report to a batch, or raises `MalformedInput`."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_TIME: Final = to_millis(datetime.min.replace(tzinfo=UTC))
"""Earliest time that `datetime` can represent (start of year 1), as Unix time in milliseconds."""
_MAX_TIME: Final = to_millis(datetime.max.replace(tzinfo=UTC))
"""Latest time that `datetime` can represent (end of year 9999), as Unix time in milliseconds."""

_MAX_STATUS: Final = 2**31 - 1
"""Largest status of a heartbeat that fits into its database column; real values are far smaller."""
_MAX_RSSI: Final = 2**15 - 1
"""Largest absolute RSSI in dBm that fits into its database column; real values are far smaller."""

_MAX_COPIES: Final = 255
"""Largest number of copies of a heartbeat that is counted; real values are far smaller."""

_HEARTBEAT: Final = int(ReadingKind.HEARTBEAT)
_LINK: Final = int(ReadingKind.LINK)
# Numbers, because reading a member of an enum takes as long as decoding a small number.

_NO_EXTRAS: Final = SampleExtras()


class ReportHandler(NamedTuple):
    """Function that handles the reports of one kind and identifier."""

    kind: str
    """Report kind as written in topics, such as `measurement`."""
    handle: HandlePayload


def build_handler(topic: ReportTopic) -> ReportHandler:
    """Build the handler for reports with the kind and identifier of a topic."""
    return ReportHandler(str(topic.kind), _HANDLER_BUILDERS[topic.kind](topic))


# --- Samples ---


def _build_raw_handler(topic: ReportTopic) -> HandlePayload:
    """Build the handler of properties, measurements and events that the gateway sends raw (as hex)."""
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]
    kind, identifier = _build_sample_key(topic)
    decode_value = build_raw_decoder(topic.identifier or "")
    append_special, ack_path = _find_special_append(kind, identifier), _build_ack_path(topic)

    def handle_raw(batch: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        elapsed = report.time - _EPOCH
        time = elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000
        seq, value = report.seq, report.value
        number, raw, extras = (None, None, None) if value is UNSET else decode_value(value)
        row = (time, kind, identifier, NO_SEQ if seq is UNSET else seq, gateway, number, raw, extras)
        if append_special is not None or not batch.trusted_from <= time <= batch.trusted_to:
            (append_special or _append_row)(batch, device, row)
        elif (rows := batch.rows.get(device)) is None:
            batch.rows[device] = [row]
        else:
            rows.append(row)
        if ack_path is not None and gateway in batch.acking_gateways:
            batch.unacked_samples.append((device, ack_path, row))

    return handle_raw


def _build_decoded_handler(topic: ReportTopic) -> HandlePayload:
    """Build the handler of properties, measurements and events that the gateway sends decoded (as JSON)."""
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]
    kind, identifier = _build_sample_key(topic)
    name = topic.identifier or ""
    append_special, ack_path = _find_special_append(kind, identifier), _build_ack_path(topic)

    def handle_decoded(batch: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        elapsed = report.time - _EPOCH
        time = elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000
        seq, number = report.seq, report.value
        extras = None
        if type(number) is not float or report.ext is not UNSET:
            number, extras = _to_sample_value(number, report.ext)
        row = (time, kind, identifier, NO_SEQ if seq is UNSET else seq, gateway, number, None, extras)
        if identifier < 0:
            batch.foreign_names[identifier] = name
        if append_special is not None or not batch.trusted_from <= time <= batch.trusted_to:
            (append_special or _append_row)(batch, device, row)
        elif (rows := batch.rows.get(device)) is None:
            batch.rows[device] = [row]
        else:
            rows.append(row)
        if ack_path is not None and gateway in batch.acking_gateways:
            batch.unacked_samples.append((device, ack_path, row))

    return handle_decoded


def _build_error_handler(topic: ReportTopic) -> HandlePayload:
    """Build the handler of measurement errors, raw or decoded."""
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]
    kind, identifier = _build_sample_key(topic)
    name = topic.identifier or ""

    def handle_error(batch: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        if identifier < 0:
            batch.foreign_names[identifier] = name
        ext = report.error_ext
        extras = SampleExtras(error=report.error, error_ext=None if ext is UNSET else ext)
        _append_row(
            batch,
            device,
            (_to_millis(report.time), kind, identifier, report.seq, gateway, None, None, extras),
        )

    return handle_error


def _build_ack_path(topic: ReportTopic) -> str | None:
    """Return the ending of the topic on which samples of a report topic are acknowledged (ack-1, ack-7).

    Return None if samples of this report kind are not acknowledged.
    """
    if topic.kind.raw_kind not in {Kind.MEASUREMENT, Kind.EVENT}:
        return None
    return (
        f"{Operation.ACK if topic.kind is topic.kind.raw_kind else Operation.ACK_DECODED}/{topic.identifier}"
    )


def _build_sample_key(topic: ReportTopic) -> tuple[int, int]:
    """Return the kind and the identifier under which samples of a topic are stored."""
    assert topic.identifier is not None  # noqa: S101 # topics of these kinds have an identifier
    return _SAMPLE_KINDS[topic.kind.raw_kind], identifier_to_int(topic.identifier)


def _to_sample_value(value: Any, ext: Any) -> tuple[SampleNumber, SampleExtras | None]:
    """Convert the decoded value and extension of a report, which may be UNSET, to their stored form."""
    if value is UNSET and ext is UNSET:
        return None, None
    return to_sample_value(None if value is UNSET else value, None if ext is UNSET else ext)


def _to_millis(time: datetime) -> int:
    """Convert a time to Unix time in milliseconds."""
    elapsed = time - _EPOCH
    return elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000


def _find_special_append(kind: int, identifier: int) -> Callable[[ParsedBatch, int, SampleRow], None] | None:
    """Return the function that must append samples of this kind and identifier to a batch.

    Return None if the report handler may append the samples itself.
    """
    return _append_fact if kind == SampleKind.PROPERTY and identifier in FACT_VALIDATORS else None


def _append_row(batch: ParsedBatch, device: int, row: SampleRow) -> None:
    """Append a sample to a batch. If its time is implausible or must be corrected, add that to the sample."""
    time, extras = row[ROW_TIME], row[ROW_EXTRAS]
    if not batch.trusted_from <= time <= batch.trusted_to:
        # A UTC offset can move a time out of the years that can be formatted.
        if not _MIN_TIME <= time <= _MAX_TIME:
            raise MalformedTime("time", "is outside the years 1 to 9999")
        clock, shift = _check_time(batch, time)
        if clock is not None or shift is not None:
            flagged = replace(extras or _NO_EXTRAS, clock=clock, shift=shift)
            row = (*row[:ROW_EXTRAS], flagged)
    batch.rows.setdefault(device, []).append(row)


def _check_time(batch: ParsedBatch, time: int) -> tuple[ClockFlag | None, int | None]:
    """Return the flag of a sample's time, and the milliseconds to add to the time.

    The flag is None if the time is plausible without a correction. The milliseconds are None if the clock of
    the gateway is right.
    """
    shift: int | None = batch.find_shift(time)
    corrected = time + (shift or 0)
    if not shift or not _MIN_TIME <= corrected <= _MAX_TIME:
        shift = None
    if batch.correct_time(time) is None:
        batch.implausible_count += 1
        return ClockFlag.FUTURE if corrected > batch.now else ClockFlag.PAST, shift
    return None if batch.earliest <= time <= batch.latest else ClockFlag.CORRECTED, shift


def _append_fact(batch: ParsedBatch, device: int, row: SampleRow) -> None:
    """Append a sample of a property such as the model, and a reading that updates the device, to a batch."""
    _append_row(batch, device, row)
    time, _, identifier, _, gateway, number, _, extras = row
    at = batch.correct_time(time)
    if at is not None:
        value = from_sample_value(number, extras)
        if FACT_VALIDATORS[identifier](value):
            batch.readings.append((ReadingKind.FACT, device, gateway, at, value, identifier, 0))


# --- Readings ---


def _build_heartbeat_handler(topic: ReportTopic) -> HandlePayload:
    """Build the handler of heartbeats."""
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]

    def handle_heartbeat(batch: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, status = _to_millis(report.time), _clamp(report.status, _MAX_STATUS)
        at = time if batch.trusted_from <= time <= batch.trusted_to else batch.correct_time(time)
        if at is not None:
            flags, copies = (report.seq + 1) << SEQ_SHIFT, report.last_count
            if copies is not UNSET:
                flags |= (min(copies, _MAX_COPIES) + 1) << COPIES_SHIFT
            batch.readings.append((_HEARTBEAT, device, gateway, at, status, 0, flags))
        else:  # an implausible time must not change the state of the device
            _append_row(batch, device, (time, SampleKind.HEARTBEAT, 0, NO_SEQ, gateway, status, None, None))

    return handle_heartbeat


def _build_rssi_handler(topic: ReportTopic) -> HandlePayload:
    """Build the handler of reports about the signal between a device and a parent."""
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]

    def handle_rssi(batch: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        elapsed = report.time - _EPOCH
        time = elapsed.days * 86_400_000 + elapsed.seconds * 1000 + elapsed.microseconds // 1000
        parent, rssi = int(report.parent, 16), report.rssi
        if not -_MAX_RSSI <= rssi <= _MAX_RSSI:
            rssi = _clamp(rssi, _MAX_RSSI)
        at = time if batch.trusted_from <= time <= batch.trusted_to else batch.correct_time(time)
        if at is not None:
            channel, seq = report.channel, report.seq
            flags = UNREACHABLE if report.unreachable else 0
            if channel is not UNSET:
                flags |= (channel - CHANNEL_BASE) << CHANNEL_SHIFT
            if seq is not UNSET:
                flags |= (seq + 1) << SEQ_SHIFT
            batch.readings.append((_LINK, device, gateway, at, rssi, parent, flags))
        else:
            _append_row(batch, device, (time, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, None))

    return handle_rssi


def _build_dfu_handler(topic: ReportTopic) -> HandlePayload:
    """Build the handler of reports about devices that advertise in DFU mode."""
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]

    def handle_dfu(batch: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, parent = _to_millis(report.time), mac_to_int(report.parent)
        rssi = _clamp(report.rssi, _MAX_RSSI)
        at = time if batch.trusted_from <= time <= batch.trusted_to else batch.correct_time(time)
        if at is not None:
            batch.readings.append((ReadingKind.DFU, device, gateway, at, rssi, parent, 0))

    return handle_dfu


def _clamp(number: int, limit: int) -> int:
    """Limit a number to the range from `-limit` to `limit`."""
    return min(max(number, -limit), limit)


_SAMPLE_KINDS: Final[Mapping[Kind, int]] = {
    Kind.PROPERTY: SampleKind.PROPERTY,
    Kind.MEASUREMENT: SampleKind.MEASUREMENT,
    Kind.MEASUREMENT_ERROR: SampleKind.MEASUREMENT_ERROR,
    Kind.EVENT: SampleKind.EVENT,
}

_HANDLER_BUILDERS: Final[Mapping[Kind, Callable[[ReportTopic], HandlePayload]]] = {
    Kind.HEARTBEAT: _build_heartbeat_handler,
    Kind.DFU: _build_dfu_handler,
    Kind.RSSI: _build_rssi_handler,
    Kind.PROPERTY: _build_raw_handler,
    Kind.PROPERTY_DECODED: _build_decoded_handler,
    Kind.MEASUREMENT: _build_raw_handler,
    Kind.MEASUREMENT_DECODED: _build_decoded_handler,
    Kind.MEASUREMENT_ERROR: _build_error_handler,
    Kind.MEASUREMENT_ERROR_DECODED: _build_error_handler,
    Kind.EVENT: _build_raw_handler,
    Kind.EVENT_DECODED: _build_decoded_handler,
}
