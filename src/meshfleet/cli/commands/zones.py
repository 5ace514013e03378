"""`meshfleet zones`: list, create and remove the zones of a site, and list the visits to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import PAST_TIME, site_argument
from meshfleet.cli.options import ALLOW_NEGATIVE_NUMBERS, METERS, TEXT
from meshfleet.cli.output import Column, json_option, limit_option, print_list, print_result
from meshfleet.cli.service_access import call_service

if TYPE_CHECKING:
    from meshfleet.rest.sites import Corner

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("floor", lambda each: each.floor),
    Column("corners", lambda each: len(each.polygon)),
)

_VISIT_COLUMNS: Final = (
    Column("device", lambda each: each.device, no_wrap=True),
    Column("entered", lambda each: each.entered_at, no_wrap=True),
    Column("left", lambda each: each.left_at, no_wrap=True),
    Column("seconds", lambda each: None if each.dwell_seconds is None else f"{each.dwell_seconds:.0f}"),
)


@click.group()
def zones() -> None:
    """List, create and remove zones of a site, and list visits to them."""


@zones.command("list")
@site_argument
@json_option
def list_zones(site: str, *, as_json: bool) -> None:
    """List the zones of a site, sorted by name."""
    call_service(lambda fleet: print_list(fleet.sites.zones(site), _COLUMNS, as_json=as_json))


@zones.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
@site_argument
@click.argument("name", type=TEXT)
@click.argument("floor", type=int)
@click.option(
    "--corner",
    "corners",
    type=(METERS, METERS),
    metavar="X Y",
    multiple=True,
    required=True,
    help="Corner of the zone in meters; repeat it for each corner, in their order around the zone.",
)
@json_option
def create(site: str, name: str, floor: int, corners: tuple[Corner, ...], *, as_json: bool) -> None:
    """Create a zone: a named area on a floor with 3 to 100 corners."""
    created = call_service(lambda fleet: fleet.sites.create_zone(site, name, floor, corners))
    print_result(created, f"{created.id} is {created.name}.", as_json=as_json)


@zones.command()
@site_argument
@click.argument("zone", type=TEXT)
@click.option(
    "--from",
    "since",
    type=PAST_TIME,
    help="Show only visits that did not end before this time: ISO 8601, or an age such as 15m or 7d.",
)
@click.option(
    "--to",
    "until",
    type=PAST_TIME,
    help="Show only visits that began before this time: ISO 8601, or an age.",
)
@limit_option
@json_option
def visits(site: str, zone: str, *, limit: int | None, as_json: bool, **times: Any) -> None:
    """List when devices entered and left a zone, the newest visit first. ZONE is the id."""
    call_service(
        lambda fleet: print_list(
            fleet.sites.visits(site, zone, **times), _VISIT_COLUMNS, as_json=as_json, limit=limit
        )
    )


@zones.command()
@site_argument
@click.argument("zone", type=TEXT)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def remove(site: str, zone: str, *, yes: bool, as_json: bool) -> None:
    """Delete a zone with the visits to it. ZONE is the id."""
    if not yes:
        click.confirm(f"Delete {zone} and the visits to it?", abort=True, err=True)
    call_service(lambda fleet: fleet.sites.remove_zone(site, zone))
    print_result({"id": zone, "removed": True}, f"{zone} is deleted.", as_json=as_json)
