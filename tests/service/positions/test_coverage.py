"""Expected coverage of floors over REST."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest

from tests.positioning.rooms import DEPTH, WIDTH
from tests.row_tables import each_row
from tests.service.positions.synthetic_site import SyntheticSite, get
from tests.service.sites.site_requests import list_faults

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService


def _get_coverage(site: SyntheticSite, floor: int = 0, **query: Any) -> dict[str, Any]:
    answer = get(site.service, f"{site.path}/floors/{floor}/coverage", **query)
    assert answer["reason"] is None
    coverage: dict[str, Any] = answer["coverage"]
    return coverage


def _get_cell(coverage: dict[str, Any], x: float, y: float) -> int:
    column = int((x - coverage["minX"]) / coverage["columnMeters"])
    row = int((y - coverage["minY"]) / coverage["rowMeters"])
    return column + row * int(coverage["columns"])


@pytest.mark.rule("rest-266")
def test_coverage_says_how_devices_are_received_and_located(site: SyntheticSite) -> None:
    coverage = _get_coverage(site)
    assert list(coverage) == [
        *("floor", "minRssi", "level", "locatedShare", "minX", "minY", "columns", "rows", "columnMeters"),
        *("rowMeters", "anchors", "rssi", "radius"),
    ]
    cells = coverage["columns"] * coverage["rows"]
    assert cells <= 1000
    assert {len(coverage[each]) for each in ("anchors", "rssi", "radius")} == {cells}
    assert coverage["columns"] * coverage["columnMeters"] >= WIDTH
    assert coverage["rows"] * coverage["rowMeters"] >= DEPTH
    assert coverage["locatedShare"] == 1.0
    assert set(coverage["anchors"]) == {len(site.anchors)}
    near, far = _get_cell(coverage, 5, 7), _get_cell(coverage, 10, 4)  # at an anchor, and between all of them
    assert coverage["rssi"][near] > coverage["rssi"][far] + 5

    now = site.service.clock()
    devices = {site.new_device(): site.new_place() for _ in range(10)}
    site.service.ingest(
        *(each for device, place in devices.items() for each in site.read(device, place, now))
    )
    found = [site.get_position(each)["position"] for each in devices]
    expected = [coverage["radius"][_get_cell(coverage, each["x"], each["y"])] for each in found]
    assert fmean(each["radius"] for each in found) == pytest.approx(fmean(expected), rel=0.3)


@pytest.mark.rule("rest-266")
def test_weak_readings_do_not_count_if_a_level_is_given(site: SyntheticSite) -> None:
    at = -75
    coverage = _get_coverage(site, MinRssi=at)
    assert coverage["minRssi"] == at
    assert 0 < coverage["locatedShare"] < 1
    is_located = [each >= 3 for each in coverage["anchors"]]
    assert [each is not None for each in coverage["radius"]] == is_located
    assert fmean(is_located) == pytest.approx(coverage["locatedShare"], abs=0.05)
    assert all(each is None or each >= at for each in coverage["rssi"])
    nothing = _get_coverage(site, MinRssi=0)
    assert (nothing["locatedShare"], set(nothing["anchors"]), set(nothing["rssi"])) == (0, {0}, {None})


@pytest.mark.rule("rest-266")
def test_cells_where_devices_cannot_be_have_no_coverage(service: LiveService) -> None:
    site = SyntheticSite(service, number=2, floors=2)
    room = [[0, 0], [WIDTH / 2, 0], [WIDTH / 2, DEPTH], [0, DEPTH]]
    box = {"minX": 0, "minY": 0, "maxX": WIDTH, "maxY": DEPTH}
    floors = [{"floor": 0, **box}, {"floor": 1, **box, "walkable": [room]}]
    assert service.operator.put(site.path, json={"name": "Half", "floors": floors}).status_code == 200
    coverage = _get_coverage(site, floor=1)  # before the first reading: from the places of anchors alone
    for values in (coverage["anchors"], coverage["rssi"], coverage["radius"]):
        assert values[_get_cell(coverage, WIDTH * 3 / 4, 5)] is None
        assert values[_get_cell(coverage, WIDTH / 4, 5)] is not None


@pytest.mark.rule("rest-266")
def test_coverage_is_unknown_without_anchors(service: LiveService) -> None:
    site = SyntheticSite(service, number=3, anchors=2)
    answer = get(service, f"{site.path}/floors/0/coverage")
    assert answer == {"coverage": None, "reason": "The site has fewer than 3 devices with a place."}
    for path in (f"{site.path}/floors/1/coverage", f"{site.path}/floors/x/coverage"):
        assert service.viewer.get(path).status_code == 404
    assert service.viewer.get("/api/v1/sites/site-ffff/floors/0/coverage").json()["code"] == "unknown-site"


@pytest.mark.rule("rest-266")
@each_row("text", ["", "NaN", "1e9", "-128", "21", "-80.5", "9" * 5000])
def test_bad_levels_are_named(site: SyntheticSite, text: str) -> None:
    response = site.service.viewer.get(f"{site.path}/floors/0/coverage", params={"MinRssi": text})
    assert list(list_faults(response)) == ["MinRssi"]
