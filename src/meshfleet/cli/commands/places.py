"""`meshfleet place` and `meshfleet places`: where devices are that do not move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import device_argument, site_argument
from meshfleet.cli.options import ALLOW_NEGATIVE_NUMBERS, METERS
from meshfleet.cli.output import Column, json_option, limit_option, print_list, print_result
from meshfleet.cli.place_csv import import_places
from meshfleet.cli.service_access import call_service

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

_COLUMNS: Final = (
    Column("device", lambda each: each.device, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("floor", lambda each: each.floor),
    Column("x", lambda each: each.x),
    Column("y", lambda each: each.y),
    Column("since", lambda each: each.set_at),
)


@click.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
@device_argument
@site_argument
@click.argument("floor", type=int)
@click.argument("x", type=METERS)
@click.argument("y", type=METERS)
@json_option
def place(device: Mac, site: str, floor: int, x: float, y: float, *, as_json: bool) -> None:  # noqa: PLR0913 # the arguments
    """Set the place of a device: SITE, FLOOR, and coordinates X and Y in meters."""
    result = call_service(lambda fleet: fleet.devices.set_place(device, site, floor, x, y))
    sentence = f"{device} is on floor {result.floor} of {result.site}, at {result.x:g}, {result.y:g}."
    print_result(result, sentence, as_json=as_json)


@click.group()
def places() -> None:
    """List, import and remove the places of devices."""


@places.command("list")
@site_argument
@limit_option
@json_option
def list_places(site: str, *, limit: int | None, as_json: bool) -> None:
    """List the devices with a place on a site."""
    call_service(lambda fleet: print_list(fleet.sites.places(site), _COLUMNS, as_json=as_json, limit=limit))


@places.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def import_file(file: Path, *, as_json: bool) -> None:
    """Set the places in a CSV file with the columns device, site (id or name), floor, x and y.

    Nothing is set if a line of the file is wrong.
    """
    count = call_service(lambda fleet: import_places(fleet, file))
    print_result({"set": count}, f"The places of {count} devices are set.", as_json=as_json)


@places.command()
@device_argument
@json_option
def remove(device: Mac, *, as_json: bool) -> None:
    """Remove the place of a device."""
    call_service(lambda fleet: fleet.devices.remove_place(device))
    print_result({"device": device, "removed": True}, f"{device} has no place now.", as_json=as_json)
