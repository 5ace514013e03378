"""Stores firmware images by their SHA-256. Each image is stored once, completely or not at all (rest-114).

An image is added in the transaction that inserts its firmware record, and removed in a transaction that finds
no record with its SHA-256. So every record has its image, even if REST clients upload and remove the same
image at the same time. Images without a record, left over from a crash, are removed at the next start.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import delete, func, insert, select

from meshfleet.db.tables import firmware, image_chunk
from meshfleet.errors import ImageDamaged, ImagesUnavailable
from meshfleet.service.firmware import partial_images

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.firmware.partial_images import ReceivedImage

CHUNK_SIZE: Final = 256 * 1024
"""Number of image bytes that are read at a time, and that a row of the table `image_chunk` holds."""

_FOLDER_NAME: Final = "images"
_FILE_NAME: Final = re.compile(r"[0-9a-f]{64}")
_LOCK_CLASS: Final = 0x696D6167
"""First key of the PostgreSQL advisory locks of images. No other advisory lock uses this key."""


class ImageStore(Protocol):
    """Interface of a store of firmware images, which are identified by their SHA-256."""

    folder: Path
    """Directory that holds the files of uploads in progress."""

    def add_image(self, connection: Connection, image: ReceivedImage) -> None:
        """Add an image to the store. Call this in the transaction that inserts its firmware record."""

    def remove_unused_image(self, connection: Connection, sha256: bytes) -> None:
        """Remove an image unless a firmware record uses the image.

        Call this after the transaction that deleted a firmware record, in a new transaction.
        """

    def stream_image(self, sha256: bytes, *, size: int, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of an image from offset `start` (included) to `stop` (excluded), in pieces.

        Raise `ImageDamaged` if the image cannot be read, or its size in bytes is not `size`.
        """

    def remove_orphaned_images(self) -> None:
        """Remove images without a firmware record, and files of unfinished uploads. Call at start-up."""


def open_image_store(database: Database, data: Path) -> ImageStore:
    """Open the image store. Images are files with SQLite, and database rows with PostgreSQL (rest-174)."""
    folder = data / _FOLDER_NAME
    return FileImageStore(database, folder) if database.is_sqlite else DatabaseImageStore(database, folder)


class FileImageStore:
    """Stores images as files. With SQLite there is one writer, so adding and removing never overlap."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.folder = folder
        self._database = database

    def add_image(self, connection: Connection, image: ReceivedImage) -> None:  # noqa: ARG002 # called within its transaction
        """Rename the uploaded file to the SHA-256 of the image, and flush the directory to disk."""
        try:
            image.path.replace(self._build_image_path(image.sha256))
            _sync_directory(self.folder)
        except OSError as exc:
            raise ImagesUnavailable(f"the image cannot be stored: {exc.strerror}") from exc

    def remove_unused_image(self, connection: Connection, sha256: bytes) -> None:
        """Remove the file of an image unless a firmware record uses the image."""
        if not _is_image_used(connection, sha256):
            self._build_image_path(sha256).unlink(missing_ok=True)

    async def stream_image(self, sha256: bytes, *, size: int, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Yield part of an image file. A file that is deleted meanwhile stays readable."""
        file = await asyncio.to_thread(self._open_image, sha256, size)
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

    def remove_orphaned_images(self) -> None:
        """Remove image files without a firmware record, and files of unfinished uploads."""
        if not self.folder.is_dir():
            return
        used = {each.hex() for each in self._database.read_now(_list_used_images)}
        _remove_partial_images(self.folder)
        for path in self.folder.iterdir():
            if _FILE_NAME.fullmatch(path.name) and path.name not in used:
                path.unlink()

    def _build_image_path(self, sha256: bytes) -> Path:
        return self.folder / sha256.hex()

    def _open_image(self, sha256: bytes, size: int) -> int:
        """Open the file of an image, and return the file descriptor.

        Raise `ImageDamaged` if the file cannot be opened, or does not have `size` bytes.
        """
        try:
            file = os.open(self._build_image_path(sha256), os.O_RDONLY)
        except OSError as exc:
            raise ImageDamaged(f"image {sha256.hex()} cannot be read: {exc.strerror}") from exc
        if (found := os.fstat(file).st_size) != size:
            os.close(file)
            raise ImageDamaged(f"image {sha256.hex()} has {found} bytes instead of {size}")
        return file


class DatabaseImageStore:
    """Stores images as database rows, so that several service processes can share the images."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.folder = folder
        self._database = database

    def add_image(self, connection: Connection, image: ReceivedImage) -> None:
        """Copy the uploaded file into database rows, unless the image is stored already."""
        _lock_image(connection, image.sha256)
        if _load_image_size(connection, image.sha256) == image.size:
            return
        try:
            with image.path.open("rb") as file:
                index = 0
                while content := file.read(CHUNK_SIZE):
                    row = {"sha256": image.sha256, "place": index, "content": content}
                    connection.execute(insert(image_chunk).values(row))
                    index += 1
        except OSError as exc:
            raise ImagesUnavailable(f"the image cannot be stored: {exc.strerror}") from exc

    def remove_unused_image(self, connection: Connection, sha256: bytes) -> None:
        """Remove the rows of an image unless a firmware record uses the image."""
        _lock_image(connection, sha256)
        if not _is_image_used(connection, sha256):
            connection.execute(delete(image_chunk).where(image_chunk.c.sha256 == sha256))

    async def stream_image(self, sha256: bytes, *, size: int, start: int, stop: int) -> AsyncGenerator[bytes]:
        """Yield part of an image, one database row after another."""
        if (found := await self._database.read(_load_image_size, sha256)) != size:
            raise ImageDamaged(f"image {sha256.hex()} has {found} bytes instead of {size}")
        while start < stop:
            index, offset = divmod(start, CHUNK_SIZE)
            content = await self._database.read(_load_chunk, sha256, index)
            piece = content[offset : offset + stop - start]
            if not piece:
                raise _build_truncated_error(sha256)
            start += len(piece)
            yield piece

    def remove_orphaned_images(self) -> None:
        """Remove image rows without a firmware record, and files of unfinished uploads."""
        if self.folder.is_dir():
            _remove_partial_images(self.folder)
        for sha256 in self._database.read_now(_list_unused_images):
            self._database.write_now(self.remove_unused_image, sha256)


def _lock_image(connection: Connection, sha256: bytes) -> None:
    """Lock an image by its SHA-256 until the transaction ends."""
    key = int.from_bytes(sha256[:4], signed=True)
    connection.execute(select(func.pg_advisory_xact_lock(_LOCK_CLASS, key)))


def _load_image_size(connection: Connection, sha256: bytes) -> int:
    query = select(func.coalesce(func.sum(func.octet_length(image_chunk.c.content)), 0))
    return int(connection.execute(query.where(image_chunk.c.sha256 == sha256)).scalar_one())


def _load_chunk(connection: Connection, sha256: bytes, index: int) -> bytes:
    is_chunk = (image_chunk.c.sha256 == sha256) & (image_chunk.c.place == index)
    content: Any = connection.execute(select(image_chunk.c.content).where(is_chunk)).scalar()
    return bytes(content or b"")


def _list_unused_images(connection: Connection) -> list[bytes]:
    used = select(firmware.c.id).where(firmware.c.sha256 == image_chunk.c.sha256).exists()
    return list(connection.execute(select(image_chunk.c.sha256).where(~used).distinct()).scalars())


def _build_truncated_error(sha256: bytes) -> ImageDamaged:
    return ImageDamaged(f"image {sha256.hex()} is truncated")


def _remove_partial_images(folder: Path) -> None:
    """Remove the files of unfinished uploads."""
    for path in folder.glob(f"{partial_images.PARTIAL_PREFIX}*"):
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Flush a directory to disk, so that renamed files survive a power failure."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _is_image_used(connection: Connection, sha256: bytes) -> bool:
    query = select(firmware.c.id).where(firmware.c.sha256 == sha256).limit(1)
    return connection.execute(query).first() is not None


def _list_used_images(connection: Connection) -> set[bytes]:
    return set(connection.execute(select(firmware.c.sha256).distinct()).scalars())
