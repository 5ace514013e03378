"""Images that are being uploaded, each in a file that is deleted at the end unless the image is stored.

Pieces of an image are collected and written to the file in a thread. The file is not kept open between
writes, because a canceled upload may delete the file while a thread is still writing.
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
"""Prefix of the file names of uploads in progress. Such files are deleted when the service starts."""

_FLUSH_BYTES: Final = 1024 * 1024
"""Number of uploaded bytes that are collected in memory before they are written to the file."""


class ReceivedImage(NamedTuple):
    """Completely received firmware image in its own file."""

    path: Path
    size: int
    """Size of the image in bytes."""
    sha256: bytes


class PartialImage:
    """Writes an image that arrives in pieces to a file, and computes the SHA-256 of the image."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._hash = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._buffered = 0

    async def write(self, piece: bytes) -> None:
        """Append a piece of the image to the buffer, and write a full buffer to the file.

        Raise `ImagesUnavailable` if the file cannot be written.
        """
        self.size += len(piece)
        self._pieces.append(piece)
        self._buffered += len(piece)
        if self._buffered >= _FLUSH_BYTES:
            await asyncio.to_thread(self._append_to_file, self._drain_buffer())

    async def finish(self) -> ReceivedImage:
        """Write the rest of the buffer to the file and flush the file to disk. Return the complete image."""
        await asyncio.to_thread(self._append_to_file, self._drain_buffer(), to_disk=True)
        return ReceivedImage(self._path, self.size, self._hash.digest())

    def _drain_buffer(self) -> bytes:
        """Empty the buffer, and return its content."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        return data

    def _append_to_file(self, data: bytes, *, to_disk: bool = False) -> None:
        """Append data to the file and to the SHA-256. If `to_disk` is True, flush the file to disk."""
        self._hash.update(data)
        try:
            # Without O_CREAT: if the upload was canceled, the deleted file must not be created again.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            with open(file, "ab", buffering=0) as opened:  # noqa: PTH123 # opens a descriptor, not a path
                _write_bytes(opened.fileno(), data)
                if to_disk:
                    os.fsync(opened.fileno())
        except OSError as exc:
            raise ImagesUnavailable(f"the image cannot be written: {exc.strerror}") from exc


@asynccontextmanager
async def open_partial_image(folder: Path) -> AsyncIterator[PartialImage]:
    """Create the file of an upload. The `with` block deletes the file at its end unless it was moved."""
    path = folder / f"{PARTIAL_PREFIX}{secrets.token_hex(16)}"
    await asyncio.to_thread(_create_file, path)
    try:
        yield PartialImage(path)
    finally:
        path.unlink(missing_ok=True)


def _create_file(path: Path) -> None:
    """Create an empty file, and its directory if necessary. Raise `ImagesUnavailable` if that fails."""
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as exc:
        raise ImagesUnavailable(f"the image cannot be written: {exc.strerror}") from exc


def _write_bytes(file: int, data: bytes) -> None:
    """Write all bytes to a file descriptor, with several system calls if necessary."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(file, remaining) :]
