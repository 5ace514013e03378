"""The live connection: it says how it is, comes back by itself, and stands still when told to."""

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
from tests.browser.consistency import compared_texts, contradictions, watch_connection_state
from tests.browser.demo_gateways import new_mac
from tests.browser.faulty_proxy import FaultyProxy
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Locator, Page, WebSocket

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open

_TABS = 7
"""A browser has six connections to a host at most; those of WebSockets are others."""

_SILENCE_MS = 26_000
"""Milliseconds of silence until a tab asks whether anybody is there."""

_EVERY = 21_000
"""Milliseconds until it asks how the service is."""

_PATIENCE = 6000
"""Milliseconds for which it waits for an answer."""

_HANDSHAKE = 9000
"""Milliseconds until it tries again when a connection does not begin."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with nothing in it, for tests that only lose their way to it."""
    with ServiceProcess(tmp_path_factory.mktemp("service"), *loopback_options("--mqtt")) as made:
        yield made


def state(page: Page, words: str) -> None:
    """Wait until the bar says so."""
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text(words)


def health(page: Page) -> Locator:
    """What the navigation says of the service."""
    return page.get_by_role("navigation", name="Pages").get_by_role("status")


def _resyncs(service: ServiceProcess) -> str:
    """How often somebody was told to read anew."""
    (line,) = re.findall(r"(?m)^meshfleet_live_resyncs_total .*$", service.call("GET", "/metrics"))
    return str(line)


def metric(page: Page, name: str) -> Locator:
    """A number of the overview."""
    figures = page.get_by_role("list", name="The fleet in numbers")
    return figures.get_by_role("link", name=re.compile(f"^{name}")).locator("strong")


def test_it_comes_back_by_itself_with_what_happened_meanwhile_and_reads_nothing_over_and_over(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], tmp_path: Path
) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        context, watch = make_window(service)
        watch.allow("WebSocket connection")
        watch.allow("net::ERR_", 503)
        service.claim("02005e0000a1")
        page = context.new_page()
        sign_in(page, service, Role.ADMIN)
        page.goto("/")
        page.get_by_role("button", name="Go to the overview").click()
        state(page, "Live")
        expect(metric(page, "Gateways")).to_have_text("1")
        watch_connection_state(page)
        path = "/devices/bmac-02005e0000a1"
        other = context.new_page()
        sign_in(other, service, Role.ADMIN)
        other.goto(path)
        wait_until_connected(other)
        wait_until_loaded(other, watch)
        service.kill()
        for tab in (page, other):
            state(tab, "Reconnecting")
        expect(page.get_by_role("button", name="Try to connect now")).to_be_visible()
        expect(health(page)).to_have_text("Service cannot be reached")
        read: list[str] = []
        # What is asked before the service is ready is refused, and asked again.
        other.on("response", lambda answer: read.append(urlsplit(answer.url).path) if answer.ok else None)
        service.start()
        service.claim("02005e0000a2")
        state(page, "Live")
        expect(metric(page, "Gateways")).to_have_text("2")
        expect(health(page)).to_have_text("Service ready")
        assert contradictions(page) == []
        wait_until_connected(other)
        # Two subscriptions, for the device and its reports, learn that something was missed, one by one.
        wait_until(other, lambda: f"/api/v1{path}" in read)
        wait_until_loaded(other, watch)
        assert read.count(f"/api/v1{path}") <= 2


def test_a_pause_lasts_until_it_is_ended(open_as: Open, page: Page, demo: ServiceProcess) -> None:
    open_as("/")
    expect(page.get_by_role("list", name="The fleet in numbers")).to_be_visible()
    state(page, "Live")
    page.keyboard.press("p")
    state(page, "Paused")
    # Another window, which is not paused, shows what this one would.
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
        state(page, "Live")
        expect(metric(page, "Gateways")).to_have_text(str(int(before) + 1))


def test_more_tabs_than_a_browser_has_connections_are_live_at_once(
    open_as: Open, page: Page, demo: ServiceProcess
) -> None:
    path = "/devices/bmac-02005e000004"
    open_as(path, Role.VIEWER)
    for _ in range(_TABS - 1):
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


def test_a_logout_elsewhere_ends_it_with_a_sentence(open_as: Open, page: Page, watch: BrowserLog) -> None:
    watch.allow(401)
    open_as("/labels", Role.OPERATOR)
    state(page, "Live")
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    told = page.request.post("/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
    assert told.ok
    expect(page.get_by_text("Your session has ended. Please sign in again.")).to_be_visible()


def test_a_connection_that_died_without_a_word_is_noticed(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], service: ServiceProcess
) -> None:
    with FaultyProxy(service) as wire:
        context, watch = make_window(wire)
        page = context.new_page()
        page.clock.install()
        sockets: list[WebSocket] = []
        proofs: list[str] = []

        def follow(socket: WebSocket) -> None:
            sockets.append(socket)
            socket.on("framereceived", hear)

        def hear(frame: str | bytes) -> None:
            if "pong" in json.loads(frame):
                proofs.append(str(frame))

        resyncs = _resyncs(service)
        service.claim("02005e0000b1")
        path = "/devices/bmac-02005e0000b1"
        sign_in(page, wire, Role.ADMIN)
        page.on("websocket", follow)
        page.goto(path)
        wait_until_connected(page)
        # Who was told something is told what was missed; others read anew, over connections that may be
        # dead too.
        service.call("PUT", f"/api/v1{path}/friendly-name", {"name": "Ward 6"})
        expect(page.get_by_role("heading", level=1)).to_have_text("Ward 6")
        wait_for_responses(page, watch)
        asked = f"GET /api/v1{path}"
        before = watch.requests.count(asked)
        # Nothing happens here. A connection that lives proves it, and nobody has to read anew for that.
        page.clock.fast_forward(_SILENCE_MS)
        wait_until(page, lambda: len(proofs) == 1)
        page.clock.fast_forward(_PATIENCE)
        wait_until_connected(page)
        assert (len(sockets), watch.requests.count(asked)) == (1, before)
        assert _resyncs(service) == resyncs
        wire.freeze_connections()
        service.call("PUT", f"/api/v1{path}/friendly-name", {"name": "Ward 7"})
        page.clock.fast_forward(_SILENCE_MS)
        page.clock.fast_forward(_PATIENCE)
        wait_until(page, lambda: len(sockets) > 1)
        expect(page.get_by_role("heading", level=1)).to_have_text("Ward 7")
        wait_until_connected(page)


def test_a_service_that_went_silent_is_not_live_and_unreachable_at_once(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], service: ServiceProcess
) -> None:
    with FaultyProxy(service) as wire:
        context, watch = make_window(wire)
        watch.expect("net::ERR_FAILED")
        page = context.new_page()
        page.clock.install()
        sign_in(page, wire, Role.ADMIN)
        page.goto("/labels")
        wait_until_connected(page)
        expect(health(page)).to_have_text("Service ready")
        wait_until_loaded(page, watch)
        watch_connection_state(page)
        # The live connection carries nothing any more, and a request for the health fails at once.
        page.route("**/readyz", lambda route: route.abort())
        wire.freeze_connections()
        wire.ignores_new = True
        page.clock.fast_forward(_EVERY)
        # What is painted is compared a moment later than a test sees it.
        wait_until(page, lambda: "Checking the connection" in compared_texts(page))
        page.clock.fast_forward(_PATIENCE)
        wait_until(page, lambda: {"Reconnecting", "Service cannot be reached"} < set(compared_texts(page)))
        wire.ignores_new = False
        page.unroute("**/readyz")
        page.get_by_role("button", name="Try to connect now").click()
        page.clock.fast_forward(_HANDSHAKE)
        wait_until_connected(page)
        assert contradictions(page) == []


def test_a_handshake_that_nobody_answers_is_not_waited_for(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], service: ServiceProcess
) -> None:
    with FaultyProxy(service) as wire:
        context, watch = make_window(wire)
        watch.expect("closed before the connection is established")
        page = context.new_page()
        page.clock.install()
        sockets: list[WebSocket] = []
        sign_in(page, wire, Role.ADMIN)
        page.on("websocket", lambda socket: sockets.append(socket))  # noqa: PLW0108 # Playwright marks what it is given
        page.goto("/labels")
        wait_until_connected(page)
        wire.freeze_connections()
        wire.ignores_new = True
        page.clock.fast_forward(_SILENCE_MS)
        page.clock.fast_forward(_PATIENCE)
        wait_until(page, lambda: len(sockets) > 1)
        state(page, "Reconnecting")
        # While time stands still, only a click can make it try again. A slow machine may have tried before.
        pause_clock(page)
        page.wait_for_timeout(50)
        tried = len(sockets)
        page.get_by_role("button", name="Try to connect now").click()
        wait_until(page, lambda: len(sockets) > tried)
        page.clock.resume()
        page.clock.fast_forward(_HANDSHAKE)
        wait_until(page, lambda: len(sockets) > tried + 1)
        wire.ignores_new = False
        wait_until_connected(page)
