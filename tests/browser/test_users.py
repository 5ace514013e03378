"""Tests of users, API keys and roles: access, secrets that are shown once, and revocation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import BrowserContext, Locator, Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

    Window = Callable[..., tuple[BrowserContext, BrowserLog]]

_STORED_VALUES = """
() => JSON.stringify([
  document.documentElement.outerHTML, [...document.querySelectorAll("input")].map((each) => each.value),
  {...sessionStorage}, {...localStorage}, document.cookie, location.href, history.state,
])
"""


@pytest.fixture
def name(demo: ServiceProcess) -> Iterator[str]:
    """Yield a name for a user or a key that a test may create; deleted at the end."""
    unique_name = f"mo-{uuid4().hex[:8]}"
    yield unique_name
    for each in demo.call("GET", "/api/v1/users?MaxResults=1000")["items"]:
        if each["username"] == unique_name:
            demo.call("DELETE", f"/api/v1/users/{unique_name}")
    for each in demo.call("GET", "/api/v1/api-keys?MaxResults=1000")["items"]:
        if each["name"] == unique_name:
            demo.call("DELETE", f"/api/v1/api-keys/{each['id']}")


def _find_row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has_text=name)


def _read_secret(dialog: Locator, name: str) -> str:
    text = dialog.locator("dl > div").filter(has_text=name).locator(".mono").inner_text()
    assert len(text) >= 20
    return text


def _sign_in(page: Page, name: str, password: str) -> None:
    page.goto("/devices/bmac-ca5bda1a0002")
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name=f"Account: {name}")).to_be_visible()


def test_an_added_user_has_the_permissions_of_the_role_until_it_changes(
    open_as: Open, make_window: Window, demo: ServiceProcess, name: str
) -> None:
    page = open_as("/people")
    expect(_find_row(page, "admin")).to_contain_text("you")
    page.get_by_role("button", name="Add person").click()
    asking = page.get_by_role("dialog", name="Add a person")
    add = asking.get_by_role("button", name="Add", exact=True)
    asking.get_by_label("User name").fill("-mo")
    expect(asking).to_contain_text("it must start with a letter or digit")
    expect(add).to_be_disabled()
    asking.get_by_label("User name").fill(name.upper())
    asking.get_by_role("radio", name="Operator").check()
    assert find_violations(page) == []
    add.click()
    told = page.get_by_role("dialog", name=f"Password of {name}")
    first = _read_secret(told, "Password")
    assert find_violations(page) == []
    page.keyboard.press("Escape")
    expect(told).to_contain_text("This password cannot be shown again")
    told.get_by_role("button", name="I have stored it").click()
    expect(_find_row(page, name)).to_contain_text("Operator")
    expect(_find_row(page, name)).to_contain_text("never")
    assert first not in page.evaluate(_STORED_VALUES)

    context, browser_log = make_window(demo)
    theirs = context.new_page()
    _sign_in(theirs, name, first)
    rename = theirs.get_by_role("main").get_by_role("button", name="Rename")
    expect(rename).to_be_visible()

    # A demoted user is refused a rename, and the page no longer offers it.
    page.get_by_role("button", name=f"Change role: {name}").click()
    asking = page.get_by_role("dialog", name=f"Role of {name}")
    asking.get_by_role("radio", name="Viewer").check()
    asking.get_by_role("button", name="Change role").click()
    expect(_find_row(page, name)).to_contain_text("Viewer")
    browser_log.expect(403)
    rename.click()
    theirs.get_by_role("dialog").get_by_role("textbox").fill("Not for me")
    theirs.keyboard.press("Enter")
    expect(theirs.get_by_role("dialog").get_by_role("alert")).to_be_visible()
    theirs.keyboard.press("Escape")
    expect(theirs.get_by_role("dialog")).to_have_count(0)
    expect(rename).to_have_count(0)


def test_a_new_password_or_removal_signs_a_user_out_at_once(
    open_as: Open, make_window: Window, demo: ServiceProcess, name: str
) -> None:
    demo.add_user(name, Role.VIEWER)
    context, browser_log = make_window(demo)
    browser_log.allow(401)
    theirs = context.new_page()
    _sign_in(theirs, name, PASSWORD)
    page = open_as("/people")
    page.get_by_role("button", name=f"New password: {name}").click()
    asking = page.get_by_role("dialog", name=f"New password for {name}")
    expect(asking).to_contain_text("signed out everywhere at once")
    asking.get_by_role("radio", name="Type one").check()
    another = f"another-{PASSWORD}"
    asking.get_by_label("New password", exact=True).fill(another)
    asking.get_by_label("New password again").fill(f"{another}!")
    expect(asking).to_contain_text("The two passwords do not match.")
    expect(asking.get_by_role("button", name="Set new password")).to_be_disabled()
    asking.get_by_label("New password again").fill(another)
    assert find_violations(page) == []
    asking.get_by_role("button", name="Set new password").click()
    expect(page.get_by_text(f"{name} has a new password")).to_be_visible()
    expect(theirs.get_by_text("Your session has ended. Please sign in again.")).to_be_visible()

    _sign_in(theirs, name, another)
    page.get_by_role("button", name=f"Remove: {name}").click()
    asking = page.get_by_role("dialog", name=f"Remove {name}?")
    remove = asking.get_by_role("button", name="Remove person")
    asking.get_by_label("Type the user name").fill("admin")
    expect(remove).to_be_disabled()
    asking.get_by_label("Type the user name").fill(name)
    assert find_violations(page) == []
    remove.click()
    expect(_find_row(page, name)).to_have_count(0)
    expect(theirs.get_by_text("Your session has ended. Please sign in again.")).to_be_visible()


def test_the_last_admin_cannot_be_removed(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    browser_log.expect(409)
    page = open_as("/people")
    page.get_by_role("button", name="Change role: admin").click()
    asking = page.get_by_role("dialog", name="Role of admin")
    asking.get_by_role("radio", name="Viewer").check()
    expect(asking).to_contain_text("This is you")
    asking.get_by_role("button", name="Change role").click()
    expect(asking.get_by_role("alert")).to_contain_text("admin is the last admin. Make another")
    asking.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Remove: admin").click()
    asking = page.get_by_role("dialog", name="Remove admin?")
    asking.get_by_label("Type the user name").fill("admin")
    asking.get_by_role("button", name="Remove person").click()
    expect(asking.get_by_role("alert")).to_contain_text("admin is the last admin")
    asking.get_by_role("button", name="Cancel").click()
    # Changing one's own password requires the current one.
    page.get_by_role("button", name="Change my password: admin").click()
    expect(page.get_by_role("dialog", name="Change your password")).to_be_visible()
    assert demo.call("GET", "/api/v1/users/admin")["role"] == "admin"


def test_admins_who_demote_themselves_leave_the_page(open_as: Open, demo: ServiceProcess, name: str) -> None:
    demo.add_user(name, Role.ADMIN)
    page = open_as("/healthz")
    token = page.request.post("/api/v1/auth/login", data={"username": name, "password": PASSWORD})
    page.evaluate("token => sessionStorage.setItem('meshfleet.token', token)", token.json()["authToken"])
    page.goto("/people")
    page.get_by_role("button", name=f"Change role: {name}").click()
    page.get_by_role("radio", name="Operator").check()
    page.get_by_role("dialog").get_by_role("button", name="Change role").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("No access to this page")
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="People")).to_have_count(0)


def test_a_key_is_shown_once_and_is_valid_until_it_is_removed(
    open_as: Open, demo: ServiceProcess, name: str, browser_log: BrowserLog
) -> None:
    page = open_as("/people")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="API keys").click()
    page.get_by_role("button", name="New API key").click()
    asking = page.get_by_role("dialog", name="Create an API key")
    asking.get_by_label("Name").fill(name)
    asking.get_by_label("Expires").select_option("On a date…")
    asking.get_by_label("Last day").fill("2020-02-29")
    expect(asking).to_contain_text("This day has passed.")
    make = asking.get_by_role("button", name="Create key")
    expect(make).to_be_disabled()
    asking.get_by_label("Expires").select_option("In 30 days")
    assert find_violations(page) == []
    make.click()
    told = page.get_by_role("dialog", name=re.compile(name))
    key = _read_secret(told, "Key")
    example = told.locator("pre")
    expect(example).to_contain_text(f"'{demo.url}/api/v1/devices?MaxResults=3'")
    expect(example).not_to_contain_text(key)
    assert find_violations(page) == []
    # The dialog cannot be closed by accident.
    page.go_back()
    expect(told).to_contain_text("This key cannot be shown again")
    expect(told).to_contain_text(key)
    told.get_by_role("button", name="I have stored it").click()
    expect(_find_row(page, name)).to_contain_text("Viewer")
    assert key not in page.evaluate(_STORED_VALUES)
    assert not any(key in each for each in browser_log.requests)

    def status() -> int:
        bearer = {"Authorization": f"Bearer {key}"}
        return page.request.get("/api/v1/devices?MaxResults=1", headers=bearer).status

    assert status() == 200
    page.get_by_role("button", name=f"Remove {name}").click()
    asking = page.get_by_role("dialog", name="Remove this API key?")
    expect(asking).to_contain_text("lose access at once")
    assert find_violations(page) == []
    asking.get_by_role("button", name="Remove key").click()
    expect(_find_row(page, name)).to_have_count(0)
    assert status() == 401


@pytest.mark.rule("auth-33")
def test_a_key_for_home_assistant_comes_with_its_user_name(open_as: Open, name: str) -> None:
    page = open_as("/keys")
    page.get_by_role("button", name="New API key").click()
    asking = page.get_by_role("dialog", name="Create an API key")
    asking.get_by_label("Name").fill(name)
    asking.get_by_role("radio", name="Home Assistant").check()
    expect(asking.get_by_role("radio", name="Admin")).to_have_count(0)
    asking.get_by_role("radio", name="Operator").check()
    assert find_violations(page) == []
    asking.get_by_role("button", name="Create key").click()
    told = page.get_by_role("dialog", name=re.compile(name))
    expect(told).to_contain_text("apikey")
    key = told.get_by_text("mfk_").inner_text()
    expect(told.locator("pre")).to_have_count(0)
    told.get_by_role("button", name="I have stored it").click()
    expect(_find_row(page, name)).to_contain_text("Home Assistant")
    expect(_find_row(page, name)).to_contain_text("Operator")
    response = page.request.get("/api/v1/devices", headers={"Authorization": f"Bearer {key}"})
    assert response.status == 401


def test_people_keys_and_the_audit_log_are_for_admins(open_as: Open, browser_log: BrowserLog) -> None:
    for role, paths in ((Role.VIEWER, ("/people",)), (Role.OPERATOR, ("/people", "/keys", "/audit"))):
        page = open_as("/healthz", role)
        for path in paths:
            page.goto(path)
            expect(page.get_by_role("heading", level=1)).to_have_text("No access to this page")
        pages = page.get_by_role("navigation", name="Pages")
        expect(pages.get_by_role("link", name="Gateways")).to_be_visible()
        expect(pages.get_by_role("link", name=re.compile("People|API keys|Audit log"))).to_have_count(0)
    assert not any(re.search("v1/(users|api-keys|audit)", each) for each in browser_log.requests)


def test_the_bar_of_a_phone_has_four_pages_and_a_menu_with_the_rest(open_as: Open, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_as("/people")
    pages = page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link")).to_have_text(["Overview", "Devices", "Gateways", "Update jobs"])
    more = pages.get_by_role("button", name="More, current page: People")
    more.click()
    menu = pages.get_by_role("link").filter(has_text=re.compile("Labels|Firmware|People|API keys|Audit log"))
    expect(menu).to_have_count(5)
    expect(pages.get_by_role("link", name="People")).to_have_attribute("aria-current", "page")
    assert find_violations(page) == []
    page.keyboard.press("Escape")
    expect(more).to_be_focused()
    more.click()
    pages.get_by_role("link", name="Labels").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    expect(pages.get_by_role("link")).to_have_count(4)
    expect(page.get_by_role("main")).to_be_focused()
    # On a low screen the navigation scrolls to the current page.
    page.set_viewport_size({"width": 800, "height": 400})
    page.goto("/audit")
    expect(pages.get_by_role("link", name="Audit log")).to_be_in_viewport()
    expect(pages.get_by_role("link", name="Overview")).not_to_be_in_viewport()
