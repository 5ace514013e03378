"""What reports mean. A subject is what the end of a topic names; it takes the payloads that come there.

The functions that are made here are the hottest of the service: from bytes to a row. So each is written out
for its kind, and calls nobody whom it need not call.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.db.samples import NO_SEQ, ClockFlag, SampleExtras, SampleKind
from meshfleet.errors.protocol import MalformedTime
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.reports import REPORT_DECODERS
from meshfleet.protocol.times import to_millis
from meshfleet.service.ingest.device_facts import FACT_VALIDATORS
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.sample_values import build_raw_decoder, from_sample_value, to_sample_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.db.samples import SampleRow
    from meshfleet.protocol.topics import ReportTopic
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.sample_values import SampleNumber

    HandlePayload: TypeAlias = Callable[[ParsedBatch, int, int, bytes], None]
    """Adds a payload, of a device and by a gateway, to a draft; raises a `WireError` if it cannot be read."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MIN_TIME, _MAX_TIME = (
    to_millis(datetime.min.replace(tzinfo=UTC)),
    to_millis(datetime.max.replace(tzinfo=UTC)),
)
"""Times that can be written."""

_MAX_STATUS, _MAX_RSSI = 2**31 - 1, 2**15 - 1
"""What the tables hold of a status and of an RSSI; none comes near it."""

_NO_EXTRAS: Final = SampleExtras()


class ReportHandler(NamedTuple):
    """What is reported: a kind, and an identifier if it has one."""

    kind: str
    """The kind as topics have it."""
    handle: HandlePayload


def build_handler(topic: ReportTopic) -> ReportHandler:
    """What the end of a topic means."""
    return ReportHandler(str(topic.kind), _HANDLER_BUILDERS[topic.kind](topic))


# --- Samples ---


def _build_raw_handler(topic: ReportTopic) -> HandlePayload:
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]
    kind, identifier = _sample_key(topic)
    read = build_raw_decoder(topic.identifier or "")
    keep, ack = _special_append(kind, identifier), _ack_path(topic)

    def take(draft: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        since = report.time - _EPOCH
        time = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
        seq, value = report.seq, report.value
        number, raw, more = (None, None, None) if value is UNSET else read(value)
        row = (time, kind, identifier, NO_SEQ if seq is UNSET else seq, gateway, number, raw, more)
        if keep is not None or not draft.trusted_from <= time <= draft.trusted_to:
            (keep or _append_row)(draft, device, row)
        elif (rows := draft.rows.get(device)) is None:
            draft.rows[device] = [row]
        else:
            rows.append(row)
        if ack is not None and gateway in draft.acking_gateways:
            draft.unacked_samples.append((device, ack, row))

    return take


def _build_decoded_handler(topic: ReportTopic) -> HandlePayload:
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]
    kind, identifier = _sample_key(topic)
    name = topic.identifier or ""
    keep, ack = _special_append(kind, identifier), _ack_path(topic)

    def take(draft: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        since = report.time - _EPOCH
        time = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
        seq, number = report.seq, report.value
        more = None
        if type(number) is not float or report.ext is not UNSET:
            number, more = _value(number, report.ext)
        row = (time, kind, identifier, NO_SEQ if seq is UNSET else seq, gateway, number, None, more)
        if identifier < 0:
            draft.foreign_names[identifier] = name
        if keep is not None or not draft.trusted_from <= time <= draft.trusted_to:
            (keep or _append_row)(draft, device, row)
        elif (rows := draft.rows.get(device)) is None:
            draft.rows[device] = [row]
        else:
            rows.append(row)
        if ack is not None and gateway in draft.acking_gateways:
            draft.unacked_samples.append((device, ack, row))

    return take


def _build_error_handler(topic: ReportTopic) -> HandlePayload:
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]
    kind, identifier = _sample_key(topic)
    name = topic.identifier or ""

    def take(draft: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        if identifier < 0:
            draft.foreign_names[identifier] = name
        ext = report.error_ext
        more = SampleExtras(error=report.error, error_ext=None if ext is UNSET else ext)
        _append_row(
            draft, device, (_millis(report.time), kind, identifier, report.seq, gateway, None, None, more)
        )

    return take


def _ack_path(topic: ReportTopic) -> str | None:
    """How topics end that acknowledge such a sample; None: it is not acknowledged (ack-1, ack-7)."""
    if topic.kind.raw_kind not in {Kind.MEASUREMENT, Kind.EVENT}:
        return None
    return (
        f"{Operation.ACK if topic.kind is topic.kind.raw_kind else Operation.ACK_DECODED}/{topic.identifier}"
    )


def _sample_key(topic: ReportTopic) -> tuple[int, int]:
    """The kind and the identifier as samples have them."""
    assert topic.identifier is not None  # noqa: S101 # topics of these kinds have one
    return _SAMPLE_KINDS[topic.kind.raw_kind], identifier_to_int(topic.identifier)


def _value(value: Any, ext: Any) -> tuple[SampleNumber, SampleExtras | None]:
    if value is UNSET and ext is UNSET:
        return None, None
    return to_sample_value(None if value is UNSET else value, None if ext is UNSET else ext)


def _millis(time: datetime) -> int:
    since = time - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def _special_append(kind: int, identifier: int) -> Callable[[ParsedBatch, int, SampleRow], None] | None:
    """What to do with a row, if more than to keep it."""
    return _append_fact if kind == SampleKind.PROPERTY and identifier in FACT_VALIDATORS else None


def _append_row(batch: ParsedBatch, device: int, row: SampleRow) -> None:
    """Keep a sample, with the correction of a wrong clock; mark it if its time is not believed."""
    time, more = row[0], row[7]
    if not batch.trusted_from <= time <= batch.trusted_to:
        if not _MIN_TIME <= time <= _MAX_TIME:  # an offset has moved it out of the calendar
            raise MalformedTime("time", "lies outside of the calendar")
        clock, shift = _check_time(batch, time)
        if clock is not None or shift is not None:
            marked = replace(more or _NO_EXTRAS, clock=clock, shift=shift)
            row = (*row[:7], marked)
    batch.rows.setdefault(device, []).append(row)


def _check_time(batch: ParsedBatch, time: int) -> tuple[ClockFlag | None, int | None]:
    """Tell why a time cannot be right as it is, and by how much it is to be corrected; None: not at all."""
    shift: int | None = batch.find_shift(time)
    corrected = time + (shift or 0)
    if not shift or not _MIN_TIME <= corrected <= _MAX_TIME:
        shift = None
    if batch.correct_time(time) is None:
        batch.implausible_count += 1
        return ClockFlag.FUTURE if corrected > batch.now else ClockFlag.PAST, shift
    return None if batch.earliest <= time <= batch.latest else ClockFlag.CORRECTED, shift


def _append_fact(batch: ParsedBatch, device: int, row: SampleRow) -> None:
    """Keep a sample that tells what a device is, and take over what it tells."""
    _append_row(batch, device, row)
    time, _, identifier, _, gateway, number, _, more = row
    at = batch.correct_time(time)
    if at is not None:
        value = from_sample_value(number, more)
        if FACT_VALIDATORS[identifier](value):
            batch.readings.append((ReadingKind.FACT, device, gateway, at, value, identifier, False))


# --- Readings ---


def _build_heartbeat_handler(topic: ReportTopic) -> HandlePayload:
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]

    def take(draft: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, status = _millis(report.time), _clamp(report.status, _MAX_STATUS)
        at = time if draft.trusted_from <= time <= draft.trusted_to else draft.correct_time(time)
        if at is not None:
            draft.readings.append((ReadingKind.HEARTBEAT, device, gateway, at, status, 0, False))
        else:  # it would decide state, which it must not
            _append_row(draft, device, (time, SampleKind.HEARTBEAT, 0, NO_SEQ, gateway, status, None, None))

    return take


def _build_rssi_handler(topic: ReportTopic) -> HandlePayload:
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]

    def take(draft: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, parent, rssi = _millis(report.time), mac_to_int(report.parent), _clamp(report.rssi, _MAX_RSSI)
        at = time if draft.trusted_from <= time <= draft.trusted_to else draft.correct_time(time)
        if at is not None:
            draft.readings.append((ReadingKind.LINK, device, gateway, at, rssi, parent, report.unreachable))
        else:
            _append_row(draft, device, (time, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, None))

    return take


def _build_dfu_handler(topic: ReportTopic) -> HandlePayload:
    decode: Callable[[bytes], Any] = REPORT_DECODERS[topic.kind]

    def take(draft: ParsedBatch, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, parent, rssi = _millis(report.time), mac_to_int(report.parent), _clamp(report.rssi, _MAX_RSSI)
        at = time if draft.trusted_from <= time <= draft.trusted_to else draft.correct_time(time)
        if at is not None:
            draft.readings.append((ReadingKind.DFU, device, gateway, at, rssi, parent, False))

    return take


def _clamp(number: int, most: int) -> int:
    return min(max(number, -most), most)


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
