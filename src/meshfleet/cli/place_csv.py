"""Reads and writes CSV files with places of devices, and sets all places of a file."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from meshfleet.cli.csv_files import (
    CsvColumns,
    parse_csv_floor,
    parse_csv_mac,
    parse_csv_meters,
    raise_line_faults,
    read_csv_rows,
)
from meshfleet.cli.site_files import find_unknown_devices, split_into_batches
from meshfleet.cli.terminal import to_printable
from meshfleet.errors import FleetError, quote_input
from meshfleet.errors.protocol import LineFault
from meshfleet.protocol.ids import to_device_id
from meshfleet.rest.sites import MAX_BATCH_PLACES, PLACE_SLACK, BatchPlace

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable
    from pathlib import Path

    from meshfleet.cli.csv_files import CsvRow
    from meshfleet.client import Fleet, Floor, Site, SitePlace
    from meshfleet.protocol.ids import DeviceId

_NAMES: Final = ("device", "site", "floor", "x", "y")
_COLUMNS: Final = CsvColumns(named=_NAMES, required=_NAMES, ignored=frozenset({"name"}))


class PlaceLine(NamedTuple):
    """Place of a device in a CSV file. `site` is the id or the name of a site."""

    line: int
    """Number of the first line of the place, from 1."""
    device: DeviceId
    site: str
    floor: int
    x: float
    y: float


async def format_places(site_id: str, places: AsyncIterable[SitePlace]) -> str:
    """Format the places of a site as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_NAMES)
    async for each in places:
        writer.writerow([each.device, site_id, each.floor, each.x, each.y])
    return text.getvalue()


async def import_places(fleet: Fleet, path: Path) -> int:
    """Set all places of a CSV file, and return their number.

    Check all lines first; if one is wrong, set no place and raise `ClickException` with all wrong lines.
    """
    faults: list[LineFault] = []
    lines = read_place_lines(path, faults)
    sites = [each async for each in fleet.sites.list()]
    unknown = set(await find_unknown_devices(fleet, [each.device for each in lines]))
    places: dict[str, list[BatchPlace]] = {}
    for each in lines:
        if each.device in unknown:
            faults.append(LineFault(each.line, f"device: the fleet has no {each.device}"))
        site = _find_site(each, sites, faults)
        if site is not None and _is_on_floor(each, site.floors, faults):
            place = BatchPlace(device=each.device, floor=each.floor, x=each.x, y=each.y)
            places.setdefault(site.id, []).append(place)
    raise_line_faults(str(path), faults, "no place was set, as lines are wrong:")
    count = 0
    for site_id, on_site in places.items():
        for batch in split_into_batches(on_site, MAX_BATCH_PLACES):
            try:
                count += await fleet.sites.set_places(site_id, batch)
            except FleetError as exc:
                text = f"{exc}\n{count} of {len(lines)} places are set; run the command again for the others"
                raise click.ClickException(to_printable(text)) from exc
    return count


def read_place_lines(path: Path, faults: list[LineFault]) -> list[PlaceLine]:
    """Read the places in a CSV file. Add mistakes to `faults`; rows with a mistake are left out.

    The columns are `device`, `site`, `floor`, `x` and `y`, in any order. A column `name` is ignored.
    """
    lines = []
    first_lines: dict[DeviceId, int] = {}
    for row in read_csv_rows(path, _COLUMNS, faults):
        found = _parse_row(row)
        if found is None:
            continue
        first = first_lines.setdefault(found.device, row.line)
        if first != row.line:
            row.add_fault(f"device: {found.device} is also in line {first}")
        lines.append(found)
    if not lines and not faults:
        faults.append(LineFault(1, "there are no places after the names of the columns"))
    return lines


def _parse_row(row: CsvRow) -> PlaceLine | None:
    """Parse a row to a place; None if a cell is wrong."""
    mac = row.parse_required("device", parse_csv_mac)
    site = row.parse_required("site", _keep_text)
    floor = row.parse_required("floor", parse_csv_floor)
    x, y = row.parse_required("x", parse_csv_meters), row.parse_required("y", parse_csv_meters)
    if mac is None or site is None or floor is None or x is None or y is None:
        return None
    return PlaceLine(row.line, to_device_id(mac), site, floor, x, y)


def _keep_text(text: str, _field: str) -> str:
    return text


def _find_site(place: PlaceLine, sites: Iterable[Site], faults: list[LineFault]) -> Site | None:
    """Return the site with the id or the name in a line. Add a fault and return None if it is not clear."""
    found = [each for each in sites if place.site in {each.id, each.name}]
    if len(found) == 1:
        return found[0]
    reason = "is the name of several sites: use the id" if found else "is neither the id nor name of a site"
    faults.append(LineFault(place.line, f"site: {quote_input(place.site)} {reason}"))
    return None


def _is_on_floor(place: PlaceLine, floors: Iterable[Floor], faults: list[LineFault]) -> bool:
    """Return whether a place is on a floor of its site. Add a fault if it is not."""
    floor = next((each for each in floors if each.floor == place.floor), None)
    if floor is None:
        faults.append(LineFault(place.line, f"floor: the site has no floor {place.floor}"))
        return False
    for field, value, low, high in (
        ("x", place.x, floor.min_x, floor.max_x),
        ("y", place.y, floor.min_y, floor.max_y),
    ):
        if not low - PLACE_SLACK <= value <= high + PLACE_SLACK:
            reason = f"{field}: {value:g} is outside floor {floor.floor}, {low:g} to {high:g}"
            faults.append(LineFault(place.line, reason))
            return False
    return True
