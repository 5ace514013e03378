"""Rows of the registry and of the catalogue, as a world begins with them."""

from __future__ import annotations

from typing import Any, Final

from meshfleet.protocol.ids import ModelNumber

OLD, NEW, NEWER = "1.0.0", "1.1.0", "1.2.0"
MODEL: Final = ModelNumber("0018")
LEGACY: Final = ModelNumber("000F")
SIZE: Final = 12_000


def device_row(number: int, behind: int | None, model: ModelNumber) -> dict[str, Any]:
    """A connected device, or a gateway if it is behind none."""
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
        "gateway": behind,
        "connected": True,
        "connected_at": 0,
        "created_at": 0,
    }


def firmware_id(place: int, model: ModelNumber) -> str:
    """The firmware of this model: 0 the new one, 1 a newer one."""
    return f"fw-{place:012x}{model.lower()}"


def firmware_row(place: int, model: ModelNumber, version: str) -> dict[str, Any]:
    """A released firmware."""
    return {
        "id": firmware_id(place, model),
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
