"""`meshfleet sites`: list, create, export and import sites, and show the positions on them."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from meshfleet.cli.arguments import site_argument
from meshfleet.cli.options import ALLOW_NEGATIVE_NUMBERS, METERS, TEXT
from meshfleet.cli.output import (
    Column,
    json_option,
    print_fields,
    print_json,
    print_list,
    print_result,
    print_table,
)
from meshfleet.cli.place_csv import format_places
from meshfleet.cli.service_access import call_service
from meshfleet.cli.site_files import export_site, import_site, read_site_file
from meshfleet.rest.position_csv import encode_site_header, encode_site_rows
from meshfleet.rest.sites import NewFloor, ReferencePoint

if TYPE_CHECKING:
    from meshfleet.client import Floor, FloorCoverage

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("floors", lambda each: len(each.floors)),
)


def _format_extent(floor: Floor) -> str:
    """Return the printed size of a floor in meters."""
    return f"{floor.max_x - floor.min_x:g} x {floor.max_y - floor.min_y:g}"


_FLOOR_COLUMNS: Final = (
    Column("floor", lambda each: each.floor),
    Column("name", lambda each: each.name),
    Column("size (m)", _format_extent),
    Column("min x", lambda each: each.min_x),
    Column("min y", lambda each: each.min_y),
    Column("plan", lambda each: None if each.plan is None else each.plan.content_type),
)

_POSITION_COLUMNS: Final = (
    Column("device", lambda each: each.device, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("floor", lambda each: each.floor),
    Column("x", lambda each: f"{each.x:.1f}"),
    Column("y", lambda each: f"{each.y:.1f}"),
    Column("radius (m)", lambda each: f"{each.radius:.1f}"),
    Column("time", lambda each: each.time),
)

_NEAREST_COLUMNS: Final = (Column("distance (m)", lambda each: f"{each.distance:.1f}"), *_POSITION_COLUMNS)


@click.group()
def sites() -> None:
    """List, create, export and import sites."""


@sites.command("list")
@json_option
def list_sites(*, as_json: bool) -> None:
    """List all sites."""
    call_service(lambda fleet: print_list(fleet.sites.list(), _COLUMNS, as_json=as_json))


@sites.command()
@site_argument
@json_option
def show(site: str, *, as_json: bool) -> None:
    """Show the floors of a site."""
    found = call_service(lambda fleet: fleet.sites.show(site))
    if as_json:
        print_json(found)
        return
    print_fields([("id", found.id), ("name", found.name)])
    click.echo()
    print_table(_FLOOR_COLUMNS, found.floors)


@sites.command()
@click.argument("name", type=TEXT)
@click.option(
    "--floor",
    "floors",
    type=(int, float, float, float, float),
    metavar="FLOOR MINX MINY MAXX MAXY",
    multiple=True,
    required=True,
    help="Number of a floor, and the rectangle that contains it, in meters; repeatable.",
)
@json_option
def create(name: str, floors: tuple[tuple[int, float, float, float, float], ...], *, as_json: bool) -> None:
    """Create a site with floors that are rectangles."""
    described = [
        NewFloor(floor=floor, min_x=min_x, min_y=min_y, max_x=max_x, max_y=max_y)
        for floor, min_x, min_y, max_x, max_y in floors
    ]
    created = call_service(lambda fleet: fleet.sites.create(name, described))
    print_result(created, f"{created.id} is {created.name}.", as_json=as_json)


@sites.command()
@site_argument
@click.option("--csv", "as_csv", is_flag=True, help="Print the positions as CSV.")
@json_option
def positions(site: str, *, as_csv: bool, as_json: bool) -> None:
    """Show where the devices on a site are, and anchors that do not seem to be at their places."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other.")
    found = call_service(lambda fleet: fleet.sites.positions(site))
    if as_json:
        print_json(found)
    elif as_csv:
        click.echo(encode_site_header() + encode_site_rows(found.items), nl=False)
    else:
        print_table(_POSITION_COLUMNS, found.items)
        for each in found.suspicious_anchors:
            text = f"Anchor {each.anchor} does not seem to be at its place: {each.difference:.1f} dB off."
            click.echo(text, err=True)


@sites.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
@site_argument
@click.argument("floor", type=int)
@click.argument("x", type=METERS)
@click.argument("y", type=METERS)
@click.option(
    "--limit", type=click.IntRange(1), default=10, show_default=True, help="Maximum number of devices."
)
@json_option
def nearest(site: str, floor: int, x: float, y: float, *, limit: int, as_json: bool) -> None:  # noqa: PLR0913
    """Show the devices on a floor that are nearest to a point: coordinates X and Y in meters."""
    found = call_service(lambda fleet: fleet.sites.nearest(site, floor, x, y, limit=limit))
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_table(_NEAREST_COLUMNS, found)


@sites.command("upload-plan", context_settings=ALLOW_NEGATIVE_NUMBERS)
@site_argument
@click.argument("floor", type=int)
@click.argument("image", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--reference",
    "references",
    type=(float, float, METERS, METERS),
    metavar="PX PY X Y",
    multiple=True,
    required=True,
    help="Pixel in the picture (PX, PY) and its coordinates on the floor in meters (X, Y); two are needed.",
)
@json_option
def upload_plan(
    site: str,
    floor: int,
    image: Path,
    references: tuple[tuple[float, float, float, float], ...],
    *,
    as_json: bool,
) -> None:
    """Upload the picture of a floor (PNG, JPEG or SVG, at most 20 MiB), or replace it."""
    points = [ReferencePoint(px=px, py=py, x=x, y=y) for px, py, x, y in references]
    plan = call_service(lambda fleet: fleet.sites.upload_plan(site, floor, image, points))
    scale = plan.transform.scale
    size = f"{plan.width * scale:.1f} x {plan.height * scale:.1f} m"
    print_result(plan, f"Floor {floor} of {site} has a plan of {size}.", as_json=as_json)


@sites.command(context_settings=ALLOW_NEGATIVE_NUMBERS)
@site_argument
@click.argument("floor", type=int)
@click.option(
    "--min-rssi",
    type=click.IntRange(-127, 20),
    help="RSSI in dBm from which a reading counts; by default what the anchors receive.",
)
@json_option
def coverage(site: str, floor: int, min_rssi: int | None, *, as_json: bool) -> None:
    """Show on how much of a floor anchors are expected to receive devices well enough for positions."""
    found = call_service(lambda fleet: fleet.sites.coverage(site, floor, min_rssi=min_rssi))
    if as_json:
        print_json(found)
    else:
        click.echo(found.reason if found.coverage is None else describe_coverage(found.coverage))


def describe_coverage(found: FloorCoverage) -> str:
    """Describe the expected coverage of a floor in one sentence."""
    part = f"{100 * found.located_share:.0f} % of floor {found.floor}"
    share = f"On {part} at least 3 anchors receive a device"
    radii = [each for each in found.radius if each is not None]
    return f"{share}; positions there are within {median(radii):.1f} m." if radii else f"{share}."


@sites.command()
@site_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def remove(site: str, *, yes: bool, as_json: bool) -> None:
    """Delete a site with everything on it: floors, plans, places, zones and their visits, survey points."""
    if not yes:
        click.confirm(f"Delete {site} and everything on it?", abort=True, err=True)
    call_service(lambda fleet: fleet.sites.remove(site))
    print_result({"id": site, "removed": True}, f"{site} is deleted.", as_json=as_json)


@sites.command()
@site_argument
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["json", "csv"]),
    default="json",
    show_default=True,
    help="json: the whole site without its plans; csv: only the places of devices.",
)
@json_option
def export(site: str, file_format: str, *, as_json: bool) -> None:
    """Print a site as JSON, to import it elsewhere, or the places on it as CSV."""
    if file_format == "csv" and as_json:
        raise click.UsageError("--format csv and --json exclude each other.")
    if file_format == "csv":
        text = call_service(lambda fleet: format_places(site, fleet.sites.places(site)))
        click.echo(text.encode(), nl=False)
        return
    exported = call_service(lambda fleet: export_site(fleet, site))
    click.echo(msgspec.json.format(msgspec.json.encode(exported), indent=2))


@sites.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def import_file(file: Path, *, as_json: bool) -> None:
    """Create a site from FILE, which `meshfleet sites export` has printed.

    The devices of the file must be in the fleet. They leave their present places.
    """
    described = read_site_file(file)
    created: Any = call_service(lambda fleet: import_site(fleet, described))
    counts = f"{len(described.places)} places and {len(described.zones)} zones"
    print_result(created, f"{created.id} is {created.name}, with {counts}.", as_json=as_json)
