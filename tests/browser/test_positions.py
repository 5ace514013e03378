"""Tests of positions in the console: live on the plan, coverage, the card of a device, and the search."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.protocol.times import format_millis
from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import check_fits_width, wait_for_responses, wait_until, wait_until_connected
from tests.browser.demo_plans import ANCHOR_PLACES, FLOORS, plan_site
from tests.browser.floor_map import to_pixels

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page, Route, WebSocketRoute

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


@pytest.mark.part("long")
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


def _limit_events(page: Page, device: str) -> Callable[[], None]:
    """Deliver positions of one device only. Return a function that tells the page that it missed events."""
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        server = socket.connect_to_server()
        server.on_message(lambda frame: deliver(socket, frame))

    def deliver(socket: WebSocketRoute, frame: str | bytes) -> None:
        event = json.loads(frame)
        # The response to a ping has no type.
        if event.get("type") != "position" or event["data"]["device"] == f"bmac-{device}":
            socket.send(frame)

    page.route_web_socket("**/api/v1/live", connect)
    missed = json.dumps({"id": "x", "type": "resync", "time": "", "data": {}})
    return lambda: sockets[-1].send(missed)


@pytest.mark.part("long")
@pytest.mark.usefixtures("own_window")
def test_the_list_tells_who_fell_silent_left_or_is_on_another_floor(
    open_as: Open, page: Page, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    with plan_site(demo, "Barn") as site:
        moving, silent, upstairs = (f"bmac-{mac}" for mac in site.devices)
        left: set[str] = set()
        minutes = {silent: 4}

        def change_positions(route: Route) -> None:
            positions = route.fetch().json()
            items = {each["device"]: each for each in positions["items"] if each["device"] not in left}
            items[silent]["time"] = _format_age(minutes=minutes[silent])
            items[upstairs]["floor"] = 1
            route.fulfill(json={**positions, "items": list(items.values())})

        for mac, place in zip(site.devices, ((2, 2), (5, 4), (15, 8)), strict=True):
            site.receive(mac, place)
        site.wait_for_positions(*site.devices)
        report_missed_events = _limit_events(page, site.devices[0])
        page.route(f"**/sites/{site.site}/positions", change_positions)
        open_as(f"/sites/{site.site}", Role.VIEWER)
        wait_until_connected(page)
        list_group = page.get_by_role("group", name="Devices on this site")
        rows = list_group.locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.filter(has_text="Stale")).to_have_count(1)
        expect(rows.nth(1)).to_contain_text("Stale")
        expect(page.get_by_role("main")).to_contain_text("Hollow dots and stale rows: no reading")
        page.get_by_role("button", name="This floor").click()
        expect(page).to_have_url(re.compile("rows=floor"))
        expect(rows).to_have_count(2)
        page.get_by_role("link", name="Upper floor").click()
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="All floors").click()
        page.get_by_role("link", name="Ground floor").click()
        assert find_violations_in_all_themes(page) == []

        # A device that has sent events is removed when the service no longer lists it, and any by its age.
        _follow(page, site, site.devices[0], re.compile(r"\s1[4-9](\.\d)?\s"))
        left.add(moving)
        minutes[silent] = 16
        report_missed_events()
        expect(rows).to_have_count(1)

        # What others have changed is loaded too.
        page.get_by_role("link", name="Anchors", exact=True).click()
        anchor = page.get_by_role("group", name="Placed devices").locator("tbody tr").first
        expect(anchor.get_by_role("cell").nth(1)).to_have_text("1")
        places = [{"device": f"bmac-{site.anchors[0]}", "floor": 0, "x": 2.5, "y": 1}]
        demo.call("POST", f"/api/v1/sites/{site.site}/places", {"places": places})
        report_missed_events()
        expect(anchor.get_by_role("cell").nth(1)).to_have_text("2.5")
        wait_for_responses(page, browser_log)


def _format_age(*, minutes: int) -> str:
    """Return the time of some minutes ago, as the service formats it."""
    then = datetime.now(UTC) - timedelta(minutes=minutes)
    return format_millis(int(then.timestamp() * 1000))


def test_readings_are_shown_for_the_pointer_and_the_focus(open_as: Open, demo: ServiceProcess) -> None:
    with plan_site(demo, "Mill") as site:
        device = site.devices[0]
        site.receive(device, (5, 4))
        site.wait_for_positions(device)
        page = open_as(f"/sites/{site.site}", Role.VIEWER)
        preview = page.get_by_role("group", name="Readings of the device that is pointed at")
        link = page.get_by_role("group", name="Devices on this site").get_by_role("link")
        link.focus()
        expect(preview.get_by_role("listitem")).to_have_count(len(ANCHOR_PLACES))
        where = re.compile(r"Ground floor, x [\d.]+ m, y [\d.]+ m\s+\(± [\d.]+ m\)\s.*-\d+ dBm")
        expect(preview).to_contain_text(where)
        assert find_violations_in_all_themes(page) == []
        page.keyboard.press("Escape")
        expect(preview).to_have_count(0)

        found = demo.call("GET", f"/api/v1/sites/{site.site}/positions")["items"][0]
        page.mouse.move(*to_pixels(page, found["x"], found["y"]))
        expect(preview.get_by_role("listitem")).to_have_count(len(ANCHOR_PLACES))
        page.mouse.move(*to_pixels(page, 19, 11))
        expect(preview).to_have_count(0)

        # On another site, the floors of this one say nothing.
        other = demo.call("POST", "/api/v1/sites", {"name": "Annex", "floors": FLOORS})["id"]
        try:
            _move_to_site(page, other)
            link.click()
            card = page.get_by_role("region", name=link.inner_text())
            expect(card.get_by_role("link", name="Annex")).to_have_attribute(
                "href", f"/sites/{other}?floor=0&device=bmac-{device}"
            )
            expect(card).not_to_contain_text("Ground floor")
            expect(card.get_by_role("group", name="Readings used")).to_have_count(0)
        finally:
            demo.call("DELETE", f"/api/v1/sites/{other}")


def _move_to_site(page: Page, site: str) -> None:
    """Let the position of every device be on another site."""

    def answer(route: Route) -> None:
        body = route.fetch().json()
        body["position"]["site"] = site
        route.fulfill(json=body)

    page.route("**/api/v1/devices/*/position", answer)


def test_playback_shows_nothing_but_the_past_of_one_device(open_as: Open, demo: ServiceProcess) -> None:
    with plan_site(demo, "Shed") as site:
        played, other = site.devices[:2]
        ago = timedelta(days=3)
        site.receive(played, (15, 8), age_seconds=int(ago.total_seconds()))
        for mac, place in ((played, (5, 4)), (other, (15, 4))):
            site.receive(mac, place)
        site.wait_for_positions(played, other)
        page = open_as(f"/sites/{site.site}?device=bmac-{played}", Role.VIEWER)
        main = page.get_by_role("main")
        expect(main).to_contain_text(re.compile(r"Within [\d.]+ m in 90 % of cases"))
        until = datetime.now().astimezone() - ago + timedelta(minutes=3)
        page.get_by_label("Until").fill(until.strftime("%Y-%m-%dT%H:%M"))
        expect(page).to_have_url(re.compile("playback=1h&until=20"))
        slider = page.get_by_role("slider", name="Time of the position")
        past = re.compile(r"Ground floor, x 1[1-9](\.\d)? m")
        expect(slider).to_have_attribute("aria-valuetext", past)
        expect(main).not_to_contain_text("in 90 % of cases")
        expect(main).to_contain_text(past)
        # Dots that are not drawn cannot be selected.
        items = demo.call("GET", f"/api/v1/sites/{site.site}/positions")["items"]
        hidden = next(each for each in items if each["device"] == f"bmac-{other}")
        page.mouse.click(*to_pixels(page, hidden["x"], hidden["y"]))
        expect(page).to_have_url(re.compile(f"device=bmac-{played}&playback=1h"))
        assert find_violations_in_all_themes(page) == []

        # The plan goes with the device to another floor.
        page.route("**/api/v1/devices/*/positions?*", _move_upstairs)
        page.get_by_role("button", name="6 h", exact=True).click()
        expect(page.get_by_role("group", name=re.compile("^Plan of Upper floor"))).to_be_visible()
        expect(page).to_have_url(re.compile("floor=1"))
        page.get_by_role("button", name="End playback").click()
        expect(main).to_contain_text("in 90 % of cases")
        assert "until" not in page.url


def _move_upstairs(route: Route) -> None:
    """Let past positions be on the upper floor."""
    body = route.fetch().json()
    for each in body["items"]:
        each["floor"] = 1
    route.fulfill(json=body)


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


@pytest.mark.part("long")
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


def _put_behind_an_empty_page(route: Route) -> None:
    """Answer a request for sites as if the real ones were on the second page."""
    url, token, _ = route.request.url.partition("&NextToken=")
    if token:
        route.continue_(url=url)
    else:
        route.fulfill(json={"items": [], "nextToken": "second"})


def test_the_search_finds_sites_and_floors(open_as: Open, demo: ServiceProcess) -> None:
    floors = [
        {"floor": number, "name": name, "minX": 0, "minY": 0, "maxX": 9, "maxY": 9}
        for number, name in zip(count(), ("Lobby", "Attic of the archive"), strict=False)
    ]
    site = demo.call("POST", "/api/v1/sites", {"name": "Archive", "floors": floors})["id"]
    try:
        page = open_as("/labels", Role.VIEWER)
        page.route("**/api/v1/sites?*", _put_behind_an_empty_page)
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
