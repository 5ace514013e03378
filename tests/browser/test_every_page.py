"""What holds for every page: no barriers in either theme, no scrolling sideways, no complaints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.wire.rest import Role
from tests.browser.axe import barriers
from tests.browser.conftest import hidden_sideways, settle, sign_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext

    from tests.browser.watch import Watch
    from tests.scenarios.serving import Service

PAGES = {
    "/": "Overview",
    "/devices": "Devices",
    "/devices/bmac-02005e000001": "Head office",
    "/gateways": "Gateways",
    "/gateways/02005e000001": "Head office",
    "/labels": "Labels",
    "/rejects": "Rejected reports",
}
"""Each page, and its heading."""

WIDTHS = {"light": (320, 390, 720, 768, 1440), "dark": (1440, 768, 720, 320, 390)}
"""A zoom of 200 % leaves half of a width, and one of 400 % leaves 320 of 1280. axe takes its time, so it
looks at the last of each theme alone."""

DIRECTIONS = {"light": "ltr", "dark": "rtl"}
"""So that each is looked at, and no page twice."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_nobody_is_kept_out(
    make_window: Callable[..., tuple[BrowserContext, Watch]], demo: Service, path: str, theme: str
) -> None:
    context, _ = make_window(demo, color_scheme=theme)
    page = context.new_page()
    sign_in(page, demo, Role.ADMIN)
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[path])
    expect(page.locator("html")).to_have_attribute("data-theme", theme)
    settle(page)
    page.evaluate("direction => document.documentElement.dir = direction", DIRECTIONS[theme])
    for width in WIDTHS[theme]:
        page.set_viewport_size({"width": width, "height": 844})
        assert hidden_sideways(page) == 0, width
    assert barriers(page) == []
