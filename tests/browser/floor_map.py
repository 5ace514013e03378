"""Plan of a floor on a page: where points of the floor are on the screen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import FloatRect, Locator, Page


def floor_map(page: Page) -> Locator:
    """Return the plan that a page shows."""
    return page.get_by_role("group", name=re.compile("^Plan of "))


def get_box(locator: Locator) -> FloatRect:
    """Return where an element is on the screen."""
    box = locator.bounding_box()
    assert box is not None
    return box


def to_pixels(page: Page, x: float, y: float) -> tuple[float, float]:
    """Return where a point of a 20 by 12 m floor is on the screen."""
    box = get_box(floor_map(page).locator("rect.outline"))
    return box["x"] + x / 20 * box["width"], box["y"] + (12 - y) / 12 * box["height"]
