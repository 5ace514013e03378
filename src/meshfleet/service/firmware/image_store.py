"""Images, kept by their SHA-256, each once, whole or not at all (rest-114).

An image is kept in the transaction that writes its record, and discarded in one that sees that no record has
it: that way a record without its image cannot be, whoever uploads and removes the same one at a time. What
is left behind by a crash between two of these is swept away at the next start.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import delete, func, insert, select

from meshfleet.db.tables import firmware, image_chunk
from meshfleet.errors import ImageDamaged, ImagesUnavailable
from meshfleet.service.firmware import partial_images, store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.firmware.partial_images import ReceivedImage

CHUNK_SIZE: Final = 256 * 1024
"""Bytes that are read at a time, and of one row on PostgreSQL."""

_FOLDER_NAME: Final = "images"
_FILE_NAME: Final = re.compile(r"[0-9a-f]{64}")
_LOCK_CLASS: Final = 0x696D6167
"""Any number, as long as no other kind of lock on the database has it."""


class ImageStore(Protocol):
    """Where images are."""

    folder: Path
    """Where they arrive."""

    def add(self, connection: Connection, image: ReceivedImage) -> None:
        """Keep an image, in the transaction that writes its record."""

    def remove_unused(self, connection: Connection, sha256: bytes) -> None:
        """Remove an image, unless a record has it; in a transaction after the one that removed the record."""

    def stream(self, sha256: bytes, *, size: int, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Some bytes of an image, piece by piece. One that is not as it should be raises ImageDamaged."""

    def remove_orphans(self) -> None:
        """Remove what no record has; only before anything else is done here."""


def open_image_store(database: Database, data: Path) -> ImageStore:
    """The images of a service: files beside SQLite, rows on PostgreSQL (rest-174)."""
    folder = data / _FOLDER_NAME
    return FileImageStore(database, folder) if database.is_sqlite else DatabaseImageStore(database, folder)


class FileImageStore:
    """Images as files. One service has the folder, and SQLite one writer: all happens one after the other."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.folder = folder
        self._database = database

    def add(self, connection: Connection, image: ReceivedImage) -> None:  # noqa: ARG002 # its transaction counts
        """Give the file its name. It is on the disk already, and now its name is."""
        try:
            image.path.replace(self._find_path(image.sha256))
            _sync_folder(self.folder)
        except OSError as exc:
            raise ImagesUnavailable(f"an image cannot be kept: {exc.strerror}") from exc

    def remove_unused(self, connection: Connection, sha256: bytes) -> None:
        """Remove the file, unless a record has it."""
        if not store.is_image_used(connection, sha256):
            self._find_path(sha256).unlink(missing_ok=True)

    async def stream(self, sha256: bytes, *, size: int, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Read the file, which may lose its name meanwhile."""
        file = await asyncio.to_thread(self._open, sha256, size)
        try:
            while start < stop:
                piece = await asyncio.to_thread(os.pread, file, min(CHUNK_SIZE, stop - start), start)
                if not piece:
                    raise _build_truncated_error(sha256)
                start += len(piece)
                yield piece
        except OSError as exc:
            raise ImageDamaged(f"image {sha256.hex()} cannot be read: {exc.strerror}") from exc
        finally:
            os.close(file)

    def remove_orphans(self) -> None:
        """Remove files that no record has, and what never arrived."""
        if not self.folder.is_dir():
            return
        used = {each.hex() for each in self._database.read_now(store.list_used_images)}
        _remove_partial_images(self.folder)
        for place in self.folder.iterdir():
            if _FILE_NAME.fullmatch(place.name) and place.name not in used:
                place.unlink()

    def _find_path(self, sha256: bytes) -> Path:
        return self.folder / sha256.hex()

    def _open(self, sha256: bytes, size: int) -> int:
        try:
            file = os.open(self._find_path(sha256), os.O_RDONLY)
        except OSError as exc:
            raise ImageDamaged(f"image {sha256.hex()} cannot be read: {exc.strerror}") from exc
        if (found := os.fstat(file).st_size) != size:
            os.close(file)
            raise ImageDamaged(f"image {sha256.hex()} has {found} bytes, and not {size}")
        return file


class DatabaseImageStore:
    """Images as rows: several services may have them in common."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.folder = folder
        self._database = database

    def add(self, connection: Connection, image: ReceivedImage) -> None:
        """Copy the file into rows, unless they are there."""
        _lock_image(connection, image.sha256)
        if _load_size(connection, image.sha256) == image.size:
            return
        try:
            with image.path.open("rb") as file:
                place = 0
                while content := file.read(CHUNK_SIZE):
                    row = {"sha256": image.sha256, "place": place, "content": content}
                    connection.execute(insert(image_chunk).values(row))
                    place += 1
        except OSError as exc:
            raise ImagesUnavailable(f"an image cannot be kept: {exc.strerror}") from exc

    def remove_unused(self, connection: Connection, sha256: bytes) -> None:
        """Remove the rows, unless a record has them."""
        _lock_image(connection, sha256)
        if not store.is_image_used(connection, sha256):
            connection.execute(delete(image_chunk).where(image_chunk.c.sha256 == sha256))

    async def stream(self, sha256: bytes, *, size: int, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Read row by row."""
        if (found := await self._database.read(_load_size, sha256)) != size:
            raise ImageDamaged(f"image {sha256.hex()} has {found} bytes, and not {size}")
        while start < stop:
            place, skipped = divmod(start, CHUNK_SIZE)
            content = await self._database.read(_load_chunk, sha256, place)
            piece = content[skipped : skipped + stop - start]
            if not piece:
                raise _build_truncated_error(sha256)
            start += len(piece)
            yield piece

    def remove_orphans(self) -> None:
        """Remove rows that no record has, and what never arrived."""
        if self.folder.is_dir():
            _remove_partial_images(self.folder)
        for sha256 in self._database.read_now(_list_unused_images):
            self._database.write_now(self.remove_unused, sha256)


def _lock_image(connection: Connection, sha256: bytes) -> None:
    """Keep others from this image until the transaction ends."""
    key = int.from_bytes(sha256[:4], signed=True)
    connection.execute(select(func.pg_advisory_xact_lock(_LOCK_CLASS, key)))


def _load_size(connection: Connection, sha256: bytes) -> int:
    query = select(func.coalesce(func.sum(func.octet_length(image_chunk.c.content)), 0))
    return int(connection.execute(query.where(image_chunk.c.sha256 == sha256)).scalar_one())


def _load_chunk(connection: Connection, sha256: bytes, place: int) -> bytes:
    mine = (image_chunk.c.sha256 == sha256) & (image_chunk.c.place == place)
    found: Any = connection.execute(select(image_chunk.c.content).where(mine)).scalar()
    return bytes(found or b"")


def _list_unused_images(connection: Connection) -> list[bytes]:
    used = select(firmware.c.id).where(firmware.c.sha256 == image_chunk.c.sha256).exists()
    return list(connection.execute(select(image_chunk.c.sha256).where(~used).distinct()).scalars())


def _build_truncated_error(sha256: bytes) -> ImageDamaged:
    return ImageDamaged(f"image {sha256.hex()} ends before its end")


def _remove_partial_images(folder: Path) -> None:
    for place in folder.glob(f"{partial_images.PARTIAL_PREFIX}*"):
        place.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
