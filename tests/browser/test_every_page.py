"""What holds for every page: no barriers in either theme, no scrolling sideways, no secret questions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import expect

from tests.browser.axe import find_violations
from tests.browser.conftest import check_fits_width, visit, wait_until_loaded
from tests.browser.console_pages import PAGES, RECORD_PAGES, open_console_page

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
"""A zoom of 200 % leaves half of a width, and one of 400 % leaves 320 of 1280. axe takes its time, so it
looks at the last of each theme alone."""

ALL_WIDTHS: Final = (1440, 768, 720, 390, 320)

DIRECTIONS: Mapping[Theme, str] = {"light": "ltr", "dark": "rtl"}
"""So that each is looked at, and no page twice."""


GROUPS: Mapping[str, Sequence[str]] = {
    "fleet": ("/", "/devices", "/gateways", "/labels"),
    "one of them": ("/devices/bmac-02005e000001", "/gateways/02005e000001", "/messages", "/rejects"),
    "updates": ("/jobs", "/jobs/new", "/jobs/:id", "/firmware", "/firmware/:id"),
    "admin": ("/api/docs", "/people", "/keys", "/audit", "/api/docs?part=messaging"),
}
"""Pages that are looked at one after the other: who goes on by a link needs half of the time."""

OPEN_TO_ALL: Final = {"/healthz", "/readyz"}
"""What is asked for without being part of the interface."""

_SITE = re.compile(r"/(?:assets/[\w.-]+|icon\.svg|theme\.js)?")


@pytest.fixture(scope="package")
def documented(demo: ServiceProcess) -> re.Pattern[str]:
    """The paths of the interface."""
    paths = demo.call("GET", "/api/v1/openapi.json")["paths"]
    return re.compile("|".join(re.sub(r"\{\w+\}", "[^/]+", each) for each in paths))


@pytest.mark.rule("rest-158")
@pytest.mark.parametrize("group", GROUPS)
def test_nobody_is_kept_out_and_only_what_is_documented_is_asked_for(
    open_as: Open, watch: BrowserLog, demo: ServiceProcess, documented: re.Pattern[str], group: str
) -> None:
    page = open_as("/healthz")
    # axe needs a second for every twenty operations of the interface, and all are drawn alike.
    page.route("**/api/v1/openapi.json", _tell_of_jobs)
    for number, path in enumerate(GROUPS[group]):
        watch.requests.clear()
        with open_console_page(demo, path) as (address, heading):
            if number == 0:
                page.goto(address)
            else:
                visit(page, address)
            expect(page.get_by_role("heading", level=1)).to_have_text(heading)
            wait_until_loaded(page, watch)
            for theme, widths in WIDTHS.items():
                page.emulate_media(color_scheme=theme)
                expect(page.locator("html")).to_have_attribute("data-theme", theme)
                page.evaluate("direction => document.documentElement.dir = direction", DIRECTIONS[theme])
                for width in widths:
                    check_fits_width(page, width)
                assert find_violations(page) == [], f"{path}, {theme}"
            if path in RECORD_PAGES:
                visit(page, "/labels")  # a browser complains of what is read when it is gone
        asked = {each.split()[1].partition("?")[0] for each in watch.requests}
        assert any(each.startswith("/api/v1/") for each in asked), path
        strange = {each for each in asked if not documented.fullmatch(each) and not _SITE.fullmatch(each)}
        allowed = OPEN_TO_ALL | {address.partition("?")[0]}
        assert strange <= allowed, f"{path} asks for what no document tells of"


def _tell_of_jobs(route: Route) -> None:
    document = route.fetch().json()
    paths = {path: there for path, there in document["paths"].items() if path.startswith("/api/v1/jobs")}
    assert paths
    route.fulfill(json={**document, "paths": paths})


@pytest.mark.part("variants")
@pytest.mark.parametrize("path", [*PAGES, *RECORD_PAGES])
def test_a_page_fits_into_any_width_in_both_directions(
    open_as: Open, watch: BrowserLog, demo: ServiceProcess, path: str
) -> None:
    with open_console_page(demo, path) as (address, heading):
        page = open_as(address)
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        wait_until_loaded(page, watch)
        for direction in ("ltr", "rtl"):
            page.evaluate("direction => document.documentElement.dir = direction", direction)
            for width in ALL_WIDTHS:
                check_fits_width(page, width)


def test_no_page_is_left_out() -> None:
    assert sorted(path for group in GROUPS.values() for path in group) == sorted([*PAGES, *RECORD_PAGES])
    routes = re.findall(r'\{ path: "([^"]+)", load:', ROUTES.read_text("utf-8"))
    assert len(routes) > len(RECORD_PAGES)
    looked_at = {path.partition("?")[0] for path in (*PAGES, *RECORD_PAGES)}
    named = looked_at - set(routes)
    for route in routes:
        pattern = re.sub(r":\w+", "[^/]+", route)
        assert route in looked_at or any(re.fullmatch(pattern, path) for path in named), route
