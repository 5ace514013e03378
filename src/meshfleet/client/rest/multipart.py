"""Upload of a file as a multipart form; the file is read in chunks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from meshfleet.client.arguments import check_text
from meshfleet.errors.protocol import MalformedInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_CHUNK_BYTES: Final = 256 * 1024
"""Maximum number of bytes that are read from the file at once."""

_ESCAPED_CHARACTERS: Final = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})
"""Escapes, as in browsers, for characters that would end a quoted name in the header of a form part."""

_HASH_FIELD: Final = "sha256"


class MultipartUpload:
    """Multipart form with one file. The form can be sent again, because the file is read from its start."""

    def __init__(
        self, field: str, file: Path | BinaryIO, file_name: str, fields: Iterable[tuple[str, str]]
    ) -> None:
        """Prepare the form. If `fields` has no `sha256`, the SHA-256 hash of the file is added as a field."""
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._field = field
        self._file = file
        self._start = 0 if isinstance(file, Path) else _get_position(file, field)
        self._length = _find_end(file, field) - self._start
        fields = tuple((name, check_text(value, name)) for name, value in fields)
        self._appends_hash = all(name != _HASH_FIELD for name, _ in fields)
        escaped_name = check_text(file_name, field).translate(_ESCAPED_CHARACTERS)
        parts = [f'; name="{name}"\r\n\r\n{value}' for name, value in fields]
        head = (
            f'; name="{field}"; filename="{escaped_name}"\r\nContent-Type: application/octet-stream\r\n\r\n'
        )
        begin = f"--{boundary}\r\nContent-Disposition: form-data"
        self._head = "\r\n".join(f"{begin}{part}" for part in [*parts, head]).encode()
        self._hash_header = (
            f'\r\n{begin}; name="{_HASH_FIELD}"\r\n\r\n'.encode() if self._appends_hash else b""
        )
        self._end = f"\r\n--{boundary}--\r\n".encode()

    @property
    def size(self) -> int:
        """Size of the whole form in bytes."""
        hash_size = len(self._hash_header) + hashlib.sha256().digest_size * 2 if self._appends_hash else 0
        return len(self._head) + self._length + hash_size + len(self._end)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the whole form in chunks. Raise `MalformedInput` if the file has become shorter."""
        digest, remaining = hashlib.sha256(), self._length
        yield self._head
        async with self._open_file() as file:
            while remaining and (chunk := await asyncio.to_thread(file.read, min(remaining, _CHUNK_BYTES))):
                remaining -= len(chunk)
                digest.update(chunk)
                yield chunk
        if remaining:
            raise MalformedInput(self._field, "became shorter while it was being read")
        if self._appends_hash:
            yield self._hash_header + digest.hexdigest().encode()
        yield self._end

    @asynccontextmanager
    async def _open_file(self) -> AsyncIterator[BinaryIO]:
        if isinstance(self._file, Path):
            with await asyncio.to_thread(self._file.open, "rb") as file:
                yield file
        else:
            await asyncio.to_thread(self._file.seek, self._start)
            yield self._file


def _get_position(file: BinaryIO, field: str) -> int:
    if not file.seekable():
        raise MalformedInput(field, "must be seekable: save it to a file first")
    return file.tell()


def _find_end(file: Path | BinaryIO, field: str) -> int:
    """Return the position of the end of a file, in bytes from the beginning."""
    if isinstance(file, Path):
        if not file.is_file():
            raise MalformedInput(field, f"{str(file)!r} is not a file")
        return file.stat().st_size
    position = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(position)
    return end
