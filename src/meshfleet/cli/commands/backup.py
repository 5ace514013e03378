"""`meshfleet backup` and `meshfleet restore`: save all data of a service in one file, and bring it back."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

import click
import msgspec

from meshfleet.cli.database import check_database_exists
from meshfleet.cli.settings_options import DATA_SETTINGS, load_command_settings, settings_options
from meshfleet.cli.shutdown import end_on_signals
from meshfleet.db.schema import list_revisions
from meshfleet.errors.backup import BackupDamaged, BackupFailed, BackupNotRecorded, RestoreRefused
from meshfleet.service.backup.archive import ArchiveReader
from meshfleet.service.backup.creation import BackupRequest, BackupResult, create_backup_file, write_backup
from meshfleet.service.backup.records import record_backup
from meshfleet.service.backup.restore import RestoreResult, check_contents, restore_backup
from meshfleet.service.byte_format import format_bytes
from meshfleet.service.clock import now

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
    help="If TARGET is a directory: delete all but the newest N backups of this installation once this one is"
    " checked.",
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

    The service may be running. If TARGET is a directory, the file name contains the time. The file contains
    password hashes and keys: keep it private, or encrypt it with a pipe.
    """
    settings = load_command_settings(config, flags, DATA_SETTINGS)
    check_database_exists(settings)
    path = None if target == _PIPE else _choose_path(target)
    if keep is not None and (path is None or path.parent != Path(target)):
        raise click.UsageError("--keep needs a directory")
    echo = partial(click.echo, err=path is None)  # standard output may be the backup itself
    announce = _print_nothing if quiet or as_json else echo
    started = time.monotonic()
    with end_on_signals() as stop:
        request = BackupRequest(settings, not without_samples, now, stop, announce)
        result = _write_to_pipe(request) if path is None else create_backup_file(request, path)
    if path is not None:
        _record_backup(settings, result)
        if keep is not None:
            _delete_older(path, keep, result.instance)
    seconds = time.monotonic() - started
    announce(f"Written {path or 'to the pipe'} ({format_bytes(result.size)}, {seconds:.0f} s)")
    announce(f"Holds {_describe_contents(result.has_samples)} acknowledged before {result.moment}.")
    if as_json:
        values = {
            "path": path and str(path),
            "moment": result.moment,
            "size": result.size,
            "schema": result.schema,
            "hasSamples": result.has_samples,
            "instance": result.instance,
        }
        echo(msgspec.json.encode(values))


@click.command
@click.argument("source")
@settings_options("data", "database")
@click.option("--check", is_flag=True, help="Check the file, and restore nothing.")
@click.option(
    "--replace",
    is_flag=True,
    help="Move existing files to a subdirectory before-TIME of the data directory.",
)
@click.option(
    "--as-copy",
    is_flag=True,
    help="The restored service will run beside the original, as for a rehearsal: end all logins, create"
    " new signing secrets, and leave out the channels of alarms.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def restore(  # noqa: PLR0913 # the options of the command
    source: str,
    *,
    config: Path | None,
    check: bool,
    replace: bool,
    as_copy: bool,
    as_json: bool,
    quiet: bool,
    **flags: str | None,
) -> None:
    """Restore the backup SOURCE, a file or - for a pipe, to an empty data directory or database.

    The whole file is checked before anything is written. The service must not be running.
    """
    if not source:
        raise click.UsageError("SOURCE is empty: give a file, or - for a pipe")
    settings = load_command_settings(config, flags, DATA_SETTINGS)
    with end_on_signals(), _open_source(source, settings.data) as file:
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
            "instance": description.instance,
            "members": count,
            "restored": not check,
        }
        click.echo(msgspec.json.encode(values))
    elif check and not quiet:
        click.echo(f"OK: complete, {count} files, {_describe_schema(description.schema)}")
        _print_origin(description)
    elif not quiet:
        _print_restored(description, result, settings)
        _print_next_command(settings, config, flags, as_copy=as_copy)


def _describe_schema(schema: str) -> str:
    newest = list_revisions()[-1]
    upgrade = "" if schema == newest else ", which upgrades it when it starts"
    return f"schema {schema} (this Meshfleet: {newest}{upgrade})"


def _print_origin(description: BackupDescription) -> None:
    contents = _describe_contents(description.has_samples)
    click.echo(f"Holds {contents} acknowledged before {description.moment}.")
    instance = f" of installation {description.instance}" if description.instance else ""
    click.echo(f"Made by Meshfleet {description.version}{instance}.")


def _print_restored(description: BackupDescription, result: RestoreResult, settings: Settings) -> None:
    click.echo(f"Restored to {settings.data if description.database == 'sqlite' else 'the database'}")
    _print_origin(description)
    if result.moved_to is not None:
        click.echo(f"The files that were there are in {result.moved_to}")
    if result.missing_segments:
        click.echo(
            f"{result.missing_segments} files with samples no longer exist, or are not those of this backup."
        )


def _print_next_command(
    settings: Settings, config: Path | None, flags: dict[str, str | None], *, as_copy: bool
) -> None:
    """Print how to start the service with what was restored. The URL of a database may contain a password."""
    if as_copy:
        # With MQTT its update jobs would continue, beside those of the original.
        options = ["--data", str(settings.data), "--http", "127.0.0.1:8090", "--broker", "embedded"]
        options += ["--mqtt", "off"]
        sentence = "Passwords are as before; start the copy without MQTT"
    elif not _may_run_service(settings.data):
        click.echo(
            "Gateways and users can log in as before; start the service again, for example with:"
            " systemctl start meshfleet"
        )
        return
    else:
        given = {"--config": config, "--data": flags["data"]}
        options = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        sentence = "Gateways and users can log in as before; start the service"
    database = "" if flags["database"] is None else " and the same --database"
    click.echo(f"{sentence}: {shlex.join(['meshfleet', 'serve', *options])}{database}")


def _may_run_service(data: Path) -> bool:
    """Return whether the user of this process may run the service: not root, nor another than that of `data`.

    A service of root would create files that the user of the installed service cannot use.
    """
    if not hasattr(os, "geteuid"):  # Windows
        return True
    user = os.geteuid()
    if user == 0:
        return False
    try:
        return data.stat().st_uid == user
    except FileNotFoundError:  # with PostgreSQL, the service creates it
        return True
    except OSError:  # in a directory of another user
        return False


def _describe_contents(has_samples: bool) -> str:  # noqa: FBT001 # the only argument
    return "everything" if has_samples else "everything but older samples"


def _print_nothing(_text: str) -> None:
    """Take the place of `click.echo` if nothing is to be printed."""


def _record_backup(settings: Settings, result: BackupResult) -> None:
    """Record a finished backup in the database. Print a warning if that fails."""
    try:
        record_backup(settings, result, now())
    except BackupNotRecorded as exc:
        click.echo(f"Warning: the backup is complete, but the database has no record of it: {exc}", err=True)


def _choose_path(target: str) -> Path:
    """Return the path of the backup file: TARGET, or in TARGET if it is a directory."""
    if not target:
        raise click.UsageError("TARGET is empty: give a file, a directory, or - for a pipe")
    path = Path(target)
    try:
        if path.is_dir():
            return path / f"{_NAME_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"
        folder = path if target.endswith("/") else path.parent
        if not folder.is_dir():
            raise click.UsageError(f"the directory {folder} does not exist")
    except OSError as exc:
        raise BackupFailed(f"{path} cannot be used: {exc.strerror}") from exc
    return path


def _write_to_pipe(request: BackupRequest) -> BackupResult:
    if sys.stdout.isatty():
        raise click.UsageError("a backup is not printed to a terminal; use a pipe or a file")
    try:
        return write_backup(request, sys.stdout.buffer)
    except OSError as exc:
        raise BackupFailed(f"{exc.filename or 'the pipe'} cannot be used: {exc.strerror}") from exc


def _delete_older(newest: Path, keep: int, instance: str | None) -> None:
    """Delete all but the newest `keep` backups of an installation in the directory of `newest`.

    Files are ordered by the times in their names. Delete nothing if the installation has no id.
    """
    named = (path for path in newest.parent.iterdir() if _FILE_NAME.fullmatch(path.name) and path != newest)
    others = sorted((path for path in named if _read_instance(path) == instance is not None), reverse=True)
    for path in others[keep - 1 :]:
        try:
            path.unlink()
        except OSError as exc:
            raise BackupFailed(f"{path} cannot be deleted: {exc.strerror}; {newest} is complete") from exc


def _read_instance(path: Path) -> str | None:
    """Return the id of the installation that a backup names; None if it names none or cannot be read."""
    with suppress(OSError, BackupDamaged, RestoreRefused):
        if path.is_file():  # opening a named pipe would wait forever
            with path.open("rb") as file:
                return ArchiveReader(file).read_description().instance
    return None


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
        with _create_temporary_file(data.absolute()) as copy:
            try:
                shutil.copyfileobj(file, copy)
            except OSError as exc:
                raise RestoreRefused(f"the pipe cannot be copied to a disk: {exc.strerror}") from exc
            yield copy


def _create_temporary_file(data: Path) -> IO[bytes]:
    """Create a temporary file in the data directory, or in its nearest existing parent directory.

    The system's directory for temporary files may be too small.
    """
    place = next(folder for folder in (data, *data.parents) if folder.is_dir())
    try:
        return TemporaryFile(dir=place)
    except OSError as exc:
        raise RestoreRefused(f"{place} cannot be used: {exc.strerror}") from exc
