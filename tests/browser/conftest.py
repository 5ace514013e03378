"""A service with its demo fleet and a browser for each worker, with a window that tests have in turn."""

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
"""Milliseconds until something must be seen; reached only when it never is."""

_PROBE_MS = 50

_CLOCK_LEAD_SECONDS = 4
"""Seconds that a clock is stopped ahead of itself: it does not stop in the past."""

REMOTE_HOSTNAME = "fleet.test"
"""Another name of this machine, which browsers trust less than an address of its own."""

_SWITCHED_OFF = (
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
    # Up to here what Playwright switches off: a list of our own replaces its list. The others save a seventh
    # of what it takes to load a page.
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
    f"--disable-features={','.join(_SWITCHED_OFF)}",
    f"--host-resolver-rules=MAP {REMOTE_HOSTNAME} 127.0.0.1",
)
"""Root may start it, and a machine without a screen or with little shared memory too."""

_SIZE: Final[ViewportSize] = {"width": 1440, "height": 900}

_IDLE_PATH = "/healthz"
"""Of the same origin, and nothing to load: where a tab is while nobody looks at the console."""

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
"""Follow a link; gives the heading of the page that one leaves."""

_TOKEN_REUSE_SECONDS: Final = 120.0
"""Seconds for which a token is used again: tests that move a clock count on a session that has just begun."""

_tokens: dict[tuple[str, Role], tuple[str, float]] = {}
"""For each service and role a token, and when it was made."""


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The demo fleet, and one person of each role; they are called by it."""
    require(CONSOLE)
    with ServiceProcess(tmp_path_factory.mktemp("demo"), "--demo", *loopback_options("--mqtt")) as service:
        for role in (Role.VIEWER, Role.OPERATOR):
            service.add_user(role, role)
        yield service


@pytest.fixture
def total(demo: ServiceProcess) -> int:
    """How many devices there are."""
    count: int = demo.call("GET", "/api/v1/devices/summary")["total"]
    return count


@pytest.fixture(scope="package")
def running_browser() -> Iterator[Callable[[], Browser]]:
    """Debian's Chromium. Playwright runs an event loop here: tests of other packages must find none."""
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        started: list[Browser] = []

        def running() -> Browser:
            if not started or not started[-1].is_connected():
                started.append(playwright.chromium.launch(executable_path=require(CHROMIUM), args=_FLAGS))
            return started[-1]

        yield running
        for each in started:
            each.close()


@pytest.fixture
def browser(running_browser: Callable[[], Browser]) -> Browser:
    """The browser of this worker. After a crash it is another one, so that only one test fails."""
    return running_browser()


def _open(
    browser: Browser, service: ServiceProcess | FaultyProxy, **options: Any
) -> tuple[BrowserContext, BrowserLog]:
    """Open a window. Nothing moves in it by itself: to paint what does costs more than all the rest."""
    usual = {"base_url": service.url, "viewport": _SIZE, "reduced_motion": "reduce"}
    context = browser.new_context(**{**usual, **options})
    context.set_default_timeout(TIMEOUT_MS)
    return context, BrowserLog(context, service.url)


@pytest.fixture
def make_window(browser: Browser) -> Iterator[Callable[..., tuple[BrowserContext, BrowserLog]]]:
    """Windows on any service, with options as a browser has them, such as `color_scheme`."""
    opened: list[tuple[BrowserContext, BrowserLog]] = []

    def make(service: ServiceProcess | FaultyProxy, **options: Any) -> tuple[BrowserContext, BrowserLog]:
        opened.append(_open(browser, service, **options))
        return opened[-1]

    yield make
    complaints = [each for _, watch in opened for each in watch.unexpected]
    for context, _ in opened:
        context.close()
    assert complaints == []
    assert [each for _, watch in opened for each in watch.missing] == []


@pytest.fixture(scope="package")
def shared_windows() -> list[tuple[BrowserContext, BrowserLog]]:
    """The window that tests use in turn; empty before the first test, and after a test that broke it."""
    return []


@pytest.fixture
def shared_window(
    shared_windows: list[tuple[BrowserContext, BrowserLog]], browser: Browser, demo: ServiceProcess
) -> Iterator[tuple[BrowserContext, BrowserLog]]:
    """A window on the demo fleet that has loaded the console before: a new one needs twice as long."""
    if not shared_windows or shared_windows[0][0].browser is not browser:
        shared_windows[:] = [_open(browser, demo)]
    context, watch = shared_windows[0]
    yield context, watch
    try:
        _reset_window(context)
    except Error:  # it crashed, or its browser did: the next test gets another one
        shared_windows.clear()
        raise


@pytest.fixture
def own_window() -> None:
    """For tests that change a window for good: they install a clock or a script, or listen to it."""


@pytest.fixture
def window(
    request: pytest.FixtureRequest, demo: ServiceProcess
) -> Iterator[tuple[BrowserContext, BrowserLog]]:
    """A window on the demo fleet, in which nobody is signed in."""
    if "own_window" in request.fixturenames:
        yield request.getfixturevalue("make_window")(demo)
        return
    context, watch = request.getfixturevalue("shared_window")
    watch.reset()
    yield context, watch
    assert watch.unexpected == []
    assert watch.missing == []


def _reset_window(context: BrowserContext) -> None:
    """Leave nothing to the next test."""
    context.set_offline(False)
    for page in context.pages[1:]:
        page.close()
    for page in context.pages:
        page.unroute_all(behavior="ignoreErrors")
        page.goto(_IDLE_PATH)
        page.evaluate(_CLEAR_STORAGE)
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        if page.viewport_size != _SIZE:
            page.set_viewport_size(_SIZE)


@pytest.fixture
def watch(window: tuple[BrowserContext, BrowserLog]) -> BrowserLog:
    """What the browser of `page` says, and asks for."""
    return window[1]


@pytest.fixture
def page(window: tuple[BrowserContext, BrowserLog]) -> Page:
    """A tab of that window."""
    context, _ = window
    return context.pages[0] if context.pages else context.new_page()


@pytest.fixture
def open_as(page: Page, demo: ServiceProcess) -> Open:
    """Open a path of the console as a person with a role, who is signed in already."""

    def go(path: str, role: Role = Role.ADMIN, *, tab: Page | None = None) -> Page:
        shown = tab or page
        sign_in(shown, demo, role)
        shown.goto(path)
        return shown

    return go


def sign_in(tab: Page, service: ServiceProcess | FaultyProxy, role: Role) -> None:
    """Have a token in a tab, as after the form was sent."""
    token = _token(tab, service, role)
    if tab.url != f"{service.url}{_IDLE_PATH}":
        tab.goto(f"{service.url}{_IDLE_PATH}")
    tab.evaluate(_STORE_LOGIN, token)


def _token(tab: Page, service: ServiceProcess | FaultyProxy, role: Role) -> str:
    """Take the token that others had a moment ago, unless it has been ended."""
    token, made = _tokens.get((service.url, role), ("", 0.0))
    if token and time.monotonic() < made + _TOKEN_REUSE_SECONDS:
        bearer = {"Authorization": f"Bearer {token}"}
        if tab.request.get(f"{service.url}/api/v1/auth/me", headers=bearer).ok:
            return token
    name = "admin" if role is Role.ADMIN else str(role)
    begun = time.monotonic()
    told = tab.request.post("/api/v1/auth/login", data={"username": name, "password": PASSWORD})
    assert told.ok, told.text()
    _tokens[service.url, role] = str(told.json()["authToken"]), begun
    return _tokens[service.url, role][0]


def visit(tab: Page, address: str) -> None:
    """Go to another page of the console by a link: to load everything anew takes four times as long.

    What is seen afterwards is of the new page, as the one before stays until that is there. Pages that are
    not for somebody share their heading: between two of them it would wait in vain.
    """
    expect(tab.get_by_role("heading", level=1)).to_be_visible()
    before = tab.evaluate_handle(_FOLLOW_LINK, address)
    tab.wait_for_function("before => !before.isConnected", arg=before)


def go_to_page_by_key(tab: Page, key: str, name: str) -> None:
    """Go to a page with `g` and its key, again and again: between both may be a second and a half at most."""

    def go() -> bool:
        tab.keyboard.press("g")
        tab.keyboard.press(key)
        return tab.get_by_role("heading", level=1).inner_text() == name

    wait_until(tab, go, name)


@contextmanager
def watching_websockets(page: Page, follow: Callable[[WebSocket], None]) -> Iterator[None]:
    """Be told of each connection that a tab opens, and leave nobody in it who listens."""
    page.on("websocket", follow)
    try:
        yield
    finally:
        page.remove_listener("websocket", follow)


def wait_until_connected(page: Page) -> None:
    """Wait until the bar says that it is connected, whether anything happens or not."""
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text(
        re.compile("^(Live|No traffic yet)$")
    )


def wait_until(tab: Page, holds: Callable[[], object], wanted: str = "it") -> None:
    """Wait for what only the test itself can see, such as what it heard: a browser tells it meanwhile."""

    def look() -> object:
        found = holds()
        if not found:
            tab.wait_for_timeout(_PROBE_MS)
        return found

    eventually(look, wanted)


def wait_for_responses(tab: Page, watch: BrowserLog) -> None:
    """Wait until nobody waits for an answer, not even to what was asked for a moment ago."""
    tab.wait_for_timeout(_PROBE_MS)
    wait_until(tab, lambda: not watch.pending, "an answer to everything")


def stop_clock(tab: Page, watch: BrowserLog) -> None:
    """Let an installed clock stand still while nothing is under way: when it jumps, that would end."""
    wait_for_responses(tab, watch)
    pause_clock(tab)
    wait_for_responses(tab, watch)


def pause_clock(tab: Page) -> None:
    """Let an installed clock stand still, a little ahead. Who was too slow for that tries again."""
    for tries_left in reversed(range(10)):
        try:
            tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + _CLOCK_LEAD_SECONDS)
        except Error:
            if not tries_left:
                raise
        else:
            return


def wait_until_loaded(tab: Page, watch: BrowserLog) -> None:
    """Wait until a page shows what it asked for."""
    expect(tab.get_by_text("Loading…")).to_have_count(0)
    wait_for_responses(tab, watch)
    expect(tab.get_by_text("Loading…")).to_have_count(0)


def check_fits_width(tab: Page, width: int) -> None:
    """Make a window so wide and see that its page fits; what a script lays out follows a moment later."""
    tab.set_viewport_size({"width": width, "height": 844})
    wait_until(tab, lambda: horizontal_overflow(tab) == 0, f"a page that fits into {width} pixels")


def horizontal_overflow(tab: Page) -> int:
    """Pixels that one would have to scroll the page sideways for; what scrolls by itself does not count."""
    hidden: int = tab.evaluate("""() => Math.max(...["html", "main"].map((name) => {
        const part = document.querySelector(name);
        return part.scrollWidth - part.clientWidth;
    }))""")
    return hidden
