"""Tests of image stores: each image is stored once, completely, and only while a record has it."""

from __future__ import annotations

import asyncio
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from meshfleet.db.samples import open_sample_store
from meshfleet.db.tables import image_chunk
from meshfleet.errors import AlreadyExists, ImageDamaged, ImagesUnavailable
from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.api import RestApi
from meshfleet.service.firmware import store
from meshfleet.service.firmware.image_store import CHUNK_SIZE, ImageStore, open_image_store
from meshfleet.service.firmware.partial_images import open_partial_image
from meshfleet.service.firmware.upload_form import NewFirmware
from meshfleet.settings import Settings
from tests.service.firmware.uploads import count_chunks, hash_hex

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 2048 + b"tail"


@pytest.fixture
def images(database: Database, tmp_path: Path) -> ImageStore:
    return open_image_store(database, tmp_path)


def _build_record(patch: int, minor: int = 0) -> NewFirmware:
    return NewFirmware(
        model=ModelNumber("0018"),
        version=Version(1, minor, patch),
        type=FirmwareType.RAUC_BUNDLE,
        file_name="x",
        hardware=(),
        min_version=None,
        notes="",
    )


async def _store_image(
    database: Database, images: ImageStore, patch: int, content: bytes = CONTENT, *, minor: int = 0
) -> str:
    async with open_partial_image(images.folder) as image:
        await image.write(content)
        received = await image.finish()
        record = await database.write(
            store.insert_firmware,
            _build_record(patch, minor),
            received,
            images=images,
            by=COMMAND_LINE,
            now=0,
        )
    return record.id


async def _remove(database: Database, images: ImageStore, firmware: str) -> None:
    await database.write(
        images.remove_unused_image,
        await database.write(store.delete_firmware, firmware, by=COMMAND_LINE, now=0),
    )


async def _read_image(
    images: ImageStore, content: bytes = CONTENT, start: int = 0, stop: int | None = None
) -> bytes:
    size = len(content)
    pieces = images.stream_image(
        bytes.fromhex(hash_hex(content)), size=size, start=start, stop=size if stop is None else stop
    )
    return b"".join([piece async for piece in pieces])


@pytest.mark.rule("rest-114")
async def test_an_image_and_any_part_of_it_is_read_as_written(database: Database, images: ImageStore) -> None:
    await _store_image(database, images, 1)
    assert await _read_image(images) == CONTENT
    for start, stop in [
        (0, 1),
        (5, 5),
        (CHUNK_SIZE - 1, CHUNK_SIZE + 1),
        (CHUNK_SIZE, 2 * CHUNK_SIZE),
        (3, len(CONTENT)),
    ]:
        assert await _read_image(images, start=start, stop=stop) == CONTENT[start:stop]


@pytest.mark.rule("rest-114")
async def test_equal_content_is_stored_once_until_its_last_record_is_deleted(
    database: Database, images: ImageStore
) -> None:
    first, second = await _store_image(database, images, 1), await _store_image(database, images, 2)
    assert _count_images(database, images) == 1
    await _remove(database, images, first)
    assert await _read_image(images) == CONTENT
    await _remove(database, images, second)
    assert _count_images(database, images) == 0
    with pytest.raises(ImageDamaged):
        await _read_image(images)


async def test_the_file_of_a_rejected_upload_is_deleted(database: Database, images: ImageStore) -> None:
    await _store_image(database, images, 1)
    with pytest.raises(AlreadyExists):
        await _store_image(database, images, 1, b"other")
    assert [each.name for each in images.folder.iterdir()] == (
        [hash_hex(CONTENT)] if database.is_sqlite else []
    )


@pytest.mark.rule("rest-170")
async def test_image_files_are_readable_by_the_owner_only(sqlite_database: Database, tmp_path: Path) -> None:
    images = open_image_store(sqlite_database, tmp_path / "data")
    await _store_image(sqlite_database, images, 1)
    sqlite_database.close()
    assert stat.S_IMODE(images.folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in images.folder.iterdir()] == [0o600]


@pytest.mark.rule("rest-174")
async def test_postgresql_stores_an_image_in_chunks(postgresql_database: Database, tmp_path: Path) -> None:
    images = open_image_store(postgresql_database, tmp_path)
    await _store_image(postgresql_database, images, 1)
    assert count_chunks(postgresql_database, hash_hex(CONTENT)) == 3
    assert list(images.folder.iterdir()) == []
    other_store = open_image_store(postgresql_database, tmp_path / "elsewhere")
    assert await _read_image(other_store) == CONTENT


@pytest.mark.rule("rest-114")
def test_a_record_has_its_image_despite_concurrent_uploads_and_removals(
    database: Database, images: ImageStore
) -> None:
    """Add and remove the same content in several threads: whenever a record exists, so does its image."""
    start = threading.Barrier(4)

    def add_and_remove(minor: int) -> None:
        start.wait()
        for patch in range(12):
            firmware = asyncio.run(_store_image(database, images, patch, minor=minor))
            assert asyncio.run(_read_image(images)) == CONTENT
            asyncio.run(_remove(database, images, firmware))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add_and_remove, range(4)))
    assert _count_images(database, images) == 0


@pytest.mark.rule("rest-114")
async def test_orphans_of_a_crash_are_removed(database: Database, images: ImageStore, tmp_path: Path) -> None:
    await _store_image(database, images, 1)
    orphan = await _store_image(database, images, 2, b"orphan")
    # Only the record is deleted, as if the process crashed before it removed the image.
    await database.write(store.delete_firmware, orphan, by=COMMAND_LINE, now=0)
    (images.folder / ".arriving-0").write_bytes(b"half")
    open_image_store(database, tmp_path).remove_orphaned_images()
    assert _count_images(database, images) == 1
    assert not (images.folder / ".arriving-0").exists()
    assert await _read_image(images) == CONTENT


@pytest.mark.rule("rest-114")
def test_a_service_removes_orphans_when_it_starts(sqlite_database: Database, tmp_path: Path) -> None:
    partial_file = tmp_path / "images" / ".arriving-0"
    partial_file.parent.mkdir()
    partial_file.write_bytes(b"half")
    with (
        closing(sqlite_database),
        closing(open_sample_store(sqlite_database, tmp_path, {}, now=0)) as samples,
    ):
        RestApi(sqlite_database, Settings(data=tmp_path), samples)
    assert not partial_file.exists()


def test_removing_orphans_without_uploads_creates_nothing(database: Database, images: ImageStore) -> None:
    images.remove_orphaned_images()
    assert not images.folder.exists()
    assert _count_images(database, images) == 0


async def test_an_unwritable_disk_is_reported(sqlite_database: Database, tmp_path: Path) -> None:
    (tmp_path / "images").write_text("a file where the directory should be")
    images = open_image_store(sqlite_database, tmp_path)
    with pytest.raises(ImagesUnavailable):
        await _store_image(sqlite_database, images, 1)


def test_a_canceled_upload_is_not_created_again(tmp_path: Path) -> None:
    async def write_after_close() -> None:
        async with open_partial_image(tmp_path) as image:
            await image.write(b"x")
        await image.finish()

    with pytest.raises(ImagesUnavailable):
        asyncio.run(write_after_close())
    assert list(tmp_path.iterdir()) == []


async def test_an_image_that_is_truncated_while_it_is_read_raises_an_error(
    database: Database, images: ImageStore
) -> None:
    firmware = await _store_image(database, images, 1)
    pieces = images.stream_image(
        bytes.fromhex(hash_hex(CONTENT)), size=len(CONTENT), start=0, stop=len(CONTENT)
    )
    assert len(await anext(pieces)) == CHUNK_SIZE
    if database.is_sqlite:
        (images.folder / hash_hex(CONTENT)).write_bytes(b"")
    else:
        await _remove(database, images, firmware)
    with pytest.raises(ImageDamaged):
        await anext(pieces)


def _count_images(database: Database, images: ImageStore) -> int:
    """Return the number of stored images."""
    if not database.is_sqlite:
        return len(_list_stored_hashes(database))
    return len(list(images.folder.iterdir())) if images.folder.exists() else 0


def _list_stored_hashes(database: Database) -> set[bytes]:
    return database.read_now(
        lambda connection: set(connection.execute(select(image_chunk.c.sha256)).scalars())
    )
