"""Tests of the device page: live values, name and labels."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import check_fits_width, visit, wait_until, watching_websockets
from tests.browser.device_page import TRACKER, measurements, newest_row

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Locator, Page, Route, WebSocket

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

GATEWAY = "bmac-02005e000001"
SILENT = "bmac-ca5bda1a000e"
"""Device with an empty battery, which never reported."""

UNKNOWN_DEVICE = "bmac-0200000000ff"
_PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
_RUNS_RIGHT = """(element, text) => {
  const words = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (words.nextNode() && !words.currentNode.data.includes(text));
  const start = words.currentNode.data.indexOf(text);
  const left = (place) => {
    const range = document.createRange();
    range.setStart(words.currentNode, place);
    range.setEnd(words.currentNode, place + 1);
    return range.getBoundingClientRect().left;
  };
  return left(start) < left(start + text.length - 1);
}"""
"""Whether a text on one line runs from left to right."""


def tile(page: Page, name: str) -> Locator:
    """Return the tile with the newest value of a measurement."""
    tiles = page.get_by_role("region", name="Latest values").get_by_role("listitem")
    return tiles.filter(has=page.get_by_role("heading", name=name)).locator("strong")


def newest_time(demo: ServiceProcess, device: str) -> str:
    """Return the time of the newest stored measurement of a device."""
    page = demo.call("GET", f"/api/v1/devices/{device}/samples?Kind=measurement&MaxResults=1")
    return str(page["items"][0]["time"])


class DelayedResponses:
    """Responses of the service that are held back from the page."""

    def __init__(self, page: Page, pattern: str) -> None:
        self.responses: list[tuple[Route, APIResponse]] = []
        self._is_over = False
        page.route(pattern, self._hold)

    def _hold(self, route: Route) -> None:
        if self._is_over:
            route.continue_()
        else:
            self.responses.append((route, route.fetch()))

    def release(self) -> None:
        """Deliver the held responses, and hold no further ones."""
        self._is_over = True
        for route, answer in self.responses:
            route.fulfill(response=answer)


def test_an_event_is_not_undone_by_an_older_response(open_as: Open, page: Page, demo: ServiceProcess) -> None:
    sent: list[str] = []
    received: list[str] = []

    def follow(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(str(frame)))
        socket.on("framereceived", lambda frame: received.append(str(frame)))

    address = f"/api/v1/devices/{SILENT}"
    before, name = demo.call("GET", address)["friendlyName"], str(uuid4())
    held = DelayedResponses(page, f"**{address}")
    with watching_websockets(page, follow):
        open_as(f"/devices/{SILENT}")
        wait_until(
            page, lambda: held.responses and any("subscribe" in each and SILENT in each for each in sent)
        )
    demo.call("PUT", f"{address}/friendly-name", {"name": name})
    try:
        wait_until(page, lambda: any(name in each for each in received))
        page.evaluate(_PAINTED)
        held.release()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
    finally:
        demo.call("PUT", f"{address}/friendly-name", {"name": before})
    expect(page.get_by_role("heading", level=1)).to_have_text(before)


def test_a_device_that_is_offline_says_why_and_what_to_do(
    open_as: Open, page: Page, demo: ServiceProcess
) -> None:
    open_as(f"/devices/{SILENT}", Role.OPERATOR)
    banner = page.get_by_role("region", name="What is wrong")
    reason = re.compile(r"Offline since .*\. The battery was at 0 % .*Replace the battery")
    expect(banner).to_contain_text(reason)
    assert banner.get_by_role("button").all_inner_texts() == ["Label for replacement", "Ask it now"]
    # What it needs first is no update.
    buttons = page.get_by_role("main").get_by_role("button").or_(page.get_by_role("link", name="Update…"))
    names = buttons.all_inner_texts()
    assert names.index("Rename") < names.index("Update…")
    check_fits_width(page, 320)

    # A device that answers, with the diagnosis of the other one.
    diagnosis = demo.call("GET", f"/api/v1/devices/{SILENT}/diagnosis")
    page.route("**/diagnosis", lambda route: route.fulfill(json=diagnosis))
    visit(page, f"/devices/{TRACKER}")
    expect(banner).to_contain_text(reason)
    banner.get_by_role("button", name="Ask it now").click()
    expect(banner).to_contain_text("It answered.")
    banner.get_by_role("button", name="Label for replacement").click()
    expect(banner.get_by_role("button", name="Labeled for replacement")).to_be_visible()
    page.get_by_role("button", name="Remove replace battery").click()
    expect(banner.get_by_role("button", name="Label for replacement")).to_be_visible()


@pytest.mark.part("long")
def test_values_update_until_the_user_pauses(open_as: Open, demo: ServiceProcess) -> None:
    page = open_as(f"/devices/{TRACKER}?range=15m", Role.VIEWER)
    measurements(page).get_by_role("button", name="Show as table").click()
    row = newest_row(page, "Temperature")
    expect(row.first).to_have_text(re.compile(r"\d{4}, \d\d:\d\d:\d\d$"))
    then, value = row.first.inner_text(), tile(page, "Temperature").inner_text()
    expect(row.first).not_to_have_text(then)
    expect(tile(page, "Temperature")).not_to_have_text(value)

    page.get_by_role("button", name="Pause live values").click()
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Paused")
    # The newest bucket of the chart contains the value of the tile.
    frozen = tile(page, "Temperature").inner_text()
    expect(row.nth(4)).to_have_text(frozen)
    moment = row.first.inner_text()
    previous = newest_time(demo, TRACKER)
    wait_until(page, lambda: newest_time(demo, TRACKER) != previous)
    assert (row.first.inner_text(), tile(page, "Temperature").inner_text()) == (moment, frozen)

    page.get_by_role("button", name="Resume live values").click()
    expect(row.first).not_to_have_text(moment)


@pytest.mark.part("long")
def test_live_samples_are_merged_with_history_and_with_charts_loading_meanwhile(
    open_as: Open, page: Page, demo: ServiceProcess
) -> None:
    past = f"/api/v1/devices/{TRACKER}/samples?Kind=measurement&Identifier=temperature"
    wait_until(page, lambda: len(demo.call("GET", past)["items"]) >= 4)
    held: list[Route] = []
    page.route("**/samples?Kind=measurement*", lambda route: held.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
    charts = DelayedResponses(page, "**/series?*")
    open_as(f"/devices/{TRACKER}?range=15m")
    wait_until(page, lambda: len(charts.responses) == 3)
    value = tile(page, "Temperature").inner_text()
    expect(tile(page, "Temperature")).not_to_have_text(value)
    page.get_by_role("button", name="Pause live values").click()
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Paused")
    for each in held:
        each.continue_()
    tiles = page.get_by_role("region", name="Latest values").get_by_role("listitem")
    line = tiles.filter(has=page.get_by_role("heading", name="Temperature")).locator("path.line").last
    expect(line).to_have_attribute("d", re.compile("L.*L.*L"))
    # The charts contain samples received while they were loading.
    charts.release()
    measurements(page).get_by_role("button", name="Show as table").click()
    expect(newest_row(page, "Temperature").nth(4)).to_have_text(tile(page, "Temperature").inner_text())


def test_operators_rename_and_label_a_device(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    # A viewer is offered no changes.
    page = open_as(f"/devices/{SILENT}", Role.VIEWER)
    expect(page.get_by_text("No measurement has been reported yet")).to_be_visible()
    expect(page.get_by_role("list", name="Labels")).to_contain_text("floor 0")
    for name in ("Rename", "Add label", "More actions", "Remove floor 0"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)

    browser_log.expect(400)
    open_as(f"/devices/{SILENT}", Role.OPERATOR)
    heading = page.get_by_role("heading", level=1)
    before = demo.call("GET", f"/api/v1/devices/{SILENT}")["friendlyName"]
    expect(heading).to_have_text(before)
    name, label = f"<b>{uuid4()}</b>", f"a/b {uuid4()}"

    def rename(text: str) -> None:
        page.get_by_role("button", name="Rename").click()
        page.get_by_label("Name", exact=True).fill(text)
        page.get_by_role("button", name="Save name").click()

    rename("   ")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(
        "name: has 0 characters; 1 to 128 are allowed"
    )
    page.keyboard.press("Escape")
    rename(name)
    expect(heading).to_have_text(name)
    assert demo.call("GET", f"/api/v1/devices/{SILENT}")["friendlyName"] == name
    rename(before)
    expect(heading).to_have_text(before)

    page.get_by_role("button", name="Add label").click()
    page.get_by_label("Label", exact=True).fill(label)
    page.get_by_role("button", name=f"Create “{label}”").click()
    labels = page.get_by_role("list", name="Labels")
    expect(labels.get_by_text(label)).to_be_visible()
    assert label in demo.call("GET", f"/api/v1/devices/{SILENT}")["labels"]
    labels.get_by_role("button", name=f"Remove {label}").dblclick()
    expect(labels.get_by_text(label)).to_have_count(0)
    expect(page.get_by_text(f"Label “{label}”:")).to_have_count(0)
    assert label not in demo.call("GET", f"/api/v1/devices/{SILENT}")["labels"]


def test_a_claimed_gateway_cannot_be_deleted_and_an_unknown_device_is_not_found(
    open_as: Open, browser_log: BrowserLog
) -> None:
    page = open_as(f"/devices/{GATEWAY}")
    expect(page.get_by_role("link", name="Open gateway")).to_have_attribute("href", "/gateways/02005e000001")
    expect(page.get_by_role("button", name="Rename")).to_be_visible()
    expect(page.get_by_role("button", name="More actions")).to_have_count(0)

    browser_log.expect(404)
    visit(page, f"/devices/{UNKNOWN_DEVICE}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Device not found")
    page.get_by_role("link", name="Back to the devices").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Devices")


def test_bidi_characters_in_a_name_do_not_affect_other_text(open_as: Open, page: Page) -> None:
    def rename(route: Route) -> None:
        """Respond like a service that stored such a name before they were refused."""
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"friendlyName": "Ward 7 \u2069\u202e pump"})

    page.route(f"**/api/v1/devices/{SILENT}", rename)
    open_as(f"/devices/{SILENT}?tab=properties")
    page.get_by_role("combobox", name="Property").fill("tx-power")
    page.keyboard.press("Escape")
    page.get_by_label("Value to write, in dBm").fill("-8")
    page.get_by_role("button", name="Write…").click()
    dialog = page.get_by_role("dialog")
    assert "\u202e" in dialog.inner_text()
    assert dialog.evaluate(_RUNS_RIGHT, "CA:5B:DA:1A:00:0E")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("button", name="Forget device…").click()
    assert dialog.evaluate(_RUNS_RIGHT, "will be removed")


def test_a_page_with_a_script_error_shows_it(open_as: Open, page: Page, browser_log: BrowserLog) -> None:
    browser_log.expect("TypeError")
    address = "**/connectivity?*"
    page.route(address, lambda route: route.fulfill(json={"items": [None], "nextToken": None}))
    open_as(f"/devices/{GATEWAY}")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Something went wrong")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Labels").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.go_back()
    expect(alert).to_contain_text("Something went wrong")
    page.unroute(address)
    alert.get_by_role("button", name="Reload").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Head office")
