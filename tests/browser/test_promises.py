"""What the console promises to everybody, whichever page is open."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.wire.rest import Role
from tests.browser.conftest import sign_in, until
from tests.browser.places import PAGES, RECORDS, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext, Page

    from tests.browser.watch import Watch
    from tests.scenarios.serving import Service

    Open = Callable[..., Page]

OPEN_TO_ALL = {"/readyz"}
_SITE = re.compile(r"/(?:assets/[\w.-]+|icon\.svg|theme\.js)?")


def walk(page: Page) -> None:
    """Through all pages that the navigation offers, without loading anything anew."""
    links = page.get_by_role("navigation", name="Pages").get_by_role("listitem").get_by_role("link")
    for link in links.all():
        link.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[link.get_attribute("href") or ""])


@pytest.mark.rule("rest-157")
def test_a_tab_has_one_connection(open_as: Open, page: Page) -> None:
    opened: list[str] = []
    open_as("/labels")
    page.on("websocket", lambda socket: opened.append(socket.url))
    page.goto("/")
    until(page, lambda: opened)
    walk(page)
    page.goto("/devices")
    until(page, lambda: len(opened) > 1)
    assert [url.rpartition("/api/")[2] for url in opened] == [
        "v1/live"
    ] * 2  # one for each time it was loaded


@pytest.mark.rule("rest-158")
def test_only_what_is_documented_is_asked_for(open_as: Open, watch: Watch, demo: Service) -> None:
    page = open_as("/")
    walk(page)
    seen: set[str] = set()
    for path in (*PAGES, *RECORDS):
        with place(demo, path) as (address, heading):
            page.goto(address)
            expect(page.get_by_role("heading", level=1)).to_have_text(heading)
            seen.add(address)
    known = [re.sub(r"\{\w+\}", "[^/]+", each) for each in demo.ask("GET", "/api/v1/openapi.json")["paths"]]
    asked = {each.split()[1].partition("?")[0] for each in watch.asked}
    strange = {each for each in asked if not any(re.fullmatch(pattern, each) for pattern in known)}
    assert any(each.startswith("/api/v1/devices/") for each in asked)
    assert {each for each in strange if not _SITE.fullmatch(each)} <= OPEN_TO_ALL | seen


def test_whoever_wants_less_motion_sees_none(
    make_window: Callable[..., tuple[BrowserContext, Watch]], demo: Service
) -> None:
    context, _ = make_window(demo, reduced_motion="reduce")
    page = context.new_page()
    sign_in(page, demo, Role.VIEWER)
    # Where rows will be something breathes until they come.
    page.route("**/api/v1/devices?*", lambda _: None)
    page.goto("/devices")
    moving = "() => document.getAnimations().length"
    expect(page.get_by_role("table")).to_have_attribute("aria-busy", "true")
    until(page, lambda: page.evaluate(moving) == 0)
    page.emulate_media(reduced_motion="no-preference")
    until(page, lambda: page.evaluate(moving) > 0)


@pytest.mark.rule("auth-30")
def test_the_token_is_in_tabs_alone_and_gone_with_the_last(open_as: Open) -> None:
    page = open_as("/devices")
    expect(page.get_by_role("heading", level=1)).to_have_text("Devices")
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    assert token
    kept = page.evaluate("JSON.stringify({...localStorage}) + document.cookie + location.href")
    assert token not in kept
    page.goto("about:blank")
    other = page.context.new_page()
    other.goto("/devices")
    expect(other.get_by_role("button", name="Sign in")).to_be_visible()
