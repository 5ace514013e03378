"""Helpers to upload firmware and to inspect stored images."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from meshfleet.db.tables import image_chunk
from meshfleet.protocol.firmware_image import build_package, is_zip
from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.rest.firmware import FIRMWARE_PATH
from tests.firmware_images import bare_image

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService

MODEL = "0018"
BUNDLE = b"\x00hsqs bundle" * 1000

_numbers = count(1)


def new_content() -> bytes:
    """Return a bare image that no other test uses."""
    return bare_image(b"image %d " % next(_numbers) * 100)


def package(version: str, model: str = MODEL) -> bytes:
    """Build a Nordic package of a version."""
    return build_package(b"firmware" * 500, model_number=ModelNumber(model), version=Version.parse(version))


def new_version() -> str:
    """Return a version that no other test uses."""
    number = next(_numbers)
    return f"9.{number // 256}.{number % 256}"


def upload(
    service: RunningService, content: bytes | None = None, name: str = "image.bin", **fields: Any
) -> httpx.Response:
    """Upload an image, with `bare` set by its content and name. Fields with None are omitted."""
    image = new_content() if content is None else content
    looks_bare = not is_zip(image) and not name.lower().endswith((".zip", ".raucb"))
    bare = {"bare": "true"} if looks_bare else {}
    form = {"modelNumber": MODEL, "version": new_version(), **bare, **fields}
    return service.admin.post(
        FIRMWARE_PATH,
        data={field: value for field, value in form.items() if value is not None},
        files={"image": (name, image)},
    )


def upload_record(service: RunningService, content: bytes | None = None, **fields: Any) -> dict[str, Any]:
    """Upload an image and return its record."""
    response = upload(service, content, **fields)
    assert response.status_code == 201, response.text
    record: dict[str, Any] = response.json()
    return record


def upload_released(service: RunningService, content: bytes | None = None, **fields: Any) -> dict[str, Any]:
    """Upload and release an image, and return its record."""
    response = service.admin.post(
        f"{FIRMWARE_PATH}/{upload_record(service, content, **fields)['id']}/release"
    )
    assert response.status_code == 200, response.text
    record: dict[str, Any] = response.json()
    return record


def hash_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def list_stored_images(service: RunningService) -> set[str]:
    """Return the hashes of all stored images."""
    if service.database.is_sqlite:
        folder = service.data / "images"
        return (
            {each.name for each in folder.iterdir() if not each.name.startswith(".")}
            if folder.exists()
            else set()
        )
    return service.database.read_now(
        lambda connection: {
            each.hex() for each in connection.execute(select(image_chunk.c.sha256).distinct()).scalars()
        }
    )


def list_partial_images(service: RunningService) -> list[str]:
    """Return the file names of uploads in progress."""
    folder = service.data / "images"
    return [each.name for each in folder.iterdir() if each.name.startswith(".")] if folder.exists() else []


def count_chunks(database: Database, sha256: str) -> int:
    """Return the number of rows of an image on PostgreSQL."""
    query = select(func.count()).where(image_chunk.c.sha256 == bytes.fromhex(sha256))
    return database.read_now(lambda connection: int(connection.execute(query).scalar_one()))


def faults(response: httpx.Response) -> dict[str, str]:
    """Return the messages of a rejected request by field."""
    assert response.status_code == 400, response.text
    return {each["field"]: each["message"] for each in response.json()["errors"]}
