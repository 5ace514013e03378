"""Tests of invariants of a tab, whichever page is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import wait_until, watching_websockets
from tests.browser.console_pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    Open = Callable[..., Page]


def visit_all_pages(page: Page) -> None:
    """Visit all pages of the navigation without reloading."""
    links = page.get_by_role("navigation", name="Pages").get_by_role("listitem").get_by_role("link")
    headings = {path.partition("?")[0]: heading for path, heading in PAGES.items()}
    for link in links.all():
        link.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(headings[link.get_attribute("href") or ""])


@pytest.mark.rule("rest-157")
def test_a_tab_has_one_live_connection(open_as: Open, page: Page) -> None:
    opened: list[str] = []
    open_as("/healthz")
    with watching_websockets(page, lambda socket: opened.append(socket.url)):
        page.goto("/")
        wait_until(page, lambda: opened)
        visit_all_pages(page)
        page.goto("/devices")
        wait_until(page, lambda: len(opened) > 1)
    assert [url.rpartition("/api/")[2] for url in opened] == [
        "v1/live"
    ] * 2  # one for each time it was loaded


def test_reduced_motion_disables_animations(open_as: Open) -> None:
    page = open_as("/healthz", Role.VIEWER)
    # Placeholders of rows are animated until the rows are loaded.
    page.route("**/api/v1/devices?*", lambda _: None)
    page.goto("/devices")
    page.emulate_media(reduced_motion="reduce")  # as all other tests do
    moving = "() => document.getAnimations().length"
    expect(page.get_by_role("table")).to_have_attribute("aria-busy", "true")
    wait_until(page, lambda: page.evaluate(moving) == 0)
    page.emulate_media(reduced_motion="no-preference")
    wait_until(page, lambda: page.evaluate(moving) > 0)


@pytest.mark.rule("auth-30")
def test_the_token_is_stored_in_tabs_only_and_gone_with_the_last(open_as: Open) -> None:
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
