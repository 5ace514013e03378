"""A browser whose clock is wrong: nothing that the service tells is taken for older or newer than it is."""

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
@pytest.mark.parametrize("minutes", [35, -35])
def test_who_signs_in_stays_and_is_renewed_in_time(page: Page, watch: BrowserLog, minutes: int) -> None:
    _set_clock(page, minutes=minutes)
    page.goto("/labels")
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("Live")
    assert _RENEWAL not in watch.requests
    page.clock.fast_forward("16:00")
    wait_until(page, lambda: _RENEWAL in watch.requests)
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")


@pytest.mark.usefixtures("own_window")
def test_values_are_no_older_than_they_are_and_read_once(
    open_as: Open, page: Page, watch: BrowserLog
) -> None:
    _set_clock(page, minutes=1)
    open_as(f"/devices/{TRACKER}?range=15m")
    latest = page.get_by_role("region", name="Latest values")
    temperature = latest.get_by_role("listitem").filter(has=page.get_by_role("heading", name="Temperature"))
    expect(temperature).to_be_visible()
    expect(latest.get_by_text("Stale")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    before = _series(watch)
    for _ in range(_SAMPLES):
        expect(temperature.locator("strong")).not_to_have_text(temperature.locator("strong").inner_text())
    # What was on its way while a line was read may have it read once more.
    assert _series(watch) - before <= _LINES


def _series(watch: BrowserLog) -> int:
    return sum("/series?" in each for each in watch.requests)
