"""Site of the conformance tests: a device for each row of the tables of the protocol.

Tests share it, so that what one test does to a device must not affect others: devices that restart or enter
DFU mode have no other use. Distances leave a margin for fading, so that the route to a device never changes.
"""

from __future__ import annotations

from typing import Any, Final

KEY: Final = "6d6573682d666c6565742d6b65792d31"
SEED: Final = "163"
"""With this seed measurements fail within the first seconds, once with and once without a detail."""

EXTENDER: Final = "c0ffee000010"
"""Connected to the gateway."""
OUTER_EXTENDER: Final = "c0ffee000012"
"""Connected to EXTENDER."""
TRACKER: Final = "c0ffee000020"
"""Connected to the gateway."""
OUTER_SENSOR: Final = "c0ffee000022"
"""Connected, three hops away."""
DOOR: Final = "c0ffee000024"
"""Numbers its sensors, has a door counter without a layout, and a low battery."""
CLIP: Final = "c0ffee000030"
"""Unconnected, reached by the gateway itself."""
BAND: Final = "c0ffee000032"
"""Unconnected, reached by EXTENDER."""
OUTER_BAND: Final = "c0ffee000034"
"""Unconnected, reached by OUTER_EXTENDER."""
STORED: Final = "c0ffee000036"
"""In storage mode: it does not respond."""
FAR: Final = "c0ffee000038"
"""Received, but too weak to be reached."""
LEGACY: Final = "c0ffee000040"
UNPROVISIONED: Final = "c0ffee000042"
RESTARTED: Final = "c0ffee000050"
REPORTING: Final = "c0ffee000052"
UPDATED: Final = "c0ffee000054"
"""Enters DFU mode."""
WRITTEN: Final = "c0ffee000056"
UNKNOWN_DEVICE: Final = "c0ffee0000fe"
"""Not part of the site."""


def site(gateway: str) -> dict[str, Any]:
    """Return the site file."""
    return {
        "key": KEY,
        "devices": [
            _device(EXTENDER, "0040", 6, 0, parent=gateway),
            _device(OUTER_EXTENDER, "0043", 16, 0, parent=EXTENDER),
            _device(TRACKER, "0005", 2, 0, parent=gateway),
            _device(OUTER_SENSOR, "0018", 16, 2, parent=OUTER_EXTENDER),
            _device(DOOR, "0050", 0, 2, parent=gateway, battery=5),
            _device(CLIP, "000F", 0, -1),
            _device(BAND, "0063", 6, 1),
            _device(OUTER_BAND, "0011-01", 16, 1),
            _device(STORED, "0063", -1, -1, mode="storage"),
            _device(FAR, "0060", -50, 0),
            _device(LEGACY, "000F", -1, 0, access="legacy"),
            _device(UNPROVISIONED, "0063", 0, 1, access="unprovisioned"),
            _device(RESTARTED, "0005", -2, 0, parent=gateway),
            _device(REPORTING, "0018", -2, 1, parent=gateway),
            _device(UPDATED, "0018", 1, 2, parent=gateway),
            _device(WRITTEN, "0005", -1, 2, parent=gateway),
        ],
    }


def small_site(gateway: str) -> dict[str, Any]:
    """Return a site file with a connected and an unconnected device."""
    return {"devices": [_device(TRACKER, "0005", 2, 0, parent=gateway), _device(CLIP, "000F", 0, -1)]}


def _device(mac: str, model: str, x: float, y: float, **fields: Any) -> dict[str, Any]:
    return {"mac": mac, "model": model, "x": x, "y": y, **fields}
