"""Tests of a service outage: failed requests are repeated without a click."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import (
    sign_in,
    stop_clock,
    visit,
    wait_for_responses,
    wait_until,
    wait_until_connected,
    wait_until_loaded,
)
from tests.browser.device_list import rows, search_box
from tests.browser.device_page import TRACKER
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open


def _find_state(page: Page) -> Locator:
    return page.get_by_role("banner").get_by_role("status")


def _go_to(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()


@pytest.fixture
def during_outage(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> Callable[[Callable[[], None], Locator], None]:
    """Return a function that acts during an outage: an error appears, and later the expected element."""
    browser_log.expect("net::ERR_INTERNET_DISCONNECTED", "WebSocket connection")
    open_as("/")
    # All pages are prefetched.
    wait_until(page, lambda: any("/assets/Rejects-" in each for each in browser_log.requests))
    wait_until_loaded(page, browser_log)

    def go(act: Callable[[], None], expected: Locator) -> None:
        expect(_find_state(page)).to_have_text("Live")
        page.context.set_offline(True)
        expect(_find_state(page)).to_have_text("Reconnecting")
        act()
        alerts = page.get_by_role("main").get_by_role("alert")
        expect(alerts.first).to_contain_text("did not answer")
        page.context.set_offline(False)
        expect(expected).to_be_visible()
        expect(alerts).to_have_count(0)

    return go


@pytest.mark.part("long")
def test_failed_requests_are_repeated_automatically(
    during_outage: Callable[[Callable[[], None], Locator], None], page: Page, browser_log: BrowserLog
) -> None:
    for name, text in (("Gateways", "Head office"), ("Labels", "floor 0"), ("Devices", "02:00:5E:00:00:01")):
        during_outage(lambda name=name: _go_to(page, name), page.get_by_role("row").filter(has_text=text))  # type: ignore[misc]
    expect(page.get_by_role("status").filter(has_text="devices")).to_be_visible()

    # A device, and one of its tabs. Other tests may have left devices before it in the list.
    row = page.get_by_role("row").filter(has_text="CA:5B:DA:18:00:1A")
    search_box(page).fill("CA:5B:DA:18:00:1A")
    expect(rows(page)).to_have_count(1)
    link = row.get_by_role("rowheader").get_by_role("link")
    during_outage(link.click, page.get_by_role("heading", level=1, name=link.inner_text()))
    wait_until_loaded(page, browser_log)
    during_outage(page.get_by_role("link", name="History").click, page.get_by_role("heading", name="History"))

    # A mesh, and the firmware that is loaded after it.
    legend = page.get_by_role("list", name="Legend").get_by_role("listitem")
    mesh = "/topology?Gateway=02005e000001&Color=firmware"
    during_outage(lambda: visit(page, mesh), legend.filter(has_text=re.compile(r"^\d+\.\d+\.\d+")).first)


def test_a_page_that_could_not_be_fetched_is_reloaded(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect("net::ERR_FAILED")
    browser_log.allow("net::ERR_INTERNET_DISCONNECTED", "WebSocket connection")
    page.route("**/assets/Labels-*.js", lambda route: route.abort())
    open_as("/")
    expect(_find_state(page)).to_have_text("Live")
    heading = page.get_by_role("heading", level=1)
    _go_to(page, "Labels")
    said = page.get_by_text("This page could not be loaded")
    expect(said).to_be_visible()
    _go_to(page, "Gateways")
    expect(heading).to_have_text("Gateways")
    expect(said).to_have_count(0)
    _go_to(page, "Labels")
    expect(said).to_be_visible()
    # A page that cannot be loaded reloads once, not repeatedly.
    with page.expect_event("load"):
        _interrupt_connection(page)
    expect(said).to_be_visible()
    expect(_find_state(page)).to_have_text("Live")
    page.evaluate("window.isSame = true")
    _interrupt_connection(page)
    expect(_find_state(page)).to_have_text("Live")
    assert page.evaluate("window.isSame")
    page.unroute("**/assets/Labels-*.js")
    page.get_by_role("button", name="Reload").click()
    expect(heading).to_have_text("Labels")


def test_a_list_loaded_after_the_outage_restores_its_position(
    open_as: Open, page: Page, browser_log: BrowserLog, total: int
) -> None:
    browser_log.expect("net::ERR_FAILED")
    browser_log.allow("net::ERR_INTERNET_DISCONNECTED", "WebSocket connection")
    page.set_viewport_size({"width": 1280, "height": 560})
    open_as("/devices?Sort=-id")
    region = page.get_by_role("region", name="Devices")
    expect(page.get_by_text(f"{total} loaded")).to_be_visible()
    region.evaluate("region => region.scrollTo(0, 1200)")
    page.wait_for_function("() => history.state?.devices?.top === 1200")
    page.route("**/api/v1/devices?*", lambda route: route.abort())
    page.reload()
    expect(_find_state(page)).to_have_text("Live")
    expect(region.get_by_role("alert")).to_contain_text("did not answer")
    page.unroute("**/api/v1/devices?*")
    _interrupt_connection(page)
    wait_until(page, lambda: region.evaluate("region => region.scrollTop") == 1200)


def test_a_playback_loaded_after_the_outage_starts_at_its_end(
    open_as: Open, page: Page, browser_log: BrowserLog, demo: ServiceProcess
) -> None:
    browser_log.expect("net::ERR_FAILED")
    browser_log.allow("net::ERR_INTERNET_DISCONNECTED", "WebSocket connection")
    floor = {"floor": 0, "minX": 0, "minY": 0, "maxX": 20, "maxY": 12}
    site = demo.call("POST", "/api/v1/sites", {"name": "Mill", "floors": [floor]})["id"]
    place = {"site": site, "floor": 0, "x": 4, "y": 3, "radius": 2}
    items = [{"time": f"2026-11-19T00:0{minute}:00Z", **place} for minute in range(3)]
    try:
        page.route("**/api/v1/devices/*/positions?*", lambda route: route.abort())
        open_as(f"/sites/{site}?device={TRACKER}&playback=1h")
        expect(_find_state(page)).to_have_text("Live")
        expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("did not answer")
        page.unroute_all()
        page.route(
            "**/api/v1/devices/*/positions?*",
            lambda route: route.fulfill(json={"items": items, "nextToken": None}),
        )
        _interrupt_connection(page)
        expect(page.get_by_role("slider", name="Time of the position")).to_have_value("2")
    finally:
        demo.call("DELETE", f"/api/v1/sites/{site}")


def _interrupt_connection(page: Page) -> None:
    page.context.set_offline(True)
    expect(_find_state(page)).to_have_text("Reconnecting")
    page.context.set_offline(False)


def _respond(status: int, route: Route, *, body: object = None) -> None:
    route.fulfill(status=status, json=body)


@pytest.mark.usefixtures("own_window")
def test_the_state_of_the_service_is_shown(open_as: Open, page: Page, browser_log: BrowserLog) -> None:
    browser_log.expect(500, 502, 503)
    page.clock.install()
    open_as("/labels")
    health = page.get_by_role("navigation", name="Pages").get_by_role("status")
    expect(health).to_have_text("Service ready")
    for status, words in (
        (503, "Service is not ready"),
        (500, "Unexpected response from the service"),
        (502, "Service is not ready"),  # it sends events, so it can be reached
    ):
        page.route("**/readyz", partial(_respond, status))
        wait_for_responses(page, browser_log)
        page.clock.fast_forward("00:21")
        expect(health).to_have_text(words)
        wait_until_connected(page)
    expect(page.get_by_text("It is not responding to requests.")).to_be_visible()
    full = "the disk is full (data folder)"
    for body in (
        {"status": "unavailable", "reasons": [{"code": "disk-full", "text": full}]},
        {"detail": full},
    ):
        page.unroute_all()
        page.route("**/readyz", partial(_respond, 503, body=body))
        wait_for_responses(page, browser_log)
        page.clock.fast_forward("00:21")
        said = page.get_by_role("main").get_by_role("status")
        expect(said.filter(has_text="Service is not ready. The disk is full (data folder).")).to_be_visible()
    page.unroute_all()
    wait_for_responses(page, browser_log)
    page.clock.fast_forward("00:21")
    expect(health).to_have_text("Service ready")


def test_an_unreachable_service_is_not_shown_as_ready(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], tmp_path: Path
) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        context, browser_log = make_window(service)
        browser_log.expect("net::ERR_")
        browser_log.allow("WebSocket connection")
        page = context.new_page()
        page.clock.install()
        sign_in(page, service, Role.ADMIN)
        page.goto("/labels")
        health = page.get_by_role("navigation", name="Pages").get_by_role("status")
        expect(_find_state(page)).to_have_text("Live")
        expect(health).to_have_text("Service ready")
        # While the clock is stopped, nothing is polled.
        stop_clock(page, browser_log)
        expect(_find_state(page)).to_have_text("Live")
        expect(health).to_have_text("Service ready")
        service.kill()
        expect(health).to_have_text("Service cannot be reached")
