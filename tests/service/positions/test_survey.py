"""Survey points over REST, and readings that survive restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.times import format_millis
from meshfleet.service.positions.reading_log import ReadingLog
from meshfleet.service.positions.reading_store import ReadingStore
from tests.row_tables import each_row
from tests.service.positions.synthetic_site import (
    MINUTE,
    SECOND,
    SyntheticSite,
    TruePlace,
    get,
)
from tests.service.sites.site_requests import GROUND, list_audit, list_faults

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService


@pytest.fixture(scope="module")
def empty_site(service: LiveService) -> SyntheticSite:
    """Build a site that has received nothing."""
    return SyntheticSite(service, number=2)


@pytest.mark.both_databases
@pytest.mark.rule("rest-261")
def test_survey_points_are_added_listed_and_withdrawn(service_on_each_database: LiveService) -> None:
    service = service_on_each_database
    site = SyntheticSite(service, number=1)
    site.populate(6)
    device, now = site.new_device(), service.clock()
    place = TruePlace(4, 4)
    service.ingest(*(each for s in range(3) for each in site.read(device, place, now - s * SECOND)))
    assert site.get_position(device)["position"]["level"] == 0
    response = site.survey(device, place)
    assert response.status_code == 201, response.text
    point = response.json()
    assert list(point) == [
        *("id", "device", "floor", "x", "y", "from", "to", "anchors", "createdAt", "createdBy")
    ]
    assert (point["device"], point["floor"], point["x"], point["y"]) == (f"bmac-{device}", 0, 4, 4)
    assert point["anchors"] == 8
    assert site.get_position(device)["position"]["level"] == 2
    times = {"from": format_millis(now - MINUTE), "to": format_millis(now)}
    second = site.survey(device, place, **times).json()
    assert {name: second[name] for name in times} == times
    first_page = get(service, f"{site.path}/survey", MaxResults=1)
    assert first_page["items"] == [point]
    rest = get(service, f"{site.path}/survey", NextToken=first_page["nextToken"])
    assert rest == {"items": [second], "nextToken": None}
    listed = f"survey points: 2 ({', '.join(sorted((point['id'], second['id'])))})"
    for floor in ({**GROUND, "floor": 5}, {**GROUND, "minX": 5.1}):  # the place is 1.1 m outside
        refused = service.operator.put(site.path, json={"name": "Site", "floors": [floor]})
        assert (refused.status_code, refused.json()["code"]) == (409, "floor-in-use")
        assert listed in refused.json()["detail"]
    assert get(service, f"{site.path}/survey/{second['id']}") == second
    for each in (point, second):
        assert service.operator.delete(f"{site.path}/survey/{each['id']}").status_code == 204
    assert service.operator.delete(f"{site.path}/survey/{point['id']}").status_code == 404
    assert site.get_position(device)["position"]["level"] == 0
    actions = [action for action, _ in list_audit(service, site.id)]
    assert actions[1:] == ["survey.add", "survey.add", "survey.remove", "survey.remove"]


@pytest.mark.rule("rest-261")
@each_row(
    ("field", "changes"),
    [
        ("x", '"x": 1e999'),
        ("x", '"x": -1.5'),
        ("y", '"y": 200'),
        ("floor", '"floor": 3'),
        ("device", '"device": "lamp"'),
        ("device", '"device": "bmac-c0ffee99ffff"'),
        ("from", '"from": "2000-01-01T00:00:00Z"'),
        ("from", '"from": "2100-01-01T00:00:00Z"'),
        ("to", '"to": "noon"'),
        (None, '"x": NaN'),
    ],
)
def test_a_wrong_survey_point_is_refused(empty_site: SyntheticSite, field: str | None, changes: str) -> None:
    device = next(iter(empty_site.anchors))
    body = f'{{"device": "bmac-{device}", "floor": 0, "x": 1, "y": 1, {changes}}}'
    response = empty_site.service.operator.post(
        f"{empty_site.path}/survey", content=body, headers={"Content-Type": "application/json"}
    )
    if field is None:
        assert response.status_code == 400
    else:
        assert list(list_faults(response)) == [field]


def test_only_operators_survey_existing_sites(empty_site: SyntheticSite) -> None:
    point = {"device": f"bmac-{next(iter(empty_site.anchors))}", "floor": 0, "x": 1, "y": 1}
    unknown = empty_site.service.operator.post("/api/v1/sites/site-0000000000000000/survey", json=point)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown-site")
    assert empty_site.service.viewer.post(f"{empty_site.path}/survey", json=point).status_code == 403


@pytest.mark.both_databases
@pytest.mark.rule("rest-257")
def test_readings_survive_a_restart_until_their_retention_ends(service_on_each_database: LiveService) -> None:
    service = service_on_each_database
    site = SyntheticSite(service, number=1, anchors=3)
    written, journaled, now = site.new_device(), site.new_device(), service.clock()
    service.ingest(*site.read(written, TruePlace(4, 4), now - MINUTE))
    service.run_in_loop(service.ingest_pipeline.flush())
    service.ingest(*site.read(journaled, TruePlace(4, 4), now))

    def restart(at: int) -> ReadingStore:
        store = ReadingStore(retention_ms=60 * MINUTE)
        store.set_anchors(service.api.site_changes.anchors)
        log = ReadingLog(store)
        service.run_in_loop(log.restore(service.database, at))
        return store

    store = restart(now)
    for mac in (written, journaled):
        readings = store.list_readings(int(mac, 16), now - 2 * MINUTE, now)
        assert {f"{each.anchor:012x}" for each in readings} == set(site.anchors)
    service.clock.move(seconds=2 * 60 * 60)
    service.run_in_loop(service.ingest_pipeline.flush())
    assert not restart(now).list_readings(int(written, 16), 0, now)


def test_the_oldest_readings_are_dropped_early_if_there_are_too_many() -> None:
    store = ReadingStore(retention_ms=60 * MINUTE, max_readings=100)
    store.set_anchors({7: 1})
    for minute in range(10):
        store.add([(1, 5, 1, minute * MINUTE + number, -60, 7, 0) for number in range(50)], minute * MINUTE)
    assert len(store) == 100
    assert min(each.time for each in store.list_readings(5, -1, 10 * MINUTE)) == 8 * MINUTE
    assert store.list_devices(1) == {5}
