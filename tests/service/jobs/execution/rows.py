"""Initial rows of the registry and of firmware in a simulation."""

from __future__ import annotations

from typing import Any, Final

from meshfleet.protocol.ids import ModelNumber

OLD, NEW, NEWER = "1.0.0", "1.1.0", "1.2.0"
MODEL: Final = ModelNumber("0018")
LEGACY: Final = ModelNumber("000F")
SIZE: Final = 12_000


def device_row(number: int, gateway: int | None, model: ModelNumber) -> dict[str, Any]:
    """Build the row of a connected device, or of a gateway if `gateway` is None."""
    return {
        "id": number,
        "name": str(number),
        "name_key": str(number),
        "named": False,
        "model": int(model, 16),
        "variant": 0,
        "firmware": OLD,
        "beta": 0,
        "hardware": "1.0.0",
        "gateway": gateway,
        "connected": True,
        "connected_at": 0,
        "created_at": 0,
    }


def firmware_id(index: int, model: ModelNumber) -> str:
    """Return the id of a firmware of a model: index 0 is the new one, 1 a newer one."""
    return f"fw-{index:012x}{model.lower()}"


def firmware_row(index: int, model: ModelNumber, version: str) -> dict[str, Any]:
    """Build the row of a released firmware."""
    return {
        "id": firmware_id(index, model),
        "model": int(model, 16),
        "version": version,
        "type": 1,
        "file_name": "image.zip",
        "size": SIZE,
        "sha256": bytes(32),
        "hardware": "[]",
        "notes": "",
        "state": "released",
        "created_by": "test",
        "created_at": 0,
        "released_at": 0,
    }
