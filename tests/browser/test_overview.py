"""Tests of the overview: numbers with links, and the steps for an empty fleet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import sign_in, wait_until
from tests.browser.consistency import OBSERVE_CHANGES
from tests.cli.programs import Program
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open

_MAC = "02005e0000f0"

_TICKS = """() => {
  window.ticks = new Set();
  const look = () => {
    for (const title of document.querySelectorAll("li.done h3")) {
      window.ticks.add(title.firstChild.textContent.trim());
    }
  };
  LOOKING
}"""
"""Record the ticked steps, in order, each time the page is painted."""


@pytest.fixture
def empty_service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """Run a service without devices."""
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        yield service


def test_every_number_links_to_the_devices_it_counts(open_as: Open, page: Page, demo: ServiceProcess) -> None:
    summary = demo.call("GET", "/api/v1/devices/summary")
    open_as("/", Role.VIEWER)
    figures = page.get_by_role("list", name="The fleet in numbers")
    expect(figures.get_by_role("link", name=re.compile("^Devices"))).to_contain_text(str(summary["total"]))
    offline = figures.get_by_role("link", name=re.compile("^Offline"))
    expect(offline).to_have_attribute("href", "/devices?Connected=false")
    expect(figures.get_by_role("link", name=re.compile("^Gateways"))).to_contain_text("1 offline")
    labels = page.get_by_role("table", name="Labels")
    expect(labels.get_by_role("link", name="Lager 2 / Rampe")).to_have_attribute(
        "href", "/devices?Label=Lager%202%20%2F%20Rampe"
    )
    health = page.get_by_role("list", name="Gateways that need a look")
    expect(health.get_by_role("listitem")).to_have_count(1)
    expect(health).to_contain_text("Offline")
    expect(page.get_by_role("list", name="Firmware by model")).to_contain_text(re.compile(r"\d+ of \d+ run"))
    # The strip of bars, and the same numbers as a table with a button for what changed.
    hours = page.get_by_role("region", name="Availability").first
    expect(hours.locator(".part")).to_have_count(25)
    hours.get_by_text("Show as table").click()
    hours.get_by_role("button", name=re.compile(r":00\W\d\d:00$")).first.click()
    changes = hours.get_by_role("region", name="What changed")
    expect(changes.get_by_role("listitem").first).to_contain_text(re.compile("online|offline"))
    hours.get_by_role("button", name="7 d").click()
    expect(hours.locator(".part")).to_have_count(57)
    expect(changes).to_have_count(0)
    offline.click()
    expect(page).to_have_url(f"{demo.url}/devices?Connected=false")


def test_numbers_that_cannot_be_refreshed_stay_with_a_warning(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(500)
    open_as("/")
    figures = page.get_by_role("list", name="The fleet in numbers")
    expect(figures).to_be_visible()
    page.route("**/devices/summary", lambda route: route.fulfill(status=500, json={"detail": "on fire"}))
    expect(page.get_by_role("alert")).to_contain_text("These numbers may be out of date: on fire")
    expect(figures).to_be_visible()
    page.unroute("**/devices/summary")
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.part("long")
def test_an_empty_fleet_shows_the_first_steps_and_ticks_them_off(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], empty_service: ServiceProcess
) -> None:
    context, _ = make_window(empty_service)
    page = context.new_page()
    sign_in(page, empty_service, Role.ADMIN)
    page.goto("/")
    steps = page.get_by_role("region", name="Three steps to your fleet").get_by_role("listitem")
    expect(steps.nth(0)).to_contain_text("Next")
    expect(page.get_by_text("No traffic yet").first).to_be_visible()
    assert find_violations(page) == []
    steps.nth(0).get_by_role("link", name="Add a gateway").click()
    asking = page.get_by_role("dialog", name="Claim a gateway")
    expect(asking).to_be_visible()
    expect(page).to_have_url(f"{empty_service.url}/gateways")
    asking.get_by_role("button", name="Cancel").click()
    expect(asking).to_have_count(0)
    page.go_back()
    progress = page.get_by_text("steps done")
    expect(progress).to_have_text("0 of 3 steps done")
    page.evaluate(_TICKS.replace("LOOKING", OBSERVE_CHANGES))
    claimed = empty_service.claim(_MAC)
    expect(steps.nth(1)).to_contain_text("Waits for the gateway to connect")
    expect(steps.nth(0)).to_contain_text("It has not connected yet.")
    expect(progress).to_have_text("0 of 3 steps done")
    assert page.evaluate("[...window.ticks]") == []
    opening = steps.nth(0).get_by_role("link", name="Open the gateway")
    expect(opening).to_have_attribute("href", f"/gateways/{_MAC}")
    port = empty_service.mqtt["mqtt"].port
    broker = f"mqtt://{claimed.user}:{claimed.password}@127.0.0.1:{port}"
    with Program("gateway", "--broker", broker, "--mac", _MAC, "--speed", "60"):
        expect(steps.nth(0)).to_contain_text("Done")
        expect(steps.nth(1)).to_contain_text("Done")
        # The recording runs a moment after the test sees a change.
        wait_until(page, lambda: page.evaluate("[...window.ticks]"))
        assert page.evaluate("[...window.ticks]")[0] == "Connect a gateway"
        expect(opening).to_have_count(0)
        expect(steps.nth(2)).to_contain_text("Next")
        empty_service.call("PUT", f"/api/v1/devices/bmac-{_MAC}/labels/floor-2")
        expect(steps.nth(2)).to_contain_text("Done")
    page.get_by_role("button", name="Go to the overview").click()
    expect(page.get_by_role("list", name="The fleet in numbers")).to_be_visible()
