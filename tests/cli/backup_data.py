"""Data directories and backup files for tests of `meshfleet backup` and `meshfleet restore`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from threading import Event
from typing import TYPE_CHECKING

from meshfleet.db.schema import list_revisions
from meshfleet.service.backup.archive import ArchiveWriter, BackupDescription
from meshfleet.service.secret_store import format_instance_id
from tests.cli.programs import run_command
from tests.databases import sqlite_template_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from click.testing import Result

IMAGE = "ab" * 32
SEGMENT = "00000007.samples"
INSTANCE = format_instance_id(b"\1")
"""Installation whose data `create_data` creates."""


def create_data(folder: Path) -> Path:
    """Create a data directory with a user, a segment and a firmware image."""
    folder.mkdir(mode=0o700)
    shutil.copy(sqlite_template_file(), folder)
    with closing(sqlite3.connect(folder / "meshfleet.sqlite")) as database, database:
        database.execute("INSERT INTO secret VALUES ('tokens', x'00'), ('instance', x'01')")
        database.execute("INSERT INTO account VALUES ('anna', 'hash', 'admin', 0, NULL)")
        database.execute("INSERT INTO session VALUES ('s-1', 'anna', 0, 0)")
        database.execute("INSERT INTO sample_segment VALUES (7, 20000, 0, 1, 1, 0, 7)")
        database.execute(
            "INSERT INTO firmware (id, model, version, type, file_name, size, sha256, hardware, notes, state,"
            " created_by, created_at)"
            " VALUES ('fw-1', 1, '1.0.0', 0, 'a.zip', 5, ?, '[]', '', 'draft', 'anna', 0)",
            (bytes.fromhex(IMAGE),),
        )
    for path, content in ((f"samples/{SEGMENT}", b"samples"), (f"images/{IMAGE}", b"image")):
        (folder / path).parent.mkdir()
        (folder / path).write_bytes(content)
    return folder


def back_up(data: Path, target: Path, *options: str) -> Result:
    """Run `meshfleet backup`, which must succeed."""
    result = run_command("backup", str(target), "--data", str(data), *options)
    assert result.exit_code == 0, result.output
    return result


def restore(source: Path, data: Path, *options: str) -> Result:
    """Run `meshfleet restore`."""
    return run_command("restore", str(source), "--data", str(data), *options)


def count_rows(data: Path, table: str) -> int:
    """Return the number of rows of a table."""
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database:
        (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 # constant
    return int(count)


def list_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files but the database, whose copy has other bytes, and the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("meshfleet.")
    }


def build_archive(path: Path, description: BackupDescription, members: Mapping[str, bytes]) -> Path:
    """Write a file with a correct manifest."""
    with path.open("wb") as file:
        writer = ArchiveWriter(file, Event())
        writer.add_description(description)
        for member, content in members.items():
            writer.add_bytes(member, content)
        writer.finish()
    return path


def describe(**fields: str) -> BackupDescription:
    """Return a description for `build_archive`."""
    values = {
        "version": "9.0.0",
        "schema": list_revisions()[-1],
        "database": "sqlite",
        "moment": "2026-11-17T00:00:00.000Z",
    }
    return BackupDescription(**values | fields, has_samples=True)  # type: ignore[arg-type]
