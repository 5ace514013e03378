"""Places of devices over REST, and the geometry of sites for positioning."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.rest.paths import SITES_PATH
from meshfleet.service.sites.changes import SiteChanges
from meshfleet.service.sites.geometry import Anchor
from meshfleet.service.sites.places import load_site_geometry
from tests.row_tables import each_row
from tests.service.sites.site_requests import (
    GROUND,
    ROOM,
    UPPER,
    create_site,
    list_audit,
    list_faults,
    put_place,
)

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

pytestmark = [pytest.mark.both_databases, pytest.mark.anyio]


def _get_live_place(service: RunningService, device: str) -> Any:
    """Return the place of a device in the list, which is also that of its page."""
    listed = service.viewer.get("/api/v1/devices", params={"Ids": device, "Include": "live"}).json()
    place = listed["items"][0]["live"]["place"]
    assert service.viewer.get(f"/api/v1/devices/{device}").json()["live"]["place"] == place
    return place


def _to_number(device: str) -> int:
    return mac_to_int(Mac(device.removeprefix("bmac-")))


@pytest.mark.rule("rest-38", "rest-90")
def test_a_place_is_set_shown_changed_and_removed(service: RunningService) -> None:
    site, other = create_site(service)["id"], create_site(service)["id"]
    device = service.new_device()
    path = f"/api/v1/devices/{device}/place"
    assert service.viewer.get(path).json()["detail"] == f"device {device} has no place"
    assert _get_live_place(service, device) is None
    placed = put_place(service, device, site)
    expected = {"site": site, "floor": 0, "x": 3.0, "y": 4.5}
    assert (placed.status_code, placed.json(), list(placed.json())) == (200, expected, list(expected))
    assert service.viewer.get(path).json() == _get_live_place(service, device) == expected
    put_place(service, device, site)  # unchanged, so it is not recorded again
    moved = put_place(service, device, other, floor=1, x=-6, y=21).json()
    assert moved == {"site": other, "floor": 1, "x": -6.0, "y": 21.0}
    assert service.viewer.get(f"{SITES_PATH}/{site}/places").json()["items"] == []
    assert service.operator.delete(path).status_code == 204
    for response in (service.viewer.get(path), service.operator.delete(path)):
        assert (response.status_code, response.json()["code"]) == (404, "not-found")
    assert _get_live_place(service, device) is None
    actions = [("place.set", expected), ("place.set", moved), ("place.remove", moved)]
    assert list_audit(service, device) == actions


@pytest.mark.rule("rest-90")
@each_row(
    ("changes", "fields"),
    [
        ({"floor": 2}, ["floor"]),
        ({"x": 41.01, "y": -1.01}, ["x", "y"]),
        ({"x": 1e9, "floor": 201}, ["floor", "x"]),
        ({"x": None}, ["x"]),
        ({"x": True}, ["x"]),
        ({"z": 1}, ["z"]),
    ],
)
def test_an_impossible_place_is_refused(
    service: RunningService, changes: dict[str, Any], fields: list[str]
) -> None:
    site, device = create_site(service)["id"], service.new_device()
    assert sorted(list_faults(put_place(service, device, site, **changes))) == fields
    assert service.viewer.get(f"/api/v1/devices/{device}/place").status_code == 404


@pytest.mark.rule("rest-90")
def test_unknown_devices_and_sites_are_named(service: RunningService) -> None:
    site, device = create_site(service)["id"], service.new_device()
    rows = [
        ("bmac-0123456789ab", site, "unknown-device"),
        ("bmac-0123456789ab", "site-0", "unknown-site"),
        (device, f"site-{'0' * 16}", "unknown-site"),
        (device, "nonsense", "unknown-site"),
        ("nonsense", site, "not-found"),
    ]
    for each, on, code in rows:
        response = put_place(service, each, on)
        assert (response.status_code, response.json()["code"]) == (404, code), (each, on)
    assert service.viewer.get("/api/v1/devices/bmac-0123456789ab/place").json()["code"] == "unknown-device"


@pytest.mark.rule("rest-254")
def test_many_places_are_set_at_once_and_listed_in_pages(service: RunningService) -> None:
    site = create_site(service)["id"]
    devices = sorted(service.new_device(name=f"Anchor {number} ☕") for number in range(5))
    body = [{"device": each, "floor": 0, "x": 3, "y": 4} for each in devices]
    path = f"{SITES_PATH}/{site}/places"
    response = service.operator.post(path, json={"places": body[::-1]})
    assert (response.status_code, response.json()) == (200, {"count": 5})
    first = service.viewer.get(path, params={"MaxResults": 3}).json()
    rest = service.viewer.get(path, params={"MaxResults": 3, "NextToken": first["nextToken"]}).json()
    items = first["items"] + rest["items"]
    assert [each["device"] for each in items] == devices
    assert list(items[0]) == ["device", "name", "floor", "x", "y", "setAt"]
    assert (items[0]["name"], items[0]["x"]) == ("Anchor 0 ☕", 3.0)
    assert rest["nextToken"] is None
    assert list_audit(service, devices[0]) == [("place.set", {"site": site, "floor": 0, "x": 3.0, "y": 4.0})]


@pytest.mark.rule("rest-254")
def test_all_faults_of_a_batch_are_named_and_nothing_is_set(service: RunningService) -> None:
    site = create_site(service)["id"]
    good, far = service.new_device(), service.new_device()
    path = f"{SITES_PATH}/{site}/places"

    def post(*places: tuple[str, int, float]) -> Any:
        bodies = [{"device": device, "floor": floor, "x": x, "y": 0} for device, floor, x in places]
        return service.operator.post(path, json={"places": bodies})

    faults = list_faults(post((good, 0, 1), ("x", 0, 20_000), (good, 1, 1), (far, 300, 0)))
    assert sorted(faults) == ["places[1].device", "places[1].x", "places[2].device", "places[3].floor"]
    assert sorted(list_faults(post((good, 0, 1), (far, 9, 99)))) == ["places[1].floor"]
    assert sorted(list_faults(post((far, 0, 99), (good, 0, 1)))) == ["places[0].x"]
    unknown = post((good, 0, 1), *((f"bmac-0123456789{number:02x}", 0, 1) for number in range(7)))
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown-device")
    assert unknown.json()["detail"].endswith(" and 2 others")
    for wrong in ([], [{"device": good, "floor": 0, "x": 0, "y": 0}] * 1001):
        assert list(list_faults(service.operator.post(path, json={"places": wrong}))) == ["places"]
    assert service.viewer.get(path).json()["items"] == []


@pytest.mark.rule("rest-40", "rest-90")
def test_a_forgotten_device_loses_its_place(service: RunningService) -> None:
    site, device = create_site(service)["id"], service.new_device()
    put_place(service, device, site)
    assert service.admin.delete(f"/api/v1/devices/{device}").status_code == 204
    assert service.viewer.get(f"{SITES_PATH}/{site}/places").json()["items"] == []


async def test_every_change_of_a_site_is_noticed(service: RunningService) -> None:
    site, other = (create_site(service)["id"] for _ in range(2))
    number, other_number = (int(each.removeprefix("site-"), 16) for each in (site, other))
    first, second = service.new_device(), service.new_device()
    changes = SiteChanges(service.database)
    noticed: list[int] = []
    changes.subscribe(noticed.append)

    async def notice() -> set[int]:
        noticed.clear()
        await changes.check()
        return set(noticed)

    assert await notice() >= {number, other_number}
    assert await notice() == set()
    put_place(service, first, site)
    put_place(service, second, site)
    assert await notice() == {number}
    put_place(service, second, other, x=7)
    assert await notice() == {number, other_number}
    service.operator.put(
        f"{SITES_PATH}/{other}", json={"name": "n", "floors": [{**GROUND, "walkable": [ROOM]}]}
    )
    assert await notice() == {other_number}
    geometry = await service.database.read(load_site_geometry, other_number)
    assert geometry.anchors == (Anchor(_to_number(second), 0, 7, 4.5),)
    assert (geometry.floors[0].walkable, geometry.floors[0].box.max_y) == (
        (tuple((x, y) for x, y in ROOM),),
        25.5,
    )
    assert geometry.revision == changes.revisions[other_number]
    service.admin.delete(f"/api/v1/devices/{first}")
    assert await notice() == {number}
    service.operator.delete(f"/api/v1/devices/{second}/place")
    service.operator.delete(f"{SITES_PATH}/{site}")
    assert await notice() == {number, other_number}
    assert number not in changes.revisions


def test_places_are_set_concurrently(service: RunningService) -> None:
    sites = [create_site(service, GROUND, UPPER)["id"] for _ in range(2)]
    devices = [service.new_device() for _ in range(3)]

    def place(number: int) -> int:
        site = sites[number % 2]
        if number % 3:
            return put_place(service, devices[number % 3], site, x=number).status_code
        body = [{"device": each, "floor": 1, "x": number, "y": 0} for each in devices[:: 1 - number % 2 * 2]]
        return service.operator.post(f"{SITES_PATH}/{site}/places", json={"places": body}).status_code

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(place, range(24))) == {200}
    listed = [service.viewer.get(f"{SITES_PATH}/{site}/places").json()["items"] for site in sites]
    assert sorted(each["device"] for items in listed for each in items) == sorted(devices)
