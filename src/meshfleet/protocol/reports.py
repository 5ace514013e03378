"""Reports that gateways publish about devices: the payload type, decoder and encoder of each report kind."""

from __future__ import annotations

import re
from binascii import unhexlify
from datetime import UTC
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.protocol import api_versions, payload
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.fields import (
    ChannelField,
    CountField,
    HexField,
    IntegerField,
    Json,
    MacField,
    SequenceField,
    TimeField,
)
from meshfleet.protocol.payload import MAX_NESTING_DEPTH, MAX_PAYLOAD_BYTES, Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from meshfleet.protocol.ids import Mac, Version


# `time` is the first field of every report: decoding and encoding rely on its position.


class Heartbeat(Payload, frozen=True, kw_only=True):
    """Report that a device sends regularly to show that it works (report-1)."""

    time: TimeField
    seq: SequenceField
    status: IntegerField
    """Status of the device: 0 is OK; any other value is an error or warning."""
    last_count: CountField | UnsetType = UNSET
    """Number of copies of the previous heartbeat that were received."""


class Dfu(Payload, frozen=True, kw_only=True):
    """Report that a device advertises in DFU mode (report-2)."""

    time: TimeField
    parent: MacField
    rssi: IntegerField


class Rssi(Payload, frozen=True, kw_only=True):
    """Report of the signal strength with which a mesh node receives a device (report-3)."""

    time: TimeField
    parent: MacField
    rssi: IntegerField
    channel: ChannelField | UnsetType = UNSET
    seq: SequenceField | UnsetType = UNSET
    unreachable: bool = False
    """Whether the device cannot be reached through the mesh node `parent`."""


class Property(Payload, frozen=True, kw_only=True):
    """Report of the raw value (hex) of a property (report-4)."""

    time: TimeField
    value: HexField
    seq: SequenceField | UnsetType = UNSET


class PropertyDecoded(Payload, frozen=True, kw_only=True):
    """Report of the decoded value (JSON) of a property (report-5)."""

    time: TimeField
    value: Json
    ext: dict[str, Json] | UnsetType = UNSET
    seq: SequenceField | UnsetType = UNSET


class Measurement(Payload, frozen=True, kw_only=True):
    """Report of a measurement with its raw value (hex) (report-6)."""

    time: TimeField
    seq: SequenceField
    value: HexField


class MeasurementDecoded(Payload, frozen=True, kw_only=True):
    """Report of a measurement with its decoded value (JSON) (report-7)."""

    time: TimeField
    seq: SequenceField
    value: Json
    ext: dict[str, Json] | UnsetType = UNSET


class MeasurementError(Payload, frozen=True, kw_only=True):
    """Report of a failed measurement, raw or decoded in the same form (report-8, report-9)."""

    time: TimeField
    seq: SequenceField
    error: IntegerField
    error_ext: IntegerField | UnsetType = UNSET


class Event(Payload, frozen=True, kw_only=True):
    """Report of an event; some events have a raw value (hex) (report-10)."""

    time: TimeField
    seq: SequenceField
    value: HexField | UnsetType = UNSET


class EventDecoded(Payload, frozen=True, kw_only=True):
    """Report of an event; some events have a decoded value (JSON) (report-11)."""

    time: TimeField
    seq: SequenceField
    value: Json | UnsetType = UNSET
    ext: dict[str, Json] | UnsetType = UNSET


Report = (
    Heartbeat
    | Dfu
    | Rssi
    | Property
    | PropertyDecoded
    | Measurement
    | MeasurementDecoded
    | MeasurementError
    | Event
    | EventDecoded
)

REPORT_TYPES: Final[Mapping[Kind, type[Report]]] = {
    Kind.HEARTBEAT: Heartbeat,
    Kind.DFU: Dfu,
    Kind.RSSI: Rssi,
    Kind.PROPERTY: Property,
    Kind.PROPERTY_DECODED: PropertyDecoded,
    Kind.MEASUREMENT: Measurement,
    Kind.MEASUREMENT_DECODED: MeasurementDecoded,
    Kind.MEASUREMENT_ERROR: MeasurementError,
    Kind.MEASUREMENT_ERROR_DECODED: MeasurementError,
    Kind.EVENT: Event,
    Kind.EVENT_DECODED: EventDecoded,
}


# Decoding reports: the hottest code of the protocol.


def decode_report(kind: Kind, data: bytes) -> Report:
    """Decode the payload of a report of this kind."""
    return REPORT_DECODERS[kind](data)


_ReportT = TypeVar("_ReportT", Heartbeat, MeasurementError)
_JsonT = TypeVar("_JsonT", PropertyDecoded, MeasurementDecoded, EventDecoded)
_RawT = TypeVar("_RawT", Property, Measurement)
_ParentT = TypeVar("_ParentT", Dfu, Rssi)

# The fast decoders use msgspec, which decodes times differently: it keeps UTC offsets and rounds digits
# beyond microseconds, while times here are UTC truncated to milliseconds. A time for which both give the same
# result is called plain. In compact JSON that starts with `time`, a `Z` at its usual position leaves space
# for exactly three digits, so the time is plain; otherwise the text is searched for more digits.
# (A repeated `time` can pass this check: report-53. Checking for it would cost a third of the whole decoder.)
_Z: Final = ord("Z")
_Z_AT: Final = len('{"time":"2020-11-04T10:07:20.585')
_T: Final = ord("t")
_T_AT: Final = len('{"')
_FINER_THAN_MILLIS = re.compile(rb"\.\d{4}")

# Exceptions of the fast decoder. `decode_payload` then accepts an unusual spelling, or raises the error.
_NOT_PLAIN = (msgspec.DecodeError, ValueError, IndexError, RecursionError)


def _has_plain_time(data: bytes, time: datetime) -> bool:
    """Return whether `time`, as msgspec decoded it, is the time that the strict decoder would return."""
    # An escape sequence may hide digits.
    return time.tzinfo is UTC and not _FINER_THAN_MILLIS.search(data) and b"\\" not in data


# A payload up to this size cannot be nested too deeply, as every level takes two bytes.
_MAX_SHALLOW_BYTES: Final = 2 * MAX_NESTING_DEPTH


def _is_shallow(data: bytes) -> bool:
    """Return whether a payload is not too long and has so few brackets that its nesting is not too deep."""
    return len(data) <= MAX_PAYLOAD_BYTES and data.count(b"[") + data.count(b"{") <= MAX_NESTING_DEPTH


# The decoders below differ in one line each. Sharing code would need one more call, a tenth of the time.


def _build_number_decoder(kind: type[_ReportT]) -> Callable[[bytes], _ReportT]:
    """Build the decoder of a report type with only numbers besides the time. So only the time has a `Z`."""
    decode_plain = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _ReportT:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = decode_plain(data)
                if data[_Z_AT] == _Z or _has_plain_time(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(kind, data)

    return decode


def _build_json_decoder(kind: type[_JsonT]) -> Callable[[bytes], _JsonT]:
    """Build the decoder of a report type with any JSON value.

    The value may be nested too deeply. The value may also contain a `Z`, so the decoder checks that `time` is
    the first field.
    """
    decode_plain = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _JsonT:
        try:
            if len(data) <= _MAX_SHALLOW_BYTES or _is_shallow(data):
                report = decode_plain(data)
                if (data[_Z_AT] == _Z and data[_T_AT] == _T) or _has_plain_time(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(kind, data)

    return decode


def _build_raw_decoder(kind: type[_RawT]) -> Callable[[bytes], _RawT]:
    """Build the decoder of a report type with a raw value. The value must be hex, so it contains no `Z`."""
    decode_plain = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _RawT:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = decode_plain(data)
                unhexlify(report.value)
                if data[_Z_AT] == _Z or _has_plain_time(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(kind, data)

    return decode


def _build_event_decoder() -> Callable[[bytes], Event]:
    """Build the decoder of events. The raw value of an event is optional."""
    decode_plain = msgspec.json.Decoder(Event).decode

    def decode(data: bytes) -> Event:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = decode_plain(data)
                if report.value is not UNSET:
                    unhexlify(report.value)
                if data[_Z_AT] == _Z or _has_plain_time(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(Event, data)

    return decode


def _build_parent_decoder(kind: type[_ParentT]) -> Callable[[bytes], _ParentT]:
    """Build the decoder of a report type that names the parent: the mesh node that received the device.

    The fast path accepts a parent only if the strict decoder has accepted its MAC before.
    """
    decode_plain = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _ParentT:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = decode_plain(data)
                if report.parent in _KNOWN_PARENTS and (
                    data[_Z_AT] == _Z or _has_plain_time(data, report.time)
                ):
                    return report
        except _NOT_PLAIN:
            pass
        report = payload.decode_payload(kind, data)
        _add_known_parent(report.parent)
        return report

    return decode


_KNOWN_PARENTS: set[Mac] = set()
"""Valid MACs of mesh parents from decoded reports. A mesh has few parents, each in many reports."""

_MAX_KNOWN_PARENTS: Final = 1 << 17


def _add_known_parent(parent: Mac) -> None:
    if len(_KNOWN_PARENTS) >= _MAX_KNOWN_PARENTS:
        _KNOWN_PARENTS.clear()
    _KNOWN_PARENTS.add(parent)


REPORT_DECODERS: Final[Mapping[Kind, Callable[[bytes], Report]]] = {
    Kind.HEARTBEAT: _build_number_decoder(Heartbeat),
    Kind.DFU: _build_parent_decoder(Dfu),
    Kind.RSSI: _build_parent_decoder(Rssi),
    Kind.PROPERTY: _build_raw_decoder(Property),
    Kind.PROPERTY_DECODED: _build_json_decoder(PropertyDecoded),
    Kind.MEASUREMENT: _build_raw_decoder(Measurement),
    Kind.MEASUREMENT_DECODED: _build_json_decoder(MeasurementDecoded),
    Kind.MEASUREMENT_ERROR: _build_number_decoder(MeasurementError),
    Kind.MEASUREMENT_ERROR_DECODED: _build_number_decoder(MeasurementError),
    Kind.EVENT: _build_event_decoder(),
    Kind.EVENT_DECODED: _build_json_decoder(EventDecoded),
}
"""Decoder of each report kind. Ingest looks up the decoder once per topic."""


# Encoding reports: an emulated gateway does this ten thousand times a second.

_encode = msgspec.json.Encoder().encode


_RAW_KINDS: Final = frozenset({Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT})
"""Report kinds with a raw value. As their field names are in lower case, a capital letter is a hex digit."""


def encode_report(kind: Kind, report: Report, *, version: Version | None = None) -> bytes:
    """Encode a report. If `version` is given, omit fields that a gateway of that version does not know."""
    if type(report) is not REPORT_TYPES[kind]:
        raise TypeError(f"{type(report).__name__} is not the payload of {kind}")
    if version is not None and (excluded := api_versions.list_unsupported_fields("report", kind, version)):
        return payload.encode_payload(report, excluded=excluded)
    # Only if the time zone is UTC: msgspec rounds offsets to minutes, so it writes `Z` for ten seconds.
    if report.time.tzinfo is UTC:
        try:
            data = _encode(report)
        except UnicodeEncodeError:
            return payload.encode_payload(report)
        # If the position of `Z` holds another character, the time has no or too many fractional digits.
        data = data.replace(b"000Z", b"Z", 1)
        if data[_Z_AT] == _Z and (kind not in _RAW_KINDS or data[_Z_AT + 1 :].islower()):
            return data
    return payload.encode_payload(report)


__all__ = [
    "REPORT_DECODERS",
    "REPORT_TYPES",
    "Dfu",
    "Event",
    "EventDecoded",
    "Heartbeat",
    "Measurement",
    "MeasurementDecoded",
    "MeasurementError",
    "Property",
    "PropertyDecoded",
    "Report",
    "Rssi",
    "decode_report",
    "encode_report",
]
