"""Tests of every page: accessible in both themes, no scrolling sideways, only documented requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect

from tests.browser.alarm_bodies import RoutedAlarms
from tests.browser.axe import find_violations
from tests.browser.conftest import check_fits_width, visit, wait_until_loaded
from tests.browser.console_pages import ALARMS, PAGES, RECORD_PAGES, open_console_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from playwright.sync_api import Route

    from tests.browser.axe import Theme
    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

ROUTES = Path(__file__).parents[2] / "console" / "src" / "shell" / "pages.ts"

WIDTHS: Mapping[Theme, Sequence[int]] = {
    "light": (320, 1440),
    "dark": (768, 390),
}
"""Widths: a zoom of 200 % halves the width, and one of 400 % leaves 320 of 1280. axe is slow, so it checks
only the last width of each theme."""

ALL_WIDTHS: Final = (1440, 768, 720, 390, 320)

DIRECTIONS: Mapping[Theme, str] = {"light": "ltr", "dark": "rtl"}
"""Direction of each theme, so that each direction is checked, and no page twice."""


GROUPS: Mapping[str, Sequence[str]] = {
    "fleet": ("/", "/alarms", "/devices", "/gateways", "/labels", "/topology?Gateway=02005e000001"),
    "sites": ("/sites", "/sites/:id"),
    "one of them": (
        "/alarms/:id",
        "/devices/bmac-02005e000001",
        "/gateways/02005e000001",
        "/messages",
        "/rejects",
    ),
    "updates": ("/jobs", "/jobs/new", "/jobs/:id", "/firmware", "/firmware/:id"),
    "admin": ("/api/docs", "/settings/channels", "/people", "/keys", "/audit", "/api/docs?part=messaging"),
}
"""Pages that one test visits in turn: following a link takes half the time of loading a page."""

UNDOCUMENTED_PATHS: Final = {"/healthz", "/readyz"}
"""Requested paths that are not part of the documented API."""

_SITE = re.compile(r"/(?:assets/[\w.-]+|icon\.svg|theme\.js)?")


@pytest.fixture(scope="package")
def documented_paths(demo: ServiceProcess) -> re.Pattern[str]:
    """Return a pattern of the documented paths."""
    paths = demo.call("GET", "/api/v1/openapi.json")["paths"]
    return re.compile("|".join(re.sub(r"\{\w+\}", "[^/]+", each) for each in paths))


@pytest.mark.rule("rest-158")
@pytest.mark.parametrize("group", GROUPS)
def test_pages_are_accessible_and_send_only_documented_requests(
    open_as: Open,
    browser_log: BrowserLog,
    demo: ServiceProcess,
    documented_paths: re.Pattern[str],
    group: str,
) -> None:
    page = open_as("/healthz")
    # axe needs a second for every twenty operations, and all of them are rendered alike.
    page.route("**/api/v1/openapi.json", _respond_with_job_operations)
    RoutedAlarms(page, ALARMS)
    seen: set[str] = set()
    for number, path in enumerate(GROUPS[group]):
        browser_log.requests.clear()
        with open_console_page(demo, path) as (address, heading):
            if number == 0:
                page.goto(address)
            else:
                visit(page, address)
            expect(page.get_by_role("heading", level=1)).to_have_text(heading)
            wait_until_loaded(page, browser_log)
            for theme, widths in WIDTHS.items():
                page.emulate_media(color_scheme=theme)
                expect(page.locator("html")).to_have_attribute("data-theme", theme)
                page.evaluate("direction => document.documentElement.dir = direction", DIRECTIONS[theme])
                for width in widths:
                    check_fits_width(page, width)
                assert find_violations(page) == [], f"{path}, {theme}"
            if path in RECORD_PAGES:
                visit(
                    page, "/labels"
                )  # the browser logs errors for responses that arrive after the record was deleted
        asked = {each.split()[1].partition("?")[0] for each in browser_log.requests}
        seen |= asked
        strange = {
            each for each in asked if not documented_paths.fullmatch(each) and not _SITE.fullmatch(each)
        }
        allowed = UNDOCUMENTED_PATHS | {address.partition("?")[0]}
        assert strange <= allowed, f"{path} asks for what no document tells of"
    # A page such as /messages may show what earlier pages have loaded, and send no request of its own.
    assert any(each.startswith("/api/v1/") for each in seen)


def _respond_with_job_operations(route: Route) -> None:
    document = route.fetch().json()
    paths = {path: there for path, there in document["paths"].items() if path.startswith("/api/v1/jobs")}
    assert paths
    route.fulfill(json={**document, "paths": paths})


@pytest.mark.part("variants")
@pytest.mark.parametrize("path", [*PAGES, *RECORD_PAGES])
def test_a_page_fits_into_any_width_in_both_directions(
    open_as: Open, browser_log: BrowserLog, demo: ServiceProcess, path: str
) -> None:
    page = open_as("/healthz")
    RoutedAlarms(page, ALARMS)
    with open_console_page(demo, path) as (address, heading):
        page.goto(address)
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        wait_until_loaded(page, browser_log)
        for direction in ("ltr", "rtl"):
            page.evaluate("direction => document.documentElement.dir = direction", direction)
            for width in ALL_WIDTHS:
                check_fits_width(page, width)


def test_every_page_of_the_console_is_listed() -> None:
    assert sorted(path for group in GROUPS.values() for path in group) == sorted([*PAGES, *RECORD_PAGES])
    routes = re.findall(r'\{ path: "([^"]+)", load:', ROUTES.read_text("utf-8"))
    assert len(routes) > len(RECORD_PAGES)
    looked_at = {path.partition("?")[0] for path in (*PAGES, *RECORD_PAGES)}
    named = looked_at - set(routes)
    for route in routes:
        pattern = re.sub(r":\w+", "[^/]+", route)
        assert route in looked_at or any(re.fullmatch(pattern, path) for path in named), route
