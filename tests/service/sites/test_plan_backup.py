"""Backups contain sites with their plans, places and zones."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from meshfleet.db import open_database
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.devices.registry import record_observations
from meshfleet.service.sites import places, plans, store, zones
from meshfleet.service.sites.geometry import Anchor, Box, FloorGeometry, FloorKey
from meshfleet.service.sites.parameters import NamedFloor, SiteDescription, ZoneDescription
from meshfleet.service.sites.plan_image import PictureSize
from meshfleet.service.sites.plan_reference import parse_reference
from meshfleet.service.sites.plan_upload import ReceivedPlan
from tests.cli.programs import run_command
from tests.databases import create_database, create_empty_database

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database

CONTENT = bytes(range(256)) * 3000
"""Content of a plan: three pieces in the database."""
ROOM = ((1.0, 1.0), (9.0, 1.0), (9.5, 8.0))
FLOOR = FloorGeometry(-1, Box(0, 0, 40, 25.5), (ROOM,))


@pytest.fixture
def urls(request: pytest.FixtureRequest, database_kind: str) -> tuple[str, str]:
    """Return the database to back up, and the one to restore to."""
    if database_kind == "sqlite":
        return "sqlite", "sqlite"
    server = request.getfixturevalue("postgresql_server")
    return create_database(server, "planned"), create_empty_database(server, "replanned")


def _fill(connection: Connection) -> int:
    """Create a site with a plan, a place and a zone, and return its number."""
    record_observations(connection, [DeviceObservation(device=Mac("c0ffee000001"), at=1)])
    described = SiteDescription("Büro", (NamedFloor("Keller", FLOOR),))
    site = store.insert_site(connection, described, by=COMMAND_LINE, now=1)
    number = int(site.id.removeprefix("site-"), 16)
    reference = parse_reference('[{"px": 0, "py": 0, "x": 0, "y": 0}, {"px": 9, "py": 0, "x": 9.5, "y": 0}]')
    picture = PictureSize("image/png", 300, 200)
    received = ReceivedPlan(bytearray(CONTENT), b"hash", picture, reference)
    plans.store_plan(connection, FloorKey(number, -1), received, by=COMMAND_LINE, now=2)
    anchor = Anchor(0xC0FFEE000001, -1, 3.25, 4)
    places.set_place(connection, number, anchor, by=COMMAND_LINE, now=3)
    zones.insert_zone(connection, number, ZoneDescription("Zone", -1, ROOM), by=COMMAND_LINE, now=4)
    return number


def _load_all(database: Database, number: int) -> tuple[object, ...]:
    found = database.read_now(plans.load_plan, FloorKey(number, -1))

    async def read_plan() -> bytes:
        return b"".join([piece async for piece in plans.stream_plan(database, found)])

    return (
        database.read_now(store.load_site, number),
        database.read_now(places.load_site_geometry, number),
        database.read_now(zones.list_zones, number, after="", limit=9),
        asyncio.run(read_plan()),
    )


@pytest.mark.both_databases
@pytest.mark.rule("rest-251")
def test_a_restored_backup_has_sites_with_their_plans(urls: tuple[str, str], tmp_path: Path) -> None:
    original, restored, file = tmp_path / "original", tmp_path / "restored", tmp_path / "backup.tar"
    original.mkdir()
    with closing(open_database(urls[0], original)) as database:
        number = database.write_now(_fill)
        expected = _load_all(database, number)
    assert expected[-1] == CONTENT
    for command, data, url in (("backup", original, urls[0]), ("restore", restored, urls[1])):
        result = run_command(command, str(file), "--data", str(data), "--database", url)
        assert result.exit_code == 0, result.output
    with closing(open_database(urls[1], restored)) as database:
        assert _load_all(database, number) == expected
