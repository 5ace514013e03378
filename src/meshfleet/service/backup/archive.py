"""Backup file: a tar file that proves that it is complete and unchanged.

The first member, `backup.json`, describes the backup. The last member, `MANIFEST.json`, lists the path, size
and SHA-256 of all others, and contains a checksum of itself. A file without manifest is incomplete. All bytes
between the listed contents are determined by the manifest: headers have fixed fields, and padding is zero. So
a change anywhere in the file is found, and named by the member that contains it.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections import deque
from typing import IO, TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from meshfleet.errors.backup import BackupDamaged, BackupFailed, RestoreRefused
from meshfleet.protocol.decoders import get_decoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from threading import Event

DESCRIPTION_PATH: Final = "backup.json"
MANIFEST_PATH: Final = "MANIFEST.json"

_FORMAT: Final = 1
_PIECE_BYTES: Final = 1 << 20
_MAX_MANIFEST_BYTES: Final = 1 << 28
"""A manifest has about 150 bytes per member, so this is enough for more than a million members."""

_MAX_JSON_BYTES: Final = 1 << 24
"""A description has about 200 bytes per table, so this is enough for the partitions of a hundred years."""

_Content = TypeVar("_Content")

_SqlName = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*\Z")]
"""Name that needs no quotes in SQL. Names from a file must not change the meaning of a statement."""


class TableDescription(Struct, frozen=True, order=True):
    """Table of a PostgreSQL backup. Its rows are in the members below `tables/NAME/`."""

    name: _SqlName
    columns: tuple[_SqlName, ...]


_Version = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z.+!-]{1,50}\Z")]
_Schema = Annotated[str, Meta(pattern=r"\A[0-9]{4}\Z")]
_Time = Annotated[str, Meta(pattern=r"\A[0-9TZ:.-]{20,30}\Z")]
_InstanceId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class _Format(Struct, frozen=True):
    """Field of `backup.json` that all versions of its format have: the number of the format."""

    format: int


class BackupDescription(Struct, frozen=True, kw_only=True, rename="camel"):
    """Content of `backup.json`: which data the backup contains, and its state at which time."""

    format: Literal[1] = _FORMAT
    version: _Version
    """Version of Meshfleet that wrote the backup."""
    schema: _Schema
    """Revision of the database schema."""
    database: Literal["sqlite", "postgresql"]
    moment: _Time
    """Every report that was acknowledged before this time (UTC) is in the backup."""
    has_samples: bool
    instance: _InstanceId | None = None
    """Installation whose data it is; None if the database has no such id yet."""
    tables: tuple[TableDescription, ...] = ()
    """Tables of a PostgreSQL database, in the order in which they are restored."""
    sequences: dict[_SqlName, int] = {}  # msgspec copies it
    """Last values of the id sequences of a PostgreSQL database."""


class Member(Struct, frozen=True, array_like=True):
    """Entry of the manifest: path, size in bytes and SHA-256 of a file in the backup."""

    path: str
    size: Annotated[int, Meta(ge=0)]
    sha256: str


class Manifest(Struct, frozen=True):
    """Content of `MANIFEST.json`. `checksum` is the SHA-256 of the encoded members."""

    members: tuple[Member, ...]
    checksum: str


class ArchiveWriter:
    """Writes a backup file front to back, so that it can be a pipe.

    All methods raise `BackupFailed` once `stop` is set.
    """

    def __init__(self, output: IO[bytes], stop: Event) -> None:
        self._output = output
        self._stop = stop
        self._members: list[Member] = []
        self.size = 0

    def add_description(self, description: BackupDescription) -> None:
        """Write `backup.json`. It must be the first member."""
        self.add_bytes(DESCRIPTION_PATH, msgspec.json.encode(description))

    def add_bytes(self, path: str, content: bytes) -> None:
        """Write bytes to the backup file as a member with this path."""
        self._write_member(path, len(content), [content])

    def add_file(self, path: str, source: Path) -> None:
        """Write the content of a file as a member with this path. The file must not change meanwhile."""
        with source.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            self._write_member(path, size, iter(lambda: file.read(_PIECE_BYTES), b""))

    def finish(self) -> None:
        """Write the manifest and the end of the file."""
        members = tuple(self._members)
        content = msgspec.json.encode(Manifest(members, _compute_checksum(members)))
        self._write_member(MANIFEST_PATH, len(content), [content])
        self._write(bytes(_count_end_bytes(self.size)))
        self._output.flush()

    def _write_member(self, path: str, size: int, pieces: Iterable[bytes]) -> None:
        self._write(_build_header(path, size))
        digest = hashlib.sha256()
        start = self.size
        for piece in pieces:
            digest.update(piece)
            self._write(piece)
        if self.size - start != size:
            raise BackupFailed(f"{path} changed from {size} to {self.size - start} bytes while it was read")
        self._write(bytes(_count_padding(size)))
        self._members.append(Member(path, size, digest.hexdigest()))

    def _write(self, data: bytes) -> None:
        if self._stop.is_set():
            raise BackupFailed("stopped before it was complete")
        self._output.write(data)
        self.size += len(data)


class ArchiveReader:
    """Reads a backup file, whose manifest was read first. Call `check` before you use its members."""

    def __init__(self, file: IO[bytes]) -> None:
        """Find the manifest at the end of the file. Raise `BackupDamaged` if there is none."""
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        self._manifest_offset, self.manifest = self._find_manifest()
        self._offsets: dict[str, int] = {}
        offset = 0
        for member in self.manifest.members:
            self._offsets[member.path] = offset + len(_build_header(member.path, member.size))
            offset = self._offsets[member.path] + member.size + _count_padding(member.size)
        self._members_end = offset
        self.description: BackupDescription
        """Content of `backup.json`. Set by `check`."""

    def check(self) -> None:
        """Compare the whole file with the manifest. Raise `BackupDamaged` for the first difference."""
        self._file.seek(0)
        for member in self.manifest.members:
            self._check_member(member)
        if self._members_end != self._manifest_offset:
            raise BackupDamaged(MANIFEST_PATH, "it does not follow the last member that it lists")
        end = self._manifest_offset + self._count_manifest_bytes()
        self._file.seek(end)
        if self._size != end + _count_end_bytes(end) or any(self._file.read()):
            raise BackupDamaged(MANIFEST_PATH, "unexpected data follows, or the end is missing")
        self.description = self.read_description()

    def read_member(self, member: Member) -> Iterator[bytes]:
        """Yield the content of a member in pieces. Raise `BackupDamaged` at the end for a wrong checksum."""
        self._file.seek(self._offsets[member.path])
        yield from self._read_content(member)

    def read_json(self, path: str, kind: type[_Content]) -> _Content | None:
        """Decode the JSON of the member with this path. Return None if there is no such member."""
        members = [member for member in self.manifest.members if member.path == path]
        return self._decode_member(members[0], kind) if members else None

    def _check_member(self, member: Member) -> None:
        """Compare a member, at the current position of the file, with its entry in the manifest."""
        header = _build_header(member.path, member.size)
        if self._file.read(len(header)) != header:
            raise BackupDamaged(member.path, "its header differs from the manifest")
        deque(self._read_content(member), maxlen=0)
        if any(self._file.read(_count_padding(member.size))):
            raise BackupDamaged(member.path, "the padding after it was changed")

    def _read_content(self, member: Member) -> Iterator[bytes]:
        digest = hashlib.sha256()
        remaining = member.size
        while remaining and (piece := self._file.read(min(remaining, _PIECE_BYTES))):
            digest.update(piece)
            remaining -= len(piece)
            yield piece
        if remaining or digest.hexdigest() != member.sha256:
            raise BackupDamaged(member.path, "the checksum does not match")

    def read_description(self) -> BackupDescription:
        """Read `backup.json`, and check only this member."""
        if not self.manifest.members or self.manifest.members[0].path != DESCRIPTION_PATH:
            raise BackupDamaged(DESCRIPTION_PATH, "it is not the first member")
        number = self._decode_member(self.manifest.members[0], _Format).format
        if number > _FORMAT:
            raise RestoreRefused(
                f"this backup was made by a newer Meshfleet (format {number};"
                f" this one knows format {_FORMAT})"
            )
        return self._decode_member(self.manifest.members[0], BackupDescription)

    def _decode_member(self, member: Member, kind: type[_Content]) -> _Content:
        if member.size > _MAX_JSON_BYTES:
            raise BackupDamaged(member.path, "it is too large")
        return _decode_json(member.path, b"".join(self.read_member(member)), kind)

    def _find_manifest(self) -> tuple[int, Manifest]:
        """Search backwards from the end of the file for the header of the manifest."""
        block = tarfile.BLOCKSIZE
        name = MANIFEST_PATH.encode() + b"\0"
        lowest = max(0, self._size - _MAX_MANIFEST_BYTES)
        end = self._size - self._size % block
        while end > lowest:
            start = max(lowest - lowest % block, end - _PIECE_BYTES)
            self._file.seek(start)
            window = self._file.read(end - start)
            for at in range(len(window) - block, -1, -block):
                if window.startswith(name, at):
                    return start + at, self._decode_manifest(start + at, window[at : at + block])
            end = start
        raise BackupDamaged(MANIFEST_PATH, f"missing or damaged; the file ends after {self._size:,} bytes")

    def _decode_manifest(self, offset: int, header: bytes) -> Manifest:
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            is_expected = header == _build_header(MANIFEST_PATH, info.size)
        except (tarfile.TarError, ValueError) as exc:
            raise BackupDamaged(MANIFEST_PATH, f"cannot be read: {exc}") from exc
        self._file.seek(offset + len(header))
        content = self._file.read(info.size) if is_expected else b""
        manifest = _decode_json(MANIFEST_PATH, content, Manifest)
        if len({member.path for member in manifest.members}) != len(manifest.members):
            raise BackupDamaged(MANIFEST_PATH, "it lists a member twice")
        if content != msgspec.json.encode(manifest) or manifest.checksum != _compute_checksum(
            manifest.members
        ):
            raise BackupDamaged(MANIFEST_PATH, "its checksum differs")
        return manifest

    def _count_manifest_bytes(self) -> int:
        size = len(msgspec.json.encode(self.manifest))
        return len(_build_header(MANIFEST_PATH, size)) + size + _count_padding(size)


def _decode_json(path: str, content: bytes, kind: type[_Content]) -> _Content:
    """Decode the JSON of a member. Raise `BackupDamaged` if it is invalid."""
    try:
        return get_decoder(kind).decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:  # ValueError: not UTF-8
        raise BackupDamaged(path, f"cannot be read: {exc}") from exc


def _build_header(path: str, size: int) -> bytes:
    """Build the tar header of a member. Only the path and the size vary."""
    info = tarfile.TarInfo(path)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def _count_padding(size: int) -> int:
    """Return the number of zero bytes after the content of a member, up to a full block."""
    return -size % tarfile.BLOCKSIZE


def _count_end_bytes(offset: int) -> int:
    """Return the number of zero bytes that end a tar file: two blocks, and the rest of a full record."""
    end = 2 * tarfile.BLOCKSIZE
    return end + -(offset + end) % tarfile.RECORDSIZE


def _compute_checksum(members: tuple[Member, ...]) -> str:
    return hashlib.sha256(msgspec.json.encode(members)).hexdigest()
