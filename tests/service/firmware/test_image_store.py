"""Where images are kept: each once, whole or not at all, and gone when nobody has them."""

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
from tests.service.firmware.uploads import chunks, digest

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 2048 + b"tail"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def images(database: Database, tmp_path: Path) -> ImageStore:
    return open_image_store(database, tmp_path)


def _new(patch: int, minor: int = 0) -> NewFirmware:
    return NewFirmware(
        model=ModelNumber("0018"),
        version=Version(1, minor, patch),
        type=FirmwareType.RAUC_BUNDLE,
        file_name="x",
        hardware=(),
        min_version=None,
        notes="",
    )


async def _add(
    database: Database, images: ImageStore, patch: int, content: bytes = CONTENT, *, minor: int = 0
) -> str:
    async with open_partial_image(images.folder) as image:
        await image.write(content)
        arrived = await image.finish()
        made = await database.write(
            store.insert_firmware, _new(patch, minor), arrived, images=images, by=COMMAND_LINE, now=0
        )
    return made.id


async def _remove(database: Database, images: ImageStore, firmware: str) -> None:
    await database.write(
        images.remove_unused, await database.write(store.delete_firmware, firmware, by=COMMAND_LINE, now=0)
    )


async def _read(
    images: ImageStore, content: bytes = CONTENT, start: int = 0, stop: int | None = None
) -> bytes:
    size = len(content)
    pieces = images.stream(
        bytes.fromhex(digest(content)), size=size, start=start, stop=size if stop is None else stop
    )
    return b"".join([piece async for piece in pieces])


@pytest.mark.rule("rest-114")
async def test_an_image_is_read_as_it_was_written_and_any_part_of_it(
    database: Database, images: ImageStore
) -> None:
    await _add(database, images, 1)
    assert await _read(images) == CONTENT
    for start, stop in [
        (0, 1),
        (5, 5),
        (CHUNK_SIZE - 1, CHUNK_SIZE + 1),
        (CHUNK_SIZE, 2 * CHUNK_SIZE),
        (3, len(CONTENT)),
    ]:
        assert await _read(images, start=start, stop=stop) == CONTENT[start:stop]


@pytest.mark.rule("rest-114")
async def test_the_same_content_is_kept_once_as_long_as_a_record_has_it(
    database: Database, images: ImageStore
) -> None:
    first, second = await _add(database, images, 1), await _add(database, images, 2)
    assert _count(database, images) == 1
    await _remove(database, images, first)
    assert await _read(images) == CONTENT
    await _remove(database, images, second)
    assert _count(database, images) == 0
    with pytest.raises(ImageDamaged):
        await _read(images)


async def test_what_is_not_kept_is_gone(database: Database, images: ImageStore) -> None:
    await _add(database, images, 1)
    with pytest.raises(AlreadyExists):
        await _add(database, images, 1, b"other")
    assert [each.name for each in images.folder.iterdir()] == (
        [digest(CONTENT)] if database.is_sqlite else []
    )


@pytest.mark.rule("rest-170")
async def test_nobody_else_may_look_at_files(sqlite_database: Database, tmp_path: Path) -> None:
    images = open_image_store(sqlite_database, tmp_path / "data")
    await _add(sqlite_database, images, 1)
    sqlite_database.close()
    assert stat.S_IMODE(images.folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in images.folder.iterdir()] == [0o600]


@pytest.mark.rule("rest-174")
async def test_on_a_server_an_image_is_in_chunks(postgresql_database: Database, tmp_path: Path) -> None:
    images = open_image_store(postgresql_database, tmp_path)
    await _add(postgresql_database, images, 1)
    assert chunks(postgresql_database, digest(CONTENT)) == 3
    assert list(images.folder.iterdir()) == []
    elsewhere = open_image_store(postgresql_database, tmp_path / "elsewhere")
    assert await _read(elsewhere) == CONTENT
    postgresql_database.close()


@pytest.mark.rule("rest-114")
def test_a_record_has_its_image_whoever_uploads_and_removes_at_a_time(
    database: Database, images: ImageStore
) -> None:
    """The same content comes and goes in several threads; whenever a record is there, so is its image."""
    start = threading.Barrier(4)

    def come_and_go(minor: int) -> None:
        start.wait()
        for patch in range(12):
            firmware = asyncio.run(_add(database, images, patch, minor=minor))
            assert asyncio.run(_read(images)) == CONTENT
            asyncio.run(_remove(database, images, firmware))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(come_and_go, range(4)))
    assert _count(database, images) == 0


@pytest.mark.rule("rest-114")
async def test_what_a_crash_left_behind_is_swept_away(
    database: Database, images: ImageStore, tmp_path: Path
) -> None:
    await _add(database, images, 1)
    left = await _add(database, images, 2, b"left behind")
    await database.write(store.delete_firmware, left, by=COMMAND_LINE, now=0)  # and then it crashed
    (images.folder / ".arriving-0").write_bytes(b"half")
    open_image_store(database, tmp_path).remove_orphans()
    assert _count(database, images) == 1
    assert not (images.folder / ".arriving-0").exists()
    assert await _read(images) == CONTENT


@pytest.mark.rule("rest-114")
def test_a_service_sweeps_when_it_starts(sqlite_database: Database, tmp_path: Path) -> None:
    half = tmp_path / "images" / ".arriving-0"
    half.parent.mkdir()
    half.write_bytes(b"half")
    with (
        closing(sqlite_database),
        closing(open_sample_store(sqlite_database, tmp_path, {}, now=0)) as samples,
    ):
        RestApi(sqlite_database, Settings(data=tmp_path), samples)
    assert not half.exists()


def test_where_nothing_was_uploaded_nothing_is_swept_or_made(database: Database, images: ImageStore) -> None:
    images.remove_orphans()
    assert not images.folder.exists()
    assert _count(database, images) == 0


async def test_a_disk_that_takes_nothing_is_told(sqlite_database: Database, tmp_path: Path) -> None:
    (tmp_path / "images").write_text("a file where the folder should be")
    images = open_image_store(sqlite_database, tmp_path)
    with pytest.raises(ImagesUnavailable):
        await _add(sqlite_database, images, 1)
    sqlite_database.close()


def test_an_upload_that_was_given_up_is_not_made_anew(tmp_path: Path) -> None:
    async def give_up() -> None:
        async with open_partial_image(tmp_path) as image:
            await image.write(b"x")
        await image.finish()

    with pytest.raises(ImagesUnavailable):
        asyncio.run(give_up())
    assert list(tmp_path.iterdir()) == []


async def test_an_image_that_loses_its_end_while_it_is_read_breaks_off(
    database: Database, images: ImageStore
) -> None:
    firmware = await _add(database, images, 1)
    pieces = images.stream(bytes.fromhex(digest(CONTENT)), size=len(CONTENT), start=0, stop=len(CONTENT))
    assert len(await anext(pieces)) == CHUNK_SIZE
    if database.is_sqlite:
        (images.folder / digest(CONTENT)).write_bytes(b"")
    else:
        await _remove(database, images, firmware)
    with pytest.raises(ImageDamaged):
        await anext(pieces)


def _count(database: Database, images: ImageStore) -> int:
    """How many images are kept."""
    if not database.is_sqlite:
        return len(_in_rows(database))
    return len(list(images.folder.iterdir())) if images.folder.exists() else 0


def _in_rows(database: Database) -> set[bytes]:
    return database.read_now(
        lambda connection: set(connection.execute(select(image_chunk.c.sha256)).scalars())
    )
