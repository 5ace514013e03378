"""Writing reports: what an emulated gateway does ten thousand times a second.

As in reading there is a fast way: msgspec encodes the report as it stands, in one C call. It spells all but
the time as we do; there it writes microseconds, of which three digits are cut. A report with more to spell
goes the careful way (`payload.write`). Nobody can tell from the bytes which way a report went.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final

import msgspec

from meshfleet.wire import gating, payload
from meshfleet.wire.codes import Kind
from meshfleet.wire.reports.structs import STRUCTS

if TYPE_CHECKING:
    from meshfleet.wire.ids import Version
    from meshfleet.wire.reports.structs import Report

_encode = msgspec.json.Encoder().encode

_Z: Final = ord("Z")
_Z_AT: Final = len('{"time":"2020-11-04T10:07:20.585')

_HEX: Final = frozenset({Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT})
"""The kinds with a raw value. The names of their fields have no capitals."""


def encode(kind: Kind, report: Report, *, version: Version | None = None) -> bytes:
    """Write a report; for a gateway of an older version without the fields it does not know."""
    if type(report) is not STRUCTS[kind]:
        raise TypeError(f"{kind} is not reported with {type(report).__name__}")
    if version is not None and (without := gating.newer_fields("report", kind, version)):
        return payload.write(report, without=without)
    # Only UTC itself: msgspec rounds offsets to minutes, and writes `Z` for one of ten seconds.
    if report.time.tzinfo is UTC:
        try:
            data = _encode(report)
        except UnicodeEncodeError:
            return payload.write(report)
        # A whole second has no fraction, so a field's name is at that place; a finer time has a digit there.
        data = data.replace(b"000Z", b"Z", 1)
        if data[_Z_AT] == _Z and (kind not in _HEX or data[_Z_AT + 1 :].islower()):
            return data
    return payload.write(report)
