"""Tests of the wizard for update jobs, by mouse and by keyboard, and of the list of jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import visit, wait_until_connected
from tests.browser.demo_sites import MODEL, finish_job, new_firmware
from tests.browser.device_page import TRACKER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_MAX_TABS = 200
"""Maximum number of Tab keys to reach any element of a page."""


@pytest.fixture
def firmware(demo: ServiceProcess) -> dict[str, Any]:
    """Return released firmware that no device runs yet."""
    found: dict[str, Any] = demo.call("GET", f"/api/v1/firmware/{new_firmware(demo)[0]}")
    return found


@pytest.fixture
def label(demo: ServiceProcess) -> Iterator[str]:
    """Yield a label of three devices that can run the firmware, and of one that cannot."""
    devices = demo.call("GET", f"/api/v1/devices?ModelNumber={MODEL}&MaxResults=3")["items"]
    name = f"wing {uuid4().hex[:8]}"
    demo.call(
        "POST", "/api/v1/labels", {"label": name, "deviceIds": [*(each["id"] for each in devices), TRACKER]}
    )
    yield name
    demo.call("DELETE", f"/api/v1/labels/{quote(name)}")


@pytest.fixture
def job_name(demo: ServiceProcess) -> Iterator[str]:
    """Yield the name of the jobs of a test; they are finished at its end."""
    name = f"Job {uuid4().hex[:8]}"
    yield name
    for job in _list_jobs(demo, name):
        finish_job(demo, job["id"])


def _list_jobs(demo: ServiceProcess, name: str) -> list[dict[str, Any]]:
    return [each for each in demo.call("GET", "/api/v1/jobs")["items"] if each["name"] == name]


def _click_next(page: Page) -> None:
    page.get_by_role("button", name="Next", exact=True).click()


def _wait_for_heading(page: Page, text: str) -> Locator:
    """Return the heading of a step once it has the focus."""
    found = page.get_by_role("heading", level=2, name=text)
    expect(found).to_be_focused()
    return found


def _tab_to(page: Page, target: Locator) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(_MAX_TABS):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail("the focus never gets there")


def test_a_label_becomes_one_job_that_starts_with_a_canary(
    open_as: Open, demo: ServiceProcess, label: str, job_name: str, firmware: dict[str, Any]
) -> None:
    page = open_as(f"/jobs/new?Label={quote(label)}", Role.OPERATOR)
    fitting = page.get_by_role("group", name="For the devices that you chose")
    expect(page.get_by_role("group", name="For other models")).to_be_visible()
    _click_next(page)
    expect(page.get_by_role("alert")).to_contain_text("Firmware: Choose the firmware")
    page.route("**/api/v1/firmware/*", lambda route: route.abort())  # The list has all of its data.
    fitting.get_by_role("radio", name=f"{firmware['version']} MT MotionSensor").check()
    assert find_violations(page) == []
    _click_next(page)

    _wait_for_heading(page, "Which devices?")
    expect(page.get_by_text("4 devices match")).to_be_visible()
    expect(page.get_by_text("1 device is of another model")).to_be_visible()
    expect(page.get_by_role("group", name="Devices that match").get_by_role("row")).to_have_count(5)
    assert find_violations(page) == []
    _click_next(page)

    _wait_for_heading(page, "Rollout plan")
    page.get_by_label("Name", exact=True).fill(job_name)
    page.get_by_label("Size of the canary").fill("1")
    page.get_by_label("Counted in").select_option("devices")
    page.get_by_text("More options").click()
    assert find_violations(page) == []
    _click_next(page)

    _wait_for_heading(page, "Review and start")
    told = page.get_by_role("region", name="What will happen")
    expect(told).to_contain_text(f"3 devices will be updated to {firmware['version']}")
    expect(told).to_contain_text("1 first, the others when 95 % of those have succeeded")
    reasons = page.get_by_role("region", name="Left out, and why").locator("tbody tr")
    expect(reasons).to_have_count(1)
    expect(reasons).to_contain_text("The firmware is for another model")
    expect(reasons.get_by_role("link")).to_have_attribute("href", f"/devices/{TRACKER}")
    expect(page.get_by_role("region", name="Waves").get_by_role("listitem")).to_have_text(
        ["1 Canary 1 device", "2 The others 2 devices"]
    )
    assert find_violations(page) == []
    page.get_by_role("button", name="Start job").dblclick()

    expect(page).to_have_url(re.compile(r"/jobs/job-\d+$"))
    (job,) = _list_jobs(demo, job_name)
    assert job["targets"] == {"filter": {"Label": [label]}, "all": False}
    assert [(wave["name"], wave["size"]) for wave in job["waveStates"]] == [("Canary", 1), (None, 2)]
    assert (job["gate"]["successPercent"], job["createdBy"]) == (95, "operator")


def test_no_job_starts_without_an_eligible_device(open_as: Open, firmware: dict[str, Any]) -> None:
    # With firmware in the URL, the wizard offers devices of its model.
    page = open_as(f"/jobs/new?Firmware={firmware['id']}", Role.OPERATOR)
    expect(page).to_have_url(re.compile(rf"ModelNumber={MODEL}"))
    expect(page.get_by_text("of another model")).to_have_count(0)

    page.goto(f"/jobs/new?Firmware={firmware['id']}&Device={TRACKER}&Step=review")
    expect(page.get_by_role("alert")).to_contain_text("No device can be updated with this firmware")
    expect(page.get_by_role("row").filter(has_text="The firmware is for another model")).to_be_visible()
    expect(page.get_by_role("button", name="Start job")).to_be_disabled()
    page.get_by_role("button", name="Change: Devices").click()
    _wait_for_heading(page, "Which devices?")
    expect(page.get_by_text("1 device that you selected.")).to_be_visible()
    page.go_back()
    _wait_for_heading(page, "Review and start")


def test_devices_selected_in_the_list_are_the_targets_of_the_job(
    open_as: Open, total: int, firmware: dict[str, Any]
) -> None:
    page = open_as("/devices", Role.OPERATOR)
    page.get_by_role("checkbox", name="Select all on this list").click()
    page.get_by_role("button", name="Update…").click()
    expect(page).to_have_url(re.compile(r"/jobs/new\?Selection=\w+$"))
    page.get_by_role("radio", name=f"{firmware['version']} MT MotionSensor").check()
    _click_next(page)
    selected = re.compile(r"^\d+ devices that you selected\.")
    expect(page.get_by_text(selected)).to_contain_text(f"{total} devices")
    page.reload()
    expect(page.get_by_text(selected)).to_contain_text(f"{total} devices")
    page.get_by_role("button", name="Leave out").first.click()
    expect(page.get_by_text(selected)).to_contain_text(f"{total - 1} devices")

    page.goto(f"/devices/{TRACKER}")
    page.get_by_role("link", name="Update…").click()
    expect(page).to_have_url(re.compile(rf"/jobs/new\?Device={TRACKER}$"))


def test_viewers_are_not_offered_new_jobs(open_as: Open) -> None:
    page = open_as("/jobs", Role.VIEWER)
    wait_until_connected(page)
    expect(page.get_by_role("button", name="Account: viewer")).to_be_visible()
    expect(page.get_by_role("link", name="New update job")).to_have_count(0)
    visit(page, f"/devices/{TRACKER}")
    expect(page.get_by_role("tab", name="Live").or_(page.get_by_role("link", name="Live"))).to_be_visible()
    expect(page.get_by_role("link", name="Update…")).to_have_count(0)
    visit(page, "/jobs/new")
    expect(page.get_by_role("heading", level=1)).to_have_text("No access to this page")


def test_a_job_can_be_created_by_keyboard(
    open_as: Open, demo: ServiceProcess, label: str, job_name: str, firmware: dict[str, Any]
) -> None:
    page = open_as(f"/jobs/new?Firmware={firmware['id']}&Label={quote(label)}&Step=firmware", Role.OPERATOR)
    _tab_to(page, page.get_by_role("radio", name=f"{firmware['version']} MT MotionSensor"))
    _tab_to(page, page.get_by_role("button", name="Next", exact=True))
    page.keyboard.press("Enter")
    _wait_for_heading(page, "Which devices?")
    _tab_to(page, page.get_by_role("button", name="Next", exact=True))
    page.keyboard.press("Enter")
    _wait_for_heading(page, "Rollout plan")
    _tab_to(page, page.get_by_role("radio", name="Immediately", exact=True))
    page.keyboard.press("ArrowUp")  # wraps around to the last option
    expect(page.get_by_role("radio", name="Manually")).to_be_checked()
    name = page.get_by_label("Name", exact=True)
    for _ in range(_MAX_TABS):
        if name.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.type(job_name)
    page.keyboard.press("Enter")
    _wait_for_heading(page, "Review and start")
    make = page.get_by_role("button", name="Create job")
    expect(make).to_be_enabled()
    _tab_to(page, make)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/jobs/job-\d+$"))
    assert [job["state"] for job in _list_jobs(demo, job_name)] == ["CREATED"]


def test_errors_are_shown_at_their_fields_and_typed_text_is_kept(
    open_as: Open, label: str, firmware: dict[str, Any]
) -> None:
    page = open_as(f"/jobs/new?Firmware={firmware['id']}&Label={quote(label)}", Role.OPERATOR)
    share = page.get_by_label("Size of the canary")
    share.fill("0")
    page.get_by_text("More options").click()
    page.get_by_label("Automatic retries").fill("eleven")
    page.get_by_text("More options").click()
    page.get_by_role("radio", name="At a set time").check()
    page.get_by_label("Start time").fill("2020-01-01T00:00")
    _click_next(page)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("Size of the canary: A number above 0, up to 100.")
    expect(alert).to_contain_text("Start time: This time has passed.")
    expect(alert).to_contain_text("Automatic retries: A whole number from 0 to 10.")
    expect(share).to_be_focused()
    expect(page.get_by_role("button", name="Plan (needs attention)")).to_be_visible()
    alert.get_by_role("button", name="Automatic retries").click()
    expect(page.get_by_label("Automatic retries")).to_be_focused()
    assert find_violations(page) == []

    elsewhere = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Labels")
    elsewhere.click()
    asking = page.get_by_role("dialog", name="Leave without starting?")
    expect(asking).to_be_visible()
    page.keyboard.press("Escape")
    expect(asking).to_have_count(0)
    expect(share).to_have_value("0")
    elsewhere.click()
    asking.get_by_role("button", name="Leave").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Labels")


def test_listed_jobs_are_updated_and_no_row_moves(
    open_as: Open, demo: ServiceProcess, label: str, job_name: str, firmware: dict[str, Any]
) -> None:
    page = open_as("/jobs", Role.OPERATOR)
    wait_until_connected(page)
    order = {
        "name": job_name,
        "firmwareId": firmware["id"],
        "targets": {"labels": [label]},
        "autoApply": False,
    }
    made = demo.call("POST", "/api/v1/jobs", order)
    fresh = page.get_by_role("button", name=re.compile(r"^\d+ new, refresh$"))
    listed = page.get_by_role("row")
    row = listed.filter(has_text=job_name)
    page.keyboard.press("Control+k")
    page.keyboard.type(made["id"])
    expect(page.get_by_role("group", name="Update jobs").get_by_role("option")).to_contain_text(job_name)
    page.keyboard.press("Escape")
    expect(fresh).to_be_visible()
    expect(row).to_have_count(0)
    fresh.click()
    expect(row).to_contain_text("Not started")
    expect(row).to_contain_text(f"{firmware['version']} MT MotionSensor 15x · {MODEL}")
    expect(row.get_by_role("img", name="0 of 3 devices finished: 3 queued, 1 left out")).to_be_visible()
    expect(fresh).to_have_count(0)

    def tab(name: str) -> None:
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")

    tab("Paused")
    expect(row).to_have_count(0)
    tab("Not started")
    expect(row).to_contain_text("Not started")
    before = listed.all_inner_texts()
    demo.call("POST", f"/api/v1/jobs/{made['id']}/cancel")
    expect(row).to_contain_text("Canceled")
    places = [job_name in text for text in listed.all_inner_texts()]
    assert places == [job_name in text for text in before]
    tab("Running")
    expect(row).to_have_count(0)
    tab("Finished")
    expect(row).to_contain_text("3 devices")


def test_an_old_job_that_enters_the_filtered_state_is_announced(
    open_as: Open, demo: ServiceProcess, job_name: str, firmware: dict[str, Any]
) -> None:
    order = {
        "name": job_name,
        "firmwareId": firmware["id"],
        "targets": {"filter": {"ModelNumber": MODEL}},
        "startAt": "2099-01-01T00:00:00Z",
    }
    older, newer = (demo.call("POST", "/api/v1/jobs", order)["id"] for _ in range(2))
    demo.call("POST", f"/api/v1/jobs/{newer}/pause")
    page = open_as("/jobs?State=paused")
    rows = page.get_by_role("row").filter(has_text=job_name)
    expect(rows).to_have_count(1)
    demo.call("POST", f"/api/v1/jobs/{older}/pause")
    page.get_by_role("button", name="1 new, refresh").click()
    expect(rows).to_have_count(2)


def test_the_review_shows_the_job_that_would_start_after_any_navigation(
    open_as: Open, demo: ServiceProcess, label: str, job_name: str, firmware: dict[str, Any]
) -> None:
    page = open_as(f"/jobs/new?Firmware={firmware['id']}&Label={quote(label)}&Step=review", Role.OPERATOR)
    told = page.get_by_role("region", name="What will happen")
    expect(told).to_contain_text("3 devices will be updated")
    page.get_by_role("button", name="Change: Devices").click()
    _wait_for_heading(page, "Which devices?")
    (device,) = demo.call("GET", f"/api/v1/devices?Label={quote(label)}&ModelNumber={MODEL}&MaxResults=1")[
        "items"
    ]
    page.get_by_role("searchbox").fill(device["id"].removeprefix("bmac-"))
    expect(page.get_by_text("1 device matches")).to_be_visible()
    _click_next(page)
    page.get_by_label("Name", exact=True).fill(job_name)
    expect(page).to_have_url(re.compile("Plan="))
    # Earlier URLs contain the plan too: each can be reloaded.
    page.go_back()
    _wait_for_heading(page, "Which devices?")
    expect(page).to_have_url(re.compile("Plan="))
    _click_next(page)
    _click_next(page)
    expect(told).to_contain_text("1 device will be updated")
    page.evaluate("history.go(-3)")
    expect(told).to_contain_text("3 devices will be updated")
    expect(page.get_by_role("main")).to_contain_text(job_name)


def test_a_plan_survives_a_reload_and_a_lost_response_creates_one_job(
    open_as: Open, browser_log: BrowserLog, demo: ServiceProcess, job_name: str, label: str
) -> None:
    firmware, _ = new_firmware(demo)
    page = open_as(f"/jobs/new?Firmware={firmware}&Label={quote(label)}&Step=plan", Role.OPERATOR)
    page.get_by_label("Name", exact=True).fill(job_name)
    page.get_by_role("radio", name="Manually").check()
    _click_next(page)
    make = page.get_by_role("button", name="Create job")
    expect(make).to_be_enabled()
    page.once("dialog", lambda dialog: dialog.accept())
    page.reload()
    expect(make).to_be_enabled()
    expect(page.get_by_role("main")).to_contain_text(job_name)
    page.get_by_role("button", name="Change: Plan").click()
    page.get_by_role("button", name="Add rule").click()
    expect(page.get_by_label(re.compile(r"^Rule \d: action$"))).to_have_count(2)

    # Another tab does not have the plan of this one.
    other = page.context.new_page()
    other.goto(page.url.replace("Step=plan", "Step=review"))
    expect(other.get_by_text("The plan at this address was created in another tab")).to_be_visible()
    expect(other.get_by_role("heading", level=2, name="Rollout plan")).to_be_visible()
    _click_next(other)
    expect(other.get_by_role("button", name="Start job")).to_be_enabled()

    # A retry after a lost response creates no second job.
    page.get_by_role("button", name=re.compile("^Remove rule")).last.click()
    _click_next(page)
    expect(make).to_be_enabled()

    def drop_response(route: Route) -> None:
        route.fetch()
        route.abort()

    browser_log.expect("ERR_FAILED")
    page.route("**/api/v1/jobs", drop_response, times=1)
    make.click()
    expect(page.get_by_role("alert")).to_be_in_viewport()
    expect(page.get_by_role("alert")).to_contain_text("It is not known whether the job was created.")
    assert len(_list_jobs(demo, job_name)) == 1
    make.click()
    expect(page).to_have_url(re.compile(r"/jobs/job-\d+$"))
    assert len(_list_jobs(demo, job_name)) == 1
