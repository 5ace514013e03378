"""Requests that create sites, places and plans, and pictures to upload."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

from meshfleet.rest.paths import SITES_PATH

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

GROUND: Final[dict[str, Any]] = {"floor": 0, "minX": 0, "minY": 0, "maxX": 40, "maxY": 25.5}
UPPER: Final[dict[str, Any]] = {
    "floor": 1,
    "name": "Büro 会議室",
    "minX": -5,
    "minY": -5,
    "maxX": 30,
    "maxY": 20,
}
ROOM: Final[list[Any]] = [[1, 1], [9, 1], [9.5, 8], [1, 8]]
REFERENCE: Final[list[dict[str, float]]] = [
    {"px": 0, "py": 100, "x": 0, "y": 0},
    {"px": 100, "py": 100, "x": 10, "y": 0},
]
SVG: Final = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100"><script>alert(1)</script></svg>'


def create_site(service: RunningService, *floors: dict[str, Any], name: str = "Site") -> dict[str, Any]:
    """Create a site, by default with two floors, and return it."""
    body = {"name": name, "floors": floors or [GROUND, UPPER]}
    response = service.operator.post(SITES_PATH, json=body)
    assert response.status_code == 201, response.text
    site: dict[str, Any] = response.json()
    return site


def put_place(service: RunningService, device: str, site: str, **changes: Any) -> httpx.Response:
    """Set the place of a device on the ground floor of a site."""
    body = {"site": site, "floor": 0, "x": 3, "y": 4.5, **changes}
    return service.operator.put(f"/api/v1/devices/{device}/place", json=body)


def upload_plan(
    service: RunningService, site: str, content: bytes = SVG, floor: int = 0, reference: Any = REFERENCE
) -> httpx.Response:
    """Upload the picture of a floor."""
    return service.operator.put(
        f"{SITES_PATH}/{site}/floors/{floor}/plan",
        data={"reference": reference if isinstance(reference, str) else json.dumps(reference)},
        files={"image": ("any.name", content, "text/html")},
    )


def list_faults(response: httpx.Response, status: int = 400) -> dict[str, str]:
    """Return the messages of a rejected request by field."""
    assert response.status_code == status, response.text
    return {each["field"]: each["message"] for each in response.json()["errors"]}


def list_audit(service: RunningService, target: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the actions on a target with their details, the oldest first."""
    rows = service.admin.get("/api/v1/audit", params={"Target": target}).json()["items"]
    return [(row["action"], row["detail"]) for row in reversed(rows)]


def build_png(width: int, height: int, *, data_rows: int | None = None, padding: int = 0) -> bytes:
    """Build a gray PNG; with `data_rows`, with less data than its header says. `padding` adds a chunk."""
    rows = zlib.compress((b"\0" + bytes(width)) * (height if data_rows is None else data_rows), 9)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"paDd", bytes(padding)), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_build_chunk, chunks))


def _build_chunk(chunk: tuple[bytes, bytes]) -> bytes:
    name, data = chunk
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def build_jpeg(width: int, height: int, orientation: int = 1) -> bytes:
    """Build the header of a JPEG with an orientation in its Exif data."""
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    exif = b"Exif\0\0" + tiff
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    return (
        b"\xff\xd8"
        b"\xff\xe1"
        + struct.pack(">H", len(exif) + 2)
        + exif
        + b"\xff\xff\xc0"
        + struct.pack(">H", len(frame) + 2)
        + frame
        + b"\xff\xda\0\2\0\xff\xd9"
    )
