"""Tests of the firmware pages: view, release, withdraw and delete."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import visit
from tests.browser.demo_firmware import (
    FLEET_MODEL,
    build_test_package,
    delete_firmware,
    new_model,
    uploaded_firmware,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator

    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess


def test_a_draft_is_released_found_and_deleted(open_as: Open, demo: ServiceProcess) -> None:
    model = new_model()
    made = demo.upload(model, "3.4.2", build_test_package(model, "3.4.2"))
    page = open_as(f"/firmware/{made}")
    main = page.get_by_role("main")
    try:
        main.get_by_role("button", name="Release").click()
        expect(main.get_by_role("link", name="Roll out")).to_have_count(0)
        page.get_by_role("dialog").get_by_role("button", name="Release firmware").click()
        expect(main.get_by_role("link", name="Roll out")).to_have_attribute(
            "href", f"/jobs/new?Firmware={made}"
        )
        assert demo.call("GET", f"/api/v1/firmware/{made}")["state"] == "released"

        visit(page, f"/firmware?ModelNumber={model}")
        row = page.get_by_role("row").filter(has_text=model)
        expect(row).to_contain_text("Released")
        page.get_by_role("button", name="Draft").click()
        expect(page.get_by_text("No firmware matches")).to_be_visible()
        expect(page).to_have_url(re.compile(f"/firmware[?]ModelNumber={model}&State=draft$"))
        page.go_back()
        row.get_by_role("link", name="3.4.2").click()
        main.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete firmware").click()
        expect(page).to_have_url(re.compile("/firmware$"))
        assert demo.call("GET", f"/api/v1/firmware?ModelNumber={model}")["items"] == []
    finally:
        delete_firmware(demo, model)


def test_withdrawing_lists_the_jobs_it_stops_and_requires_the_version(
    open_as: Open, demo: ServiceProcess
) -> None:
    job = f"Slowly <b>& carefully {uuid4().hex[:8]}"
    # The firmware cannot be deleted after a job has used it, so this version is not shared.
    version = f"98.{uuid4().bytes[0]}.{uuid4().bytes[0]}"
    device = demo.call("GET", f"/api/v1/devices?ModelNumber={FLEET_MODEL}&MaxResults=1")["items"][0]["id"]
    with uploaded_firmware(demo, FLEET_MODEL, f"{version}-beta.3", is_released=True) as firmware:
        order: dict[str, Any] = {
            "name": job,
            "firmwareId": firmware,
            "targets": {"deviceIds": [device]},
            "autoApply": False,
        }
        made = demo.call("POST", "/api/v1/jobs", order)["id"]
        page = open_as(f"/firmware/{firmware}")
        main = page.get_by_role("main")
        row = page.get_by_role("row").filter(has_text=job)
        expect(row.get_by_role("link")).to_have_attribute("href", f"/jobs/{made}")
        expect(main.get_by_role("button", name="Withdraw")).to_be_visible()
        expect(main.get_by_role("button", name="Delete")).to_have_count(0)

        main.get_by_role("button", name="Withdraw").click()
        asking = page.get_by_role("dialog", name="Withdraw this firmware?")
        expect(asking.get_by_role("list", name="1 job is canceled at once:")).to_contain_text(job)
        assert find_violations(page) == []
        withdraw = asking.get_by_role("button", name="Withdraw firmware")
        asking.get_by_role("textbox").fill(version)
        expect(withdraw).to_be_disabled()
        asking.get_by_role("textbox").fill(f"{version}-beta.3")
        withdraw.click()
        expect(main).to_contain_text("This firmware was withdrawn")
        expect(main.get_by_role("button", name="Withdraw")).to_have_count(0)
        expect(main.get_by_role("link", name="Roll out")).to_have_count(0)
        expect(row).to_contain_text("Canceled")
        assert demo.call("GET", f"/api/v1/firmware/{firmware}")["state"] == "withdrawn"


def test_the_page_counts_devices_that_run_the_firmware_and_that_could(
    open_as: Open, demo: ServiceProcess
) -> None:
    shares = demo.call("GET", f"/api/v1/devices/summary?ModelNumber={FLEET_MODEL}")["firmware"]
    (runs,) = shares  # all devices of this model run the same version
    version, number = runs["value"], runs["count"]
    with (
        uploaded_firmware(demo, FLEET_MODEL, version),
        uploaded_firmware(demo, FLEET_MODEL, "99.0.0") as newer,
        uploaded_firmware(demo, FLEET_MODEL, "99.0.1", hardwareVersions="98.0.0"),
    ):
        page = open_as(f"/firmware?ModelNumber={FLEET_MODEL}")

        def cells(text: str) -> Locator:
            row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=text, exact=True))
            return row.get_by_role("cell")

        devices = f"/devices?ModelNumber={FLEET_MODEL}&FirmwareVersion={version}"
        expect(cells(version).nth(5)).to_have_text(str(number))
        expect(cells(version).nth(5).get_by_role("link")).to_have_attribute("href", devices)
        expect(cells(version).nth(6)).to_have_text("0")
        expect(cells("99.0.0").nth(5)).to_have_text("0")
        expect(cells("99.0.0").nth(6)).to_have_text(str(number))
        expect(cells("99.0.1").nth(6)).to_have_text("0")  # no device has that hardware
        visit(page, f"/firmware/{newer}")
        share = page.get_by_role("table", name="Versions in the fleet").get_by_role("row")
        expect(share).to_contain_text(version)
        expect(share.get_by_role("link")).to_have_attribute("href", devices)
        expect(page.get_by_role("main")).to_contain_text(f"{number} devices could be updated to it.")


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_each_role_is_offered_only_permitted_actions(open_as: Open, demo: ServiceProcess, role: Role) -> None:
    device = demo.call("GET", f"/api/v1/devices?ModelNumber={FLEET_MODEL}&MaxResults=1")["items"][0]["id"]
    with (
        uploaded_firmware(demo, FLEET_MODEL, "99.0.0", is_released=True) as firmware,
        uploaded_firmware(demo, FLEET_MODEL, "99.0.1", is_released=True, hardwareVersions="98.0.0"),
        uploaded_firmware(demo, FLEET_MODEL, "99.0.2"),
    ):
        page = open_as("/firmware", role)
        main = page.get_by_role("main")
        expect(page.get_by_role("row").filter(has_text="99.0.2")).to_be_visible()
        expect(page.get_by_role("button", name=f"Account: {role}")).to_be_visible()
        expect(main.get_by_role("button", name="Upload firmware")).to_have_count(0)
        visit(page, f"/firmware/{firmware}")
        expect(main.get_by_text("No job has used it.")).to_be_visible()
        expect(page.get_by_role("button", name=f"Account: {role}")).to_be_visible()
        expect(main.get_by_role("button", name=re.compile("Release|Withdraw|Delete"))).to_have_count(0)
        expect(main.get_by_role("link", name="Roll out")).to_have_count(int(role is Role.OPERATOR))

        visit(page, f"/devices/{device}")
        place = (
            f"/jobs/new?Firmware={firmware}&Device={device}"
            if role is Role.OPERATOR
            else f"/firmware/{firmware}"
        )
        hint = main.get_by_role("link", name="Update available: 99.0.0")
        expect(hint).to_have_attribute("href", place)
