"""Pictures of the main pages, as documents show them; MESHFLEET_PICTURES names the folder to keep them in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from playwright.sync_api import expect

from meshfleet.cli.demo import BUILDINGS, site_of
from meshfleet.wire.rest import Role
from tests.browser.conftest import sign_in, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext

    from tests.browser.watch import Watch
    from tests.scenarios.serving import Service

LARGEST = 300_000
"""Bytes: pictures come with every clone."""

KEPT = Path(__file__).parents[2] / "docs" / "pictures"


class Picture(NamedTuple):
    """A page in a window, and what is there when it is worth a picture."""

    path: str
    shows: str
    theme: str
    width: int = 1440
    height: int = 900


# Of the demo fleet, the office whose names every machine has letters for.
PICTURES = {
    "devices": Picture("/devices?Label=Head+office", "24 devices", "light"),
    "device": Picture("/devices/bmac-ca5bda1a0006?range=1h", "Temperature", "dark"),
    "properties": Picture("/devices/bmac-ca5bda1a0006?tab=properties", "Read or write", "light"),
    "gateway": Picture("/gateways/02005e000001", "MT MultiTracker", "dark"),
    "phone": Picture("/devices/bmac-ca5bda1a0006?range=1h", "Temperature", "light", 390, 844),
}


SILENT = sum(not each.battery for each in site_of(BUILDINGS[0]).devices)
"""Of the office, the devices whose battery is empty."""


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small(
    make_window: Callable[..., tuple[BrowserContext, Watch]], demo: Service, name: str, tmp_path: Path
) -> None:
    picture = PICTURES[name]
    size: Any = {"width": picture.width, "height": picture.height}
    context, _ = make_window(demo, color_scheme=picture.theme, viewport=size)
    page = context.new_page()
    # Devices that have just been put up are not heard yet.
    office = "/api/v1/devices/summary?Label=Head+office"
    until(page, lambda: demo.ask("GET", office)["disconnected"] == SILENT)
    sign_in(page, demo, Role.ADMIN)
    page.goto(picture.path)
    expect(page.get_by_text(picture.shows).first).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)
    page.evaluate("document.fonts.ready")
    until(page, lambda: page.evaluate("document.getAnimations().length") == 0)
    folder = Path(os.environ.get("MESHFLEET_PICTURES") or tmp_path)
    taken = page.screenshot(path=folder / f"{name}.png")
    assert 10_000 < len(taken) < LARGEST


def test_the_kept_pictures_are_these() -> None:
    kept = {path.stem: path.stat().st_size for path in KEPT.glob("*.png")}
    assert set(kept) == set(PICTURES)
    assert max(kept.values()) < LARGEST
