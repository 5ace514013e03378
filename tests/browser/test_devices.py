"""Tests of the device list: filters in the URL, and live updates of visible rows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import (
    horizontal_overflow,
    wait_for_responses,
    wait_until,
    wait_until_connected,
    watching_websockets,
)
from tests.browser.device_list import list_queries, names, page_queries, rows, search_box, visible_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import APIResponse, Page, Route, ViewportSize, WebSocket

    from tests.browser.browser_log import BrowserLog
    from tests.scenarios.service_process import ServiceProcess

    Open = Callable[..., Page]

SMALL: ViewportSize = {"width": 1280, "height": 560}
"""Viewport with few rows of the demo fleet, so that the list scrolls."""

_TYPE = """(input, texts) => {
  for (const text of texts) {
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
}"""
"""Types texts within one task, so that no response arrives between two of them."""


def test_a_filter_changes_rows_url_and_count_and_rows_stay_when_loading_fails(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog, total: int
) -> None:
    page = open_as("/devices")
    expect(page.get_by_text(f"{total} devices")).to_be_visible()
    expect(rows(page).first).to_be_visible()
    before = names(page)
    offline = demo.call("GET", "/api/v1/devices/summary?Label=gateways")["total"]
    page.get_by_role("button", name="Label", exact=True).click()
    page.get_by_role("button", name=re.compile(f"gateways.*{offline}")).click()
    expect(page).to_have_url(re.compile(r"\?Label=gateways$"))
    expect(page.get_by_text(f"{offline} devices match")).to_be_visible()
    expect(rows(page)).to_have_count(offline)
    page.go_back()
    expect(page).to_have_url(re.compile("/devices$"))
    expect(page.get_by_text(f"{total} devices")).to_be_visible()
    wait_until(page, lambda: names(page) == before)  # rows and their number are loaded one after the other
    page.go_forward()
    expect(rows(page)).to_have_count(offline)
    page.get_by_role("button", name="Remove filter: Label: gateways").click()
    expect(page).to_have_url(re.compile("/devices$"))
    expect(page.get_by_text(f"{total} devices")).to_be_visible()

    # Models are shown by name and number.
    told = demo.call("GET", "/api/v1/catalogue")["products"]
    shares = demo.call("GET", "/api/v1/devices/summary")["models"]
    model = next(each["value"] for each in shares if each["value"] != "0000")
    name = next(each["name"] for each in told if each["modelNumber"] == model and each["variant"] is None)
    page.get_by_role("button", name="Model", exact=True).click()
    page.get_by_role("button", name=f"{name} · {model}").click()
    chips = page.get_by_role("list", name="Active filters")
    expect(chips).to_contain_text(f"Model: {name} · {model}")
    expect(page).to_have_url(re.compile(f"ModelNumber={model}"))
    page.go_back()
    expect(page).to_have_url(re.compile("/devices$"))
    expect(page.get_by_text(f"{total} devices")).to_be_visible()

    # Rows stay when the list cannot be loaded.
    wait_until(page, lambda: names(page) == before)
    browser_log.expect("net::ERR_FAILED")
    failing = re.compile("/api/v1/devices.*Label=extenders")
    page.route(failing, lambda route: route.abort())
    page.get_by_role("button", name="Label", exact=True).click()
    page.get_by_role("button", name=re.compile("extenders")).click()
    page.keyboard.press("Escape")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The service did not answer.")
    kept = names(page)  # perhaps fewer are rendered, as the error takes some space
    assert kept == before[: len(kept)]
    assert len(kept) > 10
    expect(page.get_by_text(re.compile(f"devices match|{total} devices"))).to_have_count(0)
    page.unroute(failing)
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("12 devices match")).to_be_visible()
    expect(rows(page)).to_have_count(12)
    expect(alert).to_have_count(0)


def test_rows_change_in_place_and_sort_order_and_columns_are_in_the_url(
    open_as: Open, demo: ServiceProcess
) -> None:
    # A response that arrives late does not undo an event.
    page = open_as("/devices?Label=extenders")
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Live")
    expect(rows(page)).to_have_count(12)
    device = visible_ids(page)[2]
    link = page.get_by_role("table").locator(f'a[href="/devices/{device}"]')
    old, new = link.inner_text(), f"zz {uuid4()}"
    held: list[tuple[Route, APIResponse]] = []
    page.route(re.compile("Sort=friendlyName"), lambda route: held.append((route, route.fetch())))
    page.get_by_role("columnheader", name="Device").get_by_role("button").click()
    wait_until(page, lambda: held)
    demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": new})
    try:
        expect(link).to_have_text(new)
        for route, answer in held:
            route.fulfill(response=answer)
        expect(page.get_by_role("table")).to_have_attribute("aria-busy", "false")
        expect(page.get_by_text("12 devices match")).to_be_visible()
        expect(link).to_have_text(new)
    finally:
        demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": old})
    expect(link).to_have_text(old)
    page.unroute_all()

    # A row changes in place, although it now belongs elsewhere in the sort order.
    row = page.locator('tr[aria-rowindex="4"]').get_by_role("rowheader").get_by_role("link")
    old, others = row.inner_text(), names(page)
    device, new = visible_ids(page)[2], f"zz {uuid4()}"
    demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": new})
    try:
        expect(row).to_have_text(new)
        others[2] = new
        assert names(page) == others
    finally:
        demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": old})
    expect(row).to_have_text(old)
    _check_columns(page)


def _check_columns(page: Page) -> None:
    """Check that sort order and columns survive a reload."""
    head = page.get_by_role("columnheader", name="Device")
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page).to_have_url(re.compile("Sort=friendlyName"))
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("checkbox", name="Battery").uncheck()
    page.get_by_role("checkbox", name="Hardware").check()
    expect(page.get_by_role("columnheader", name="Battery")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("columnheader", name="Hardware")).to_be_visible()
    expect(page.get_by_role("columnheader", name="Battery")).to_have_count(0)
    expect(page.get_by_role("columnheader", name="Device")).to_have_attribute("aria-sort", "ascending")

    # A click anywhere in a row opens it, except near its checkbox.
    row = rows(page).first
    expect(row).to_be_visible()
    device = visible_ids(page)[0]
    row.get_by_role("cell").first.click(position={"x": 2, "y": 2})
    expect(page).to_have_url(re.compile("Label=extenders"))
    row.get_by_role("cell").last.click()
    expect(page).to_have_url(re.compile(f"/devices/{device}$"))


def test_reload_and_back_restore_the_position(open_as: Open, page: Page) -> None:
    page.set_viewport_size(SMALL)
    open_as("/devices?Sort=-id&Label=floor+0")
    region = page.get_by_role("region", name="Devices")
    expect(rows(page).first).to_be_visible()
    region.evaluate("region => region.scrollTo(0, 1200)")
    page.wait_for_function("() => history.state?.devices?.top === 1200")
    row = page.locator('tr[aria-rowindex="30"]')
    expect(row).to_be_visible()
    name = row.get_by_role("rowheader").inner_text()
    row.get_by_role("rowheader").get_by_role("link").click()
    expect(page).to_have_url(re.compile("/devices/bmac-"))
    page.go_back()
    expect(row.get_by_role("rowheader")).to_have_text(name, use_inner_text=True)
    wait_until(page, lambda: region.evaluate("region => region.scrollTop") == 1200)
    page.reload()
    expect(row.get_by_role("rowheader")).to_have_text(name, use_inner_text=True)
    wait_until(page, lambda: region.evaluate("region => region.scrollTop") == 1200)
    expect(page.get_by_role("button", name="Remove filter: Label: floor 0")).to_be_visible()


def test_a_position_beyond_the_largest_page_is_restored(open_as: Open, page: Page, total: int) -> None:
    page.set_viewport_size(SMALL)
    open_as("/devices?Sort=-id")
    region = page.get_by_role("region", name="Devices")
    expect(page.get_by_text(f"{total} loaded")).to_be_visible()
    region.evaluate("region => region.scrollTo(0, 2000)")
    page.wait_for_function("() => history.state?.devices?.top === 2000")
    few = re.compile(r"/api/v1/devices\?.*MaxResults=\d+")
    page.route(
        few, lambda route: route.continue_(url=re.sub(r"MaxResults=\d+", "MaxResults=20", route.request.url))
    )
    page.reload()
    expect(page.get_by_text(f"{total} loaded")).to_be_visible()
    wait_until(page, lambda: region.evaluate("region => region.scrollTop") == 2000)


def test_the_newest_search_wins(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as("/devices")
    expect(rows(page).first).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile("FriendlyName=Minew"), hold)
    search_box(page).evaluate(_TYPE, ["M", "Mi", "Min", "Minew"])
    expect(page.get_by_text("Counting…")).to_be_visible()
    page.wait_for_function("() => location.search.includes('Minew')")
    search_box(page).fill("Wristband")
    expect(rows(page).first).to_contain_text("Wristband")
    for route in held:
        route.continue_()
    expect(page.get_by_text(re.compile("devices match"))).to_be_visible()
    assert all("Wristband" in name for name in names(page))
    searches = [name for query in list_queries(browser_log) for name in query.get("FriendlyName", ())]
    assert searches == ["Minew", "Wristband"]
    # A search for a MAC, as printed on devices, finds the device.
    search_box(page).fill("02:00:5E:00:00:01")
    expect(rows(page)).to_have_count(1)
    assert visible_ids(page) == ["bmac-02005e000001"]
    assert parse_qs(urlsplit(page.url).query) == {"Ids": ["bmac-02005e000001"]}


@pytest.mark.usefixtures("own_window")
def test_rows_in_another_order_stay_subscribed_and_leaving_stops_counting(
    open_as: Open, page: Page, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    page.clock.install()
    open_as("/devices?Label=extenders")
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Live")
    expect(rows(page)).to_have_count(12)
    before = visible_ids(page)
    page.get_by_role("columnheader", name="Device").get_by_role("button").click()
    wait_until(page, lambda: visible_ids(page) != before)
    device = visible_ids(page)[2]
    # The new subscription starts once the rows have settled, and the old one ends a moment later.
    page.clock.fast_forward(1000)
    page.clock.fast_forward(1000)
    link = page.get_by_role("table").locator(f'a[href="/devices/{device}"]')
    old, new = link.inner_text(), f"zz {uuid4()}"
    demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": new})
    try:
        expect(link).to_have_text(new)
    finally:
        demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": old})

    # Leaving the page during a count stops counting.
    page.get_by_role("navigation").get_by_role("link", name="Labels").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    wait_for_responses(page, browser_log)
    browser_log.requests.clear()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/devices/summary*", hold)
    page.get_by_role("navigation").get_by_role("link", name="Devices").click()
    wait_until(page, lambda: held)
    page.get_by_role("navigation").get_by_role("link", name="Labels").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.unroute("**/devices/summary*")
    for _ in range(10):
        page.clock.run_for(5000)
    assert sum("/devices/summary" in each for each in browser_log.requests) == 1


def test_only_visible_rows_are_subscribed_to(
    open_as: Open, page: Page, browser_log: BrowserLog, total: int
) -> None:
    told: list[dict[str, Any]] = []

    def follow(socket: WebSocket) -> None:
        told.clear()
        socket.on("framesent", lambda frame: told.append(json.loads(frame)))

    def list_subscribed() -> list[str]:
        heard = [each["subscribe"] for each in told if "subscribe" in each]
        ended = [each["unsubscribe"] for each in told if "unsubscribe" in each]
        left = [each for each in heard if each not in ended and "Ids" in each]
        assert all(each["Types"] == ["device"] for each in left)
        return [device for each in left for device in each["Ids"]]

    page.set_viewport_size(SMALL)
    with watching_websockets(page, follow):
        open_as("/healthz")
        page.goto("/devices")
        expect(page.get_by_text(f"{total} devices")).to_be_visible()
        wait_until(page, lambda: list_subscribed() == visible_ids(page))
        assert 0 < len(list_subscribed()) < 12
        assert len(page_queries(browser_log)) == 1
        first = list_subscribed()
        page.get_by_role("region", name="Devices").evaluate("region => region.scrollTo(0, 1500)")
        wait_until(
            page, lambda: not set(first) & set(list_subscribed()) and list_subscribed() == visible_ids(page)
        )
        assert rows(page).count() < 40


def test_a_list_that_was_never_loaded_shows_the_error_in_place_of_rows(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(500)
    page.route("**/api/v1/devices?*", lambda route: route.fulfill(status=500, json={"detail": "on fire"}))
    open_as("/devices")
    alert = page.get_by_role("alert").filter(has_text="on fire")
    # It is loaded again when the connection is established.
    wait_until_connected(page)
    wait_for_responses(page, browser_log)
    expect(alert).to_have_count(1)
    head = page.get_by_role("region", name="Devices").locator("thead").bounding_box()
    box = alert.bounding_box()
    assert head
    assert box
    assert box["y"] < head["y"] + head["height"] + 40
    page.unroute("**/api/v1/devices?*")
    alert.get_by_role("button", name="Try again").click()
    expect(rows(page).first).to_be_visible()


def test_a_viewer_changes_nothing_and_slightly_old_counts_are_not_approximate(
    open_as: Open, page: Page, total: int
) -> None:
    def mark_inexact(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "exact": False})

    page.route("**/devices/summary*", mark_inexact)
    open_as("/devices", Role.VIEWER)
    expect(page.get_by_text(re.compile(f"^{total} devices · "))).to_be_visible()

    # A viewer is offered no changes.
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_text(f"{total} devices")).to_be_visible()
    expect(page.get_by_role("button", name="Account: viewer")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_have_count(0)
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("region", name="Selected devices")).to_have_count(0)
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(keys).to_contain_text("Next device")
    expect(keys).not_to_contain_text("Select or deselect the device")


def test_markup_in_a_name_is_shown_as_text(open_as: Open, page: Page, demo: ServiceProcess) -> None:
    device = "bmac-02005e000004"
    old = demo.call("GET", f"/api/v1/devices/{device}")["friendlyName"]
    start = "<img src=x onerror=alert(1)>\u0645\u0631\u062d\u0628\u0627 "
    hostile = start + "W" * (128 - len(start))
    demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": hostile})
    try:
        page.set_viewport_size({"width": 390, "height": 844})
        open_as("/devices")
        link = page.get_by_role("link", name=hostile)
        expect(link).to_be_visible()
        assert page.get_by_role("table").locator("img").count() == 0
        assert horizontal_overflow(page) == 0
        heights = rows(page).evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
        assert set(heights) == {48}
    finally:
        demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": old})
