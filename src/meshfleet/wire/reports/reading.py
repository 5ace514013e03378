"""Reading reports. The hottest code of the wire.

Almost every report comes in one spelling, and that one takes the fast way: msgspec decodes and checks it in
one C call. Whatever the fast way does not accept as it stands goes to the careful way (`payload.read`), which
knows the tolerated spellings and says what is wrong with the rest.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from datetime import UTC
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import UNSET

from meshfleet.wire import payload
from meshfleet.wire.codes import Kind
from meshfleet.wire.payload import MAX_DEPTH, MAX_PAYLOAD
from meshfleet.wire.reports.structs import (
    Dfu,
    Event,
    EventDecoded,
    Heartbeat,
    Measurement,
    MeasurementDecoded,
    MeasurementError,
    Property,
    PropertyDecoded,
    Report,
    Rssi,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from meshfleet.wire.ids import Mac


def decode(kind: Kind, data: bytes) -> Report:
    """Read the payload of a report of this kind."""
    return DECODERS[kind](data)


_ReportT = TypeVar("_ReportT", Heartbeat, MeasurementError)
_JsonT = TypeVar("_JsonT", PropertyDecoded, MeasurementDecoded, EventDecoded)
_RawT = TypeVar("_RawT", Property, Measurement)
_HeardT = TypeVar("_HeardT", Dfu, Rssi)

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
_SHORT: Final = 2 * MAX_DEPTH


def _is_flat(data: bytes) -> bool:
    return len(data) <= MAX_PAYLOAD and data.count(b"[") + data.count(b"{") <= MAX_DEPTH


# The decoders below differ in a line. They are written out: a call more would cost a tenth of the whole.


def _decoder(kind: type[_ReportT]) -> Callable[[bytes], _ReportT]:
    """For numbers only: no text but the time can hold a `Z`."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _ReportT:
        try:
            if len(data) <= MAX_PAYLOAD:
                report = fast(data)
                if data[_Z_AT] == _Z or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.read(kind, data)

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
        return payload.read(kind, data)

    return decode


def _raw_decoder(kind: type[_RawT]) -> Callable[[bytes], _RawT]:
    """For a raw value, which must be hex and so holds no `Z`."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _RawT:
        try:
            if len(data) <= MAX_PAYLOAD:
                report = fast(data)
                unhexlify(report.value)
                if data[_Z_AT] == _Z or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.read(kind, data)

    return decode


def _event_decoder() -> Callable[[bytes], Event]:
    """For a raw value that may be missing."""
    fast = msgspec.json.Decoder(Event).decode

    def decode(data: bytes) -> Event:
        try:
            if len(data) <= MAX_PAYLOAD:
                report = fast(data)
                if report.value is not UNSET:
                    unhexlify(report.value)
                if data[_Z_AT] == _Z or _is_plain(data, report.time):
                    return report
        except _NOT_PLAIN:
            pass
        return payload.read(Event, data)

    return decode


def _heard_decoder(kind: type[_HeardT]) -> Callable[[bytes], _HeardT]:
    """For a parent, which must be a MAC."""
    fast = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> _HeardT:
        try:
            if len(data) <= MAX_PAYLOAD:
                report = fast(data)
                if report.parent in _PARENTS and (data[_Z_AT] == _Z or _is_plain(data, report.time)):
                    return report
        except _NOT_PLAIN:
            pass
        report = payload.read(kind, data)
        _remember(report.parent)
        return report

    return decode


_PARENTS: set[Mac] = set()
"""MACs seen as parents, known to be well-formed: a mesh has few of them, and each reports for ever."""

_MOST_PARENTS: Final = 1 << 17


def _remember(parent: Mac) -> None:
    if len(_PARENTS) >= _MOST_PARENTS:
        _PARENTS.clear()
    _PARENTS.add(parent)


DECODERS: Final[Mapping[Kind, Callable[[bytes], Report]]] = {
    Kind.HEARTBEAT: _decoder(Heartbeat),
    Kind.DFU: _heard_decoder(Dfu),
    Kind.RSSI: _heard_decoder(Rssi),
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
