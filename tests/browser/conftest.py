"""Fixtures of the browser tests: per worker a service with its demo fleet, a browser, and a shared window."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.sync_api import Error, expect, sync_playwright

from meshfleet.rest.accounts import Role
from tests.browser.browser_log import BrowserLog
from tests.eventually import eventually
from tests.external_tools import CHROMIUM, CONSOLE, require
from tests.scenarios.service_process import PASSWORD, ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, WebSocket

    from tests.browser.faulty_proxy import FaultyProxy

    Open = Callable[..., Page]

TIMEOUT_MS = 30_000
"""Milliseconds to wait for something to appear; reached only if it never does."""

_PROBE_MS = 50

_CLOCK_LEAD_SECONDS = 4
"""Seconds ahead of now at which a clock is stopped: it cannot be stopped in the past."""

LOOPBACK_WEBHOOKS: Final = ("--webhooks-allow", "127.0.0.0/8", "--webhooks-allow-http", "on")
"""Options with which channels may lead to a receiver of a test."""

REMOTE_HOSTNAME = "fleet.test"
"""Another host name of this machine, which browsers trust less than a loopback address."""

_DISABLED_FEATURES = (
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
    # Playwright disables the features above itself, but our list replaces its own. Those below save a seventh
    # of the time to load a page.
    "HistoryClusters",
    "NavigationPredictor",
    "PageContentAnnotations",
    "Prerender2",
    "RenderDocument",
    "SpareRendererForSitePerProcess",
)

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    f"--disable-features={','.join(_DISABLED_FEATURES)}",
    f"--host-resolver-rules=MAP {REMOTE_HOSTNAME} 127.0.0.1",
)
"""Flags that let Chromium run as root, without a display, and with little shared memory."""

_WINDOW_SIZE: Final[ViewportSize] = {"width": 1440, "height": 900}

_IDLE_PATH = "/healthz"
"""Path of the same origin with nothing to load, for tabs between two tests."""

_STORE_LOGIN = "token => sessionStorage.setItem('meshfleet.token', token)"
_CLEAR_STORAGE = "() => { localStorage.clear(); sessionStorage.clear(); }"

_FOLLOW_LINK = """address => {
  const before = document.querySelector("main h1");
  const link = document.createElement("a");
  link.href = address;
  document.body.append(link);
  link.click();
  link.remove();
  return before;
}"""
"""Click a link; returns the heading of the page before."""

_TOKEN_REUSE_SECONDS: Final = 120.0
"""Seconds for which a token is reused: tests that move a clock need a new session."""

_tokens: dict[tuple[str, Role], tuple[str, float]] = {}
"""Token and its creation time, by service URL and role."""


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Run a service with the demo fleet and a user of each role, named after the role."""
    require(CONSOLE)
    options = ["--demo", *loopback_options("--mqtt"), *LOOPBACK_WEBHOOKS]
    with ServiceProcess(tmp_path_factory.mktemp("demo"), *options) as service:
        for role in (Role.VIEWER, Role.OPERATOR):
            service.add_user(role, role)
        yield service


@pytest.fixture
def total(demo: ServiceProcess) -> int:
    """Return the number of devices."""
    count: int = demo.call("GET", "/api/v1/devices/summary")["total"]
    return count


@pytest.fixture(scope="package")
def running_browser() -> Iterator[Callable[[], Browser]]:
    """Return a function that starts Chromium if it is not running.

    Package-scoped: Playwright runs an event loop, which tests of other packages must not find.
    """
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        started: list[Browser] = []

        def launch_if_needed() -> Browser:
            if not started or not started[-1].is_connected():
                started.append(playwright.chromium.launch(executable_path=require(CHROMIUM), args=_FLAGS))
            return started[-1]

        yield launch_if_needed
        for each in started:
            each.close()


@pytest.fixture
def browser(running_browser: Callable[[], Browser]) -> Browser:
    """Return the browser of this worker. It is started again after a crash, so that only one test fails."""
    return running_browser()


def _open(
    browser: Browser, service: ServiceProcess | FaultyProxy, **options: Any
) -> tuple[BrowserContext, BrowserLog]:
    """Open a window with reduced motion: painting animations costs more than all the rest."""
    defaults = {"base_url": service.url, "viewport": _WINDOW_SIZE, "reduced_motion": "reduce"}
    context = browser.new_context(**{**defaults, **options})
    context.set_default_timeout(TIMEOUT_MS)
    return context, BrowserLog(context, service.url)


@pytest.fixture
def make_window(browser: Browser) -> Iterator[Callable[..., tuple[BrowserContext, BrowserLog]]]:
    """Return a function that opens a window of any service with browser options such as `color_scheme`."""
    opened: list[tuple[BrowserContext, BrowserLog]] = []

    def make(service: ServiceProcess | FaultyProxy, **options: Any) -> tuple[BrowserContext, BrowserLog]:
        opened.append(_open(browser, service, **options))
        return opened[-1]

    yield make
    unexpected = [each for _, browser_log in opened for each in browser_log.unexpected]
    for context, _ in opened:
        context.close()
    assert unexpected == []
    assert [each for _, browser_log in opened for each in browser_log.missing] == []


@pytest.fixture(scope="package")
def shared_windows() -> list[tuple[BrowserContext, BrowserLog]]:
    """Return the window that tests share; empty before the first test, and after a test that broke it."""
    return []


@pytest.fixture
def shared_window(
    shared_windows: list[tuple[BrowserContext, BrowserLog]], browser: Browser, demo: ServiceProcess
) -> Iterator[tuple[BrowserContext, BrowserLog]]:
    """Return a window that has loaded the console before: a new one needs twice as long."""
    if not shared_windows or shared_windows[0][0].browser is not browser:
        shared_windows[:] = [_open(browser, demo)]
    context, browser_log = shared_windows[0]
    yield context, browser_log
    try:
        _reset_window(context)
    except Error:  # the page or its browser crashed: the next test gets another window
        shared_windows.clear()
        raise


@pytest.fixture
def own_window() -> None:
    """Mark tests that change a window for good: they install a clock or a script, or add a listener."""


@pytest.fixture
def window(
    request: pytest.FixtureRequest, demo: ServiceProcess
) -> Iterator[tuple[BrowserContext, BrowserLog]]:
    """Return a window of the demo service without a logged-in user."""
    if "own_window" in request.fixturenames:
        yield request.getfixturevalue("make_window")(demo)
        return
    context, browser_log = request.getfixturevalue("shared_window")
    browser_log.reset()
    yield context, browser_log
    if browser_log.was_not_ready:
        eventually(demo.is_ready, "a demo service that is ready again")
    assert browser_log.unexpected == []
    assert browser_log.missing == []


def _reset_window(context: BrowserContext) -> None:
    """Restore the initial state of a window for the next test."""
    context.set_offline(False)
    for page in context.pages[1:]:
        page.close()
    for page in context.pages:
        page.unroute_all(behavior="ignoreErrors")
        page.goto(_IDLE_PATH)
        page.evaluate(_CLEAR_STORAGE)
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.mouse.move(0, 0)  # lists of live values hold still under the pointer
        if page.viewport_size != _WINDOW_SIZE:
            page.set_viewport_size(_WINDOW_SIZE)


@pytest.fixture
def browser_log(window: tuple[BrowserContext, BrowserLog]) -> BrowserLog:
    """Return the log of the browser of `page`."""
    return window[1]


@pytest.fixture
def page(window: tuple[BrowserContext, BrowserLog]) -> Page:
    """Return the first tab of the window."""
    context, _ = window
    return context.pages[0] if context.pages else context.new_page()


@pytest.fixture
def open_as(page: Page, demo: ServiceProcess) -> Open:
    """Return a function that opens a path of the console as a logged-in user with a role."""

    def go(path: str, role: Role = Role.ADMIN, *, tab: Page | None = None) -> Page:
        target = tab or page
        sign_in(target, demo, role)
        target.goto(path)
        return target

    return go


def sign_in(tab: Page, service: ServiceProcess | FaultyProxy, role: Role) -> None:
    """Store a token in a tab, as the login form does."""
    token = _get_token(tab, service, role)
    if tab.url != f"{service.url}{_IDLE_PATH}":
        tab.goto(f"{service.url}{_IDLE_PATH}")
    tab.evaluate(_STORE_LOGIN, token)


def _get_token(tab: Page, service: ServiceProcess | FaultyProxy, role: Role) -> str:
    """Return a recently created token if it is still valid, or log in."""
    token, created_at = _tokens.get((service.url, role), ("", 0.0))
    if token and time.monotonic() < created_at + _TOKEN_REUSE_SECONDS:
        bearer = {"Authorization": f"Bearer {token}"}
        if tab.request.get(f"{service.url}/api/v1/auth/me", headers=bearer).ok:
            return token
    name = "admin" if role is Role.ADMIN else str(role)
    requested_at = time.monotonic()
    response = tab.request.post("/api/v1/auth/login", data={"username": name, "password": PASSWORD})
    assert response.ok, response.text()
    _tokens[service.url, role] = str(response.json()["authToken"]), requested_at
    return _tokens[service.url, role][0]


def visit(tab: Page, address: str) -> None:
    """Go to another page of the console by a link, four times as fast as loading it.

    Waits until the new page has replaced the old one. Do not use it between two pages that the user may not
    see: they share their heading, so it would wait in vain.
    """
    expect(tab.get_by_role("heading", level=1)).to_be_visible()
    heading = tab.evaluate_handle(_FOLLOW_LINK, address)
    tab.wait_for_function("before => !before.isConnected", arg=heading)


def go_to_page_by_key(tab: Page, key: str, name: str) -> None:
    """Press `g` and a key until the page appears: a slow machine may exceed the 1.5 s between both keys."""

    def go() -> bool:
        tab.keyboard.press("g")
        tab.keyboard.press(key)
        return tab.get_by_role("heading", level=1).inner_text() == name

    wait_until(tab, go, name)


@contextmanager
def watching_websockets(page: Page, follow: Callable[[WebSocket], None]) -> Iterator[None]:
    """Call a function for each WebSocket that a tab opens, until the block ends."""
    page.on("websocket", follow)
    try:
        yield
    finally:
        page.remove_listener("websocket", follow)


def wait_until_connected(page: Page) -> None:
    """Wait until the top bar shows a live connection, with or without traffic."""
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text(
        re.compile("^(Live|No traffic yet)$")
    )


def wait_until(tab: Page, condition: Callable[[], object], awaited: str = "the condition") -> None:
    """Wait for a condition that only the test can check, while the browser delivers its events."""

    def check() -> object:
        result = condition()
        if not result:
            tab.wait_for_timeout(_PROBE_MS)
        return result

    eventually(check, awaited)


def wait_for_responses(tab: Page, browser_log: BrowserLog) -> None:
    """Wait until no request is pending, including requests started a moment ago."""
    tab.wait_for_timeout(_PROBE_MS)
    wait_until(tab, lambda: not browser_log.pending, "responses to all requests")


def stop_clock(tab: Page, browser_log: BrowserLog) -> None:
    """Stop an installed clock while no request is pending: the jump would time it out."""
    wait_for_responses(tab, browser_log)
    pause_clock(tab)
    wait_for_responses(tab, browser_log)


def pause_clock(tab: Page) -> None:
    """Stop an installed clock slightly ahead of now. Retries if the machine was too slow for that."""
    for tries_left in reversed(range(10)):
        try:
            tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + _CLOCK_LEAD_SECONDS)
        except Error:
            if not tries_left:
                raise
        else:
            return


def wait_until_loaded(tab: Page, browser_log: BrowserLog) -> None:
    """Wait until a page shows its loaded data."""
    expect(tab.get_by_text("Loading…")).to_have_count(0)
    wait_for_responses(tab, browser_log)
    expect(tab.get_by_text("Loading…")).to_have_count(0)


def check_fits_width(tab: Page, width: int) -> None:
    """Set the width of a window and wait until its page fits: layout by script follows a moment later."""
    tab.set_viewport_size({"width": width, "height": 844})
    wait_until(tab, lambda: horizontal_overflow(tab) == 0, f"a page that fits into {width} pixels")


def horizontal_overflow(tab: Page) -> int:
    """Return the pixels by which the page scrolls sideways, without elements that scroll by themselves."""
    overflow: int = tab.evaluate("""() => Math.max(...["html", "main"].map((name) => {
        const part = document.querySelector(name);
        return part.scrollWidth - part.clientWidth;
    }))""")
    return overflow
