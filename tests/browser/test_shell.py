"""Tests of the shell: signing in and out, search, shortcuts, themes, and keyboard navigation."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import go_to_page_by_key, wait_for_responses, wait_until
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open

_FOCUSED = """() => {
  const {outlineStyle, outlineWidth} = getComputedStyle(document.activeElement);
  return {
    name: document.activeElement.textContent.trim(),
    isVisible: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2,
  };
}"""


def test_a_wrong_password_is_reported_and_the_requested_page_follows_the_login(
    page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(401)
    page.goto("/labels?from=here")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill("wrong-horse-battery")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Wrong user name or password")
    expect(page.get_by_label("Password")).to_be_focused()
    expect(page.get_by_label("Password")).to_have_value("")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.get_by_role("button", name="Account: admin").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert page.url.endswith("/labels?from=here")
    assert page.evaluate("sessionStorage.getItem('meshfleet.token')") is None
    assert find_violations(page) == []


def test_signing_out_takes_effect_without_a_response(open_as: Open, page: Page) -> None:
    held: list[Route] = []
    open_as("/labels", Role.OPERATOR)
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    page.route("**/auth/logout", lambda route: held.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
    page.get_by_role("button", name="Account: operator").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('meshfleet.token')") is None
    wait_until(page, lambda: held)
    assert held[0].request.headers["authorization"] == f"Bearer {token}"
    held[0].continue_()
    wait_until(page, lambda: _request_status(page, token) == HTTPStatus.UNAUTHORIZED)


def _request_status(page: Page, token: str) -> int:
    return page.request.get("/api/v1/auth/me", headers={"Authorization": f"Bearer {token}"}).status


def test_a_new_tab_shares_the_session_and_signing_out_ends_it_everywhere(open_as: Open, page: Page) -> None:
    open_as("/", Role.OPERATOR)
    with page.context.expect_page() as opened:
        page.get_by_role("navigation").get_by_role("link", name="Labels").click(modifiers=["Control"])
    other = opened.value
    expect(other.get_by_role("heading", level=1)).to_have_text("Labels")
    expect(other.get_by_role("button", name="Account: operator")).to_be_visible()
    page.get_by_role("button", name="Account: operator").click()
    page.get_by_role("button", name="Sign out").click()
    for tab in (page, other):
        expect(tab.get_by_role("button", name="Sign in")).to_be_visible()
        assert tab.evaluate("sessionStorage.getItem('meshfleet.token')") is None
    other.reload()
    expect(other.get_by_role("button", name="Sign in")).to_be_visible()


def test_too_many_attempts_show_a_message(page: Page, browser_log: BrowserLog) -> None:
    browser_log.expect(429, 500)
    page.route("**/auth/login", lambda route: route.fulfill(status=500, json={"detail": "not possible"}))
    page.goto("/")
    page.get_by_label("User name").fill("unknown")
    page.get_by_label("Password").fill("something")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("not possible")
    # The password was not checked: the typed text is sent again.
    page.route(
        "**/auth/login",
        lambda route: route.fulfill(
            status=429, headers={"Retry-After": "240"}, json={"code": "too-many-attempts"}
        ),
    )
    expect(page.get_by_label("Password")).to_have_value("something")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Too many attempts. Try again in 4 minutes.")
    expect(page.get_by_role("button", name="Sign in")).to_be_disabled()


@pytest.mark.usefixtures("own_window")
def test_a_session_that_cannot_be_renewed_ends_with_a_warning(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(401)
    page.clock.install()
    open_as("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    wait_for_responses(page, browser_log)  # the jump would time out the request for the user's name
    page.route("**/auth/refresh", lambda route: route.fulfill(status=401, json={"code": "not-logged-in"}))
    page.clock.fast_forward("16:00")
    expect(page.get_by_role("main").get_by_text("Your session ends at")).to_be_visible()
    page.get_by_role("button", name="Sign in again").click()
    dialog = page.get_by_role("dialog", name="Sign in again")
    expect(dialog.get_by_label("User name")).to_have_value("admin")
    dialog.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.get_by_text("Your session ends at")).to_be_hidden()


def test_a_wrong_old_password_does_not_end_the_session(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(401)
    open_as("/", Role.VIEWER)
    page.get_by_role("button", name="Account: viewer").click()
    page.get_by_role("button", name="Change password").click()
    dialog = page.get_by_role("dialog", name="Change your password")
    dialog.get_by_label("Current password").fill("not-the-one-it-was")
    dialog.get_by_label("New password", exact=True).fill(PASSWORD)
    dialog.get_by_label("New password again").fill(PASSWORD + "!")
    dialog.get_by_role("button", name="Change password").click()
    expect(dialog.get_by_role("alert")).to_have_text("The two passwords do not match.")
    dialog.get_by_label("New password again").fill(PASSWORD)
    dialog.get_by_role("button", name="Change password").click()
    expect(dialog.get_by_role("alert")).to_have_text("This is not your current password.")
    dialog.get_by_label("Current password").fill(PASSWORD)
    dialog.get_by_role("button", name="Change password").click()
    expect(dialog).to_be_hidden()
    told = page.get_by_text("Your password was changed.")
    expect(told).to_be_visible()
    # Messages for one user are not shown to the next.
    page.get_by_role("button", name="Account: viewer").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("User name").fill("operator")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert told.count() == 0


def test_the_skip_link_comes_first_and_the_focus_is_always_visible(open_as: Open, page: Page) -> None:
    open_as("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        focused = page.evaluate(_FOCUSED)
        assert focused["isVisible"], focused
        names.append(focused["name"])
    assert names[:3] == ["Skip to the content", "Meshfleet", "Overview"]
    page.get_by_role("link", name="Skip to the content").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()

    # In right-to-left direction it is at the right.
    page.evaluate("document.documentElement.dir = 'rtl'")
    box = page.get_by_role("navigation", name="Pages").bounding_box()
    assert box is not None
    assert box["x"] > 1000


def test_a_device_is_found_by_keyboard_and_shortcuts_work_until_switched_off(
    open_as: Open, page: Page
) -> None:
    open_as("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox", name="Find a device, gateway, site, job or label")
    expect(box).to_be_focused()
    page.keyboard.type("0200.5e00.0002")
    found = page.get_by_role("listbox").get_by_role("option")
    expect(found).to_have_count(2)
    expect(found.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(found.last).to_have_attribute("aria-selected", "true")
    chosen = found.last.get_attribute("id")
    expect(box).to_have_attribute("aria-activedescendant", chosen or "")
    assert find_violations(page) == []
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/devices/bmac-02005e000002$"))
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("group", name="Recent").get_by_role("option")).to_have_count(1)
    box.fill("zz-nothing-is-called-so")
    expect(page.get_by_text("Nothing found for")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()
    _check_shortcuts(page)


def _check_shortcuts(page: Page) -> None:
    """Check that shortcuts open pages until they are switched off."""
    go_to_page_by_key(page, "o", "Overview")
    heading = page.get_by_role("heading", level=1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert find_violations(page) == []
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(heading).to_have_text("Overview")  # shortcuts do not work in dialogs
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    go_to_page_by_key(page, "l", "Labels")
    expect(page).to_have_title(re.compile("Labels · Meshfleet$"))
    expect(page.get_by_role("main")).to_be_focused()
    page.get_by_role("button", name="Account").click()
    page.get_by_role("checkbox", name="Single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    expect(heading).to_have_text("Labels")
    page.keyboard.press("g")
    page.keyboard.press("o")
    page.keyboard.press("?")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_have_count(1)
    expect(page.get_by_role("dialog", name="Find")).to_be_visible()
    expect(heading).to_have_text("Labels")


def test_a_chosen_theme_is_kept(open_as: Open, page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    open_as("/", Role.VIEWER)
    theme = page.locator("html")
    expect(theme).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(theme).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Dark theme").click()
    expect(theme).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    expect(theme).to_have_attribute("data-theme", "dark")


def test_the_search_reports_what_could_not_be_searched(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect("net::ERR_FAILED")
    open_as("/labels")
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.route("**/api/v1/devices?*", lambda route: route.abort())
    page.get_by_role("button", name="Find a device, gateway, site, job or label").click()
    page.keyboard.type("Head office")
    expect(page.get_by_role("alert")).to_contain_text("Not everything could be searched.")
    expect(page.get_by_role("group", name="Gateways").get_by_role("option")).to_have_count(1)


def test_an_unknown_path_and_a_missing_page_say_what_to_do(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect("net::ERR_FAILED")
    page.route("**/assets/Labels-*.js", lambda route: route.abort())
    open_as("/no/such/page")
    expect(page.get_by_role("heading", level=1)).to_have_text("Page not found")
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Live")
    page.get_by_role("link", name="Labels").click()
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded")
    page.unroute("**/assets/Labels-*.js")
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")


def test_a_page_that_was_left_sends_no_requests(open_as: Open, page: Page, browser_log: BrowserLog) -> None:
    held: list[Route] = []
    open_as("/rejects?Gateway=02005e000001")
    wait_until(page, lambda: "GET /api/v1/rejects?Gateway=02005e000001" in browser_log.requests)
    page.route(re.compile(r"/assets/Labels-.*\.js$"), lambda route: held.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
    page.get_by_role("link", name="Labels").click()
    wait_until(page, lambda: held)
    assert page.url.endswith("/labels")
    for route in held:
        route.continue_()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    assert "GET /api/v1/rejects" not in browser_log.requests
