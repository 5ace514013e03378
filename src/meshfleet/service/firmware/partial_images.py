"""An image while it is uploaded: a file that is gone in the end, unless somebody keeps it.

It is written in threads, some pieces at a time. No file is held open meanwhile: whoever gives an upload up
may be ahead of the thread that still writes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import ImagesUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PARTIAL_PREFIX: Final = ".arriving-"
"""How their names begin; what is called like this when a service starts was given up."""

_FLUSH_BYTES: Final = 1024 * 1024
"""Bytes that wait until they are written together."""


class ReceivedImage(NamedTuple):
    """An image that is there, whole, in a file of its own."""

    path: Path
    size: int
    sha256: bytes


class PartialImage:
    """Takes the pieces of one image."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._hash = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._buffered = 0

    async def write(self, piece: bytes) -> None:
        """Take the next piece."""
        self.size += len(piece)
        self._pieces.append(piece)
        self._buffered += len(piece)
        if self._buffered >= _FLUSH_BYTES:
            await asyncio.to_thread(self._flush, self._drain())

    async def finish(self) -> ReceivedImage:
        """All pieces are there; on the disk, too, when this returns."""
        await asyncio.to_thread(self._flush, self._drain(), to_disk=True)
        return ReceivedImage(self._path, self.size, self._hash.digest())

    def _drain(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        return data

    def _flush(self, data: bytes, *, to_disk: bool = False) -> None:
        self._hash.update(data)
        try:
            # It is there, or was given up: it must not be made anew.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            with open(file, "ab", buffering=0) as opened:  # noqa: PTH123 # it is no path
                _write_all(opened.fileno(), data)
                if to_disk:
                    os.fsync(opened.fileno())
        except OSError as exc:
            raise ImagesUnavailable(f"an image cannot be written: {exc.strerror}") from exc


@asynccontextmanager
async def open_partial_image(folder: Path) -> AsyncIterator[PartialImage]:
    """An image that arrives. What is not kept by the end of the block is gone."""
    place = folder / f"{PARTIAL_PREFIX}{secrets.token_hex(16)}"
    await asyncio.to_thread(_create_file, place)
    try:
        yield PartialImage(place)
    finally:
        place.unlink(missing_ok=True)


def _create_file(path: Path) -> None:
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as exc:
        raise ImagesUnavailable(f"an image cannot be written: {exc.strerror}") from exc


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
