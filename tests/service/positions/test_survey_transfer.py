"""Export and import of survey points over REST."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from meshfleet.rest.survey import MAX_SURVEY_BYTES
from tests.service.positions.synthetic_site import DAY, MINUTE, SECOND, SyntheticSite, TruePlace, get
from tests.service.sites.site_requests import list_audit, list_faults

if TYPE_CHECKING:
    import httpx

    from tests.service.live.live_service import LiveService

AT = "2020-01-01T00:00:00.000Z"
TIMES = {"from": AT, "to": "2020-01-01T00:01:00.000Z"}


def _import(site: SyntheticSite, *points: dict[str, Any]) -> httpx.Response:
    return site.service.operator.post(f"{site.path}/survey/import", json={"points": points})


def _export(site: SyntheticSite) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = get(site.service, f"{site.path}/survey/export")["points"]
    return points


def _sort(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort points by place: the order of points of the same millisecond is random."""
    return sorted(points, key=lambda point: float(point["x"]))


def _survey(site: SyntheticSite, *places: TruePlace) -> str:
    """Survey places with one device, a minute each, and return its MAC."""
    service, device, now = site.service, site.new_device(), site.service.clock()
    for number, place in enumerate(places):
        at = now - number * 2 * MINUTE
        service.ingest(*(each for s in range(3) for each in site.read(device, place, at - s * SECOND)))
        times = {"from": format_millis(at - MINUTE), "to": format_millis(at)}
        assert site.survey(device, place, **times).status_code == 201
    return device


@pytest.mark.both_databases
@pytest.mark.rule("rest-267", "rest-268")
def test_exported_points_can_be_imported_again(service_on_each_database: LiveService) -> None:
    service = service_on_each_database
    site, other = SyntheticSite(service, number=1), SyntheticSite(service, number=2)
    device = _survey(site, TruePlace(4, 4), TruePlace(15.5, 9))
    before = get(service, f"{site.path}/survey")["items"]
    exported = _export(site)
    for point, listed in zip(exported, before, strict=True):
        assert len(point["readings"]) == listed["anchors"]
        shared = point.keys() & listed.keys()
        assert {name: point[name] for name in shared} == {name: listed[name] for name in shared}
    assert list(exported[0]) == [*("id", "device", "floor", "x", "y", "from", "to", "createdAt", "readings")]
    assert [each["count"] for each in exported[0]["readings"]] == [3] * 8
    assert _import(site, *exported).json() == {"added": 0, "unchanged": 2}
    for each in before:
        service.operator.delete(f"{site.path}/survey/{each['id']}")
    assert site.get_position(device)["position"]["level"] == 0
    assert _export(site) == []
    assert _import(site, exported[1], exported[1], exported[0]).json() == {"added": 2, "unchanged": 1}
    assert site.get_position(device)["position"]["level"] == 2
    for restored, original in zip(_sort(_export(site)), _sort(exported), strict=True):
        assert restored | {"id": ""} == original | {"id": ""}
    # A copy in another site needs an anchor there.
    readings = [f"points[{index}].readings" for index in range(2)]
    assert list(list_faults(_import(other, *exported))) == readings
    anchor, place = next(iter(site.anchors.items()))
    other.set_places({anchor: place})
    copied = [each | {"x": each["x"] + 0.0004} for each in exported]  # less than a millimeter
    assert _import(other, *copied).json() == {"added": 2, "unchanged": 0}
    assert _import(other, *exported).json() == {"added": 0, "unchanged": 2}
    assert list_audit(service, other.id)[1:] == [("survey.import", {"added": 2})]


@pytest.mark.rule("rest-267")
def test_an_export_is_csv_for_clients_that_prefer_it(service: LiveService) -> None:
    site = SyntheticSite(service, number=3)
    path = f"{site.path}/survey/export"
    names = ["id", "device", "floor", "x", "y", "from", "to", "createdAt", "readings"]
    empty = service.viewer.get(path, headers={"Accept": "text/csv"})
    assert empty.text == ",".join(names) + "\r\n"
    assert empty.headers["content-type"].startswith("text/csv; header=present")
    _survey(site, TruePlace(4, 4.25))
    (point,) = _export(site)
    response = service.viewer.get(path, headers={"Accept": "text/csv"})
    (row,) = csv.DictReader(response.text.splitlines())
    cells = [f"{each['anchor']}:{each['rssi']:g}:{each['count']}" for each in point["readings"]]
    assert row == {name: str(point[name]) for name in names[:-1]} | {"readings": " ".join(cells)}
    missing = service.viewer.get("/api/v1/sites/site-0000000000000000/survey/export")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown-site")


@pytest.mark.rule("rest-268")
def test_all_faults_of_an_import_are_named_and_nothing_is_stored(service: LiveService) -> None:
    site = SyntheticSite(service, number=4)
    _survey(site, TruePlace(4, 4))
    (stored,) = _export(site)
    device, anchor = f"bmac-{site.new_device()}", next(iter(site.anchors))
    reading = {"anchor": anchor, "rssi": -60.5, "count": 3}
    good = {"device": device, "floor": 0, "x": 1, "y": 1, **TIMES, "readings": [reading]}
    later = format_millis(service.clock() + DAY)
    wrong: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"device": "lamp", "id": "survey-1"}, ["device", "id"]),
        ({"floor": 10**500}, ["floor"]),
        ({"x": -1.5, "y": 200}, ["x", "y"]),
        ({"from": "noon"}, ["from"]),
        ({"from": later, "to": later, "createdAt": later}, ["createdAt", "from", "to"]),
        ({"to": "2020-01-01T02:00:00Z"}, ["from"]),
        ({"to": None}, ["from", "to"]),
        ({"readings": []}, ["readings"]),
        ({"readings": [reading] * 2}, ["readings[1].anchor"]),
        ({"readings": [{"anchor": "c0ffee99ffff", "rssi": -60, "count": 1}]}, ["readings"]),
        (
            {"readings": [{"anchor": "x", "rssi": 21, "count": 0}]},
            ["readings[0].anchor", "readings[0].count", "readings[0].rssi"],
        ),
        ({"readings": None}, ["device"]),
        ({"id": stored["id"]}, ["id"]),
    ]
    faults = list_faults(
        _import(site, *(good | {"x": 1 + number} | changes for number, (changes, _) in enumerate(wrong)))
    )
    expected = [f"points[{index}].{field}" for index, (_, fields) in enumerate(wrong) for field in fields]
    assert sorted(faults) == sorted(expected)
    assert faults["points[12].device"] == "was not received by an anchor of this site in this time"
    assert _export(site) == [stored]
    infinite = service.operator.post(
        f"{site.path}/survey/import",
        content=json.dumps({"points": [good]}).replace('"x": 1', '"x": 1e999').encode(),
        headers={"Content-Type": "application/json"},
    )
    assert list(list_faults(infinite)) == ["points[0].x"]
    assert service.viewer.post(f"{site.path}/survey/import", json={"points": [good]}).status_code == 403


@pytest.mark.rule("rest-268")
def test_an_error_names_only_the_first_faults_of_an_import(service: LiveService) -> None:
    site = SyntheticSite(service, number=6)
    point = {"device": f"bmac-{next(iter(site.anchors))}", "floor": 0, "x": 1, "y": 1, **TIMES}
    wrong = {"anchor": "", "rssi": 99, "count": 0}
    for points in ([point | {"readings": [wrong] * 300}] * 100, [point | {"floor": 7}] * 200):
        numbered = [each | {"x": 1 + number / 100} for number, each in enumerate(points)]
        errors = _import(site, *numbered).json()["errors"]
        assert len(errors) == 100
        assert errors[-1] == {"field": "points", "message": "more faults follow; correct these first"}


@pytest.mark.rule("rest-268")
def test_an_import_has_limits(service: LiveService) -> None:
    site = SyntheticSite(service, number=5)
    device = f"bmac-{site.new_device()}"
    readings = [{"anchor": anchor, "rssi": -60, "count": 1} for anchor in site.anchors]
    points = [
        {"device": device, "floor": 0, "x": 1 + number / 200, "y": 1, **TIMES, "readings": readings}
        for number in range(2001)
    ]
    assert list(list_faults(_import(site, *points))) == ["points"]
    assert list(list_faults(_import(site))) == ["points"]
    assert _import(site, *points[:2000]).json() == {"added": 2000, "unchanged": 0}, "more than 1 MiB"
    full = _import(site, *points[1999:])
    assert (full.status_code, full.json()["code"]) == (409, "conflict")
    assert _import(site, *points[:2000]).json() == {"added": 0, "unchanged": 2000}
    large = service.operator.post(f"{site.path}/survey/import", content=b" " * (MAX_SURVEY_BYTES + 1))
    assert (large.status_code, large.json()["code"]) == (413, "body-too-large")
