"""`meshfleet firmware`: upload firmware images, and release or withdraw them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click
import rich.progress
from rich.console import Console

from meshfleet.cli.arguments import firmware_argument
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import (
    Column,
    json_option,
    limit_option,
    print_fields,
    print_json,
    print_list,
    print_result,
    truncate_to_seconds,
)
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable
from meshfleet.rest.firmware import FirmwareState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client import Firmware, Fleet

_TYPES: Final = {1: "Nordic package", 2: "RAUC bundle"}


def _format_image_type(record: Firmware) -> str:
    """Return the printed type of a firmware image, such as "bare image"."""
    return "bare image" if record.bare else _TYPES[record.type]


_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("model", lambda each: each.model_number),
    Column("version", lambda each: each.version),
    Column("type", _format_image_type),
    Column("state", lambda each: each.state),
    Column("size", lambda each: each.size),
    Column("by", lambda each: each.created_by),
    Column("since", lambda each: truncate_to_seconds(each.created_at), no_wrap=True),
)


@click.group()
def firmware() -> None:
    """Upload firmware and release it for jobs."""


@firmware.command("list")
@click.option(
    "--model", "model_number", type=TEXT, help="Show only firmware for this model number, such as 0018."
)
@click.option("--version", type=TEXT, help="Show only firmware of this version, such as 3.4.2.")
@click.option("--state", type=click.Choice(get_args(FirmwareState)), help="Show only firmware in this state.")
@limit_option
@json_option
def list_firmware(*, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List firmware, newest first."""
    call_service(
        lambda fleet: print_list(fleet.firmware.list(**filters), _COLUMNS, as_json=as_json, limit=limit)
    )


@firmware.command()
@click.argument("image", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--model",
    "model_number",
    type=TEXT,
    required=True,
    help="Model number of the devices that the firmware is for, such as 0018.",
)
@click.option("--version", type=TEXT, required=True, help="Firmware version, such as 3.4.2 or 3.4.2-beta.1.")
@click.option(
    "--hardware",
    "hardware_versions",
    type=TEXT,
    multiple=True,
    help="Hardware version on which the firmware runs; repeatable. Default: any hardware version.",
)
@click.option(
    "--min-version", type=TEXT, help="Oldest installed version that can be updated to the new firmware."
)
@click.option("--notes", type=TEXT, default="", help="Release notes of the firmware.")
@click.option("--sha256", type=TEXT, help="Expected SHA-256 hash of the image file, in hex.")
@click.option(
    "--type",
    type=click.IntRange(1, 2),
    help="Type of the image file: 1 is a Nordic package or bare image, 2 is a RAUC bundle.",
)
@click.option("--bare", is_flag=True, help="Upload the image file as a bare image (.bin), not as a package.")
@click.option(
    "--override",
    is_flag=True,
    help="Accept an image that fails the content check; recorded in the audit log.",
)
@json_option
def upload(image: Path, *, as_json: bool, **fields: Any) -> None:
    """Upload a firmware image as a draft, to be released later."""
    record = call_service(lambda fleet: _upload(fleet, image, fields))
    summary = (
        f"{record.id} is version {record.version} for {record.model_number}, a {_format_image_type(record)}."
    )
    print_result(record, summary, as_json=as_json)


async def _upload(fleet: Fleet, image: Path, fields: dict[str, Any]) -> Firmware:
    hidden = not sys.stderr.isatty()
    with rich.progress.open(
        image, "rb", description="", console=Console(stderr=True), transient=True, disable=hidden
    ) as file:
        return await fleet.firmware.upload(file, file_name=image.name, **fields)


@firmware.command()
@firmware_argument
@json_option
def show(firmware_id: str, *, as_json: bool) -> None:
    """Show the state and all fields of a firmware record."""
    found = call_service(lambda fleet: fleet.firmware.show(firmware_id))
    if as_json:
        print_json(found)
    else:
        click.echo(f"{to_printable(_format_state(found))}\n")
        print_fields((name, value) for name, value in _list_fields(found) if value)


@firmware.command()
@firmware_argument
@json_option
def release(firmware_id: str, *, as_json: bool) -> None:
    """Release firmware, so that jobs can install it."""
    _print_state(call_service(lambda fleet: fleet.firmware.release(firmware_id)), as_json=as_json)


@firmware.command()
@firmware_argument
@json_option
def withdraw(firmware_id: str, *, as_json: bool) -> None:
    """Withdraw firmware: gateways can no longer download the image, and jobs that install it are canceled."""
    _print_state(call_service(lambda fleet: fleet.firmware.withdraw(firmware_id)), as_json=as_json)


@firmware.command()
@firmware_argument
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@json_option
def download(firmware_id: str, file: Path | None, *, as_json: bool) -> None:
    """Download a firmware image to FILE (default: the name of the uploaded file, in the current directory).

    FILE is written completely or not at all.
    """
    record, path = call_service(lambda fleet: _download(fleet, firmware_id, file))
    print_result(
        {"id": record.id, "file": str(path), "size": record.size, "sha256": record.sha256},
        f"Wrote {record.id} to {path} ({record.size} bytes).",
        as_json=as_json,
    )


async def _download(fleet: Fleet, firmware_id: str, file: Path | None) -> tuple[Firmware, Path]:
    record = await fleet.firmware.show(firmware_id)
    path = file or Path(Path(record.file_name).name or record.id)
    if file is None and path.exists():
        raise click.ClickException(f"{to_printable(str(path))} already exists: give another FILE")
    try:
        return await fleet.firmware.save(record, path), path
    except OSError as exc:
        raise click.ClickException(f"{to_printable(str(path))} cannot be written: {exc.strerror}") from exc


@firmware.command()
@firmware_argument
@json_option
def remove(firmware_id: str, *, as_json: bool) -> None:
    """Remove firmware that no job has used."""
    call_service(lambda fleet: fleet.firmware.remove(firmware_id))
    print_result({"id": firmware_id, "removed": True}, f"{firmware_id} is deleted.", as_json=as_json)


def _print_state(record: Firmware, *, as_json: bool) -> None:
    print_result(record, _format_state(record), as_json=as_json)


def _format_state(record: Firmware) -> str:
    return f"{record.id}, version {record.version} for {record.model_number}, is {record.state}."


def _list_fields(record: Firmware) -> Iterable[tuple[str, object]]:
    yield "notes", record.notes
    yield "hardware", record.hardware_versions or "any"
    yield "minimum version", record.min_version or "any"
    yield "file", record.file_name
    yield "type", _format_image_type(record)
    yield "size", f"{record.size} bytes"
    yield "sha256", record.sha256
    yield "uploaded", f"{record.created_at} by {record.created_by}"
    yield "released", record.released_at
