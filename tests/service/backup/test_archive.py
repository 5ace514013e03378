"""Backup files: every change is found, and named by the part of the file that contains it."""

from __future__ import annotations

import io
import random
import tarfile
from threading import Event
from typing import TYPE_CHECKING

import msgspec
import pytest

from meshfleet.errors.backup import BackupDamaged, BackupFailed
from meshfleet.service.backup.archive import (
    ArchiveReader,
    ArchiveWriter,
    BackupDescription,
    TableDescription,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = BackupDescription(
    version="0.1.0",
    schema="0013",
    database="postgresql",
    moment="2026-11-17T15:31:02.114Z",
    has_samples=True,
    tables=(TableDescription("device", ("id", "name")),),
    sequences={"audit_id_seq": 7},
)
SEEDED = random.Random(30)  # noqa: S311 # chooses places to damage
MEMBERS = {"a.bin": bytes(range(256)) * 9, "folder/empty": b"", "folder/block": b"x" * 512, "z": b"z"}


def build_archive() -> bytes:
    output = io.BytesIO()
    writer = ArchiveWriter(output, Event())
    writer.add_description(DESCRIPTION)
    for path, content in MEMBERS.items():
        writer.add_bytes(path, content)
    writer.finish()
    assert writer.size == len(output.getvalue())
    return output.getvalue()


def check(content: bytes) -> ArchiveReader:
    reader = ArchiveReader(io.BytesIO(content))
    reader.check()
    return reader


def find_damage(content: bytes) -> str | None:
    """Return the member that the check names, or None if it finds nothing."""
    try:
        check(content)
    except BackupDamaged as exc:
        return exc.member
    return None


def list_regions(content: bytes) -> list[tuple[str, int]]:
    """Return the members as an independent reader of tar files finds them, and where each ends."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        infos = archive.getmembers()
    starts = [info.offset for info in infos[1:]] + [len(content)]
    return [(info.name, start) for info, start in zip(infos, starts, strict=True)]


def test_a_backup_is_a_tar_file_that_other_programs_read() -> None:
    content = build_archive()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = archive.getnames()
        assert names == ["backup.json", *MEMBERS, "MANIFEST.json"]
        assert {name: archive.extractfile(name).read() for name in MEMBERS} == MEMBERS  # type: ignore[union-attr]
        assert {info.mode for info in archive} == {0o600}


def test_members_and_description_are_read_back() -> None:
    reader = check(build_archive())
    assert reader.description == DESCRIPTION
    assert {
        member.path: b"".join(reader.read_member(member)) for member in reader.manifest.members[1:]
    } == MEMBERS


def test_a_file_is_added_with_its_content(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content" * 500_000)
    output = io.BytesIO()
    writer = ArchiveWriter(output, Event())
    writer.add_description(DESCRIPTION)
    writer.add_file("large", source)
    writer.finish()
    reader = check(output.getvalue())
    assert b"".join(reader.read_member(reader.manifest.members[1])) == source.read_bytes()


@each_row("offset", SEEDED.sample(range(len(build_archive())), 300))
def test_every_changed_byte_is_found_and_its_member_is_named(offset: int) -> None:
    content = build_archive()
    damaged = bytearray(content)
    damaged[offset] ^= 1 << offset % 8
    expected = next(name for name, end in list_regions(content) if offset < end)
    assert find_damage(bytes(damaged)) == expected


def test_a_file_that_was_cut_anywhere_has_no_manifest() -> None:
    content = build_archive()
    for length in [*SEEDED.sample(range(len(content)), 50), 0, len(content) - 1]:
        assert find_damage(content[:length]) == "MANIFEST.json", length


def test_swapped_or_missing_members_and_appended_data_are_found() -> None:
    content = build_archive()
    (_, start), (_, middle), (_, end), *_ = list_regions(content)
    first, second = content[start:middle], content[middle:end]
    assert find_damage(content[:start] + second + first + content[end:]) == "a.bin"
    assert find_damage(content[:start] + content[middle:]) == "a.bin"
    assert find_damage(content + bytes(512)) == "MANIFEST.json"
    assert find_damage(content + b"more") == "MANIFEST.json"


LARGE = msgspec.json.encode(DESCRIPTION) + b" " * 2**24
DEEP = b'{"format":1,"other":' + b"[" * 100_000


@each_row("content", [b'{"format":1}', b'{"format":"x"}', b"", b"\xff", b'{"version":"\xff"}', DEEP, LARGE])
def test_a_description_that_cannot_be_read_is_refused(content: bytes) -> None:
    output = io.BytesIO()
    writer = ArchiveWriter(output, Event())
    writer.add_bytes("backup.json", content)
    writer.finish()
    assert find_damage(output.getvalue()) == "backup.json"


@each_row("content", [b"", b"{}", b'{"members":[["\xff",0,""]],"checksum":""}', DEEP])
def test_a_manifest_that_cannot_be_read_is_refused(content: bytes) -> None:
    with io.BytesIO() as output, tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("MANIFEST.json")
        info.size, info.mode = len(content), 0o600
        archive.addfile(info, io.BytesIO(content))
        archive.close()
        assert find_damage(output.getvalue()) == "MANIFEST.json"


def test_a_manifest_with_an_unreadable_header_is_refused() -> None:
    info = tarfile.TarInfo("MANIFEST.json")
    info.linkname = "\udcff"  # the byte 0xff, which is not UTF-8
    header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    assert find_damage(header + bytes(512)) == "MANIFEST.json"


def test_a_stopped_backup_is_not_finished() -> None:
    stop = Event()
    writer = ArchiveWriter(io.BytesIO(), stop)
    writer.add_description(DESCRIPTION)
    stop.set()
    with pytest.raises(BackupFailed, match="stopped before it was complete"):
        writer.finish()


def test_a_member_that_changes_after_the_check_is_found() -> None:
    content = build_archive()
    file = io.BytesIO(content)
    reader = ArchiveReader(file)
    reader.check()
    file.seek(content.index(MEMBERS["a.bin"]))
    file.write(b"changed")
    with pytest.raises(BackupDamaged, match=r"a\.bin: the checksum does not match"):
        b"".join(reader.read_member(reader.manifest.members[1]))


def test_a_member_that_is_listed_twice_is_refused() -> None:
    output = io.BytesIO()
    writer = ArchiveWriter(output, Event())
    writer.add_description(DESCRIPTION)
    for _ in range(2):
        writer.add_bytes("same", b"")
    writer.finish()
    assert find_damage(output.getvalue()) == "MANIFEST.json"
