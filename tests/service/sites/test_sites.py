"""Sites, floors and zones over REST."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.bulk import insert_rows
from meshfleet.db.tables import zone
from meshfleet.rest.paths import SITES_PATH
from tests.row_tables import each_row
from tests.service.sites.site_requests import (
    GROUND,
    ROOM,
    UPPER,
    create_site,
    list_audit,
    list_faults,
    put_place,
    upload_plan,
)

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

pytestmark = pytest.mark.both_databases

SQUARE = [[0, 0], [1, 0], [1, 1]]
MISSING = f"site-{'0' * 16}"


@pytest.mark.rule("rest-248", "rest-249")
def test_a_site_is_created_shown_listed_and_changed(service: RunningService) -> None:
    floors = [{**UPPER, "walkable": [ROOM, SQUARE]}, GROUND]
    created = create_site(service, *floors, name="  Werk Süd \N{FACTORY} ")
    assert list(created) == ["id", "name", "floors"]
    path = f"{SITES_PATH}/{created['id']}"
    ground = {**GROUND, "name": None, "walkable": None, "plan": None}
    upper = {**UPPER, "walkable": [ROOM, SQUARE], "plan": None}
    assert created == {"id": created["id"], "name": "Werk Süd \N{FACTORY}", "floors": [ground, upper]}
    assert service.viewer.get(path).json() == created
    others = {create_site(service)["id"] for _ in range(3)}
    listed: list[Any] = []
    token = None
    for _ in range(10):
        page = service.viewer.get(
            SITES_PATH, params={"MaxResults": 2, **({"NextToken": token} if token else {})}
        )
        listed += page.json()["items"]
        if (token := page.json()["nextToken"]) is None:
            break
    ids = [each["id"] for each in listed]
    assert {created["id"], *others} <= set(ids)
    assert len(ids) == len(set(ids))
    for each in (ground, upper):
        del each["walkable"]
    assert listed[ids.index(created["id"])]["floors"] == [ground, upper]
    response = service.operator.put(path, json={"name": "New", "floors": [{**GROUND, "walkable": []}]})
    changed = {**ground, "walkable": None}
    assert (response.status_code, response.json()["floors"]) == (200, [changed])
    assert service.viewer.get(path).json() == response.json()
    assert [action for action, _ in list_audit(service, created["id"])] == ["site.create", "site.change"]
    assert list_audit(service, created["id"])[1][1]["before"] == created["name"]


@pytest.mark.rule("rest-249")
def test_all_faults_of_a_site_are_named_together(service: RunningService) -> None:
    floors = [
        {**GROUND, "floor": -21, "name": ""},
        {**GROUND, "minX": -10_001, "maxY": 1e300},
        {**GROUND, "floor": 3, "maxX": 0.5, "maxY": 2001},
        {**GROUND, "floor": 4, "walkable": [SQUARE, ROOM[:2], [[0, 0], [41, 0], [41.5, 9]], ROOM * 51]},
        {**GROUND, "floor": 5, "walkable": [SQUARE] * 51},
        {**GROUND, "floor": 3},
    ]
    response = service.operator.post(SITES_PATH, json={"name": "n" * 129, "floors": floors})
    assert sorted(list_faults(response)) == [
        *("floors[0].floor", "floors[0].name", "floors[1].maxY", "floors[1].minX", "floors[2].maxX"),
        *("floors[2].maxY", "floors[3].walkable[1]", "floors[3].walkable[2][2]", "floors[3].walkable[3]"),
        *("floors[4].walkable", "floors[5].floor", "name"),
    ]


@pytest.mark.rule("rest-249")
@each_row(
    ("floors", "field"),
    [
        ("[]", "floors"),
        ("[{}]", "floors[0].floor"),
        ('[{"floor": 0, "minX": NaN}]', "body"),
        ('[{"floor": 0, "minX": 1e999}]', "floors[0].minX"),
        ('[{"floor": 0, "minX": -Infinity}]', "body"),
        ('[{"floor": 0.5}]', "floors[0].floor"),
        ('[{"floor": 0, "walkable": [[[0]]]}]', "floors[0].walkable[0][0]"),
        ('[{"floor": 0, "minX": 0, "minY": 0, "maxX": 9, "maxY": 9, "color": "red"}]', "floors[0].color"),
    ],
)
def test_a_malformed_site_is_refused(service: RunningService, floors: str, field: str) -> None:
    response = service.operator.post(
        SITES_PATH,
        content=f'{{"name": "n", "floors": {floors}}}',
        headers={"Content-Type": "application/json"},
    )
    assert list(list_faults(response)) == [field]


def test_a_site_larger_than_a_body_is_refused(service: RunningService) -> None:
    floors = [{**GROUND, "walkable": [ROOM * 50] * 50}] * 25
    response = service.operator.post(SITES_PATH, json={"name": "huge", "floors": floors})
    assert (response.status_code, response.json()["code"]) == (413, "body-too-large")


@pytest.mark.rule("rest-250")
def test_a_floor_in_use_cannot_be_removed_or_shrunk(service: RunningService) -> None:
    site = create_site(service, GROUND, UPPER)["id"]
    device = service.new_device()
    put_place(service, device, site, floor=1, x=30.5, y=20)
    zones = f"{SITES_PATH}/{site}/zones"
    area = service.operator.post(zones, json={"name": "Z", "floor": 1, "polygon": ROOM}).json()["id"]
    assert upload_plan(service, site, floor=1).status_code == 200

    def change(*floors: dict[str, Any]) -> tuple[int, str]:
        response = service.operator.put(f"{SITES_PATH}/{site}", json={"name": "Site", "floors": floors})
        return response.status_code, response.json().get("detail", "")

    small, low = {**UPPER, "maxX": 20}, {**UPPER, "maxX": 30, "maxY": 6}
    for floors, counted in (
        ([GROUND], f"floor 1 is in use by places: 1 ({device}), zones: 1 (Z);"),
        ([small], f"floor 1 would become too small for places: 1 ({device});"),
        ([low], f"floor 1 would become too small for places: 1 ({device}), zones: 1 (Z);"),
    ):
        status, detail = change(*floors)
        assert (status, counted in detail) == (409, True), detail
    assert change({**UPPER, "maxX": 29.5})[0] == 200
    assert service.viewer.get(f"{SITES_PATH}/{site}").json()["floors"][0]["plan"]
    assert service.operator.delete(f"/api/v1/devices/{device}/place").status_code == 204
    assert service.operator.delete(f"{zones}/{area}").status_code == 204
    assert change(GROUND)[0] == 200
    assert service.viewer.get(f"{SITES_PATH}/{site}/floors/1/plan").status_code == 404


@pytest.mark.rule("rest-250")
def test_a_deleted_site_takes_everything_on_it_along(service: RunningService) -> None:
    site, other = create_site(service)["id"], create_site(service)["id"]
    devices = [service.new_device() for _ in range(2)]
    for each in devices:
        put_place(service, each, site)
    upload_plan(service, site)
    service.operator.post(f"{SITES_PATH}/{site}/zones", json={"name": "Z", "floor": 0, "polygon": ROOM})
    assert service.operator.delete(f"{SITES_PATH}/{site}").status_code == 204
    for path in (f"/{site}", f"/{site}/places", f"/{site}/zones", f"/{site}/floors/0/plan"):
        response = service.viewer.get(SITES_PATH + path)
        assert (response.status_code, response.json()["code"]) == (404, "unknown-site"), path
    assert service.viewer.get(f"/api/v1/devices/{devices[0]}").json()["live"]["place"] is None
    assert service.viewer.get(f"{SITES_PATH}/{other}").status_code == 200
    assert list_audit(service, site)[-1] == (
        "site.delete",
        {"name": "Site", "places": 2, "zones": 1, "surveyPoints": 0},
    )


@pytest.mark.rule("rest-255")
def test_zones_are_created_listed_changed_and_deleted(service: RunningService) -> None:
    site, other = create_site(service)["id"], create_site(service)["id"]
    path = f"{SITES_PATH}/{site}/zones"
    bodies = [
        {"name": name, "floor": floor, "polygon": polygon}
        for name, floor, polygon in (("Vault", 1, ROOM), ("annex", 0, SQUARE), ("Übergabe", 0, ROOM * 25))
    ]
    created = [service.operator.post(path, json=each) for each in bodies]
    assert [each.status_code for each in created] == [201] * 3
    zones = {each.json()["name"]: each.json() for each in created}
    assert list(zones["Vault"]) == ["id", "name", "floor", "polygon"]
    first = service.viewer.get(path, params={"MaxResults": 2}).json()
    rest = service.viewer.get(path, params={"MaxResults": 2, "NextToken": first["nextToken"]}).json()
    assert first["items"] + rest["items"] == [zones["annex"], zones["Vault"], zones["Übergabe"]]
    taken = service.operator.post(path, json={**bodies[0], "name": "VAULT"})
    assert (taken.status_code, taken.json()["code"]) == (409, "zone-exists")
    vault = f"{path}/{zones['Vault']['id']}"
    assert service.operator.put(vault, json={**bodies[0], "name": "Annex"}).status_code == 409
    changed = service.operator.put(vault, json={**bodies[0], "name": "vault", "floor": 0})
    assert changed.json() == {**zones["Vault"], "name": "vault", "floor": 0}
    assert service.viewer.get(vault).json() == changed.json()
    elsewhere = vault.replace(site, other)
    for response in (service.viewer.get(elsewhere), service.operator.delete(elsewhere)):
        assert response.status_code == 404
    assert service.operator.delete(vault).status_code == 204
    assert service.viewer.get(vault).status_code == 404
    actions = [action for action, _ in list_audit(service, zones["Vault"]["id"])]
    assert actions == ["zone.create", "zone.change", "zone.delete"]


@pytest.mark.rule("rest-255")
@each_row(
    ("changes", "fields"),
    [
        ({"name": " ", "floor": 201, "polygon": [[0, 0], [1, 1]]}, ["floor", "name", "polygon"]),
        ({"polygon": SQUARE * 34}, ["polygon"]),
        ({"polygon": [*SQUARE, [0, 1e9]]}, ["polygon[3]"]),
        ({"polygon": [*SQUARE, [0, 27]]}, ["polygon[3]"]),
        ({"floor": 7}, ["floor"]),
    ],
)
def test_an_invalid_zone_is_refused(
    service: RunningService, changes: dict[str, Any], fields: list[str]
) -> None:
    site = create_site(service)["id"]
    body = {"name": "Z", "floor": 0, "polygon": SQUARE, **changes}
    response = service.operator.post(f"{SITES_PATH}/{site}/zones", json=body)
    assert sorted(list_faults(response)) == fields


@pytest.mark.rule("rest-255")
def test_a_site_has_at_most_200_zones(service: RunningService) -> None:
    site = create_site(service)["id"]
    number = int(site.removeprefix("site-"), 16)
    rows = [(each, number, 0, f"Z{each}", f"z{each}", "[]") for each in range(1, 199)]
    service.database.write_now(insert_rows, zone, rows)

    def create(each: int) -> int:
        body = {"name": f"New {each}", "floor": 0, "polygon": SQUARE}
        return service.operator.post(f"{SITES_PATH}/{site}/zones", json=body).status_code

    with ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(create, range(6)))
    assert sorted(statuses) == [201] * 2 + [409] * 4


@pytest.mark.rule("rest-15", "rest-248")
@each_row("site", [MISSING, "site-1", "site-ffffffffffffffff", "SITE-0000000000000000", "%00", "firmware"])
def test_an_unknown_site_is_not_found(service: RunningService, site: str) -> None:
    path = f"{SITES_PATH}/{site}"
    site_body = {"name": "n", "floors": [GROUND]}
    area = {"name": "n", "floor": 0, "polygon": SQUARE}
    responses = [
        service.viewer.get(path),
        service.operator.put(path, json=site_body),
        service.operator.delete(path),
        service.viewer.get(f"{path}/places"),
        service.operator.post(f"{path}/zones", json=area),
        service.viewer.get(f"{path}/floors/0/plan"),
    ]
    assert {each.status_code for each in responses} == {404}
    assert site == "%00" or {each.json()["code"] for each in responses} == {"unknown-site"}


@pytest.mark.rule("auth-17", "rest-248")
def test_a_viewer_changes_no_site(service: RunningService) -> None:
    site = create_site(service)["id"]
    area = {"name": "n", "floor": 0, "polygon": SQUARE}
    responses = [
        service.viewer.post(SITES_PATH, json={"name": "n", "floors": [GROUND]}),
        service.viewer.delete(f"{SITES_PATH}/{site}"),
        service.viewer.post(f"{SITES_PATH}/{site}/zones", json=area),
        service.viewer.put(f"{SITES_PATH}/{site}/floors/0/plan"),
        service.viewer.put(f"/api/v1/devices/{service.new_device()}/place"),
    ]
    assert [each.status_code for each in responses] == [403] * 5
