"""Tests of a session that ends: typed text is kept, hidden, for the same user only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import wait_until, wait_until_connected
from tests.browser.demo_sites import new_firmware
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_TOKEN = "sessionStorage.getItem('meshfleet.token')"  # noqa: S105 # where it is stored

_STALL = """() => setTimeout(() => {
  const asking = new XMLHttpRequest();
  asking.open("GET", "/healthz?stalls", false);
  asking.send();
})"""
"""Block a tab until this request gets a response."""

_CLOSE_AND_PRESS = """dialog => {
  dialog.close();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true }));
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "?" }));
}"""


@pytest.fixture(autouse=True)
def _allow_refusals(browser_log: BrowserLog) -> None:
    browser_log.allow(401)


@pytest.fixture
def other_user(demo: ServiceProcess) -> Iterator[str]:
    """Yield the name of another user. Deleted at the end, so that there is only one admin to remove."""
    name = f"mo-{uuid4().hex[:8]}"
    yield name
    demo.call("DELETE", f"/api/v1/users/{name}")


def _end_session(page: Page) -> Locator:
    """End the session as from elsewhere, and return the login form in front of the page."""
    wait_until_connected(page)
    token = page.evaluate(_TOKEN)
    response = page.request.post("/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
    assert response.ok
    form = page.get_by_role("dialog", name="Sign in")
    expect(form).to_contain_text("Your session has ended. Please sign in again.")
    return form


def _sign_in(form: Locator, name: str) -> None:
    form.get_by_label("User name").fill(name)
    form.get_by_label("Password").fill(PASSWORD)
    form.get_by_label("Password").press("Enter")
    expect(form).to_have_count(0)


def _open_add_dialog(page: Page) -> tuple[Locator, Locator]:
    """Open the dialog that adds a user; return it and its field for the name."""
    page.get_by_role("button", name="Add person").click()
    dialog = page.get_by_role("dialog", name="Add a person")
    return dialog, dialog.get_by_label("User name")


def test_a_plan_is_kept_for_the_same_user_but_not_for_another(
    open_as: Open, demo: ServiceProcess, other_user: str
) -> None:
    demo.add_user(other_user, Role.OPERATOR)
    firmware, _ = new_firmware(demo)
    page = open_as(f"/jobs/new?Firmware={firmware}&ModelNumber=0018&Step=plan", Role.OPERATOR)
    name = page.get_by_label("Name", exact=True)
    text = f"Night shift {uuid4().hex[:8]}"
    name.fill(text)
    form = _end_session(page)
    expect(form).to_contain_text("kept for operator")
    expect(form.get_by_label("User name")).to_have_value("operator")
    expect(form.get_by_label("Password")).to_be_focused()
    for hidden in (name, page.get_by_role("heading", name="Rollout plan"), page.get_by_role("navigation")):
        expect(hidden).to_be_hidden()
    expect(page).to_have_title("Sign in · Meshfleet")
    assert find_violations(page) == []
    # Neither Esc nor a shortcut closes the form, not even right after a second Esc, which closes any dialog.
    for key in ("Escape", "Escape", "Control+k"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_have_count(1)
    form.evaluate(_CLOSE_AND_PRESS)
    expect(form.get_by_label("Password")).to_be_focused()

    _sign_in(form, "operator")
    expect(name).to_have_value(text)
    expect(name).to_be_focused()
    expect(page).to_have_title(re.compile("New update job · Meshfleet$"))
    wait_until_connected(page)
    page.get_by_role("button", name="Next", exact=True).click()
    expect(page.get_by_role("region", name="What will happen")).to_contain_text("will be updated")

    # Another user gets none of it.
    page.go_back()
    expect(name).to_have_value(text)
    expect(page).to_have_url(re.compile("Plan="))
    _sign_in(_end_session(page), other_user)
    expect(page.get_by_text("was created in another tab or by another user")).to_be_visible()
    expect(name).to_have_value("")


def test_requests_that_failed_meanwhile_are_repeated(open_as: Open) -> None:
    page = open_as("/messages", Role.OPERATOR)
    page.get_by_role("combobox", name="Property").fill("tx-power")
    form = _end_session(page)
    page.evaluate("history.pushState(null, '', '/labels')")
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    _sign_in(form, "operator")
    expect(page.get_by_role("row").filter(has_text="floor 0")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_dialog_is_hidden_too_and_is_gone_for_another_user(
    open_as: Open, demo: ServiceProcess, other_user: str
) -> None:
    demo.add_user(other_user, Role.ADMIN)
    page = open_as("/people")
    dialog, name = _open_add_dialog(page)
    name.fill("nurse.jane")
    form = _end_session(page)
    expect(dialog).to_be_hidden()
    expect(name).to_be_hidden()
    _sign_in(form, "admin")
    expect(name).to_have_value("nurse.jane")
    expect(name).to_be_focused()
    dialog.get_by_role("radio", name="Operator").check()

    _sign_in(_end_session(page), other_user)
    expect(page.get_by_role("button", name=f"Account: {other_user}")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("People")
    expect(page.locator("dialog")).to_have_count(0)


@pytest.mark.parametrize("is_over", [False, True])
def test_signing_out_in_another_tab_leaves_nothing(open_as: Open, page: Page, *, is_over: bool) -> None:
    open_as("/people")
    _, name = _open_add_dialog(page)
    name.fill("nurse.jane")
    if is_over:
        _end_session(page)
    other_tab = page.context.new_page()
    if is_over:
        open_as("/labels", tab=other_tab)
    else:
        # The second tab is logged in as soon as the first one can respond.
        stalled: list[Route] = []
        page.route("**/healthz?stalls", lambda route: stalled.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
        page.evaluate(_STALL)
        wait_until(other_tab, lambda: stalled)
        other_tab.goto("/labels")
        expect(other_tab.get_by_role("button", name="Sign in")).to_be_visible()
        stalled[0].fulfill(body="")
    other_tab.get_by_role("button", name="Account: admin").click()
    other_tab.get_by_role("button", name="Sign out").click()
    wait_until(page, lambda: page.evaluate(_TOKEN) is None)
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.get_by_role("main")).to_contain_text("Your session has ended.")
    expect(page.get_by_text(re.compile("is kept for"))).to_have_count(0)
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Add person")).to_be_visible()
    expect(page.locator("dialog")).to_have_count(0)
