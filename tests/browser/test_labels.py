"""Tests of the label page: labels are created, counted, found and removed, whatever their names."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import sign_in, wait_until, wait_until_connected
from tests.browser.faulty_proxy import FaultyProxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_DEVICE = "bmac-02005e000001"


def test_a_label_is_created_counted_and_removed_whatever_its_name(
    open_as: Open, demo: ServiceProcess
) -> None:
    label = f"{uuid4().hex[:24]}/<b>&?#%2F 🐝 שלום"
    page = open_as("/labels", Role.OPERATOR)
    page.get_by_role("button", name="New label").click()
    asking = page.get_by_role("dialog", name="New label")
    create = asking.get_by_role("button", name="Create")
    asking.get_by_label("Label").fill("x" * 65)
    expect(asking).to_contain_text("65 characters are too many")
    expect(create).to_be_disabled()
    asking.get_by_label("Label").fill(label)
    assert find_violations(page) == []
    create.click()
    row = page.get_by_role("row").filter(has_text=label)
    expect(row.get_by_role("link")).to_have_text("0")

    demo.call("PUT", f"/api/v1/devices/{_DEVICE}/labels/{quote(label, safe='')}")
    page.reload()
    expect(row.get_by_role("link")).to_have_text("1")
    expect(row.get_by_role("link")).to_have_attribute("href", f"/devices?Label={quote(label, safe='')}")
    page.get_by_role("searchbox", name="Find a label").fill(label[:24].upper())
    expect(page.get_by_role("status").filter(has_text="1 label found")).to_be_visible()
    row.get_by_role("button", name=f"Remove {label}").click()
    asking = page.get_by_role("dialog", name="Remove this label everywhere?")
    expect(asking).to_contain_text("It is removed from 1 device.")
    assert find_violations(page) == []
    asking.get_by_role("button", name="Remove label").click()
    expect(page.get_by_text("No label contains this")).to_be_visible()
    assert label not in demo.call("GET", f"/api/v1/devices/{_DEVICE}")["labels"]


def test_viewers_are_offered_no_changes_and_a_failed_list_is_retried(
    open_as: Open, browser_log: BrowserLog
) -> None:
    page = open_as("/labels", Role.VIEWER)
    expect(page.get_by_role("row").filter(has_text="floor 0")).to_be_visible()
    expect(page.get_by_role("button", name="Account: viewer")).to_be_visible()
    expect(page.get_by_role("main").get_by_role("button")).to_have_count(0)

    browser_log.expect(503)
    detail = {"status": 503, "code": "database-unavailable", "detail": "The database does not answer."}

    def refuse(route: Route) -> None:
        route.fulfill(status=503, json=detail)

    page.route("**/api/v1/labels", refuse)
    page.goto("/labels")
    # Failed requests are retried when the connection is established.
    wait_until_connected(page)
    expect(page.get_by_role("alert")).to_contain_text("The database does not answer.")
    page.unroute("**/api/v1/labels", refuse)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("row").filter(has_text="floor 0")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.usefixtures("own_window")
def test_a_request_without_a_response_times_out(open_as: Open, page: Page) -> None:
    page.clock.install()
    open_as("/healthz")
    asked: list[Route] = []
    page.route("**/api/v1/labels", lambda route: asked.append(route))  # noqa: PLW0108 # Playwright sets attributes on handlers, which builtins refuse
    page.goto("/labels")
    wait_until(page, lambda: asked)
    # Failed requests are retried when the connection is established.
    wait_until_connected(page)
    # The clock is stopped: otherwise the console would retry and remove the button.
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 31)
    expect(page.get_by_role("alert")).to_contain_text("did not answer")
    page.get_by_role("button", name="Try again").click()
    page.clock.resume()
    page.route("**/api/v1/labels", lambda route: route.continue_())
    for route in asked[1:]:
        route.continue_()
    expect(page.get_by_role("row").filter(has_text="floor 0")).to_be_visible()


def test_a_truncated_response_is_shown_like_a_missing_one(
    make_window: Callable[..., tuple[BrowserContext, BrowserLog]], demo: ServiceProcess
) -> None:
    with FaultyProxy(demo) as wire:
        context, browser_log = make_window(wire)
        browser_log.expect("net::ERR_")
        page = context.new_page()
        sign_in(page, wire, Role.VIEWER)
        wire.truncated_request = b"GET /api/v1/labels"
        page.goto("/labels")
        expect(page.get_by_role("alert")).to_contain_text("did not answer")
