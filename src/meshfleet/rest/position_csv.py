"""Positions as CSV: of a device over time, and of all devices on a site (rest-258, rest-259)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.csv_format import encode_csv, escape_formula

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.rest.positions import PastPosition, SitePosition


def encode_history_header() -> bytes:
    """Encode the line with the names of the columns for the positions of a device over time."""
    return encode_csv([("time", "site", "floor", "x", "y", "radius")])


def encode_history_rows(positions: Iterable[PastPosition]) -> bytes:
    """Encode the positions of a device over time, one line per position."""
    return encode_csv((each.time, each.site, each.floor, each.x, each.y, each.radius) for each in positions)


def encode_site_header() -> bytes:
    """Encode the line with the names of the columns for the current positions of devices."""
    return encode_csv([("device", "name", "time", "floor", "x", "y", "radius")])


def encode_site_rows(positions: Iterable[SitePosition]) -> bytes:
    """Encode the current positions of devices, one line per device."""
    return encode_csv(
        (each.device, escape_formula(each.name), each.time, each.floor, each.x, each.y, each.radius)
        for each in positions
    )
