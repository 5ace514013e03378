"""Files on their way to a service: read from disk piece by piece, as one part of a form."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from meshfleet.client.arguments import check_text
from meshfleet.errors.protocol import WireError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_CHUNK_BYTES: Final = 256 * 1024
"""Bytes that are in memory at a time."""

_ESCAPED_CHARACTERS: Final = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})
"""What would end a name in the head of a part, and how browsers spell it there."""

_HASH_FIELD: Final = "sha256"


class MultipartUpload:
    """A form with a file. It can be sent again, from the place where the file was at first."""

    def __init__(
        self, field: str, file: Path | BinaryIO, file_name: str, fields: Iterable[tuple[str, str]]
    ) -> None:
        """A field that tells the hash follows behind the file, unless there is one."""
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._field = field
        self._file = file
        self._start = 0 if isinstance(file, Path) else _get_position(file, field)
        self._length = _find_end(file, field) - self._start
        fields = tuple((name, check_text(value, name)) for name, value in fields)
        self._appends_hash = all(name != _HASH_FIELD for name, _ in fields)
        shown = check_text(file_name, field).translate(_ESCAPED_CHARACTERS)
        parts = [f'; name="{name}"\r\n\r\n{value}' for name, value in fields]
        head = f'; name="{field}"; filename="{shown}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        begin = f"--{boundary}\r\nContent-Disposition: form-data"
        self._head = "\r\n".join(f"{begin}{part}" for part in [*parts, head]).encode()
        self._hash_header = (
            f'\r\n{begin}; name="{_HASH_FIELD}"\r\n\r\n'.encode() if self._appends_hash else b""
        )
        self._end = f"\r\n--{boundary}--\r\n".encode()

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        told = len(self._hash_header) + hashlib.sha256().digest_size * 2 if self._appends_hash else 0
        return len(self._head) + self._length + told + len(self._end)

    async def pieces(self) -> AsyncIterator[bytes]:
        """All of it, piece by piece."""
        digest, left = hashlib.sha256(), self._length
        yield self._head
        async with self._opened() as file:
            while left and (piece := await asyncio.to_thread(file.read, min(left, _CHUNK_BYTES))):
                left -= len(piece)
                digest.update(piece)
                yield piece
        if left:
            raise WireError(self._field, "became shorter while it was read")
        if self._appends_hash:
            yield self._hash_header + digest.hexdigest().encode()
        yield self._end

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[BinaryIO]:
        if isinstance(self._file, Path):
            with await asyncio.to_thread(self._file.open, "rb") as file:
                yield file
        else:
            await asyncio.to_thread(self._file.seek, self._start)
            yield self._file


def _get_position(file: BinaryIO, field: str) -> int:
    if not file.seekable():
        raise WireError(field, "can be read only once: write it into a file first")
    return file.tell()


def _find_end(file: Path | BinaryIO, field: str) -> int:
    """Up to which byte it goes."""
    if isinstance(file, Path):
        if not file.is_file():
            raise WireError(field, f"{str(file)!r} is no file")
        return file.stat().st_size
    here = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(here)
    return end
