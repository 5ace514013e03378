"""Tests with a wrong browser clock: ages and expiry times are still right."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import wait_until
from tests.browser.device_page import TRACKER
from tests.scenarios.service_process import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open

_RENEWAL = "POST /api/v1/auth/refresh"
_LINES = 3
_SAMPLES = 4


def _set_clock(page: Page, **wrong: int) -> None:
    page.clock.install(time=dt.datetime.now(dt.UTC) + dt.timedelta(**wrong))


@pytest.mark.usefixtures("own_window")
@pytest.mark.parametrize("minutes", [35, pytest.param(-35, marks=pytest.mark.part("variants"))])
def test_a_session_lasts_and_is_renewed_in_time(page: Page, browser_log: BrowserLog, minutes: int) -> None:
    _set_clock(page, minutes=minutes)
    page.goto("/labels")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Live")
    assert _RENEWAL not in browser_log.requests
    page.clock.fast_forward("16:00")
    wait_until(page, lambda: _RENEWAL in browser_log.requests)
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")


@pytest.mark.part("long")
@pytest.mark.usefixtures("own_window")
def test_ages_are_right_and_values_are_loaded_once(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    _set_clock(page, minutes=1)
    open_as(f"/devices/{TRACKER}?range=15m")
    latest = page.get_by_role("region", name="Latest values")
    temperature = latest.get_by_role("listitem").filter(has=page.get_by_role("heading", name="Temperature"))
    expect(temperature).to_be_visible()
    expect(latest.get_by_text("Stale")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    before = _count_series_requests(browser_log)
    for _ in range(_SAMPLES):
        expect(temperature.locator("strong")).not_to_have_text(temperature.locator("strong").inner_text())
    # Samples that arrived while a curve was loading may cause one more load.
    assert _count_series_requests(browser_log) - before <= _LINES


def _count_series_requests(browser_log: BrowserLog) -> int:
    return sum("/series?" in each for each in browser_log.requests)
