"""Tests of the panels of the page of a site: failed and long lists, several fingers, and visits to zones."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.protocol.times import format_millis
from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import check_fits_width, wait_until, wait_until_connected
from tests.browser.demo_plans import ANCHOR_PLACES, FLOORS, plan_site

if TYPE_CHECKING:
    from typing import Any

    from playwright.sync_api import CDPSession, FloatRect, Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.browser.demo_plans import PlanSite
    from tests.scenarios.service_process import ServiceProcess

_REPORTING_MS = 500


def _find_mark(page: Page, anchor: str) -> Locator:
    return page.locator(f'g.anchor[data-device="bmac-{anchor}"] rect')


def _get_center(locator: Locator) -> tuple[float, float]:
    box: FloatRect | None = locator.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _is_near(mark: Locator, point: tuple[float, float]) -> bool:
    x, y = _get_center(mark)
    return abs(x - point[0]) < 3 and abs(y - point[1]) < 3


def test_a_list_that_is_not_loaded_is_not_called_empty(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    site = demo.call("POST", "/api/v1/sites", {"name": "Cellar", "floors": FLOORS})["id"]
    failing = re.compile(rf"/api/v1/sites/{site}/(places|zones|survey)\?")
    try:
        page = open_as("/labels", Role.OPERATOR)
        browser_log.expect(500)
        page.route(failing, lambda route: route.fulfill(status=500, json={"detail": "The disk is gone."}))
        for part in ("anchors", "zones", "survey"):
            page.goto(f"/sites/{site}?view={part}")
            expect(page.get_by_text("This list could not be loaded")).to_be_visible()
        page.unroute(failing)
        page.reload()
        expect(page.get_by_text("No survey points yet")).to_be_visible()
    finally:
        demo.call("DELETE", f"/api/v1/sites/{site}")


def test_a_device_without_a_place_is_found_behind_a_page_of_placed_ones(
    open_as: Open, demo: ServiceProcess
) -> None:
    site = demo.call("POST", "/api/v1/sites", {"name": "Annex", "floors": FLOORS})["id"]
    sizes = []

    def answer(route: Route) -> None:
        """Return a page of placed devices before the page that was asked for."""
        sizes.append(int(re.findall(r"MaxResults=(\d+)", route.request.url)[0]))
        response = route.fetch(url=route.request.url.replace("&NextToken=more", ""))
        body: dict[str, Any] = response.json()
        if "NextToken" not in route.request.url:
            for device in body["items"]:
                device["live"]["place"] = {"site": site, "floor": 0, "x": 1, "y": 1}
            body["nextToken"] = "more"
        route.fulfill(response=response, json=body)

    listed = re.compile(r"/api/v1/devices\?Include=live")
    try:
        page = open_as("/labels", Role.OPERATOR)
        page.route(listed, answer)
        page.goto(f"/sites/{site}?view=anchors")
        expect(page.get_by_role("button", name=re.compile("^Place ")).first).to_be_visible()
        expect(page.get_by_text("No device without a place matches")).to_have_count(0)
        assert max(sizes) <= 1000
    finally:
        demo.call("DELETE", f"/api/v1/sites/{site}")


def _touch(line: CDPSession, kind: str, *points: tuple[float, float]) -> None:
    touches = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
    line.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})


def test_a_dragged_anchor_stays_at_its_new_place_and_a_second_finger_cancels(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    with plan_site(demo, "Loft") as site:
        page = open_as(f"/sites/{site.site}?view=anchors", Role.OPERATOR)
        first, other = (_find_mark(page, anchor) for anchor in site.anchors[:2])
        expect(page.get_by_role("group", name="Placed devices").get_by_role("row")).to_have_count(7)
        start, second = _get_center(first), _get_center(other)
        line = page.context.new_cdp_session(page)
        _touch(line, "touchStart", start)
        _touch(line, "touchMove", (start[0] + 40, start[1] - 40))
        wait_until(page, lambda: _is_near(first, (start[0] + 40, start[1] - 40)), "the dragged anchor")
        _touch(line, "touchStart", (start[0] + 40, start[1] - 40), second)
        _touch(line, "touchMove", (start[0] + 60, start[1] - 60), second)
        _touch(line, "touchEnd")
        wait_until(page, lambda: _is_near(first, start), "the anchor at its place")
        assert [each for each in browser_log.requests if each.startswith("PUT ")] == []

        # The list of places is held back: the anchor is shown where it was dropped.
        held: list[Route] = []
        page.route(re.compile(r"/places\?"), lambda route: held.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
        page.mouse.move(*start)
        page.mouse.down()
        page.mouse.move(start[0] + 60, start[1] - 60, steps=3)
        page.mouse.up()
        wait_until(page, lambda: held, "the request for the places")
        assert _is_near(first, (start[0] + 60, start[1] - 60))
        for each in held:
            each.continue_()
        page.unroute(re.compile(r"/places\?"))
        expect(page.get_by_text(re.compile("is on .*Ground floor.* at x "))).to_be_visible()
        assert _is_near(first, (start[0] + 60, start[1] - 60))
        places = demo.call("GET", f"/api/v1/sites/{site.site}/places")["items"]
        moved = {
            each["device"]
            for each, at in zip(places, ANCHOR_PLACES, strict=True)
            if (each["x"], each["y"]) != at
        }
        assert moved == {f"bmac-{site.anchors[0]}"}


def test_a_large_survey_is_listed_in_parts_and_its_next_point_is_where_positions_are_inexact(
    open_as: Open, demo: ServiceProcess
) -> None:
    with plan_site(demo, "Archive hall") as site:
        _import_survey(demo, site, 120)
        page = open_as("/labels", Role.OPERATOR)
        page.route(re.compile("/coverage"), _make_right_half_inexact)
        page.goto(f"/sites/{site.site}?view=survey")
        rows = page.get_by_role("group", name="Survey points").get_by_role("row")
        expect(rows).to_have_count(101)
        page.get_by_role("button", name="Show more").click()
        expect(rows).to_have_count(121)
        expect(page.locator("path.points")).to_have_attribute("d", re.compile("^(M[^M]+){120}$"))
        expect(page.get_by_text("positions are not exact there")).to_be_visible()
        page.get_by_role("button", name="Use the suggested point").click()
        assert float(page.get_by_label("x, m").input_value()) > 10


def _import_survey(demo: ServiceProcess, site: PlanSite, count: int) -> None:
    """Add survey points at the lower and upper edge of the ground floor."""
    end = time.time_ns() // 1_000_000 - 60_000
    points = [
        {
            "device": f"bmac-{site.devices[0]}",
            "floor": 0,
            "x": 20 * (index // 2) / (count // 2),
            "y": index % 2 * 12,
            "from": format_millis(end - 1000 * index - 500),
            "to": format_millis(end - 1000 * index),
            "readings": [{"anchor": site.anchors[0], "rssi": -60, "count": 5}],
        }
        for index in range(count)
    ]
    demo.call("POST", f"/api/v1/sites/{site.site}/survey/import", {"points": points})


def _make_right_half_inexact(route: Route) -> None:
    response = route.fetch()
    body: dict[str, Any] = response.json()
    coverage = body["coverage"]
    coverage["radius"] = [
        None if count is None else 1 + 9 * (index % coverage["columns"] * coverage["columnMeters"] > 10)
        for index, count in enumerate(coverage["anchors"])
    ]
    route.fulfill(response=response, json=body)


@pytest.mark.part("long")
def test_visits_to_a_zone_are_followed_by_live_events(open_as: Open, demo: ServiceProcess) -> None:
    with plan_site(demo, "Workshop") as site:
        device = site.devices[0]
        polygon = [[0, 0], [10, 0], [10, 12], [0, 12]]
        body = {"name": "Bench", "floor": 0, "polygon": polygon}
        demo.call("POST", f"/api/v1/sites/{site.site}/zones", body)
        page = open_as(f"/sites/{site.site}?view=zones", Role.VIEWER)
        wait_until_connected(page)
        page.get_by_role("link", name="Bench").click()
        card = page.get_by_role("region", name=re.compile("^Visits to .*Bench"))
        expect(card).to_contain_text("No visits yet")
        _stay(page, site, (3, 6), lambda: "1 inside now" in card.inner_text())
        check_fits_width(page, 390)
        assert find_violations_in_all_themes(page) == []
        _stay(page, site, (18, 10), lambda: "0 inside now" in card.inner_text())
        row = card.get_by_role("row").nth(1)
        expect(row).not_to_contain_text("inside now")
        expect(row.get_by_role("cell").last).to_have_text(re.compile(r"^\d+ (s|min)"))
        row.get_by_role("link").click()
        expect(page).to_have_url(re.compile(f"device=bmac-{device}"))


def _stay(page: Page, site: PlanSite, place: tuple[float, float], is_seen: Any) -> None:
    """Let a device stay at a place until the page shows it."""

    def report() -> bool:
        site.receive(site.devices[0], place)
        page.wait_for_timeout(_REPORTING_MS)
        return bool(is_seen())

    wait_until(page, report, "the change")
