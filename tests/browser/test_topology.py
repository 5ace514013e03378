"""Tests of the topology page, of the path of a device, and of the weak points of a gateway."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import expect

from meshfleet.protocol.times import format_millis
from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import visit, wait_for_responses, wait_until, wait_until_connected
from tests.browser.demo_gateways import connected_gateway, new_mac
from tests.browser.topology_bodies import large_topology, list_devices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.requests.scripted_gateway import ScriptedGateway

OFFICE: Final = "02005e000001"
ADDRESS: Final = f"/topology?Gateway={OFFICE}"
MANY_DEVICES: Final = 2000
MANY_BRANCHES: Final = 150
MINUTES_OPEN: Final = 12
"""Minutes for which a page stays open: more than a step of the slider, and too few to renew the session."""
LOST_AFTER_SECONDS: Final = 100
"""Seconds after which a parent has missed a report, so that another one replaces it."""

_COUNT_FRAMES = """() => {
  const request = window.requestAnimationFrame.bind(window);
  window.frames_requested = 0;
  window.wait_for_frames = (count) => new Promise((resolve) => {
    const count_down = () => (count-- > 0 ? request(count_down) : resolve());
    count_down();
  });
  window.requestAnimationFrame = (paint) => (window.frames_requested += 1, request(paint));
}"""
"""Count the frames that the page requests from now on. Frames that a test waits for do not count."""


def rows(page: Page) -> Locator:
    """Return the rows of the mesh as text."""
    return page.get_by_role("tree").get_by_role("treeitem")


def drawing(page: Page, layout: str) -> Locator:
    """Return the drawing, once its layout is computed."""
    return page.locator(f"canvas[data-layout={layout}]")


def read_office(demo: ServiceProcess) -> Mapping[str, Any]:
    """Return the nodes of the mesh of the office by device."""
    nodes = demo.call("GET", f"/api/v1/gateways/{OFFICE}/topology")["nodes"]
    return {node["device"]: node for node in nodes}


def test_the_tree_has_what_the_service_says_and_is_used_with_the_keyboard(
    open_as: Open, demo: ServiceProcess
) -> None:
    nodes = read_office(demo)
    page = open_as(ADDRESS)
    tree = page.get_by_role("tree")
    expect(rows(page).first).to_have_attribute("aria-level", "1")
    expect(page.get_by_role("heading", level=1).locator("xpath=..")).to_contain_text(
        f"{len(nodes) - 1} devices"
    )
    tree.focus()
    page.keyboard.press("End")
    last = tree.get_attribute("aria-activedescendant")
    expect(page.locator(f"[id='{last}']")).to_be_in_viewport()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    chosen = page.locator("[role=treeitem][aria-selected=true]")
    expect(chosen).to_have_count(1)
    device = f"bmac-{(chosen.get_attribute('id') or '')[-12:]}"
    assert nodes[device]["depth"] == 1
    expect(page).to_have_url(re.compile(f"Device={device.removeprefix('bmac-')}"))
    expect(chosen).to_contain_text(re.compile(r"-\d+ dBm (good|fair|weak|very weak)"))
    expect(page.get_by_role("list", name="Path to the gateway").get_by_role("listitem")).to_have_count(2)
    expect(page.get_by_role("heading", name="Also received by")).to_be_visible()

    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(rows(page)).to_have_count(1)
    expect(page).to_have_url(re.compile(f"Fold={OFFICE}"))
    page.keyboard.press("ArrowRight")
    expect(rows(page).nth(1)).to_be_visible()
    # The keyboard stays where it is, although another row is selected, and a click does not take it away.
    expect(tree).to_have_attribute("aria-activedescendant", re.compile(f"{OFFICE}$"))
    rows(page).nth(1).click()
    expect(tree).to_be_focused()

    name = chosen.locator(".name").inner_text()
    page.get_by_role("combobox", name="Find a device").fill(name[:8])
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Clear the selection")).to_be_visible()
    assert find_violations_in_all_themes(page) == []


@pytest.mark.part("variants")
def test_two_thousand_nodes_are_drawn_once_and_stay_usable(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(404)  # the selected device does not exist
    body = large_topology(OFFICE, MANY_DEVICES, branches=MANY_BRANCHES)
    devices = {"major": 1}
    open_as("/healthz")
    page.route("**/api/v1/gateways/*/topology", lambda route: route.fulfill(json=body))
    page.route(
        re.compile(r"/api/v1/devices\?Gateway="),
        lambda route: route.fulfill(json=list_devices(body, **devices)),
    )
    page.goto(f"{ADDRESS}&Layout=force&Below=-85")
    expect(drawing(page, "force")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d+ links are below -85 dBm$"))).to_be_visible()
    page.get_by_role("button", name="Tree", exact=True).click()
    expect(drawing(page, "tree")).to_be_visible()
    wait_for_responses(page, browser_log)
    page.evaluate(_COUNT_FRAMES)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    wait_until(page, lambda: page.evaluate("window.frames_requested") >= 2)
    page.evaluate("window.wait_for_frames(20)")
    assert page.evaluate("window.frames_requested") <= 4  # no animation
    assert page.evaluate("document.querySelectorAll('*').length") < 2500
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect(rows(page).last).to_have_attribute("aria-level", re.compile("[3-9]"))

    page.get_by_role("button", name="Fold all").click()
    expect(page.get_by_role("button", name="Unfold all")).to_be_visible()
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect(rows(page).last).to_have_attribute("aria-level", "2")
    expect(page.locator("[role=treeitem][aria-level='3']")).to_have_count(0)
    page.get_by_role("combobox", name="Find a device").fill(f"Node {MANY_DEVICES}")
    page.keyboard.press("Enter")
    expect(page.locator("[role=treeitem][aria-selected=true]")).to_be_in_viewport()
    expect(page.get_by_role("alert")).to_contain_text(re.compile("device", re.IGNORECASE))

    legend = page.get_by_role("list", name="Legend")
    page.get_by_role("button", name="Firmware", exact=True).click()
    expect(legend).to_contain_text("1.2.0")
    devices["major"] = 2
    page.get_by_role("button", name="Hops", exact=True).click()
    page.get_by_role("button", name="Firmware", exact=True).click()
    expect(legend).to_contain_text("2.2.0")


def test_new_values_do_not_restart_the_layout_by_forces(
    open_as: Open, page: Page, demo: ServiceProcess
) -> None:
    device = "c0ffee0000a2"
    workers: list[Route] = []
    requests: list[Route] = []
    with new_mac(demo) as mac:
        account = demo.claim(mac)
        body = large_topology(mac, 20)

        def answer(route: Route) -> None:
            requests.append(route)
            route.fulfill(json=body)

        open_as("/healthz")
        page.route("**/api/v1/gateways/*/topology", answer)
        page.route("**/force-worker*", lambda route: workers.append(route))  # noqa: PLW0108 # Playwright marks it
        page.goto(f"/topology?Gateway={mac}&Layout=force")
        wait_until(page, lambda: workers, "a worker")
        before = len(requests)
        with connected_gateway(demo, mac, account.password) as gateway:
            _report_link(gateway, device, mac, -60)
            wait_until(page, lambda: len(requests) > before, "newer values")
        workers[0].continue_()
        expect(drawing(page, "force")).to_be_visible()
        assert len(workers) == 1
        demo.call("DELETE", f"/api/v1/devices/bmac-{device}")


def test_the_past_is_shown_and_played(open_as: Open, demo: ServiceProcess) -> None:
    start = format_millis(int((time.time() - 3 * 3600) * 1000))
    page = open_as(f"{ADDRESS}&Span=6h&At={start}")
    slider = page.get_by_role("slider", name="Time of the mesh")
    expect(rows(page).nth(3)).to_be_visible()
    page.get_by_role("button", name="Play", exact=True).click()
    wait_until(page, lambda: _read_time(page) not in {None, start}, "the next time")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_text(re.compile("Since the time shown before|No changes since"))).to_be_visible()
    slider.focus()
    page.keyboard.press("Home")
    wait_until(page, lambda: (_read_time(page) or start) < start, "the first time of the slider")
    nodes = demo.call("GET", f"/api/v1/gateways/{OFFICE}/topology?At={_read_time(page)}")["nodes"]
    expect(page.get_by_text(re.compile(f"^{len(nodes) - 1} devices?"))).to_be_visible()
    page.reload()
    expect(slider).to_have_value("0")
    page.get_by_role("button", name="Back to now").click()
    expect(slider).to_have_attribute("aria-valuetext", "Now")
    wait_until(page, lambda: _read_time(page) is None, "an address without a time")


def _read_time(page: Page) -> str | None:
    """Return the time in the address."""
    return dict(parse_qsl(urlsplit(page.url).query)).get("At")


def test_the_time_slider_ends_now_on_a_page_that_stays_open(open_as: Open, page: Page) -> None:
    page = open_as(f"{ADDRESS}&Span=6h")
    expect(rows(page).nth(1)).to_be_visible()
    opened = time.time()

    def answer_later(route: Route) -> None:
        """Let a response be sent minutes later: the page takes the time from its head."""
        response = route.fetch()
        later = format_datetime(datetime.fromtimestamp(opened + MINUTES_OPEN * 60, UTC), usegmt=True)
        route.fulfill(response=response, headers={**response.headers, "date": later})

    page.route(re.compile(r"/api/v1/|/readyz"), answer_later)  # every response sets the clock
    rows(page).nth(1).click()
    expect(page.get_by_role("heading", name="Also received by")).to_be_visible()
    page.get_by_role("button", name="Earlier").click()
    wait_until(
        page, lambda: (_read_time(page) or "") > format_millis(int(opened * 1000)), "a time since then"
    )


def _report_link(gateway: ScriptedGateway, device: str, parent: str, rssi: int, *, age: int = 0) -> None:
    """Report an established link as it was `age` seconds ago."""
    topic = f"mt/gateway/{gateway.mac}/device/{device}/rssi"
    gateway.report(topic, time=format_millis(int((time.time() - age) * 1000)), parent=parent, rssi=rssi)


def test_a_changed_layout_is_announced_and_shown_on_request(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    browser_log.expect(500)
    device, other = "c0ffee0000a1", "c0ffee0000b1"
    with new_mac(demo) as mac:
        account = demo.claim(mac)
        with connected_gateway(demo, mac, account.password) as gateway:
            _report_link(gateway, device, mac, -60)
            page = open_as(f"/topology?Gateway={mac}")
            tree = page.get_by_role("tree")
            expect(rows(page)).to_have_count(2)
            wait_until_connected(page)
            page.route("**/api/v1/gateways/*/topology", _fail)
            _report_link(gateway, device, mac, -82)
            _report_link(gateway, other, device, -91, age=LOST_AFTER_SECONDS)
            # Old values are not passed off as those of now.
            failed = page.get_by_role("alert")
            expect(failed).to_contain_text(re.compile(r"It broke\. The values shown are those of \d"))
            expect(tree).to_contain_text("-60 dBm good")
            page.unroute_all()
            failed.get_by_role("button", name="Try again").click()
            announced = page.get_by_text("Layout changed: 1 joined.")
            expect(announced).to_be_visible()
            expect(failed).to_have_count(0)
            # Only what would move waits.
            expect(rows(page)).to_have_count(2)
            expect(tree).to_contain_text("-82 dBm weak")
            expect(page.get_by_text("2 weak links · 1 single point of failure")).to_be_visible()
            announced.get_by_role("button", name="Show").click()
            expect(rows(page)).to_have_count(3)
            expect(tree).to_be_focused()
            expect(tree).to_contain_text("-91 dBm very weak")
            expect(page.get_by_text("2 weak links · 1 single point of failure")).to_be_visible()

            visit(page, f"/gateways/{mac}")
            weak = page.get_by_role("region", name="Weak points of the mesh")
            expect(weak).to_contain_text("cuts off 1 device")
            expect(weak).to_contain_text("-91 dBm very weak")
            # The mesh knows a device as soon as it reports, the registry after the next write of states.
            wait_until(page, lambda: demo.call("GET", f"/api/v1/devices/bmac-{other}"), "the new device")
            visit(page, f"/devices/bmac-{other}")
            path = page.get_by_role("region", name="Path to the gateway")
            expect(path.get_by_role("list").first.get_by_role("listitem")).to_have_count(3)
            path.get_by_role("link", name="Show in topology").click()
            expect(page.locator("[role=treeitem][aria-selected=true]")).to_contain_text("-91 dBm")

            visit(page, f"/devices/bmac-{other}")
            changes = page.get_by_role("list", name="Latest changes of its parent").get_by_role("listitem")
            expect(changes).to_have_text(re.compile("first known parent"))
            _report_link(gateway, other, mac, -50)
            expect(changes.first).to_contain_text("before: Device 00a1")
            expect(changes).to_have_count(2)
            expect(path.get_by_role("list").first.get_by_role("listitem")).to_have_count(2)
        for each in (device, other):
            demo.call("DELETE", f"/api/v1/devices/bmac-{each}")


def _fail(route: Route) -> None:
    problem = {
        "type": "about:blank",
        "title": "Broken",
        "status": 500,
        "code": "internal",
        "detail": "It broke.",
    }
    route.fulfill(status=500, json=problem)


def test_an_unknown_gateway_and_a_failed_request_are_explained(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.allow(404, 500)
    open_as("/topology?Gateway=0200000000ff")
    expect(page.get_by_text("No gateway with this MAC is claimed")).to_be_visible()
    page.route("**/api/v1/gateways/*/topology", _fail)
    visit(page, "/labels")
    visit(page, ADDRESS)
    # Failed requests are retried when the connection is established.
    wait_until_connected(page)
    expect(page.get_by_text("It broke.")).to_be_visible()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(rows(page).nth(1)).to_be_visible()
