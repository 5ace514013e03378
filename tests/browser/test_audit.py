"""Tests of the audit log page."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from tests.browser.axe import find_violations
from tests.browser.conftest import wait_until_connected, wait_until_loaded
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

DEVICE = "bmac-ca5bda1a0002"
WORDS = Path(__file__).parents[2] / "console" / "src" / "text" / "en" / "actions.ts"
SERVICE = Path(__file__).parents[2] / "src" / "meshfleet" / "service"


def _rows(page: Page) -> Locator:
    """Return the rows of changes, without opened details."""
    return page.get_by_role("row").filter(has=page.get_by_role("button", name=re.compile("details")))


def test_changes_are_described_in_sentences_and_new_rows_wait(open_as: Open, demo: ServiceProcess) -> None:
    label = f"wing-{uuid4().hex[:8]}"
    demo.call("PUT", f"/api/v1/devices/{DEVICE}/labels/{label}")
    page = open_as(f"/audit?Target={DEVICE}")
    first = _rows(page).first
    expect(first).to_contain_text(f"Added the label “{label}” to")
    expect(first).to_contain_text("admin")
    link = first.get_by_role("link", name="admin")
    expect(link).to_have_attribute("href", "/audit?Actor=admin")
    shown = _rows(page).count()
    demo.call("DELETE", f"/api/v1/devices/{DEVICE}/labels/{label}")
    fresh = page.get_by_role("button", name="1 new · Show")
    expect(fresh).to_be_visible()
    assert _rows(page).count() == shown
    fresh.click()
    expect(first).to_contain_text(f"Removed the label “{label}” from")
    expect(fresh).to_have_count(0)
    first.get_by_role("button", name="Show details").click()
    expect(page.get_by_text("device.unlabel", exact=True)).to_be_visible()
    assert find_violations(page) == []
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    with Path(saved.value.path()).open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(each["action"], each["target"]) for each in lines[:2]] == [
        ("device.unlabel", DEVICE),
        ("device.label", DEVICE),
    ]
    first.get_by_role("link", name=re.compile("^(?!admin)")).click()
    expect(page).to_have_url(re.compile(f"/devices/{DEVICE}$"))
    demo.call("DELETE", f"/api/v1/labels/{label}")


def test_filters_are_in_the_url(open_as: Open) -> None:
    page = open_as("/audit")
    # A login among the newest changes: tests reuse tokens, so there may be none.
    assert page.request.post("/api/v1/auth/login", data={"username": "viewer", "password": PASSWORD}).ok
    who, what = page.get_by_label("Who", exact=True), page.get_by_label("What", exact=True)
    who.select_option("the command line")
    expect(page).to_have_url(re.compile(r"Actor=program%3A\+command\+line"))
    expect(_rows(page).filter(has_text="Signed in")).to_have_count(0)
    what.select_option("Gateway claimed")
    page.get_by_label("About").fill("02:00:5E:00:00:01")
    page.keyboard.press("Enter")
    expect(_rows(page)).to_have_count(1)
    expect(_rows(page)).to_contain_text("Claimed the gateway Head office")
    expect(_rows(page).get_by_role("link", name="Head office")).to_have_attribute(
        "href", "/gateways/02005e000001"
    )
    page.reload()
    expect(_rows(page)).to_have_count(1)
    expect(what).to_have_value("gateway.claim")
    time = page.get_by_label("Until")
    time.fill("2020-01-01T12:30")
    expect(page.get_by_text("Nothing matches these filters")).to_be_visible()
    expect(time).to_have_value("2020-01-01T12:30")
    page.get_by_role("button", name="Clear filters").click()
    expect(_rows(page).filter(has_text="Signed in").first).to_be_visible()
    assert "?" not in page.url
    # An unknown actor or action is still sent as a filter.
    page.goto("/audit?Actor=api-key:+gone&Action=fleet.explode")
    expect(page.get_by_text("Nothing matches these filters")).to_be_visible()
    expect(what).to_have_value("fleet.explode")


@pytest.mark.usefixtures("own_window")
def test_a_past_time_range_is_not_polled(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as("/labels")
    page.clock.install()

    def count_requests(until: str) -> int:
        page.goto("/healthz")  # stops requests of the page before
        browser_log.requests.clear()
        page.goto(f"/audit?Action=auth.login&To={until}")
        expect(page.get_by_label("Until")).not_to_have_value("")
        wait_until_loaded(page, browser_log)
        wait_until_connected(page)
        page.clock.run_for(12_000)
        wait_until_loaded(page, browser_log)
        return len([each for each in browser_log.requests if each.startswith("GET /api/v1/audit?")])

    assert count_requests("2099-01-01T00:00:00Z") > 1
    assert count_requests("2020-01-01T00:00:00Z") == 1


def test_every_audit_action_has_a_text() -> None:
    described = set(re.findall(r'^ {6}"([a-z-]+\.[a-z-]+)":', WORDS.read_text("utf-8"), re.MULTILINE))
    code = "\n".join(path.read_text("utf-8") for path in SERVICE.rglob("*.py"))
    plain = r'record_changes?\(\s*[\w.]+,\s*[\w.]+,\s*"([a-z-]+\.[a-z-]+)"'
    written = set(re.findall(plain, code))
    assert len(written) > 10
    assert written <= described
    actions = {
        "job.": set(re.findall(r'command="(\w+)"', code)),
        "firmware.": set(re.findall(r'_audit_action\(\s*connection, "(\w+)"', code)),
        "request.": {"write", "write-decoded", "ack", "ack-decoded"},
        "mqtt.forbidden-": {"publish", "subscribe", "will"},
    }
    for part, names in actions.items():
        assert names
        assert {f"{part}{each}" for each in names} <= described
