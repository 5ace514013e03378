"""Tests of the device list by keyboard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import go_to_page_by_key, wait_until
from tests.browser.device_list import rows, search_box

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.browser.conftest import Open


def test_keys_move_select_and_open(open_as: Open) -> None:
    page = open_as("/devices?Label=extenders")
    expect(rows(page)).to_have_count(12)
    expect(rows(page).get_by_role("checkbox")).to_have_count(12)  # the role of the user is loaded
    links = rows(page).get_by_role("rowheader").get_by_role("link")
    for key, at in (("j", 0), ("j", 1), ("ArrowDown", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(links.nth(at)).to_be_focused()
    page.keyboard.press("x")
    expect(rows(page).nth(1).get_by_role("checkbox")).to_be_checked()
    page.keyboard.press("x")
    expect(rows(page).nth(1).get_by_role("checkbox")).not_to_be_checked()
    page.keyboard.press("/")
    expect(search_box(page)).to_be_focused()
    page.keyboard.type("x")
    expect(search_box(page)).to_have_value("x")
    search_box(page).fill("")
    expect(rows(page)).to_have_count(12)
    # The focus starts at the first row of another list.
    with page.expect_response(re.compile("Sort=friendlyName")):
        page.get_by_role("columnheader", name="Device").get_by_role("button").click()
    expect(page.get_by_role("table")).to_have_attribute("aria-busy", "false")
    page.keyboard.press("j")
    expect(links.first).to_be_focused()
    rows(page).first.get_by_role("link").first.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/devices/bmac-"))


def test_keys_work_although_the_user_is_loaded_late(open_as: Open, page: Page) -> None:
    held: list[Route] = []
    page.route("**/auth/me", lambda route: held.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
    open_as("/devices?Label=extenders", Role.OPERATOR)
    expect(rows(page)).to_have_count(12)
    wait_until(page, lambda: held)
    box = rows(page).first.get_by_role("checkbox")
    expect(box).to_have_count(0)
    for route in held:
        route.continue_()
    page.unroute("**/auth/me")
    expect(box).to_be_visible()
    page.keyboard.press("j")
    expect(rows(page).first.get_by_role("rowheader").get_by_role("link")).to_be_focused()
    page.keyboard.press("x")
    expect(box).to_be_checked()
    go_to_page_by_key(page, "l", "Labels")
