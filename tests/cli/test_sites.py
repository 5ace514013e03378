"""`meshfleet sites`, `meshfleet place`, `meshfleet places` and `meshfleet zones`, with a running service."""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client import NewFloor, ReferencePoint
from meshfleet.client.blocking import Fleet
from meshfleet.errors import FloorInUse, UnknownDevice, UnknownSite, ZoneExists
from meshfleet.protocol.ids import to_device_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.testing import RunningFleet
    from tests.cli.shell import Shell

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100"/>'
REFERENCE = [ReferencePoint(px=0, py=0, x=0, y=10), ReferencePoint(px=200, py=0, x=20, y=10)]
ROOM = ((1.0, 1.0), (9.0, 1.0), (9.0, 8.0))


@pytest.fixture
def fleet(service: RunningFleet) -> Iterator[Fleet]:
    """Connect to the service, and remove all sites afterwards."""
    with Fleet(service.url, user=service.user, password=service.password) as fleet:
        yield fleet
        for each in list(fleet.sites.list()):
            fleet.sites.remove(each)


@pytest.fixture
def devices(service: RunningFleet) -> list[str]:
    return [to_device_id(mac) for mac in sorted(service.gateways[0].devices)[:3]]


def _create(admin: Shell, name: str = "Werk Süd") -> str:
    floors = ("--floor", "0", "-5", "-2.5", "40", "25.5", "--floor", "-1", "0", "0", "20", "10")
    site: str = admin.json("sites", "create", name, *floors)["id"]
    return site


@pytest.mark.rule("rest-248", "rest-251", "rest-255")
def test_the_blocking_sdk_manages_a_site(fleet: Fleet, devices: list[str]) -> None:
    floor = NewFloor(floor=0, name="Ground", min_x=0, min_y=0, max_x=20, max_y=10, walkable=(ROOM,))
    site = fleet.sites.create("Lab", [floor])
    assert site == fleet.sites.show(site.id)
    plan = fleet.sites.upload_plan(site, 0, BytesIO(SVG), REFERENCE)
    assert (plan.content_type, plan.transform.scale) == ("image/svg+xml", 0.1)
    assert fleet.sites.download_plan(site, 0) == SVG
    zone = fleet.sites.create_zone(site, "Room", 0, ROOM)
    with pytest.raises(ZoneExists):
        fleet.sites.create_zone(site, "room", 0, ROOM)
    assert [*fleet.sites.zones(site)] == [fleet.sites.zone(site, zone)] == [zone]
    placed = fleet.devices.set_place(devices[0], site, 0, 3, 4.5)
    assert fleet.devices.place(devices[0]) == fleet.devices.show(devices[0]).live.place == placed
    with pytest.raises(FloorInUse):
        fleet.sites.change(site, "Lab", [NewFloor(floor=1, min_x=0, min_y=0, max_x=9, max_y=9)])
    with pytest.raises(UnknownDevice):
        fleet.devices.set_place("02005e00ffff", site, 0, 3, 4.5)
    fleet.sites.remove(site)
    with pytest.raises(UnknownSite):
        fleet.devices.set_place(devices[0], site, 0, 3, 4.5)


@pytest.mark.rule("rest-90", "rest-248")
def test_a_site_and_places_are_managed(admin: Shell, fleet: Fleet, devices: list[str]) -> None:
    site = _create(admin)
    fleet.sites.upload_plan(site, -1, BytesIO(SVG), REFERENCE)
    assert admin.text("sites", "list").splitlines()[1].split() == [site, "Werk", "Süd", "2"]
    shown = admin.text("sites", "show", site).splitlines()
    assert shown[-2].split() == ["-1", "20", "x", "10", "0.0", "0.0", "image/svg+xml"]
    assert shown[-1].split() == ["0", "45", "x", "28", "-5.0", "-2.5"]
    mac = devices[0].removeprefix("bmac-")
    assert (
        admin.text("place", mac, site, "0", "-4.5", "-2") == f"{mac} is on floor 0 of {site}, at -4.5, -2.\n"
    )
    assert admin.json("place", mac, site, "-1", "1e1", "2.5") == {
        "site": site,
        "floor": -1,
        "x": 10,
        "y": 2.5,
    }
    (listed,) = admin.json_lines("places", "list", site)
    assert (listed["device"], listed["floor"], listed["x"]) == (devices[0], -1, 10.0)
    assert admin.text("places", "list", site).splitlines()[0].split() == [
        *("device", "name", "floor", "x", "y", "since")
    ]
    assert admin.text("places", "remove", mac) == f"{mac} has no place now.\n"
    assert admin.json_lines("places", "list", site) == []
    admin.expect_failure("place", mac, site, "0", "nan", "1", code=2)
    assert "has no floor 7" in admin.expect_failure("place", mac, site, "7", "1", "1")
    assert admin("sites", "remove", site, stdin="n\n").exit_code == 1
    assert admin.json("sites", "remove", site, "--yes") == {"id": site, "removed": True}
    assert admin.json_lines("sites", "list") == []


@pytest.mark.rule("rest-251", "rest-255")
def test_plans_and_zones_are_managed(admin: Shell, fleet: Fleet, tmp_path: Path) -> None:
    site = _create(admin)
    image = tmp_path / "plan.svg"
    image.write_bytes(SVG)
    plan = ("sites", "upload-plan", site, "-1", str(image), "--reference", "0", "0", "0", "10")
    assert admin.text(*plan, "--reference", "200", "0", "20", "10") == (
        f"Floor -1 of {site} has a plan of 20.0 x 10.0 m.\n"
    )
    assert fleet.sites.download_plan(site, -1) == SVG
    assert "must have 2 points" in admin.expect_failure(*plan, code=2)
    corners = ("--corner", "-1", "-2", "--corner", "9", "-2", "--corner", "9", "8")
    zone = admin.json("zones", "create", site, "Loading bay", "0", *corners)
    assert zone["polygon"] == [[-1, -2], [9, -2], [9, 8]]
    assert "zone" in admin.expect_failure("zones", "create", site, "loading bay", "0", *corners)
    cellar = admin.text(
        "zones", "create", site, "Cellar", "-1", "--corner", "9", "0", "--corner", "0", "0", *corners[-3:]
    )
    assert cellar.endswith(" is Cellar.\n")
    listed = admin.text("zones", "list", site).splitlines()
    assert listed[0].split() == ["id", "name", "floor", "corners"]
    assert [line.split()[1:] for line in listed[1:]] == [["Cellar", "-1", "3"], ["Loading", "bay", "0", "3"]]
    assert admin.json_lines("zones", "visits", site, zone["id"], "--from", "1d") == []
    assert admin("zones", "remove", site, zone["id"], stdin="n\n").exit_code == 1
    assert admin.text("zones", "remove", site, zone["id"], "--yes") == f"{zone['id']} is deleted.\n"
    assert [each.name for each in fleet.sites.zones(site)] == ["Cellar"]
    assert admin.json_lines("sites", "nearest", site, "-1", "1.5", "2", "--limit", "3") == []
    assert admin.text("sites", "nearest", site, "0", "-1", "-2").split()[:2] == ["distance", "(m)"]
    reason = "The site has fewer than 3 devices with a place."
    assert admin.text("sites", "coverage", site, "-1").rstrip() == reason


@pytest.mark.rule("rest-256")
def test_an_exported_site_can_be_imported(
    admin: Shell, fleet: Fleet, devices: list[str], tmp_path: Path
) -> None:
    floor = NewFloor(floor=2, name="2. Stock", min_x=0, min_y=0, max_x=20, max_y=10, walkable=(ROOM,))
    site = fleet.sites.create("Büro", [floor])
    fleet.sites.create_zone(site, "Room", 2, ROOM)
    for each in devices:
        fleet.devices.set_place(each, site, 2, 1.25, 3)
    text = admin.text("sites", "export", site.id)
    file = tmp_path / "site.json"
    file.write_text(text)
    assert admin.text("sites", "export", site.id, "--format", "csv").splitlines() == [
        "device,site,floor,x,y",
        *(f"{each},{site.id},2,1.25,3.0" for each in devices),
    ]
    fleet.sites.remove(site)
    imported = admin.json("sites", "import", str(file))
    assert imported["floors"][0]["walkable"] == [[list(corner) for corner in ROOM]]
    assert admin.text("sites", "export", imported["id"]) == text
    content: dict[str, Any] = json.loads(text)

    def fail(**changes: Any) -> str:
        file.write_text(json.dumps({**content, **changes}))
        return admin.expect_failure("sites", "import", str(file))

    unknown = {**content["places"][0], "device": "bmac-02005e00ffff"}
    assert "does not have bmac-02005e00ffff" in fail(places=[unknown])
    assert "polygon" in fail(zones=[{**content["zones"][0], "polygon": [[0, 0]]}])
    assert f"{file}: floors[0].maxX: is missing" in fail(floors=[{"floor": 1, "minX": 0, "minY": 0}])
    assert [each.id for each in fleet.sites.list()] == [imported["id"]], "a failed import leaves nothing"


@pytest.mark.rule("rest-256")
def test_places_are_imported_from_a_file_of_excel(
    admin: Shell, fleet: Fleet, devices: list[str], tmp_path: Path
) -> None:
    site = _create(admin)
    macs = [each.removeprefix("bmac-").upper() for each in devices]
    lines = ["Site;Device;X;Y;Floor", f"{site};{macs[0]};-4,5;2;0", f"Werk Süd;BMAC-{macs[1]};1.5;2,25;-1"]
    lines.append(f"{site};{':'.join(macs[2][index : index + 2] for index in range(0, 12, 2))};3;4;0")
    file = tmp_path / "places.csv"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert admin.text("places", "import", str(file)) == "The places of 3 devices are set.\n"
    assert [(each.device, each.floor, each.x, each.y) for each in fleet.sites.places(site)] == [
        (devices[0], 0, -4.5, 2.0),
        (devices[1], -1, 1.5, 2.25),
        (devices[2], 0, 3.0, 4.0),
    ]


@pytest.mark.rule("rest-256")
def test_every_wrong_line_is_named_and_no_place_is_set(
    admin: Shell, fleet: Fleet, devices: list[str], tmp_path: Path
) -> None:
    site = _create(admin)
    _create(admin, "Twin")
    _create(admin, "Twin")
    rows = [
        *("device,site,floor,x,y", f"{devices[0]},{site},0,1,1", f"{devices[0]},{site},0,2,2"),
        *(f"02005e00ffff,{site},0,1,1", f"{devices[1]},Nowhere,0,1,1", f"{devices[1]},Twin,0,1,1"),
        *(f"{devices[2]},{site},5,1,1", f"2E+11,{site},first,nan,", f"{devices[2]},{site},0,41.5,1,9"),
    ]
    file = tmp_path / "places.csv"
    file.write_text("\n".join(rows))
    result = admin("places", "import", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    title, *mistakes = result.stderr.splitlines()
    assert title == "Error: no place was set, as lines are wrong:"
    texts = [each.removeprefix(f"{file}:").split(":")[:2] for each in mistakes]
    assert [(int(line), field.strip()) for line, field in texts] == [
        *((3, "device"), (4, "device"), (5, "site"), (6, "device"), (6, "site"), (7, "floor"), (8, "device")),
        *((8, "floor"), (8, "x"), (8, "y"), (9, "device"), (9, "has 6 values for 5 columns"), (9, "x")),
    ]
    assert [*fleet.sites.places(site)] == []
    file.write_text("device,site,floor,x\n")
    assert f"{file}:1: has no column y" in admin("places", "import", str(file)).stderr
    file.write_text("device,site,floor,x,y\n")
    assert "there are no places" in admin("places", "import", str(file)).stderr
