"""What a test sees of the page of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TRACKER = "bmac-ca5bda1a0006"
"""Measures temperature, pressure and humidity."""


def measurements(page: Page) -> Locator:
    """The part of the page with the charts of what is measured."""
    return page.get_by_role("region", name="Measurements")


def newest_row(page: Page, name: str) -> Locator:
    """The newest moment in the table of a chart: when, lowest, mean, highest, last, count."""
    return page.get_by_role("region", name=name, exact=True).locator("tbody tr").first.locator("th, td")
