"""Screenshots of the main pages for the documentation; MESHFLEET_PICTURES names the directory for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from playwright.sync_api import expect

from meshfleet.cli.demo_data import BUILDINGS, build_site
from tests.browser.conftest import wait_until
from tests.browser.demo_sites import MODEL, new_firmware, new_site

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.axe import Theme
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

MAX_BYTES = 300_000
"""Maximum size in bytes: screenshots are part of every clone."""

STORED_PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


class Screenshot(NamedTuple):
    """Screenshot of a page, and the text to wait for."""

    path: str
    shows: str
    theme: Theme
    width: int = 1440
    height: int = 900


# Pages of the head office: fonts on every machine have the letters of its names.
SCREENSHOTS = {
    "devices": Screenshot("/devices?Label=Head+office", "24 devices", "light"),
    "device": Screenshot("/devices/bmac-ca5bda1a0006?range=1h", "Temperature", "dark"),
    "properties": Screenshot("/devices/bmac-ca5bda1a0006?tab=properties", "Read or write", "light"),
    "gateway": Screenshot("/gateways/02005e000001", "MT MultiTracker", "dark"),
    "wizard": Screenshot(
        "/jobs/new?Firmware={firmware}&Label=Head+office&Step=review", "will be updated", "light"
    ),
    "phone": Screenshot("/devices/bmac-ca5bda1a0006?range=1h", "Temperature", "light", 390, 844),
}


SILENT = sum(not each.battery for each in build_site(BUILDINGS[0]).devices)
"""Number of devices of the office with an empty battery."""


@pytest.mark.part("documentation")
def test_screenshots_are_small(open_as: Open, page: Page, demo: ServiceProcess, tmp_path: Path) -> None:
    # Newly added devices have not reported yet.
    office = "/api/v1/devices/summary?Label=Head+office"
    wait_until(page, lambda: demo.call("GET", office)["disconnected"] == SILENT)
    released = f"/api/v1/firmware?ModelNumber={MODEL}&State=released"
    firmware = demo.call("GET", released)["items"][-1]["id"]
    for name, picture in SCREENSHOTS.items():
        page.set_viewport_size({"width": picture.width, "height": picture.height})
        page.emulate_media(color_scheme=picture.theme)
        open_as(picture.path.format(firmware=firmware))
        expect(page.get_by_text(picture.shows).first).to_be_visible()
        take_screenshot(page, name, tmp_path)


def take_screenshot(page: Page, name: str, fallback: Path) -> None:
    """Save a screenshot once the page is idle."""
    expect(page.get_by_text("Loading")).to_have_count(0)
    page.evaluate("document.fonts.ready")
    wait_until(page, lambda: page.evaluate("document.getAnimations().length") == 0)
    folder = Path(os.environ.get("MESHFLEET_PICTURES") or fallback)
    taken = page.screenshot(path=folder / f"{name}.png")
    assert 10_000 < len(taken) < MAX_BYTES


@pytest.mark.part("long")
def test_screenshots_of_an_update_are_small(open_as: Open, demo: ServiceProcess, tmp_path: Path) -> None:
    with (
        new_site(demo, tmp_path / "well", devices=7) as well,
        new_site(demo, tmp_path / "failing", devices=2) as failing,
        well.running(),
        failing.running("update-fail=1"),
    ):
        firmware, version = new_firmware(demo)
        order = {
            "name": f"Motion sensors to {version}",
            "firmwareId": firmware,
            "targets": {"deviceIds": [*well.devices, *failing.devices]},
            "waves": [{"name": "Canary", "count": 3}],
            "gate": {"successPercent": 30},
            "concurrency": {"perGateway": None},
            "retry": {"max": 0},
            "timeouts": {"stepMinutes": 0.2},
        }
        job = demo.call("POST", "/api/v1/jobs", order)["id"]
        page = open_as(f"/jobs/{job}")
        report = page.get_by_role("region", name="Report")
        expect(report).to_contain_text("7 of 9 devices run", timeout=120_000)
        expect(page.get_by_role("region", name="Why devices failed")).to_contain_text("2 in all")
        take_screenshot(page, "job", tmp_path)
        page.emulate_media(color_scheme="dark")
        page.goto(f"/jobs/{job}?Device={failing.devices[0]}")
        expect(page.get_by_role("dialog")).to_contain_text("What happened")
        take_screenshot(page, "evidence", tmp_path)


def test_the_stored_screenshots_are_those_of_these_tests() -> None:
    kept = {path.stem: path.stat().st_size for path in STORED_PICTURES.glob("*.png")}
    assert set(kept) == {*SCREENSHOTS, "job", "evidence"}
    assert max(kept.values()) < MAX_BYTES
