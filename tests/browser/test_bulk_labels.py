"""Tests of adding and removing labels on many devices, with failures and a stop halfway."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.device_list import names, rows

if TYPE_CHECKING:
    from playwright.sync_api import Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess


def test_a_label_is_added_to_ten_devices_and_removed(open_as: Open, demo: ServiceProcess) -> None:
    label = f"bulk / {uuid4().hex[:8]}"
    page = open_as("/devices?Sort=friendlyName", Role.OPERATOR)
    boxes = rows(page).get_by_role("checkbox")
    boxes.nth(0).click()
    boxes.nth(9).click(modifiers=["Shift"])
    selected = page.get_by_role("region", name="Selected devices")
    expect(selected.get_by_role("status")).to_have_text("10 selected")
    chosen = names(page)[:10]
    selected.get_by_role("button", name="Add label").click()
    dialog = page.get_by_role("dialog", name="Add a label to 10 devices")
    expect(dialog.get_by_role("textbox", name="Label")).to_be_focused()
    page.keyboard.insert_text(label)
    dialog.get_by_role("button", name="Add label").click()
    expect(page.get_by_text(f"Label “{label}” was added to 10 devices.")).to_be_visible()
    expect(selected).to_have_count(0)
    try:
        page.goto(f"/devices?Sort=friendlyName&Label={quote(label)}")
        expect(page.get_by_text("10 devices match")).to_be_visible()
        expect(rows(page)).to_have_count(10)
        assert names(page) == chosen
        page.get_by_role("checkbox", name="Select all on this list").click()
        selected.get_by_role("button", name="Remove label").click()
        dialog = page.get_by_role("dialog", name="Remove a label from 10 devices")
        dialog.get_by_role("button", name=label).click()
        dialog.get_by_role("button", name="Remove label").click()
        expect(page.get_by_text("No device matches")).to_be_visible()
        found = demo.call("GET", "/api/v1/labels")["items"]
        assert {"label": label, "deviceCount": 0} in found
    finally:
        demo.call("DELETE", f"/api/v1/labels/{quote(label, safe='')}")


def test_a_failure_halfway_is_shown_and_can_be_retried(
    open_as: Open, browser_log: BrowserLog, demo: ServiceProcess
) -> None:
    label = f"half {uuid4().hex[:8]}"
    ids = ["bmac-02005e000001", "bmac-02005e000002"]
    demo.call("POST", "/api/v1/labels", {"label": label, "deviceIds": ids})
    try:
        page = open_as(f"/devices?Label={quote(label)}")
        browser_log.expect(503)
        path = re.compile(f"/devices/{ids[1]}/labels/")
        page.route(path, lambda route: route.fulfill(status=503, json={"detail": "The database is away."}))
        page.get_by_role("checkbox", name="Select all on this list").click()
        page.get_by_role("button", name="Remove label").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name=label).click()
        dialog.get_by_role("button", name="Remove label").click()
        told = "Done for 1 of 2 devices; the others stay selected. The database is away."
        expect(dialog.get_by_role("alert")).to_have_text(told)
        page.unroute(path)
        dialog.get_by_role("button", name="Try again").click()
        expect(page.get_by_text("No device matches")).to_be_visible()
    finally:
        demo.call("DELETE", f"/api/v1/labels/{quote(label)}")


def test_navigation_is_blocked_halfway_and_esc_stops_and_shows_the_progress(
    open_as: Open, demo: ServiceProcess
) -> None:
    label = f"stopped {uuid4().hex[:8]}"
    ids = ["bmac-02005e000001", "bmac-02005e000002"]
    demo.call("POST", "/api/v1/labels", {"label": label, "deviceIds": ids})
    try:
        page = open_as("/labels")
        page.get_by_role("row").filter(has_text=label).get_by_role("link").click()
        path = re.compile(f"/devices/{ids[1]}/labels/")
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        page.route(path, hold)
        page.get_by_role("checkbox", name="Select all on this list").click()
        page.get_by_role("button", name="Remove label").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name=label).click()
        dialog.get_by_role("button", name="Remove label").click()
        expect(dialog).to_contain_text("1 of 2")
        page.go_back()
        expect(dialog).to_contain_text("Labels are still being changed.")
        expect(page).to_have_url(re.compile(r"/devices\?Label="))
        page.keyboard.press("Escape")
        told = "Done for 1 of 2 devices; the others stay selected. Stopped."
        expect(dialog.get_by_role("alert")).to_have_text(told)
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        selected = page.get_by_role("region", name="Selected devices")
        expect(selected.get_by_role("status")).to_have_text("1 selected")
    finally:
        demo.call("DELETE", f"/api/v1/labels/{quote(label)}")
