"""Test of a complete rollout: firmware for a label, with devices that fail."""

from __future__ import annotations

import hashlib
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import visit
from tests.browser.demo_sites import MODEL, new_site, new_version
from tests.scenarios.update_site import build_test_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Open
    from tests.browser.demo_sites import EmulatedSite
    from tests.scenarios.service_process import ServiceProcess

JOB_TIMEOUT_MS = 180_000
"""Milliseconds to wait for the end of a job; reached only if it never ends."""


class RolloutSites:
    """Three sites with one label: one with three good devices, and two with a device whose updates fail."""

    def __init__(self, demo: ServiceProcess, folder: Path, stack: ExitStack) -> None:
        self.label = f"wing {uuid4().hex[:8]}"
        self.good, self.failing, self.broken = (
            stack.enter_context(new_site(demo, folder / name, devices=count))
            for name, count in (("well", 3), ("failing", 1), ("broken", 1))
        )
        self._faulty_run = ExitStack()
        stack.enter_context(self.good.running())
        stack.enter_context(self.broken.running("update-fail=1"))
        stack.enter_context(self._faulty_run).enter_context(self.failing.running("update-fail=1"))
        ids = [device for site in (self.good, self.failing, self.broken) for device in site.devices]
        demo.call("POST", "/api/v1/labels", {"label": self.label, "deviceIds": ids})
        stack.callback(demo.call, "DELETE", f"/api/v1/labels/{quote(self.label)}")

    def repair(self) -> None:
        """Restart one of the failing sites without the fault."""
        self._faulty_run.close()
        self._faulty_run.enter_context(self.failing.running())


@pytest.fixture
def sites(demo: ServiceProcess, tmp_path: Path) -> Iterator[RolloutSites]:
    """Run the sites to update."""
    with ExitStack() as stack:
        yield RolloutSites(demo, tmp_path, stack)


def _click_next(page: Page) -> None:
    page.get_by_role("button", name="Next", exact=True).click()


def _find_row(page: Page, site: EmulatedSite) -> Locator:
    """Return the row of the only device of a site in the list of a job."""
    return page.locator(f'tr[data-device="{site.devices[0]}"]')


def _upload_and_release(page: Page, image: Path, version: str) -> None:
    page.get_by_role("button", name="Upload firmware").click()
    asking = page.get_by_role("dialog", name="Upload firmware")
    asking.get_by_label("Image", exact=True).set_input_files(image)
    # Model and version are filled in after the checksum is shown.
    expect(asking).to_contain_text(hashlib.sha256(image.read_bytes()).hexdigest())
    asking.get_by_role("combobox", name="Model").fill(MODEL)
    asking.get_by_role("textbox", name="Version", exact=True).fill(version)
    asking.get_by_role("button", name="Upload", exact=True).click()
    main = page.get_by_role("main")
    expect(main).to_contain_text("This is a draft")
    main.get_by_role("button", name="Release").click()
    page.get_by_role("dialog").get_by_role("button", name="Release firmware").click()


def _create_job(page: Page, label: str, name: str) -> None:
    """Create a job in the wizard: the label, three devices first, and short timeouts."""
    expect(page.get_by_role("heading", level=2, name="Which devices?")).to_be_visible()
    page.get_by_role("button", name="Label", exact=True).click()
    page.get_by_role("button", name=re.compile(f"{label}.*5")).click()
    expect(page.get_by_text("5 devices match")).to_be_visible()
    _click_next(page)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Size of the canary").fill("3")
    page.get_by_label("Counted in").select_option("devices")
    page.get_by_label("Success rate required to start the next wave").fill("30")
    page.get_by_role("button", name="Remove rule 1").click()
    page.get_by_text("More options").click()
    page.get_by_label("Automatic retries").fill("0")
    page.get_by_label("Longest time without progress").fill("0.2")
    page.get_by_label("Longest time for a device").fill("1")
    page.get_by_label("Good heartbeats required").fill("1")
    _click_next(page)
    expect(page.get_by_role("region", name="What will happen")).to_contain_text("5 devices will be updated")
    page.get_by_role("button", name="Start job").click()


@pytest.mark.part("long")
def test_firmware_is_rolled_out_to_a_label_and_failures_are_explained(
    open_as: Open, demo: ServiceProcess, sites: RolloutSites, tmp_path: Path
) -> None:
    version, name = new_version(), f"Story {uuid4().hex[:8]}"
    image = tmp_path / "motion.zip"
    image.write_bytes(build_test_package(MODEL, version))
    page = open_as("/firmware")
    main = page.get_by_role("main")
    _upload_and_release(page, image, version)
    main.get_by_role("link", name="Roll out").click()
    _create_job(page, sites.label, name)

    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    state = main.get_by_role("status").first
    waves = page.get_by_role("region", name="Waves").get_by_role("listitem")
    expect(waves.nth(0)).to_contain_text("Canary")
    expect(state).to_have_text("Partly done", timeout=JOB_TIMEOUT_MS)
    expect(waves.nth(0)).to_contain_text("Passed")
    expect(page.get_by_role("region", name="Why devices failed")).to_contain_text("2 in all")
    job = page.url.rsplit("/", 1)[-1]
    for site in (sites.failing, sites.broken):
        told = demo.call("GET", f"/api/v1/jobs/{job}/executions/{site.devices[0]}")
        assert told["state"] in {"FAILED", "TIMED_OUT"}
        row = _find_row(page, site)
        expect(row).to_contain_text(told["reason"][1:])
        row.get_by_role("link").first.click()
        drawer = page.get_by_role("dialog")
        expect(drawer).to_contain_text(told["reasonCode"])
        page.keyboard.press("Escape")
        expect(drawer).to_have_count(0)

    sites.repair()
    page.get_by_role("button", name="Retry 2…").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{name} (retry)")
    expect(_find_row(page, sites.failing)).to_contain_text("Done", timeout=JOB_TIMEOUT_MS)
    # The other device fails again.
    expect(state).to_have_text("Partly done", timeout=JOB_TIMEOUT_MS)
    told = demo.call("GET", f"/api/v1/devices/{sites.failing.devices[0]}")
    assert told["firmwareVersion"] == version
    visit(page, "/audit?Action=job.create")
    expect(page.get_by_text(f"“{name}”")).to_be_visible()
