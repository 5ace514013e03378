"""`meshfleet backup` and `meshfleet restore`: save all data of a service in one file, and bring it back."""

from __future__ import annotations

import re
import shutil
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from meshfleet.cli.database import check_database_exists
from meshfleet.cli.settings_options import load_command_settings, settings_options
from meshfleet.db.schema import list_revisions
from meshfleet.errors.backup import BackupFailed, RestoreRefused
from meshfleet.service.backup.archive import ArchiveReader
from meshfleet.service.backup.creation import BackupResult, create_backup_file, write_backup
from meshfleet.service.backup.restore import RestoreResult, check_contents, restore_backup
from meshfleet.service.clock import now
from meshfleet.service.storage.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.service.backup.archive import BackupDescription
    from meshfleet.settings import Settings

_NAME_PREFIX: Final = "meshfleet-"
_FILE_NAME: Final = re.compile(rf"{_NAME_PREFIX}[0-9]{{8}}T[0-9]{{6}}Z\.tar")
_PIPE: Final = "-"


@click.command
@click.argument("target")
@settings_options("data", "database")
@click.option("--without-samples", is_flag=True, help="Omit samples: much smaller, and much faster.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="If TARGET is a directory: delete all but the newest N backups after this one was checked.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def backup(  # noqa: PLR0913 # the options of the command
    target: str,
    *,
    config: Path | None,
    without_samples: bool,
    keep: int | None,
    as_json: bool,
    quiet: bool,
    **flags: str | None,
) -> None:
    """Write a backup of all data to TARGET: a new file, a directory, or - for a pipe.

    The service may be running. In a directory, the file gets a name with the time. The file contains password
    hashes and keys: keep it private, or encrypt it with a pipe.
    """
    settings = load_command_settings(config, flags)
    check_database_exists(settings)
    started = time.monotonic()
    if target == _PIPE:
        if keep is not None:
            raise click.UsageError("--keep needs a directory")
        result = _write_to_pipe(settings, with_samples=not without_samples)
        path = None
    else:
        path = _choose_path(target)
        if keep is not None and path.parent != Path(target):
            raise click.UsageError("--keep needs a directory")
        result = create_backup_file(settings, path, now, with_samples=not without_samples)
        if keep is not None:
            _delete_older(path, keep)
    if as_json and path is not None:
        values = {"path": str(path), "moment": result.moment, "size": result.size, "schema": result.schema}
        click.echo(msgspec.json.encode(values))
    elif not quiet:
        seconds = time.monotonic() - started
        click.echo(
            f"Written {path or 'to the pipe'} ({format_bytes(result.size)}, {seconds:.0f} s)",
            err=path is None,
        )
        contents = "everything but older samples" if without_samples else "everything"
        click.echo(f"Contains {contents} acknowledged before {result.moment}.", err=path is None)


@click.command
@click.argument("source")
@settings_options("data", "database")
@click.option("--check", is_flag=True, help="Check the file, and restore nothing.")
@click.option("--replace", is_flag=True, help="Move existing data aside, to a directory before-TIME inside.")
@click.option(
    "--as-copy",
    is_flag=True,
    help="For a rehearsal beside the original: end all logins, and create new signing secrets.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restore(  # noqa: PLR0913 # the options of the command
    source: str,
    *,
    config: Path | None,
    check: bool,
    replace: bool,
    as_copy: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Restore the backup SOURCE, a file or - for a pipe, to an empty data directory or database.

    The whole file is checked before anything is written. The service must not be running.
    """
    settings = load_command_settings(config, flags)
    with _open_source(source, settings.data) as file:
        archive = ArchiveReader(file)
        archive.check()
        check_contents(archive)
        result = RestoreResult()
        if not check:
            name = f"before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            result = restore_backup(archive, settings, replace=name if replace else None, as_copy=as_copy)
    description = archive.description
    count = len(archive.manifest.members)
    if as_json:
        values: dict[str, Any] = {
            "moment": description.moment,
            "schema": description.schema,
            "version": description.version,
            "members": count,
            "restored": not check,
        }
        click.echo(msgspec.json.encode(values))
    elif check:
        schema = f"schema {description.schema} (this Meshfleet: {list_revisions()[-1]})"
        click.echo(f"OK: complete, {count} files, {schema}, of {description.moment}")
    else:
        _print_restored(description, result, settings)


def _print_restored(description: BackupDescription, result: RestoreResult, settings: Settings) -> None:
    target = settings.data if description.database == "sqlite" else "the database"
    contents = "everything" if description.has_samples else "everything but older samples"
    click.echo(f"Restored to {target}: {contents} acknowledged before {description.moment}.")
    if result.moved_to is not None:
        click.echo(f"The files that were there are in {result.moved_to}")
    if result.missing_segments:
        click.echo(
            f"{result.missing_segments} files with samples no longer exist, or are not those of this backup."
        )
    click.echo("Gateways and users can log in as before; start the service: meshfleet serve")


def _choose_path(target: str) -> Path:
    path = Path(target)
    if path.is_dir():
        return path / f"{_NAME_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"
    if target.endswith("/"):
        raise click.UsageError(f"there is no directory {target}")
    return path


def _write_to_pipe(settings: Settings, *, with_samples: bool) -> BackupResult:
    if sys.stdout.isatty():
        raise click.UsageError("a backup is not printed to a terminal; use a pipe or a file")
    try:
        return write_backup(settings, sys.stdout.buffer, now, with_samples=with_samples)
    except OSError as exc:
        raise BackupFailed(f"the pipe cannot be written: {exc.strerror}") from exc


def _delete_older(newest: Path, keep: int) -> None:
    """Delete all but the newest backups of a directory, by the times in their names. Keep the new one."""
    others = sorted(
        path for path in newest.parent.iterdir() if _FILE_NAME.fullmatch(path.name) and path != newest
    )
    for path in others[: len(others) + 1 - keep]:
        try:
            path.unlink()
        except OSError as exc:
            raise BackupFailed(f"{path} cannot be deleted: {exc.strerror}; {newest} is complete") from exc


@contextmanager
def _open_source(source: str, data: Path) -> Iterator[IO[bytes]]:
    """Open a backup. A pipe is first copied to a temporary file: it must be checked before it is used."""
    try:
        file = sys.stdin.buffer if source == _PIPE else Path(source).open("rb")  # noqa: SIM115 # closed below
    except OSError as exc:
        raise RestoreRefused(f"{source} cannot be read: {exc.strerror}") from exc
    with file:
        if source != _PIPE and file.seekable():
            yield file
            return
        # Beside the data: the default directory for temporary files may be small.
        place = next(parent for parent in data.absolute().parents if parent.is_dir())
        with TemporaryFile(dir=place) as copy:
            shutil.copyfileobj(file, copy)
            yield copy
