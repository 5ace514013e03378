"""Tests of the firmware list while other users change firmware."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.conftest import stop_clock, visit, wait_until, wait_until_connected
from tests.browser.demo_firmware import new_model, uploaded_firmware
from tests.browser.demo_sites import MODEL, new_site, new_version

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

UPDATABLE_CELL = 6
"""Index of the cell with the number of devices that could be updated."""


def row(page: Page, version: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("cell", name=version, exact=True))


@pytest.mark.part("long")
def test_firmware_withdrawn_or_deleted_elsewhere_is_not_shown_as_released(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    model = new_model()
    browser_log.expect(404)
    with (
        uploaded_firmware(demo, model, "1.0.0", is_released=True) as first,
        uploaded_firmware(demo, model, "1.0.1", is_released=True) as second,
        uploaded_firmware(demo, model, "1.0.2") as third,
    ):
        page = open_as(f"/firmware?ModelNumber={model}&State=released")
        expect(row(page, "1.0.0")).to_contain_text("Released")
        expect(row(page, "1.0.2")).to_have_count(0)
        demo.call("POST", f"/api/v1/firmware/{first}/withdraw")
        demo.call("DELETE", f"/api/v1/firmware/{second}")
        demo.call("POST", f"/api/v1/firmware/{third}/release")
        expect(row(page, "1.0.0")).to_contain_text("Withdrawn")
        expect(row(page, "1.0.1")).to_contain_text("Deleted")
        # New rows are only added on request.
        expect(row(page, "1.0.2")).to_have_count(0)
        page.get_by_role("button", name="1 new · Show").click()
        expect(row(page, "1.0.2")).to_contain_text("Released")
        expect(row(page, "1.0.0")).to_have_count(0)
        # The uploader is named.
        page.goto("/firmware?ModelNumber=0043")
        expect(row(page, "4.3.0")).to_contain_text("by the command line")


@pytest.mark.part("long")
def test_devices_are_counted_again_while_the_list_is_open(
    open_as: Open, demo: ServiceProcess, tmp_path: Path
) -> None:
    version = f"9{new_version()}"
    with uploaded_firmware(demo, MODEL, version):
        page = open_as(f"/firmware?ModelNumber={MODEL}")
        before = demo.call("GET", f"/api/v1/devices/summary?ModelNumber={MODEL}")["total"]
        could = row(page, version).get_by_role("cell").nth(UPDATABLE_CELL)
        expect(could).to_have_text(str(before))
        with new_site(demo, tmp_path, devices=2) as site, site.running():
            expect(could).to_have_text(str(before + 2))


def test_devices_are_counted_one_model_at_a_time(open_as: Open, demo: ServiceProcess) -> None:
    models = [new_model() for _ in range(3)]
    with (
        uploaded_firmware(demo, models[0], "1.0.0", is_released=True),
        uploaded_firmware(demo, models[1], "1.0.0", is_released=True),
        uploaded_firmware(demo, models[2], "1.0.0", is_released=True),
    ):
        page = open_as("/healthz", Role.OPERATOR)
        asked: list[str] = []
        under_way: set[str] = set()
        most: list[int] = []

        def respond_slowly(route: Route) -> None:
            model = route.request.url.partition("ModelNumber=")[2]
            asked.append(model)
            under_way.add(model)
            most.append(len(under_way))
            answer = route.fetch()
            under_way.remove(model)
            route.fulfill(response=answer)

        page.route("**/api/v1/devices/summary?ModelNumber=*", respond_slowly)
        for path in ("/firmware", "/jobs/new"):
            asked.clear()
            page.goto(path)
            wait_until(page, lambda: set(models) <= set(asked) and not under_way)
            assert max(most) == 1, path
            assert len(asked) == len(set(asked)), path
            page.goto("/healthz")


@pytest.mark.usefixtures("own_window")
def test_a_count_continues_while_the_list_is_refreshed(
    open_as: Open, page: Page, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    model = new_model()
    with uploaded_firmware(demo, model, "1.0.0"):
        page.clock.install()
        open_as("/labels")
        wait_until_connected(page)
        # With a running clock the held requests would time out after half a minute.
        stop_clock(page, browser_log)
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        page.route("**/api/v1/devices/summary?*", hold)
        visit(page, f"/firmware?ModelNumber={model}")
        wait_until(page, lambda: held)
        browser_log.requests.clear()
        page.clock.run_for(16_000)
        wait_until(
            page, lambda: any(each.startswith("GET /api/v1/firmware?") for each in browser_log.requests)
        )
        could = row(page, "1.0.0").get_by_role("cell").nth(UPDATABLE_CELL)
        expect(could).to_have_text("…")
        held[0].continue_()
        expect(could).to_have_text("0")
        assert len(held) == 1
