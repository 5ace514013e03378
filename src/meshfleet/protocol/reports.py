"""What a report of each kind holds."""

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


# `time` stands first in all of them: reading and writing know its place.


class Heartbeat(Payload, frozen=True, kw_only=True):
    """A device is alive (report-1)."""

    time: TimeField
    seq: SequenceField
    status: IntegerField
    """0 is fine; anything else is a device error or warning."""
    last_count: CountField | UnsetType = UNSET
    """How many copies of the previous heartbeat were heard."""


class Dfu(Payload, frozen=True, kw_only=True):
    """A device advertises in DFU mode (report-2)."""

    time: TimeField
    parent: MacField
    rssi: IntegerField


class Rssi(Payload, frozen=True, kw_only=True):
    """How well a mesh node hears a device (report-3)."""

    time: TimeField
    parent: MacField
    rssi: IntegerField
    channel: ChannelField | UnsetType = UNSET
    seq: SequenceField | UnsetType = UNSET
    unreachable: bool = False
    """The device cannot be reached through this parent."""


class Property(Payload, frozen=True, kw_only=True):
    """The raw value of a property (report-4)."""

    time: TimeField
    value: HexField
    seq: SequenceField | UnsetType = UNSET


class PropertyDecoded(Payload, frozen=True, kw_only=True):
    """The value of a property (report-5)."""

    time: TimeField
    value: Json
    ext: dict[str, Json] | UnsetType = UNSET
    seq: SequenceField | UnsetType = UNSET


class Measurement(Payload, frozen=True, kw_only=True):
    """A raw measured sample (report-6)."""

    time: TimeField
    seq: SequenceField
    value: HexField


class MeasurementDecoded(Payload, frozen=True, kw_only=True):
    """A measured sample (report-7)."""

    time: TimeField
    seq: SequenceField
    value: Json
    ext: dict[str, Json] | UnsetType = UNSET


class MeasurementError(Payload, frozen=True, kw_only=True):
    """A measurement that failed; raw and decoded reports look the same (report-8, report-9)."""

    time: TimeField
    seq: SequenceField
    error: IntegerField
    error_ext: IntegerField | UnsetType = UNSET


class Event(Payload, frozen=True, kw_only=True):
    """Something happened; some events carry a raw value (report-10)."""

    time: TimeField
    seq: SequenceField
    value: HexField | UnsetType = UNSET


class EventDecoded(Payload, frozen=True, kw_only=True):
    """Something happened; some events carry a value (report-11)."""

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


# Reading reports. The hottest code of the wire.


def decode_report(kind: Kind, data: bytes) -> Report:
    """Read the payload of a report of this kind."""
    return REPORT_DECODERS[kind](data)


_ReportT = TypeVar("_ReportT", Heartbeat, MeasurementError)
_JsonT = TypeVar("_JsonT", PropertyDecoded, MeasurementDecoded, EventDecoded)
_RawT = TypeVar("_RawT", Property, Measurement)
_ParentT = TypeVar("_ParentT", Dfu, Rssi)

# A plain time is one that msgspec reads as we would. It keeps offsets, and rounds what is finer than
# microseconds, where we want UTC cut to milliseconds. In compact JSON with `time` in front, a `Z` at its
# place leaves room for just three digits and proves that the time is plain; else the digits are looked for.
# (A `time` that comes twice can slip through: report-53. Looking for it would cost a third of the whole.)
_Z: Final = ord("Z")
_Z_AT: Final = len('{"time":"2020-11-04T10:07:20.585')
_T: Final = ord("t")
_T_AT: Final = len('{"')
_FINER = re.compile(rb"\.\d{4}")

# What the fast way may raise: either a tolerated spelling or an error, which the careful way will tell apart.
_NOT_PLAIN = (msgspec.DecodeError, ValueError, IndexError, RecursionError)


def _is_plain(data: bytes, time: datetime) -> bool:
    # An escape may hide digits.
    return time.tzinfo is UTC and not _FINER.search(data) and b"\\" not in data


# Shorter than anything too deep: every level takes two bytes.
_SHORT: Final = 2 * MAX_NESTING_DEPTH


def _is_flat(data: bytes) -> bool:
    return len(data) <= MAX_PAYLOAD_BYTES and data.count(b"[") + data.count(b"{") <= MAX_NESTING_DEPTH


# The decoders below differ in a line. They are written out: a call more would cost a tenth of the whole.


def _decoder(kind: type[_ReportT]) -> Callable[[bytes], _ReportT]:
    """For numbers only: no text but the time can hold a `Z`."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _ReportT:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = fast(data)
                if data[_Z_AT] == _Z or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(kind, data)

    return decode


def _json_decoder(kind: type[_JsonT]) -> Callable[[bytes], _JsonT]:
    """For any JSON value: it may be deep, and may hold a `Z`, which counts only where `time` comes first."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _JsonT:
        try:
            if len(data) <= _SHORT or _is_flat(data):
                report = fast(data)
                if (data[_Z_AT] == _Z and data[_T_AT] == _T) or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(kind, data)

    return decode


def _raw_decoder(kind: type[_RawT]) -> Callable[[bytes], _RawT]:
    """For a raw value, which must be hex and so holds no `Z`."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _RawT:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = fast(data)
                unhexlify(report.value)
                if data[_Z_AT] == _Z or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(kind, data)

    return decode


def _event_decoder() -> Callable[[bytes], Event]:
    """For a raw value that may be missing."""
    fast = msgspec.json.Decoder(Event).decode

    def decode(data: bytes) -> Event:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = fast(data)
                if report.value is not UNSET:
                    unhexlify(report.value)
                if data[_Z_AT] == _Z or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.decode_payload(Event, data)

    return decode


def _parent_decoder(kind: type[_ParentT]) -> Callable[[bytes], _ParentT]:
    """For a parent, which must be a MAC."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _ParentT:
        try:
            if len(data) <= MAX_PAYLOAD_BYTES:
                report = fast(data)
                if report.parent in _PARENTS and (data[_Z_AT] == _Z or _is_plain(data, report.time)):
                    return report
        except _NOT_PLAIN:
            pass
        report = payload.decode_payload(kind, data)
        _remember_parent(report.parent)
        return report

    return decode


_PARENTS: set[Mac] = set()
"""MACs seen as parents, known to be well-formed: a mesh has few of them, and each reports for ever."""

_MAX_PARENTS: Final = 1 << 17


def _remember_parent(parent: Mac) -> None:
    if len(_PARENTS) >= _MAX_PARENTS:
        _PARENTS.clear()
    _PARENTS.add(parent)


REPORT_DECODERS: Final[Mapping[Kind, Callable[[bytes], Report]]] = {
    Kind.HEARTBEAT: _decoder(Heartbeat),
    Kind.DFU: _parent_decoder(Dfu),
    Kind.RSSI: _parent_decoder(Rssi),
    Kind.PROPERTY: _raw_decoder(Property),
    Kind.PROPERTY_DECODED: _json_decoder(PropertyDecoded),
    Kind.MEASUREMENT: _raw_decoder(Measurement),
    Kind.MEASUREMENT_DECODED: _json_decoder(MeasurementDecoded),
    Kind.MEASUREMENT_ERROR: _decoder(MeasurementError),
    Kind.MEASUREMENT_ERROR_DECODED: _decoder(MeasurementError),
    Kind.EVENT: _event_decoder(),
    Kind.EVENT_DECODED: _json_decoder(EventDecoded),
}
"""One decoder per kind. A hot loop takes the decoder of a topic's kind from here."""


# Writing reports: what an emulated gateway does ten thousand times a second.

_encode = msgspec.json.Encoder().encode


_RAW_KINDS: Final = frozenset({Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT})
"""The kinds with a raw value. The names of their fields have no capitals."""


def encode_report(kind: Kind, report: Report, *, version: Version | None = None) -> bytes:
    """Write a report; for a gateway of an older version without the fields it does not know."""
    if type(report) is not REPORT_TYPES[kind]:
        raise TypeError(f"{kind} is not reported with {type(report).__name__}")
    if version is not None and (without := api_versions.list_unsupported_fields("report", kind, version)):
        return payload.encode_payload(report, excluded=without)
    # Only UTC itself: msgspec rounds offsets to minutes, and writes `Z` for one of ten seconds.
    if report.time.tzinfo is UTC:
        try:
            data = _encode(report)
        except UnicodeEncodeError:
            return payload.encode_payload(report)
        # A whole second has no fraction, so a field's name is at that place; a finer time has a digit there.
        data = data.replace(b"000Z", b"Z", 1)
        if data[_Z_AT] == _Z and (kind not in _RAW_KINDS or data[_Z_AT + 1 :].islower()):
            return data
    return payload.encode_payload(report)


# Reports: what gateways publish of devices.

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
