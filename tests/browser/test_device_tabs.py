"""Tests of the device tabs: properties, request history, and events."""

from __future__ import annotations

import json
import re
from copy import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import REMOTE_HOSTNAME, check_fits_width, visit, wait_until, wait_until_loaded
from tests.browser.demo_gateways import connected_gateway, new_mac
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext, Locator, Page, Route, WebSocketRoute

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage

EXTENDER = "bmac-ca5bda1a0016"
SENSOR = "bmac-ca5bda1a0004"
SILENT = "bmac-ca5bda1a000e"
"""Device with an empty battery."""
ORDERED = "bmac-02005e000004"
"""Gateway that was never connected."""
TRACKER = "bmac-ca5bda190006"
"""Device that often reports motion events."""

PROPERTY = "tx-power"
TOOK = re.compile(r"^\d[\d,]* ms$")
WIDTHS = (390, 768, 1440)


def _build_path(device: str, name: str) -> str:
    return f"/devices/{device}?tab={name}"


def _open_tab(page: Page, name: str) -> None:
    """Open a tab of the current device page."""
    link = page.get_by_role("link", name=name, exact=True)
    link.click()
    expect(link).to_have_attribute("aria-current", "page")


def _read_property(page: Page, what: str = PROPERTY) -> Locator:
    """Read a property with the panel and return the element with the outcome."""
    box = page.get_by_role("combobox", name="Property")
    box.fill(what)
    box.press("Escape")
    page.get_by_role("button", name="Read", exact=True).click()
    return page.get_by_role("region", name="Outcome")


def test_a_read_shows_value_time_and_route_and_works_by_keyboard(open_as: Open) -> None:
    page = open_as(_build_path(SENSOR, "properties"), Role.OPERATOR)
    outcome = _read_property(page)
    expect(outcome.get_by_text(re.compile(r"^-?\d+ dBm$"))).to_be_visible()
    expect(outcome.get_by_text(TOOK)).to_be_visible()
    hops = outcome.get_by_role("list", name="Route").get_by_role("listitem")
    expect(hops.first).to_contain_text("Head office")
    expect(hops.last).to_contain_text("This device")
    expect(outcome).to_contain_text("Through Head office")
    expect(outcome.get_by_role("heading", name=PROPERTY)).to_be_visible()
    # The outcome disappears: beside another property it would be mistaken for its value.
    page.get_by_role("button", name="Read battery-level").click()
    expect(page.get_by_role("combobox", name="Property")).to_have_value("battery-level")
    expect(outcome).to_have_count(0)

    # By keyboard.
    box = page.get_by_role("combobox", name="Property")
    box.fill("")
    page.locator("main").focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if box.evaluate("element => element === document.activeElement"):
            break
    page.keyboard.type("battery")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option", name="battery-level")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(box).to_have_value("battery-level")
    expect(page.get_by_role("listbox")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(outcome.get_by_text(re.compile(r"^\d+ %$"))).to_be_visible()


def test_a_read_works_without_tls(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], demo: ServiceProcess
) -> None:
    elsewhere = copy(demo)
    elsewhere.url = demo.url.replace("127.0.0.1", REMOTE_HOSTNAME)
    page = make_window(elsewhere)[0].new_page()
    page.goto(_build_path(SENSOR, "properties"))
    page.get_by_label("User name").fill(Role.OPERATOR)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    outcome = _read_property(page)
    assert not page.evaluate("isSecureContext")
    expect(outcome.get_by_text(re.compile(r"^-?\d+ dBm$"))).to_be_visible()


def test_a_route_may_contain_a_loop(open_as: Open, demo: ServiceProcess) -> None:
    def answer(asked: IncomingRequest) -> list[OutgoingMessage]:
        way = "ca5bda1a0002-ca5bda1a0003-ca5bda1a0002"
        return (
            [asked.build_response(value="64", responseTime=3, origin=0, route=way)]
            if "/read/" in asked.topic
            else []
        )

    with new_mac(demo) as mac, connected_gateway(demo, mac, demo.claim(mac).password, answer):
        page = open_as(_build_path(f"bmac-{mac}", "properties"), Role.OPERATOR)
        outcome = _read_property(page, "8100")
        expect(outcome.get_by_role("list", name="Route").get_by_role("listitem")).to_have_count(4)
        expect(outcome).to_contain_text("64")


def test_a_request_with_a_lost_response_is_retried_and_executed_once(
    open_as: Open, page: Page, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    browser_log.expect("net::ERR_FAILED")
    keys: list[str] = []
    lookups: list[str] = []

    def drop_response(route: Route) -> None:
        if route.request.method == "POST":
            keys.append(route.request.headers["idempotency-key"])
            if len(keys) == 1:
                route.fetch()
                return route.abort()
        return route.continue_()

    def drop_first_lookup(route: Route) -> None:
        lookups.append(route.request.url)
        if len(lookups) == 1:
            route.abort()
        else:
            route.continue_()

    asked = f"/api/v1/devices/{SENSOR}/requests"
    before = {each["id"] for each in demo.call("GET", asked)["items"]}
    page.route(f"**{asked}", drop_response)
    page.route("**/api/v1/requests/*", drop_first_lookup)
    outcome = _read_property(open_as(_build_path(SENSOR, "properties"), Role.OPERATOR))
    expect(outcome.get_by_text(re.compile(r"^-?\d+ dBm$"))).to_be_visible()
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(lookups) > 1
    assert len({each["id"] for each in demo.call("GET", asked)["items"]} - before) == 1


def test_a_write_is_confirmed_read_back_and_listed_in_the_history(
    open_as: Open, demo: ServiceProcess
) -> None:
    page = open_as(_build_path(EXTENDER, "properties"), Role.OPERATOR)
    requests = f"/api/v1/devices/{EXTENDER}/requests"
    before = demo.call("POST", requests, {"operation": "read-decoded", "identifier": PROPERTY})["value"]
    wanted = -8 if before != -8 else -12
    try:
        _read_property(page)
        page.get_by_label("Value to write, in dBm").fill("99")
        page.get_by_role("button", name="Write…").click()
        expect(page.get_by_text("Enter a number from -40 to 8.")).to_be_visible()
        page.get_by_label("Value to write, in dBm").fill(str(wanted))
        page.get_by_role("button", name="Write…").click()
        dialog = page.get_by_role("dialog", name=f"Write {PROPERTY}?")
        expect(dialog).to_contain_text(f"{wanted} dBm")
        expect(dialog).to_contain_text("CA:5B:DA:1A:00:16")
        dialog.get_by_role("button", name="Write").click()
        expect(page.get_by_role("region", name="Outcome")).to_contain_text(f"{wanted} dBm was written")
        row = page.get_by_role("row", name=PROPERTY)
        expect(row).to_contain_text("As written")
        expect(row).to_contain_text(f"{wanted} dBm")
        changes = demo.call("GET", "/api/v1/audit")["items"]
        audited = {(each["actor"], each["action"], each["target"]) for each in changes}
        assert ("operator", "request.write-decoded", EXTENDER) in audited
        _open_tab(page, "History")
        written = page.get_by_role("row").filter(has_text="Write").filter(has_text=f"{wanted} dBm").first
        for text in ("operator", PROPERTY, "Done", "Head office"):
            expect(written).to_contain_text(text)
        written.get_by_role("button", name="Details of Write").click()
        expect(page.get_by_role("region", name="Request", exact=True)).to_contain_text("write-decoded")
        expect(page.get_by_role("region", name="Response", exact=True)).to_contain_text("responseTime")
    finally:
        demo.call("POST", requests, {"operation": "write-decoded", "identifier": PROPERTY, "value": before})


def test_requests_of_an_api_key_name_it_even_after_it_was_revoked(
    open_as: Open, demo: ServiceProcess
) -> None:
    key = demo.call("POST", "/api/v1/api-keys", {"name": "lift", "role": "operator"})
    requests = f"{demo.url}/api/v1/devices/{EXTENDER}/requests"
    asked = {"operation": "read-decoded", "identifier": PROPERTY}
    httpx.post(requests, json=asked, headers={"Authorization": f"Bearer {key['key']}"}).raise_for_status()
    demo.call("DELETE", f"/api/v1/api-keys/{key['id']}")
    page = open_as(_build_path(EXTENDER, "history"))
    expect(page.get_by_role("cell", name="API key lift", exact=True).first).to_be_visible()
    visit(page, "/audit?Actor=api-key:%20lift")
    expect(page.get_by_label("Who").locator("option:checked")).to_have_text("API key lift")


def test_a_device_that_does_not_respond_is_reported(open_as: Open) -> None:
    page = open_as(_build_path(SILENT, "properties"), Role.OPERATOR)
    outcome = _read_property(page)
    expect(outcome).to_contain_text("The device did not answer")
    expect(outcome.get_by_role("listitem").last).to_contain_text("No answer")
    page.get_by_text("Advanced").click()
    page.get_by_label("Seconds to wait").fill("0.2")

    def is_silent() -> bool:
        # A slow machine may not even send the request in that time.
        latest = _read_property(page)
        expect(latest).to_contain_text("Sent through Head office, waited for 0.2 s.")
        return "No response arrived in time." in latest.inner_text()

    wait_until(page, is_silent, "a request without a response")
    _open_tab(page, "History")
    expect(page.get_by_role("row").filter(has_text="No response arrived in time.").first).to_be_visible()


def test_a_disconnected_gateway_is_reported(open_as: Open, browser_log: BrowserLog) -> None:
    browser_log.expect(503)
    page = open_as(_build_path(ORDERED, "properties"), Role.OPERATOR)
    outcome = _read_property(page)
    expect(outcome).to_contain_text("The gateway is offline.")
    expect(outcome).to_contain_text("Nothing was sent to the device.")


def test_viewers_see_properties_and_are_offered_no_requests(open_as: Open) -> None:
    page = open_as(_build_path(SENSOR, "properties"), Role.VIEWER)
    expect(page.get_by_role("row", name="battery-level")).to_be_visible()
    expect(page.get_by_role("combobox")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("Read|Write"))).to_have_count(0)
    table = page.get_by_role("group", name="Properties of this device")
    expect(table.get_by_role("row", name="hardware-version")).to_be_visible()
    page.get_by_role("searchbox", name="Search properties").fill("8100")
    expect(table.get_by_role("row", name="battery-level")).to_be_visible()
    expect(table.get_by_role("row", name="hardware-version")).to_have_count(0)
    page.get_by_role("searchbox", name="Search properties").fill("no such property")
    page.get_by_role("button", name="Clear the search").click()
    expect(table.get_by_role("row", name="hardware-version")).to_be_visible()


def test_events_are_listed_by_kind(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as(_build_path(TRACKER, "events"), Role.VIEWER)
    rows = page.get_by_role("group", name="Events of this device").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("Event", timeout=120_000)  # the first event may not have happened yet
    page.get_by_role("button", name="Failed measurements").click()
    expect(page).to_have_url(re.compile(r"kind=measurement-error"))
    expect(page.get_by_role("button", name="Failed measurements")).to_have_attribute("aria-pressed", "true")
    assert any("Kind=measurement-error" in each and "Kind=event" not in each for each in browser_log.requests)
    expect(page.get_by_role("heading", name="Gaps")).to_be_visible()


@pytest.mark.usefixtures("own_window")
def test_loaded_events_are_kept_when_a_few_were_missed(
    open_as: Open, page: Page, demo: ServiceProcess
) -> None:
    sockets: list[WebSocketRoute] = []

    def drop_events(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        server = socket.connect_to_server()
        # The response to a ping has no type.
        server.on_message(
            lambda frame: None if json.loads(frame).get("type") == "report" else socket.send(frame)
        )

    def limit_page_size(route: Route) -> None:
        route.continue_(url=route.request.url.replace("MaxResults=50", "MaxResults=2"))

    def expect_numbers(*expected: int) -> None:
        sequence = page.get_by_role("group", name="Events of this device").locator("tbody td:nth-child(4)")
        expect(sequence).to_have_text([str(each) for each in expected])

    with new_mac(demo) as mac, connected_gateway(demo, mac, demo.claim(mac).password) as gateway:
        device = f"bmac-{mac}"

        def send_events(*sequence: int) -> None:
            for number in sequence:
                time = datetime.now(UTC).isoformat(timespec="milliseconds")
                gateway.report(f"mt/gateway/{mac}/device/{mac}/event/8400", time=time, seq=number)
            newest = f"/api/v1/devices/{device}/samples?Kind=event&MaxResults=1"
            wait_until(
                page, lambda: [each["seq"] for each in demo.call("GET", newest)["items"]] == [sequence[-1]]
            )

        def report_missed_events() -> None:
            """Send the event that reports missed events."""
            sockets[-1].send(json.dumps({"id": "x", "type": "resync", "time": "", "data": {}}))

        send_events(1, 2, 3, 4, 5)
        page.route("**/samples?*", limit_page_size)
        page.route_web_socket("**/api/v1/live", drop_events)
        open_as(_build_path(device, "events"), Role.VIEWER)
        expect_numbers(5, 4)
        page.get_by_role("button", name="Show more").click()
        expect_numbers(5, 4, 3, 2)
        send_events(6)
        report_missed_events()
        expect_numbers(6, 5, 4, 3, 2)
        # So many events were missed that the list would have a gap.
        send_events(7, 8, 9)
        report_missed_events()
        expect_numbers(9, 8)


@pytest.mark.part("long")
def test_the_tabs_are_accessible(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as(_build_path(SENSOR, "properties"))
    for tab in ("Properties", "Events", "History"):
        _open_tab(page, tab)
        expect(page.get_by_role("heading", level=2).first).to_be_visible()
        wait_until_loaded(page, browser_log)
        if tab == "Properties":
            expect(_read_property(page).get_by_role("list", name="Route")).to_be_visible()
            # One row only: axe finds the same in one row as in a hundred.
            page.get_by_role("searchbox", name="Search properties").fill("tx-power")
        if tab == "History":
            page.get_by_role("button", name="Details of Read").first.click()
        for width in WIDTHS:
            check_fits_width(page, width)
        assert find_violations_in_all_themes(page) == [], tab
