"""Builders of report messages for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from meshfleet.mqtt.codec.packets import Publish

A, B = "02005e000001", "02005e000002"
"""Gateways."""

D = "c0ffee0000a1"
E = "c0ffee0000b1"
"""Devices."""

P, Q, R = "c0ffee00f001", "c0ffee00f002", "c0ffee00f003"
"""Parents."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def mac_to_number(mac: str) -> int:
    """Return the stored number of a MAC."""
    return int(mac, 16)


def format_time(at: int) -> str:
    """Format milliseconds like reports."""
    return f"{_EPOCH + timedelta(milliseconds=at):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def build_report(end: str, at: int, *, device: str = D, gateway: str = A, **fields: Any) -> Publish:
    """Build any report; `end` is the kind and the identifier."""
    payload = msgspec.json.encode({"time": format_time(at), **fields})
    return Publish(f"mt/gateway/{gateway}/device/{device}/{end}", payload, qos=1)


def build_raw_report(end: str, at: int, rest: str) -> Publish:
    """Build a report whose fields after the time are given as JSON."""
    payload = f'{{"time":"{format_time(at)}",{rest}}}'.encode()
    return Publish(f"mt/gateway/{A}/device/{D}/{end}", payload, qos=1)


def heartbeat(at: int, status: int = 0, *, device: str = D, gateway: str = A, seq: int = 1) -> Publish:
    """Build a heartbeat."""
    return build_report("heartbeat", at, device=device, gateway=gateway, seq=seq, status=status, lastCount=1)


def link(at: int, rssi: int, parent: str = P, *, device: str = D, **fields: Any) -> Publish:
    """Build an RSSI report of a parent."""
    return build_report("rssi", at, device=device, parent=parent, rssi=rssi, **fields)


def dfu(at: int, *, device: str = D, gateway: str = A, parent: str = P, rssi: int = -50) -> Publish:
    """Build a report of a device in DFU mode."""
    return build_report("dfu", at, device=device, gateway=gateway, parent=parent, rssi=rssi)


def temperature(at: int, value: Any = 21.5, *, device: str = D, gateway: str = A, seq: int = 1) -> Publish:
    """Build a sample."""
    return build_report(
        "measurement-decoded/temperature", at, device=device, gateway=gateway, seq=seq, value=value
    )


def prop(name: str, at: int, value: Any, *, device: str = D, gateway: str = A) -> Publish:
    """Build a property report: raw for a hex identifier, otherwise decoded."""
    kind = "property" if name[0] in "89" else "property-decoded"
    return build_report(f"{kind}/{name}", at, device=device, gateway=gateway, value=value)
