"""Firmware to upload, and uploads to look at."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from meshfleet.db.tables import image_chunk
from meshfleet.protocol.firmware_image import build_package, is_zip
from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.rest import FIRMWARE_PATH
from tests.firmware_images import bare_image

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService

MODEL = "0018"
BUNDLE = b"\x00hsqs bundle" * 1000

_numbers = count(1)


def new_content() -> bytes:
    """A bare image that no other test has."""
    return bare_image(b"image %d " % next(_numbers) * 100)


def package(version: str, model: str = MODEL) -> bytes:
    """A Nordic package of this version."""
    return build_package(b"firmware" * 500, model_number=ModelNumber(model), version=Version.parse(version))


def new_version() -> str:
    """A version that no other test has."""
    number = next(_numbers)
    return f"9.{number // 256}.{number % 256}"


def upload(
    service: RunningService, content: bytes | None = None, name: str = "image.bin", **fields: Any
) -> httpx.Response:
    """Upload an image, by its look a bare one or a package; a field of None is left out."""
    image = new_content() if content is None else content
    is_bare = not is_zip(image) and not name.lower().endswith((".zip", ".raucb"))
    bare = {"bare": "true"} if is_bare else {}
    given = {"modelNumber": MODEL, "version": new_version(), **bare, **fields}
    return service.admin.post(
        FIRMWARE_PATH,
        data={field: value for field, value in given.items() if value is not None},
        files={"image": (name, image)},
    )


def uploaded(service: RunningService, content: bytes | None = None, **fields: Any) -> dict[str, Any]:
    """The record of an image that is uploaded just now."""
    answer = upload(service, content, **fields)
    assert answer.status_code == 201, answer.text
    record: dict[str, Any] = answer.json()
    return record


def released(service: RunningService, content: bytes | None = None, **fields: Any) -> dict[str, Any]:
    """The same, released."""
    answer = service.admin.post(f"{FIRMWARE_PATH}/{uploaded(service, content, **fields)['id']}/release")
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kept(service: RunningService) -> set[str]:
    """The images that are kept, by their hashes."""
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


def under_way(service: RunningService) -> list[str]:
    """What arrives at the moment."""
    folder = service.data / "images"
    return [each.name for each in folder.iterdir() if each.name.startswith(".")] if folder.exists() else []


def chunks(database: Database, sha256: str) -> int:
    """How many rows an image has on PostgreSQL."""
    query = select(func.count()).where(image_chunk.c.sha256 == bytes.fromhex(sha256))
    return database.read_now(lambda connection: int(connection.execute(query).scalar_one()))


def faults(answer: httpx.Response) -> dict[str, str]:
    """What was wrong, by field."""
    assert answer.status_code == 400, answer.text
    return {each["field"]: each["message"] for each in answer.json()["errors"]}
