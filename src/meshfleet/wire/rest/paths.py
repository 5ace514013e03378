"""The paths of the REST interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from meshfleet.wire.ids import DeviceId, Mac

LOGIN: Final = "/api/v1/auth/login"
DEVICES: Final = "/api/v1/devices"
LABELS: Final = "/api/v1/labels"
GATEWAYS: Final = "/api/v1/gateways"


def friendly_name_path(device: DeviceId) -> str:
    """Where a device is renamed (rest-43)."""
    return f"{DEVICES}/{device}/friendly-name"


def device_label_path(device: DeviceId, label: str) -> str:
    """Where a label is taken off a device; any label fits into a path."""
    return f"{DEVICES}/{device}/labels/{quote(label, safe='')}"


def credentials_path(gateway: Mac) -> str:
    """Where a gateway gets a new password (rest-73)."""
    return f"{GATEWAYS}/{gateway}/credentials"
