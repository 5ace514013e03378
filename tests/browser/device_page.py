"""Locators of the device page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TRACKER = "bmac-ca5bda1a0006"
"""Device that measures temperature, pressure and humidity."""


def measurements(page: Page) -> Locator:
    """Return the card with the charts of measurements."""
    return page.get_by_role("region", name="Measurements")


def newest_row(page: Page, name: str) -> Locator:
    """Return the cells of the newest row in the table of a chart: time, min, mean, max, last, count."""
    return page.get_by_role("region", name=name, exact=True).locator("tbody tr").first.locator("th, td")
