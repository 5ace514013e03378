"""Tests of the job page: progress, what it waits for, failures with reasons, and evidence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import visit, wait_until, wait_until_loaded
from tests.browser.consistency import list_compared_texts, list_contradictions, watch_job_page
from tests.browser.demo_sites import finish_job, update_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Locator, Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_SUMS = """() => {
  const progress = document.querySelector('section[aria-label="Progress"]');
  const counts = () => [...progress.querySelectorAll("[data-state]")].map(each => Number(each.textContent));
  const look = () => window.sums.add(counts().reduce((sum, each) => sum + each, 0));
  window.sums = new Set();
  look();
  new MutationObserver(look).observe(progress, {subtree: true, childList: true, characterData: true});
}"""
"""Add up the counts of the legend whenever it changes."""

_ACTIONS = re.compile("^(Start|Pause|Resume|Install now|Cancel job…|Delete job…|Retry .*)$")


@pytest.fixture
def waiting_job(demo: ServiceProcess) -> Iterator[dict[str, Any]]:
    """Yield a job for the whole demo fleet that is not started: most devices are excluded."""
    released = [each for each in demo.call("GET", "/api/v1/firmware")["items"] if each["state"] == "released"]
    order = {"targets": {"all": True}, "autoApply": False, "name": f"Waits {uuid4().hex[:8]}"}
    made = demo.call("POST", "/api/v1/jobs", order | {"firmwareId": released[0]["id"]})
    yield made
    finish_job(demo, made["id"])


def find_state(page: Page) -> Locator:
    """Return the state in the head of the page."""
    return page.get_by_role("main").get_by_role("status").first


def rows(page: Page) -> Locator:
    return page.get_by_role("group", name="Devices of the job").locator("tbody").get_by_role("row")


def click_button(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


@pytest.mark.part("long")
@pytest.mark.rule("rest-121", "rest-141", "rest-144")
def test_a_job_is_followed_to_its_end_and_shows_its_evidence(
    open_as: Open, demo: ServiceProcess, tmp_path: Path
) -> None:
    with update_target(demo, tmp_path) as home:
        job = home.create_job(
            autoApply=False, waves=[{"name": "canary", "count": 1}], gate={"successPercent": 100}
        )
        page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
        expect(page.get_by_role("heading", level=1)).to_have_text(job["name"])
        expect(find_state(page)).to_have_text("Not started")
        expect(page.get_by_text("It waits until an operator starts it.")).to_be_visible()
        page.evaluate(_SUMS)
        expect(page.get_by_role("region", name="Gateways")).to_be_visible()
        watch_job_page(page)
        click_button(page, "Start")
        expect(find_state(page)).to_have_text("Running")
        waves = page.get_by_role("region", name="Waves").get_by_role("listitem")
        expect(waves.nth(0)).to_contain_text(
            "The next wave starts when 100 % of the devices in this wave have succeeded"
        )
        expect(find_state(page)).to_have_text("Done", timeout=90_000)
        expect(page.get_by_role("region", name="Report")).to_contain_text(
            f"All 3 devices run {home.version}, each confirmed."
        )
        expect(page.get_by_role("progressbar", name="Progress of the job")).to_have_attribute(
            "aria-valuenow", "100"
        )
        expect(waves.nth(0)).to_contain_text("Passed")
        assert page.evaluate("[...window.sums]") == [3]
        assert list_contradictions(page) == []
        assert "2 devices: in a wave that has not started" in list_compared_texts(page)

        page.get_by_role("group", name="Filter by state").get_by_role("button", name="Done 3").click()
        expect(page).to_have_url(f"{demo.url}/jobs/{job['id']}?State=SUCCEEDED")
        expect(rows(page)).to_have_count(3)
        link = rows(page).nth(0).get_by_role("link")
        link.click()
        drawer = page.get_by_role("dialog")
        expect(drawer).to_contain_text("Proof")
        expect(drawer).to_contain_text(f"It reported version {home.version}")
        expect(drawer.get_by_role("listitem").filter(has_text="Confirming → Done")).to_be_visible()
        assert find_violations(page) == []
        drawer.get_by_role("button", name="Next device").click()
        expect(page).to_have_url(re.compile(rf"Device={sorted(home.devices)[1]}$"))
        page.reload()
        expect(drawer).to_contain_text(f"It reported version {home.version}")
        expect(drawer.get_by_role("button", name="Previous device")).to_be_enabled()  # the list is loaded
        page.keyboard.press("ArrowLeft")
        expect(page).to_have_url(re.compile(rf"Device={min(home.devices)}$"))
        page.keyboard.press("Escape")
        expect(drawer).to_have_count(0)
        expect(link).to_be_focused()
        expect(page).to_have_url(f"{demo.url}/jobs/{job['id']}?State=SUCCEEDED")

        names = {device: f"Door {place}" for place, device in enumerate(sorted(home.devices))}
        for device, name in names.items():
            demo.call("PUT", f"/api/v1/devices/{device}/friendly-name", {"name": name})
        with page.expect_download() as saving:
            click_button(page, "Save as CSV")
        saved = Path(saving.value.path()).read_text("utf-8").splitlines()
        assert [line.split(",")[:3] for line in saved] == [
            ["friendlyName", "deviceId", "state"],
            *([name, device, "SUCCEEDED"] for device, name in names.items()),
        ]


@pytest.mark.part("long")
@pytest.mark.rule("rest-137")
def test_a_job_is_paused_resumed_and_canceled_by_its_name(
    open_as: Open, demo: ServiceProcess, tmp_path: Path
) -> None:
    with update_target(demo, tmp_path) as home:
        job = home.create_job(waves=[{"count": 1}], gate={"successPercent": 100, "soakMinutes": 1440})
        page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
        expect(find_state(page)).to_have_text("Running")
        expect(rows(page).filter(has_text="Done")).to_have_count(1)
        click_button(page, "Pause")
        expect(find_state(page)).to_have_text("Paused")
        expect(page.get_by_text("A user paused it.")).to_be_visible()
        queued = rows(page).filter(has_text="Queued")
        expect(queued.filter(has_text="The job is paused.")).to_have_count(2)
        click_button(page, "Resume")
        expect(find_state(page)).to_have_text("Running")
        expect(queued.filter(has_text="Its wave has not started.")).to_have_count(2)

        click_button(page, "Cancel job…")
        asking = page.get_by_role("dialog", name="Cancel this job?")
        expect(asking).to_contain_text("2 devices are queued, and will not be updated.")
        cancel = asking.get_by_role("button", name="Cancel job")
        asking.get_by_label("Type the name of the job, or job-").fill(job["name"][:-1])
        expect(cancel).to_be_disabled()
        assert find_violations(page) == []
        asking.get_by_label("Type the name of the job, or job-").fill(job["name"])
        cancel.click()
        expect(asking).to_have_count(0)
        expect(find_state(page)).to_have_text("Canceled", timeout=90_000)
        expect(page.get_by_role("region", name="Report")).to_contain_text("A user canceled the job.")
        expect(rows(page).filter(has_text="Canceled")).to_have_count(2)


@pytest.mark.part("long")
@pytest.mark.rule("rest-139", "rest-207")
def test_failures_are_grouped_by_reason_and_can_be_retried(
    open_as: Open, demo: ServiceProcess, tmp_path: Path
) -> None:
    with update_target(demo, tmp_path, "update-fail=1") as home:
        job = home.create_job(
            timeouts={"stepMinutes": 0.1}, concurrency={"perGateway": None}, retry={"max": 0}
        )
        page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
        expect(find_state(page)).to_have_text("Failed", timeout=120_000)
        expect(page.get_by_role("region", name="Report")).to_contain_text("No device runs")
        failures = page.get_by_role("region", name="Why devices failed")
        expect(failures).to_contain_text("3 in all")
        reasons = failures.get_by_role("link")
        counts = [int(each.split()[-1]) for each in reasons.all_inner_texts()]
        assert sum(counts) == 3
        expect(failures.get_by_role("listitem").first).to_contain_text(re.compile("retry", re.IGNORECASE))

        reasons.first.click()
        expect(page).to_have_url(re.compile(r"\?State=(FAILED|TIMED_OUT)&ReasonCode=[A-Z_]+$"))
        expect(rows(page)).to_have_count(counts[0])
        one = rows(page).first
        execution = demo.call(
            "GET", f"/api/v1/jobs/{job['id']}/executions/{one.get_attribute('data-device')}"
        )
        assert execution["reasonCode"] in page.url
        expect(one).to_contain_text(execution["reason"][1:])
        one.get_by_role("link").click()
        expect(page.get_by_role("dialog")).to_contain_text(execution["reasonCode"])
        page.keyboard.press("Escape")

        click_button(page, "Retry 3…")
        asking = page.get_by_role("dialog", name="Retry these devices?")
        expect(asking).to_contain_text(f"A new job brings {home.version} to 3 devices")
        asking.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{job['name']} (retry)")
        expect(page.get_by_role("main").get_by_role("link", name=job["id"])).to_be_visible()
        finish_job(demo, page.url.rsplit("/", 1)[-1])


def test_viewers_are_offered_no_actions_and_a_long_list_is_loaded_on_scrolling(
    open_as: Open, browser_log: BrowserLog, waiting_job: dict[str, Any]
) -> None:
    page = open_as(f"/jobs/{waiting_job['id']}", Role.VIEWER)
    expect(page.get_by_role("button", name="Account: viewer")).to_be_visible()
    expect(find_state(page)).to_have_text("Not started")
    expect(rows(page).first).to_be_visible()
    expect(page.get_by_role("button", name=_ACTIONS)).to_have_count(0)
    open_as(f"/jobs/{waiting_job['id']}", Role.OPERATOR)
    expect(page.get_by_role("button", name=_ACTIONS)).to_have_text(["Start", "Cancel job…", "Delete job…"])

    # The list of excluded devices is longer than a page of results.
    page.goto("/healthz")  # stops requests of the page before
    browser_log.requests.clear()
    page.goto(f"/jobs/{waiting_job['id']}?LeftOut=true")
    expect(rows(page)).to_have_count(50)

    def list_requests(*, by_id: bool) -> list[str]:
        return [each for each in browser_log.requests if "/executions?" in each and ("Ids=" in each) is by_id]

    wait_until(page, lambda: list_requests(by_id=True), "a request for the visible rows")
    wait_until_loaded(page, browser_log)
    assert len(list_requests(by_id=False)) == 1
    assert all(each.count("Ids=") < 40 for each in list_requests(by_id=True))
    rows(page).last.scroll_into_view_if_needed()
    expect(rows(page)).to_have_count(sum(waiting_job["leftOut"].values()))

    browser_log.expect(404)
    visit(page, "/jobs/job-999999")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job not found")
