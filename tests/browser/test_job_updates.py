"""Tests of updates of the job page: what it shows, and how often it sends requests."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import stop_clock, visit, wait_for_responses, wait_until, wait_until_connected
from tests.browser.demo_sites import MODEL, finish_job, new_firmware, update_target
from tests.browser.test_job import click_button, find_state, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

    Make = Callable[..., dict[str, Any]]

_COUNTS = """
const ask = window.fetch;
window.counts = [];
window.fetch = (request, ...given) => {
  if (String(request.url ?? request).endsWith("/summary")) window.counts.push(performance.now());
  return ask(request, ...given);
};
"""
"""Records the times at which a page requests the counts of a job."""


@pytest.fixture
def create_job(demo: ServiceProcess) -> Iterator[Make]:
    """Return a function that creates a job that is not started; the jobs are finished at the end."""
    jobs: list[str] = []

    def make(**order: Any) -> dict[str, Any]:
        usual = {
            "name": f"Told {uuid4().hex[:8]}",
            "firmwareId": new_firmware(demo)[0],
            "targets": {"filter": {"ModelNumber": MODEL}},
            "autoApply": False,
        }
        job: dict[str, Any] = demo.call("POST", "/api/v1/jobs", usual | order)
        jobs.append(job["id"])
        return job

    yield make
    there_are = {each["id"] for each in demo.call("GET", "/api/v1/jobs?MaxResults=1000")["items"]}
    for each in there_are.intersection(jobs):
        finish_job(demo, each)


@pytest.mark.rule("rest-199", "rest-200", "rest-207")
def test_devices_of_an_earlier_job_are_excluded_and_have_not_failed(
    open_as: Open, demo: ServiceProcess, create_job: Make
) -> None:
    devices = [each["id"] for each in demo.call("GET", f"/api/v1/devices?ModelNumber={MODEL}")["items"]][:3]
    earlier = create_job(targets={"deviceIds": devices[:1]}, onNewerJob="reject")
    job = create_job(targets={"deviceIds": devices})
    page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("0 of 2 devices finished")
    expect(progress).to_contain_text("failed: 0 of 0 in progress or finished")
    expect(progress).to_contain_text("1 left out")
    expect(page.get_by_role("region", name="Why devices failed")).to_contain_text("No device has failed.")
    expect(rows(page)).to_have_count(2)
    page.get_by_role("region", name="Why devices were left out").get_by_role("link").click()
    expect(page).to_have_url(f"{demo.url}/jobs/{job['id']}?LeftOut=true&ReasonCode=EARLIER_JOB")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(f"{earlier['id']} has not finished with it")
    states = page.get_by_role("group", name="Filter by state").get_by_role("button")
    expect(states).to_have_text(["To update 2", "Queued 2", "Left out 1"])
    visit(page, f"/devices/{devices[0]}")
    held = page.get_by_role("list", name="Updates under way").get_by_role("listitem")
    expect(held).to_contain_text([earlier["name"]])
    visit(page, f"/jobs/new?Firmware={job['firmwareId']}&Device={devices[1]}&Step=review")
    expect(page.get_by_text("1 of these devices is still in another job")).to_be_visible()


@pytest.mark.part("long")
@pytest.mark.rule("rest-137", "rest-199")
def test_staged_firmware_is_installed_on_request(open_as: Open, demo: ServiceProcess, tmp_path: Path) -> None:
    with update_target(demo, tmp_path) as home:
        job = home.create_job(stage=True)
        page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
        waits = page.get_by_role("region", name="What it waits for")
        expect(waits).to_contain_text("3 devices hold the image until an operator presses", timeout=90_000)
        click_button(page, "Install now")
        asking = page.get_by_role("dialog", name="Install the new version now?")
        asking.get_by_role("button", name="Install now").click()
        expect(asking).to_have_count(0)
        expect(page.get_by_role("button", name="Install now")).to_have_count(0)
        expect(waits.filter(has_text="keep the image")).to_have_count(0)
        expect(find_state(page)).to_have_text("Done", timeout=90_000)


@pytest.mark.part("long")
@pytest.mark.rule("rest-141", "rest-204")
def test_evidence_of_a_finished_device_is_not_reloaded_for_others(
    open_as: Open, browser_log: BrowserLog, demo: ServiceProcess, tmp_path: Path
) -> None:
    with update_target(demo, tmp_path) as home:
        job = home.create_job(waves=[{"count": 1}], gate={"successPercent": 100, "pause": True})
        page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
        expect(find_state(page)).to_have_text("Paused", timeout=90_000)
        waves = page.get_by_role("region", name="Waves").get_by_role("listitem")
        expect(waves.nth(1)).to_contain_text("Starts when the job is resumed.")
        rows(page).filter(has_text="Done").get_by_role("link").click()
        expect(page.get_by_role("dialog")).to_contain_text("Proof")
        demo.call("POST", f"/api/v1/jobs/{job['id']}/resume")
        report = page.get_by_role("region", name="Report", include_hidden=True)
        expect(report).to_contain_text("All 3 devices run", timeout=90_000)
        read = [each for each in browser_log.requests if f"/jobs/{job['id']}/executions/bmac-" in each]
        assert len(read) == 1


@pytest.mark.usefixtures("own_window")
@pytest.mark.rule("rest-207")
def test_a_failed_count_can_be_retried(
    open_as: Open, page: Page, browser_log: BrowserLog, demo: ServiceProcess, create_job: Make
) -> None:
    job = create_job()["id"]
    finish_job(demo, job)
    browser_log.expect(500)
    page.clock.install()
    open_as("/healthz")
    page.route("**/summary", lambda route: route.fulfill(status=500))
    page.goto(f"/jobs/{job}")
    failed = page.get_by_role("alert")
    wait_until_connected(page)
    expect(failed).to_be_visible()
    # While the clock is stopped, the count is not repeated automatically.
    stop_clock(page, browser_log)
    expect(failed).to_be_visible()
    page.unroute("**/summary")
    expect(page.get_by_role("region", name="Why devices failed")).to_have_count(0)
    failed.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("region", name="Why devices failed")).to_be_visible()
    expect(failed).to_have_count(0)


@pytest.mark.usefixtures("own_window")
@pytest.mark.rule("rest-207")
def test_a_job_that_changes_often_is_counted_at_most_four_times_per_second(
    open_as: Open, page: Page, browser_log: BrowserLog, demo: ServiceProcess, create_job: Make
) -> None:
    job = create_job(autoApply=True, startAt="2199-01-01T00:00:00.000Z")["id"]
    frames: list[str] = []

    def was_received(start: int) -> bool:
        """Return whether an event of the job was received since the given index."""
        return any(job in each for each in frames[start:])

    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))))
    page.add_init_script(_COUNTS)
    page.clock.install()
    open_as(f"/jobs/{job}")
    wait_until_connected(page)
    expect(page.get_by_role("region", name="Why devices failed")).to_be_visible()
    stop_clock(page, browser_log)
    previous_counts = page.evaluate("counts.length")
    for command, word in (("pause", "Paused"), ("resume", "Scheduled")) * 3:
        has_new_event = partial(was_received, len(frames))
        demo.call("POST", f"/api/v1/jobs/{job}/{command}")
        wait_until(page, has_new_event, "an event of the job")
        for _ in range(40):
            if find_state(page).text_content() == word:
                break
            page.clock.run_for(50)
            wait_for_responses(page, browser_log)
        expect(find_state(page)).to_have_text(word)
    times = page.evaluate("counts")[previous_counts:]
    assert len(times) >= 6
    assert [later - time for time, later in pairwise(times) if later - time < 250] == []


def test_the_dialog_shows_why_a_job_cannot_be_canceled(
    open_as: Open, browser_log: BrowserLog, create_job: Make
) -> None:
    job = create_job(name=f"Two  spaces {uuid4().hex[:8]}")
    browser_log.expect(500)
    page = open_as(f"/jobs/{job['id']}", Role.OPERATOR)
    page.route("**/cancel", lambda route: route.fulfill(status=500), times=1)
    click_button(page, "Cancel job…")
    asking = page.get_by_role("dialog", name="Cancel this job?")
    asking.get_by_label("Type the name of the job, or job-").fill(job["name"].replace("  ", " "))
    cancel = asking.get_by_role("button", name="Cancel job")
    cancel.click()
    expect(asking.get_by_role("alert")).to_be_visible()
    cancel.click()
    expect(asking).to_have_count(0)
    expect(find_state(page)).to_have_text("Canceled")


@pytest.mark.rule("rest-214", "rest-215", "rest-216")
def test_a_deleted_job_disappears_in_all_tabs_and_the_audit_log_keeps_it(
    open_as: Open, page: Page, browser_log: BrowserLog, demo: ServiceProcess, create_job: Make
) -> None:
    job, other = create_job(), create_job()
    browser_log.expect(409)
    browser_log.allow(404)  # requests at the moment of the deletion
    lister, looker = page.context.new_page(), page.context.new_page()
    open_as("/jobs", Role.VIEWER, tab=lister)
    open_as(f"/jobs/{job['id']}", Role.VIEWER, tab=looker)
    open_as(f"/jobs/{job['id']}", Role.OPERATOR)
    for tab in (lister, looker, page):
        wait_until_connected(tab)
    expect(lister.get_by_role("link", name=job["name"])).to_be_visible()
    expect(looker.get_by_role("heading", level=1)).to_have_text(job["name"])
    click_button(page, "Delete job…")
    asking = page.get_by_role("dialog", name="Delete this job?")
    expect(asking).to_contain_text(job["name"])
    expect(asking).to_contain_text("The audit log keeps one entry")
    assert find_violations(page) == []
    asking.get_by_role("button", name="Delete job").click()
    expect(page).to_have_url(f"{demo.url}/jobs")
    expect(page.get_by_role("status").filter(has_text="was deleted.")).to_contain_text(job["name"])
    expect(page.get_by_role("link", name=other["name"])).to_be_visible()
    for tab in (page, lister):
        expect(tab.get_by_role("link", name=job["name"])).to_have_count(0)
    expect(looker.get_by_role("heading", level=1)).to_have_text("This job was deleted")
    (row, *_) = demo.call("GET", "/api/v1/audit?Action=job.delete")["items"]
    assert (row["target"], row["actor"], row["detail"]["name"]) == (job["id"], "operator", job["name"])

    # A job whose start was missed cannot be deleted, and the page says so.
    page.get_by_role("link", name=other["name"]).click()
    expect(find_state(page)).to_have_text("Not started")
    click_button(page, "Pause live values")
    click_button(page, "Delete job…")
    demo.call("POST", f"/api/v1/jobs/{other['id']}/apply")
    asking.get_by_role("button", name="Delete job").click()
    expect(asking.get_by_role("alert")).to_contain_text("cancel it before you delete it")
