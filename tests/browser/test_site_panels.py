"""Tests of the panels of the page of a site: failed and long lists, several fingers, and visits to zones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.demo_plans import FLOORS

if TYPE_CHECKING:
    from typing import Any

    from playwright.sync_api import Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess


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
