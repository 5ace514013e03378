"""Tests of the live connection: its state, reconnecting, and pausing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import (
    pause_clock,
    sign_in,
    wait_for_responses,
    wait_until,
    wait_until_connected,
    wait_until_loaded,
)
from tests.browser.consistency import list_compared_texts, list_contradictions, watch_connection_state
from tests.browser.demo_gateways import new_mac
from tests.browser.faulty_proxy import FaultyProxy
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Locator, Page, WebSocket

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open

_TAB_COUNT = 7
"""Number of tabs: more than the six HTTP connections of a browser per host. WebSockets have another limit."""

_SILENCE_MS = 26_000
"""Milliseconds of silence after which a tab checks the connection."""

_HEALTH_INTERVAL_MS = 21_000
"""Milliseconds between two health checks of the service."""

_RESPONSE_TIMEOUT_MS = 6000
"""Milliseconds that a tab waits for the response."""

_HANDSHAKE_TIMEOUT_MS = 9000
"""Milliseconds after which a handshake is retried."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Run an empty service, for tests that only interrupt the connection to it."""
    with ServiceProcess(tmp_path_factory.mktemp("service"), *loopback_options("--mqtt")) as made:
        yield made


def expect_state(page: Page, words: str) -> None:
    """Wait until the top bar shows a state."""
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text(words)


def find_health(page: Page) -> Locator:
    """Return the state of the service in the navigation."""
    return page.get_by_role("navigation", name="Pages").get_by_role("status")


def _read_resync_metric(service: ServiceProcess) -> str:
    """Return the metric that counts requests to reload all data."""
    (line,) = re.findall(r"(?m)^meshfleet_live_resyncs_total .*$", service.call("GET", "/metrics"))
    return str(line)


def metric(page: Page, name: str) -> Locator:
    """Return a number of the overview."""
    figures = page.get_by_role("list", name="The fleet in numbers")
    return figures.get_by_role("link", name=re.compile(f"^{name}")).locator("strong")


@pytest.mark.part("long")
def test_a_tab_reconnects_receives_missed_events_and_reloads_once(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], tmp_path: Path
) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        context, browser_log = make_window(service)
        browser_log.allow("WebSocket connection")
        browser_log.allow("net::ERR_", 503)
        service.claim("02005e0000a1")
        page = context.new_page()
        sign_in(page, service, Role.ADMIN)
        page.goto("/")
        page.get_by_role("button", name="Go to the overview").click()
        expect_state(page, "Live")
        expect(metric(page, "Gateways")).to_have_text("1")
        watch_connection_state(page)
        path = "/devices/bmac-02005e0000a1"
        other = context.new_page()
        sign_in(other, service, Role.ADMIN)
        other.goto(path)
        wait_until_connected(other)
        wait_until_loaded(other, browser_log)
        service.kill()
        for tab in (page, other):
            expect_state(tab, "Reconnecting")
        expect(page.get_by_role("button", name="Try to connect now")).to_be_visible()
        expect(find_health(page)).to_have_text("Service cannot be reached")
        read: list[str] = []
        # Requests sent before the service is ready are refused and retried.
        other.on("response", lambda answer: read.append(urlsplit(answer.url).path) if answer.ok else None)
        service.start()
        service.claim("02005e0000a2")
        expect_state(page, "Live")
        expect(metric(page, "Gateways")).to_have_text("2")
        expect(find_health(page)).to_have_text("Service ready")
        assert list_contradictions(page) == []
        wait_until_connected(other)
        # Two subscriptions, for the device and its reports, learn one after the other that events were
        # missed.
        wait_until(other, lambda: f"/api/v1{path}" in read)
        wait_until_loaded(other, browser_log)
        assert read.count(f"/api/v1{path}") <= 2


def test_a_pause_lasts_until_the_user_ends_it(open_as: Open, page: Page, demo: ServiceProcess) -> None:
    open_as("/")
    expect(page.get_by_role("list", name="The fleet in numbers")).to_be_visible()
    expect_state(page, "Live")
    page.keyboard.press("p")
    expect_state(page, "Paused")
    # Another window, which is not paused, shows the new values.
    before = metric(page, "Gateways").inner_text()
    with new_mac(demo) as mac:
        demo.claim(mac)
        other = page.context.new_page()
        sign_in(other, demo, Role.VIEWER)
        other.goto("/")
        expect(metric(other, "Gateways")).to_have_text(str(int(before) + 1))
        with other.expect_response("**/devices/summary"):
            pass
        with other.expect_response("**/devices/summary"):
            pass
        assert metric(page, "Gateways").inner_text() == before
        other.close()
        page.get_by_role("button", name="Resume live values").click()
        expect_state(page, "Live")
        expect(metric(page, "Gateways")).to_have_text(str(int(before) + 1))


@pytest.mark.part("variants")
def test_more_tabs_than_http_connections_are_live_at_once(
    open_as: Open, page: Page, demo: ServiceProcess
) -> None:
    path = "/devices/bmac-02005e000004"
    open_as(path, Role.VIEWER)
    for _ in range(_TAB_COUNT - 1):
        with page.context.expect_page():
            page.evaluate("path => { window.open(path); }", path)
    for tab in page.context.pages:
        wait_until_connected(tab)
    before, new = demo.call("GET", f"/api/v1{path}")["friendlyName"], str(uuid4())
    demo.call("PUT", f"/api/v1{path}/friendly-name", {"name": new})
    try:
        for tab in page.context.pages:
            expect(tab.get_by_role("heading", level=1)).to_have_text(new)
    finally:
        demo.call("PUT", f"/api/v1{path}/friendly-name", {"name": before})


def test_a_logout_elsewhere_ends_the_session_with_a_message(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.allow(401)
    open_as("/labels", Role.OPERATOR)
    expect_state(page, "Live")
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    told = page.request.post("/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
    assert told.ok
    expect(page.get_by_text("Your session has ended. Please sign in again.")).to_be_visible()


def test_a_silently_dead_connection_is_noticed(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], service: ServiceProcess
) -> None:
    with FaultyProxy(service) as wire:
        context, browser_log = make_window(wire)
        page = context.new_page()
        page.clock.install()
        sockets: list[WebSocket] = []
        proofs: list[str] = []

        def follow(socket: WebSocket) -> None:
            sockets.append(socket)
            socket.on("framereceived", record_frame)

        def record_frame(frame: str | bytes) -> None:
            if "pong" in json.loads(frame):
                proofs.append(str(frame))

        resyncs = _read_resync_metric(service)
        service.claim("02005e0000b1")
        path = "/devices/bmac-02005e0000b1"
        sign_in(page, wire, Role.ADMIN)
        page.on("websocket", follow)
        page.goto(path)
        wait_until_connected(page)
        # A subscriber that has received events is sent the missed ones. Others reload, over connections that
        # may be dead too.
        service.call("PUT", f"/api/v1{path}/friendly-name", {"name": "Ward 6"})
        expect(page.get_by_role("heading", level=1)).to_have_text("Ward 6")
        wait_for_responses(page, browser_log)
        asked = f"GET /api/v1{path}"
        before = browser_log.requests.count(asked)
        # Without events, a live connection proves itself by a response, and nothing is reloaded.
        page.clock.fast_forward(_SILENCE_MS)
        wait_until(page, lambda: len(proofs) == 1)
        page.clock.fast_forward(_RESPONSE_TIMEOUT_MS)
        wait_until_connected(page)
        assert (len(sockets), browser_log.requests.count(asked)) == (1, before)
        assert _read_resync_metric(service) == resyncs
        wire.freeze_connections()
        service.call("PUT", f"/api/v1{path}/friendly-name", {"name": "Ward 7"})
        page.clock.fast_forward(_SILENCE_MS)
        page.clock.fast_forward(_RESPONSE_TIMEOUT_MS)
        wait_until(page, lambda: len(sockets) > 1)
        expect(page.get_by_role("heading", level=1)).to_have_text("Ward 7")
        wait_until_connected(page)


@pytest.mark.part("long")
def test_a_silent_service_is_never_shown_as_both_live_and_unreachable(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], service: ServiceProcess
) -> None:
    with FaultyProxy(service) as wire:
        context, browser_log = make_window(wire)
        browser_log.expect("net::ERR_FAILED")
        page = context.new_page()
        page.clock.install()
        sign_in(page, wire, Role.ADMIN)
        page.goto("/labels")
        wait_until_connected(page)
        expect(find_health(page)).to_have_text("Service ready")
        wait_until_loaded(page, browser_log)
        watch_connection_state(page)
        # The live connection is silent, and the health request fails at once.
        page.route("**/readyz", lambda route: route.abort())
        wire.freeze_connections()
        wire.ignores_new = True
        page.clock.fast_forward(_HEALTH_INTERVAL_MS)
        # The comparison runs a moment after the test sees a change.
        wait_until(page, lambda: "Checking the connection" in list_compared_texts(page))
        page.clock.fast_forward(_RESPONSE_TIMEOUT_MS)
        wait_until(
            page, lambda: {"Reconnecting", "Service cannot be reached"} < set(list_compared_texts(page))
        )
        wire.ignores_new = False
        page.unroute("**/readyz")
        page.get_by_role("button", name="Try to connect now").click()
        page.clock.fast_forward(_HANDSHAKE_TIMEOUT_MS)
        wait_until_connected(page)
        assert list_contradictions(page) == []


@pytest.mark.part("long")
def test_a_handshake_without_a_response_is_retried(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], service: ServiceProcess
) -> None:
    with FaultyProxy(service) as wire:
        context, browser_log = make_window(wire)
        browser_log.expect("closed before the connection is established")
        page = context.new_page()
        page.clock.install()
        sockets: list[WebSocket] = []
        sign_in(page, wire, Role.ADMIN)
        page.on("websocket", lambda socket: sockets.append(socket))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
        page.goto("/labels")
        wait_until_connected(page)
        wire.freeze_connections()
        wire.ignores_new = True
        page.clock.fast_forward(_SILENCE_MS)
        page.clock.fast_forward(_RESPONSE_TIMEOUT_MS)
        wait_until(page, lambda: len(sockets) > 1)
        expect_state(page, "Reconnecting")
        # While the clock is stopped, only a click triggers a retry. A slow machine may have retried before.
        pause_clock(page)
        page.wait_for_timeout(50)
        tried = len(sockets)
        page.get_by_role("button", name="Try to connect now").click()
        wait_until(page, lambda: len(sockets) > tried)
        page.clock.resume()
        page.clock.fast_forward(_HANDSHAKE_TIMEOUT_MS)
        wait_until(page, lambda: len(sockets) > tried + 1)
        wire.ignores_new = False
        wait_until_connected(page)
