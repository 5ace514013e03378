"""Reports straight from a gateway, in the words of the service's live events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from meshfleet.cli.remote.values import decoded
from meshfleet.wire.codes import Kind
from meshfleet.wire.identifiers import BUILTIN, Decoded
from meshfleet.wire.ids import device_id
from meshfleet.wire.rest import LiveHeartbeat, LiveLink, LiveSample
from meshfleet.wire.times import write_time

if TYPE_CHECKING:
    from meshfleet.client import Report

Live = LiveSample | LiveHeartbeat | LiveLink


def heard(report: Report) -> Live:
    """A report as the service would tell it."""
    body: Any = report.body
    common: Any = {
        "device": device_id(report.device),
        "gateway": report.gateway,
        "time": write_time(body.time),
        "kind": report.kind.raw.value,
    }
    match report.kind:
        case Kind.HEARTBEAT:
            return LiveHeartbeat(**common, status=body.status)
        case Kind.RSSI | Kind.DFU:
            unreachable = report.kind is Kind.RSSI and body.unreachable
            return LiveLink(**common, parent=body.parent, rssi=body.rssi, unreachable=unreachable)
    return _sample(report, body, common)


def _sample(report: Report, body: Any, common: Any) -> LiveSample:
    word = str(report.identifier)
    entry, is_hex = BUILTIN.find(word), not report.kind.decoded
    told = _given(body, "value")
    raw = told if is_hex else None
    meant = (decoded(word, raw) if raw else None) or Decoded(None)
    return LiveSample(
        **common,
        identifier=entry.id if entry else word if is_hex else None,
        name=entry.name if entry else None if is_hex else word,
        seq=_given(body, "seq"),
        value=meant.value if is_hex else told,
        raw=raw,
        ext=meant.ext if is_hex else _given(body, "ext"),
        error=_given(body, "error"),
        error_ext=_given(body, "error_ext"),
        clock=None,
    )


def _given(body: Any, field: str) -> Any:
    """A field that this kind may not have, or that was left out."""
    value = getattr(body, field, UNSET)
    return None if value is UNSET else value
