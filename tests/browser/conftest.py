"""A service with its demo fleet and a browser for each worker; for each test a window of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect, sync_playwright

from meshfleet.wire.rest import Role
from tests.browser.watch import Watch
from tests.parts import CHROMIUM, CONSOLE, need
from tests.scenarios.serving import PASSWORD, Service, loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.browser.wire import Wire

    Open = Callable[..., Page]

PATIENCE = 30_000
"""Milliseconds until something must be seen; reached only when it never is."""

_LOOK = 50

_AHEAD = 4
"""Seconds that a clock is stopped ahead of itself: it does not stop in the past, however slow we are."""

ELSEWHERE = "fleet.test"
"""Another name of this machine, which browsers trust less than an address of its own."""

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
)
"""Root may start it, and a machine without a screen or with little shared memory too."""

_KEEP = "token => sessionStorage.setItem('meshfleet.token', token)"


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo fleet, and one person of each role; they are called by it."""
    need(CONSOLE)
    with Service(tmp_path_factory.mktemp("demo"), "--demo", *loopback("--mqtt")) as service:
        for role in (Role.VIEWER, Role.OPERATOR):
            service.person(role, role)
        yield service


@pytest.fixture
def total(demo: Service) -> int:
    """How many devices there are."""
    count: int = demo.ask("GET", "/api/v1/devices/summary")["total"]
    return count


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Playwright runs an event loop here: tests of other packages must find none."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=need(CHROMIUM), args=_FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def make_window(browser: Browser) -> Iterator[Callable[..., tuple[BrowserContext, Watch]]]:
    """Windows on any service, with options as a browser has them, such as `color_scheme`."""
    opened: list[tuple[BrowserContext, Watch]] = []

    def make(service: Service | Wire, **options: Any) -> tuple[BrowserContext, Watch]:
        context = browser.new_context(
            base_url=service.url, **{"viewport": {"width": 1440, "height": 900}, **options}
        )
        context.set_default_timeout(PATIENCE)
        opened.append((context, Watch(context, service.url)))
        return opened[-1]

    yield make
    complaints = [each for _, watch in opened for each in watch.complaints]
    for context, _ in opened:
        context.close()
    assert complaints == []
    assert [each for _, watch in opened for each in watch.unheard] == []


@pytest.fixture
def window(
    make_window: Callable[..., tuple[BrowserContext, Watch]], demo: Service
) -> tuple[BrowserContext, Watch]:
    """A window on the demo fleet, in which nobody is signed in."""
    return make_window(demo)


@pytest.fixture
def watch(window: tuple[BrowserContext, Watch]) -> Watch:
    """What the browser of `page` says, and asks for."""
    return window[1]


@pytest.fixture
def page(window: tuple[BrowserContext, Watch]) -> Page:
    """A tab of that window."""
    return window[0].new_page()


@pytest.fixture
def open_as(page: Page, demo: Service) -> Open:
    """Open a path of the console as a person with a role, who is signed in already."""

    def go(path: str, role: Role = Role.ADMIN, *, tab: Page | None = None) -> Page:
        shown = tab or page
        sign_in(shown, demo, role)
        shown.goto(path)
        return shown

    return go


def sign_in(tab: Page, service: Service | Wire, role: Role) -> None:
    """Have a token in a tab, as after the form was sent."""
    name = "admin" if role is Role.ADMIN else str(role)
    told = tab.request.post("/api/v1/auth/login", data={"username": name, "password": PASSWORD})
    assert told.ok, told.text()
    tab.goto(f"{service.url}/healthz")  # Of the same origin, and nothing to load.
    tab.evaluate(_KEEP, told.json()["authToken"])


def there(page: Page) -> None:
    """Wait until the bar says that it is connected, whether anything happens or not."""
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text(
        re.compile("^(Live|No traffic yet)$")
    )


def until(tab: Page, holds: Callable[[], object], wanted: str = "it") -> None:
    """Wait for what only the test itself can see, such as what it heard."""
    for _ in range(PATIENCE // _LOOK):
        if holds():
            return
        tab.wait_for_timeout(_LOOK)
    pytest.fail(f"{wanted} never comes")


def answered(tab: Page, watch: Watch) -> None:
    """Wait until nobody waits for an answer, not even to what was asked for a moment ago."""
    tab.wait_for_timeout(_LOOK)
    until(tab, lambda: not watch.pending, "an answer to everything")


def stop_clock(tab: Page, watch: Watch) -> None:
    """Let an installed clock stand still while nothing is under way: when it jumps, that would end."""
    answered(tab, watch)
    tab.clock.pause_at(tab.evaluate("Date.now()") / 1000 + _AHEAD)
    answered(tab, watch)


def settle(tab: Page) -> None:
    """Wait until a page shows what it asked for."""
    tab.wait_for_load_state("networkidle")
    expect(tab.get_by_text("Loading…")).to_have_count(0)


def squeeze(tab: Page, width: int) -> None:
    """Make a window so wide and see that its page fits; what a script lays out follows a moment later."""
    tab.set_viewport_size({"width": width, "height": 844})
    until(tab, lambda: hidden_sideways(tab) == 0, f"a page that fits into {width} pixels")


def hidden_sideways(tab: Page) -> int:
    """Pixels that one would have to scroll the page sideways for; what scrolls by itself does not count."""
    hidden: int = tab.evaluate("""() => Math.max(...["html", "main"].map((name) => {
        const part = document.querySelector(name);
        return part.scrollWidth - part.clientWidth;
    }))""")
    return hidden
