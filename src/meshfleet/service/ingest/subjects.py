"""What reports mean. A subject is what the end of a topic names; it takes the payloads that come there.

The functions that are made here are the hottest of the service: from bytes to a row. So each is written out
for its kind, and calls nobody whom it need not call.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.db.samples import NO_SEQ, Clock, More, SampleKind
from meshfleet.errors import MalformedTime
from meshfleet.service.ingest.facts import FACTS
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.values import from_json, raw_reader, to_json
from meshfleet.wire.codes import Kind, Operation
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import mac_number
from meshfleet.wire.reports import DECODERS
from meshfleet.wire.times import to_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.values import Number
    from meshfleet.wire.topics import ReportTopic

    Take: TypeAlias = Callable[[Draft, int, int, bytes], None]
    """Adds a payload, of a device and by a gateway, to a draft; raises a `WireError` if it cannot be read."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = to_millis(datetime.min.replace(tzinfo=UTC)), to_millis(datetime.max.replace(tzinfo=UTC))
"""Times that can be written."""

_WIDE, _SMALL = 2**31 - 1, 2**15 - 1
"""What the tables hold of a status and of an RSSI; none comes near it."""

_NO_MORE: Final = More()


class Subject(NamedTuple):
    """What is reported: a kind, and an identifier if it has one."""

    name: str
    """The kind as topics have it."""
    take: Take


def subject(topic: ReportTopic) -> Subject:
    """What the end of a topic means."""
    return Subject(str(topic.kind), _KINDS[topic.kind](topic))


# --- Samples ---


def _taking_raw(topic: ReportTopic) -> Take:
    decode: Callable[[bytes], Any] = DECODERS[topic.kind]
    kind, identifier = _stored(topic)
    read = raw_reader(topic.identifier or "")
    keep, ack = _keeping(kind, identifier), _ack(topic)

    def take(draft: Draft, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        since = report.time - _EPOCH
        time = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
        seq, value = report.seq, report.value
        number, raw, more = (None, None, None) if value is UNSET else read(value)
        row = (time, kind, identifier, NO_SEQ if seq is UNSET else seq, gateway, number, raw, more)
        if keep is not None or not draft.plain_from <= time <= draft.plain_to:
            (keep or _keep)(draft, device, row)
        elif (rows := draft.rows.get(device)) is None:
            draft.rows[device] = [row]
        else:
            rows.append(row)
        if ack is not None and gateway in draft.acking:
            draft.acked.append((device, ack, row))

    return take


def _taking_decoded(topic: ReportTopic) -> Take:
    decode: Callable[[bytes], Any] = DECODERS[topic.kind]
    kind, identifier = _stored(topic)
    name = topic.identifier or ""
    keep, ack = _keeping(kind, identifier), _ack(topic)

    def take(draft: Draft, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        since = report.time - _EPOCH
        time = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
        seq, number = report.seq, report.value
        more = None
        if type(number) is not float or report.ext is not UNSET:
            number, more = _value(number, report.ext)
        row = (time, kind, identifier, NO_SEQ if seq is UNSET else seq, gateway, number, None, more)
        if identifier < 0:
            draft.names[identifier] = name
        if keep is not None or not draft.plain_from <= time <= draft.plain_to:
            (keep or _keep)(draft, device, row)
        elif (rows := draft.rows.get(device)) is None:
            draft.rows[device] = [row]
        else:
            rows.append(row)
        if ack is not None and gateway in draft.acking:
            draft.acked.append((device, ack, row))

    return take


def _taking_error(topic: ReportTopic) -> Take:
    decode: Callable[[bytes], Any] = DECODERS[topic.kind]
    kind, identifier = _stored(topic)
    name = topic.identifier or ""

    def take(draft: Draft, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        if identifier < 0:
            draft.names[identifier] = name
        ext = report.error_ext
        more = More(error=report.error, error_ext=None if ext is UNSET else ext)
        _keep(draft, device, (_millis(report.time), kind, identifier, report.seq, gateway, None, None, more))

    return take


def _ack(topic: ReportTopic) -> str | None:
    """How topics end that acknowledge such a sample; None: it is not acknowledged (ack-1, ack-7)."""
    if topic.kind.raw not in {Kind.MEASUREMENT, Kind.EVENT}:
        return None
    return f"{Operation.ACK if topic.kind is topic.kind.raw else Operation.ACK_DECODED}/{topic.identifier}"


def _stored(topic: ReportTopic) -> tuple[int, int]:
    """The kind and the identifier as samples have them."""
    assert topic.identifier is not None  # noqa: S101 # topics of these kinds have one
    return _SAMPLES[topic.kind.raw], identifier_number(topic.identifier)


def _value(value: Any, ext: Any) -> tuple[Number, More | None]:
    if value is UNSET and ext is UNSET:
        return None, None
    return from_json(None if value is UNSET else value, None if ext is UNSET else ext)


def _millis(time: datetime) -> int:
    since = time - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def _keeping(kind: int, identifier: int) -> Callable[[Draft, int, Row], None] | None:
    """What to do with a row, if more than to keep it."""
    return _learn if kind == SampleKind.PROPERTY and identifier in FACTS else None


def _keep(draft: Draft, device: int, row: Row) -> None:
    """Keep a sample, with the correction of a wrong clock; mark it if its time is not believed."""
    time, more = row[0], row[7]
    if not draft.plain_from <= time <= draft.plain_to:
        if not _FIRST <= time <= _LAST:  # an offset has moved it out of the calendar
            raise MalformedTime("time", "lies outside of the calendar")
        clock, shift = _judge(draft, time)
        if clock is not None or shift is not None:
            marked = replace(more or _NO_MORE, clock=clock, shift=shift)
            row = (*row[:7], marked)
    draft.rows.setdefault(device, []).append(row)


def _judge(draft: Draft, time: int) -> tuple[Clock | None, int | None]:
    """Tell why a time cannot be right as it is, and by how much it is to be corrected; None: not at all."""
    shift: int | None = draft.shift_of(time)
    corrected = time + (shift or 0)
    if not shift or not _FIRST <= corrected <= _LAST:
        shift = None
    if draft.place(time) is None:
        draft.strays += 1
        return Clock.FUTURE if corrected > draft.now else Clock.PAST, shift
    return None if draft.earliest <= time <= draft.latest else Clock.CORRECTED, shift


def _learn(draft: Draft, device: int, row: Row) -> None:
    """Keep a sample that tells what a device is, and take over what it tells."""
    _keep(draft, device, row)
    time, _, identifier, _, gateway, number, _, more = row
    at = draft.place(time)
    if at is not None:
        value = to_json(number, more)
        if FACTS[identifier](value):
            draft.readings.append((ReadingKind.FACT, device, gateway, at, value, identifier, False))


# --- Readings ---


def _taking_heartbeats(topic: ReportTopic) -> Take:
    decode: Callable[[bytes], Any] = DECODERS[topic.kind]

    def take(draft: Draft, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, status = _millis(report.time), _narrow(report.status, _WIDE)
        at = time if draft.plain_from <= time <= draft.plain_to else draft.place(time)
        if at is not None:
            draft.readings.append((ReadingKind.HEARTBEAT, device, gateway, at, status, 0, False))
        else:  # it would decide state, which it must not
            _keep(draft, device, (time, SampleKind.HEARTBEAT, 0, NO_SEQ, gateway, status, None, None))

    return take


def _taking_rssi(topic: ReportTopic) -> Take:
    decode: Callable[[bytes], Any] = DECODERS[topic.kind]

    def take(draft: Draft, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, parent, rssi = _millis(report.time), mac_number(report.parent), _narrow(report.rssi, _SMALL)
        at = time if draft.plain_from <= time <= draft.plain_to else draft.place(time)
        if at is not None:
            draft.readings.append((ReadingKind.LINK, device, gateway, at, rssi, parent, report.unreachable))
        else:
            _keep(draft, device, (time, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, None))

    return take


def _taking_dfu(topic: ReportTopic) -> Take:
    decode: Callable[[bytes], Any] = DECODERS[topic.kind]

    def take(draft: Draft, device: int, gateway: int, payload: bytes) -> None:
        report = decode(payload)
        time, parent, rssi = _millis(report.time), mac_number(report.parent), _narrow(report.rssi, _SMALL)
        at = time if draft.plain_from <= time <= draft.plain_to else draft.place(time)
        if at is not None:
            draft.readings.append((ReadingKind.DFU, device, gateway, at, rssi, parent, False))

    return take


def _narrow(number: int, most: int) -> int:
    return min(max(number, -most), most)


_SAMPLES: Final[Mapping[Kind, int]] = {
    Kind.PROPERTY: SampleKind.PROPERTY,
    Kind.MEASUREMENT: SampleKind.MEASUREMENT,
    Kind.MEASUREMENT_ERROR: SampleKind.MEASUREMENT_ERROR,
    Kind.EVENT: SampleKind.EVENT,
}

_KINDS: Final[Mapping[Kind, Callable[[ReportTopic], Take]]] = {
    Kind.HEARTBEAT: _taking_heartbeats,
    Kind.DFU: _taking_dfu,
    Kind.RSSI: _taking_rssi,
    Kind.PROPERTY: _taking_raw,
    Kind.PROPERTY_DECODED: _taking_decoded,
    Kind.MEASUREMENT: _taking_raw,
    Kind.MEASUREMENT_DECODED: _taking_decoded,
    Kind.MEASUREMENT_ERROR: _taking_error,
    Kind.MEASUREMENT_ERROR_DECODED: _taking_error,
    Kind.EVENT: _taking_raw,
    Kind.EVENT_DECODED: _taking_decoded,
}
