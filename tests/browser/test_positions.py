"""Tests of positions in the console: live on the plan, coverage, the card of a device, and the search."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import check_fits_width, wait_until, wait_until_connected
from tests.browser.demo_plans import plan_site

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.browser.demo_plans import PlanSite
    from tests.scenarios.service_process import ServiceProcess

_REPORTING_MS = 500


def _follow(page: Page, site: PlanSite, device: str, expected: re.Pattern[str]) -> None:
    """Let a device stay at the right end of the floor until its row says so."""
    row = page.get_by_role("group", name="Devices on this site").get_by_role("row").nth(1)

    def report() -> bool:
        site.receive(device, (18, 10))
        page.wait_for_timeout(_REPORTING_MS)
        return expected.search(row.inner_text()) is not None

    wait_until(page, report, f"a row with {expected.pattern}")


def test_a_moving_device_is_followed_by_live_events(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    with plan_site(demo, "Yard") as site:
        device = site.devices[0]
        site.receive(device, (2, 2))
        site.wait_for_positions(device)
        page = open_as(f"/sites/{site.site}?device=bmac-{device}", Role.VIEWER)
        wait_until_connected(page)
        row = page.get_by_role("group", name="Devices on this site").get_by_role("row").nth(1)
        expect(row).to_contain_text("Ground floor")
        browser_log.requests.clear()
        _follow(page, site, device, re.compile(r"\s1[4-9](\.\d)?\s"))
        asked = [each for each in browser_log.requests if f"/sites/{site.site}/positions" in each]
        assert asked == []
        # Dot, trail and card have the same newest position.
        card = page.get_by_role("region", name=row.get_by_role("rowheader").inner_text())

        def agree() -> bool:
            x, y = (row.get_by_role("cell").nth(index).inner_text() for index in (1, 2))
            return f"Ground floor, x {x} m, y {y} m" in card.inner_text()

        wait_until(page, agree, "one position in the list and in the card")


def test_coverage_is_said_in_words_and_per_class(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    with plan_site(demo, "Depot") as site:
        page = open_as(f"/sites/{site.site}?view=coverage", Role.VIEWER)
        main = page.get_by_role("main")
        expect(main).to_contain_text(
            re.compile(r"On \d+ % of the floor at least 3 anchors receive a device\.")
        )
        expect(main).to_contain_text(re.compile(r"Weakest at x [\d.]+ m, y [\d.]+ m, \d anchors?"))
        table = page.get_by_role("group", name="Share of the floor")
        expect(table.get_by_role("row")).to_have_count(5)
        page.get_by_role("button", name="Radius", exact=True).click()
        expect(page).to_have_url(re.compile("measure=radius"))
        expect(table).to_contain_text("Up to 3 m")
        page.get_by_label("Readings that count").select_option("Good")
        expect(page).to_have_url(re.compile("level=good"))
        expect(main).to_contain_text("From -70 dBm")
        plan = page.get_by_role("group", name=re.compile("^Plan of "))
        plan.click()
        expect(main).to_contain_text(re.compile(r"At x 1\d(\.\d)? m, y \d(\.\d)? m, "))
        expect(plan.locator("rect.cell")).to_have_count(1)
        page.get_by_label("x, m").fill("2")
        page.get_by_label("y, m").fill("3")
        expect(main).to_contain_text(re.compile(r"At x [12](\.\d)? m, y [23](\.\d)? m, "))
        page.get_by_label("y, m").fill("30")
        expect(main).to_contain_text("This place is not on the floor")
        expect(plan.locator("rect.cell")).to_have_count(0)
        check_fits_width(page, 390)
        assert find_violations_in_all_themes(page) == []
        page.get_by_role("link", name="Upper floor").click()
        expect(main).to_contain_text("of the floor at least 3 anchors receive")

        # The values of another level are not shown under the one that could not be loaded.
        wait_until_connected(page)
        browser_log.expect(500)
        failing = re.compile("/coverage")
        page.route(failing, lambda route: route.fulfill(status=500, json={"detail": "The disk is gone."}))
        page.get_by_label("Readings that count").select_option("Weak or better")
        expect(main.get_by_role("alert")).to_contain_text("The disk is gone.")
        expect(table).to_have_count(0)
        page.unroute(failing)
        page.get_by_role("button", name="Try again").click()
        expect(table).to_be_visible()


def test_a_device_page_has_its_place_and_position(open_as: Open, demo: ServiceProcess) -> None:
    with plan_site(demo, "Hangar") as site:
        near, quiet = site.devices[:2]
        site.receive(near, (5, 4))
        site.wait_for_positions(near)
        page = open_as(f"/devices/bmac-{near}", Role.OPERATOR)
        card = page.get_by_role("region", name="Position", exact=True)
        expect(card).to_contain_text(re.compile(r"Hangar.*Ground floor, x [\d.]+ m, y [\d.]+ m"))
        expect(card).to_contain_text(re.compile(r"Within [\d.]+ m in 90 % of cases"))
        expect(card.locator("circle.radius")).to_have_count(1)
        address = f"/sites/{site.site}?floor=0&device=bmac-{near}"
        expect(card.get_by_role("link", name="Floor plan")).to_have_attribute("href", address)
        check_fits_width(page, 390)
        assert find_violations_in_all_themes(page) == []

        page.goto(f"/devices/bmac-{site.anchors[0]}")
        expect(
            card.get_by_role("link", name=re.compile("Hangar.*Ground floor, x 1 m, y 1 m"))
        ).to_be_visible()
        expect(card).to_contain_text("It has this place")

        page.goto(f"/devices/bmac-{quiet}")
        expect(card).to_contain_text("Position unknown. No anchor has received the device")
        card.get_by_role("link", name=re.compile("Hangar|Choose a site")).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Hangar|Sites"))
        page.goto(f"/sites/{site.site}?view=anchors&place=bmac-{quiet}")
        expect(page.get_by_role("heading", name=re.compile("^Place of "))).to_be_visible()


def test_the_search_finds_sites_and_floors(open_as: Open, demo: ServiceProcess) -> None:
    floors = [
        {"floor": number, "name": name, "minX": 0, "minY": 0, "maxX": 9, "maxY": 9}
        for number, name in zip(count(), ("Lobby", "Attic of the archive"), strict=False)
    ]
    site = demo.call("POST", "/api/v1/sites", {"name": "Archive", "floors": floors})["id"]
    try:
        page = open_as("/labels", Role.VIEWER)
        page.get_by_role("button", name="Find a device, gateway, site, job or label").click()
        page.keyboard.type("archive")
        found = page.get_by_role("group", name="Sites and floors").get_by_role("option")
        names = [re.compile("Archive.*2 floors"), re.compile("Attic of the archive.*Archive")]
        expect(found).to_have_text(names)
        found.nth(1).click()
        expect(page).to_have_url(re.compile(rf"/sites/{site}\?floor=1$"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Archive")
    finally:
        demo.call("DELETE", f"/api/v1/sites/{site}")
