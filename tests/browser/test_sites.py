"""Tests of the pages of sites: floors with plans, anchors, positions, survey and zones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations, find_violations_in_all_themes
from tests.browser.conftest import check_fits_width, wait_until
from tests.browser.demo_plans import ANCHOR_PLACES, FLOORS, PLAN, plan_site
from tests.browser.floor_map import floor_map, get_box, to_pixels

if TYPE_CHECKING:
    from typing import Any

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

SENSOR = "bmac-ca5bda1a0006"
"""Device of the demo fleet that is placed by a test."""


def _tap(page: Page, x: float, y: float) -> None:
    page.mouse.click(*to_pixels(page, x, y))


@pytest.mark.part("long")
def test_a_site_is_created_drawn_furnished_and_deleted(open_as: Open, demo: ServiceProcess) -> None:
    page = open_as("/sites", Role.OPERATOR)
    path = _create_site(page)
    assert [each["maxX"] for each in demo.call("GET", path)["floors"]] == [20, 20]
    page.get_by_role("link", name="Floor 1").click()
    expect(page).to_have_url(re.compile("floor=1"))
    page.get_by_role("link", name="Floor 0").click()
    _upload_plan(page)
    assert round(demo.call("GET", path)["floors"][0]["plan"]["transform"]["scale"], 6) == 0.05
    _place_device(page, demo)
    assert find_violations_in_all_themes(page) == []

    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog", name="Delete this site?")
    expect(dialog.get_by_role("button", name="Delete site")).to_be_disabled()
    dialog.get_by_label("Type the name").fill("Depot <b>")
    dialog.get_by_role("button", name="Delete site").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sites")
    assert path.rpartition("/")[2] not in {each["id"] for each in demo.call("GET", "/api/v1/sites")["items"]}


def _create_site(page: Page) -> str:
    """Create a site with two floors; return its path in the REST API."""
    page.get_by_role("button", name="New site").click()
    dialog = page.get_by_role("dialog", name="New site")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_contain_text("From 1 to 2,000 m.")
    dialog.get_by_label("Name", exact=True).fill("Depot <b>")
    dialog.get_by_label("Width, m").fill("20")
    dialog.get_by_label("Depth, m").fill("12")
    dialog.get_by_role("button", name="Add floor").click()
    assert find_violations(page) == []
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Depot <b>")
    return f"/api/v1/sites/{page.url.rpartition('/')[2]}"


def _upload_plan(page: Page) -> None:
    """Upload a plan: the first point is set by clicking and then corrected, the second one is kept."""
    page.get_by_role("button", name="Upload plan").click()
    dialog = page.get_by_role("dialog", name="Plan of Floor 0")
    dialog.locator("input[type=file]").set_input_files(
        {"name": "plan.svg", "mimeType": "image/svg+xml", "buffer": PLAN}
    )
    expect(dialog.get_by_label("Pixels from the left").nth(1)).to_have_value("400")
    box = get_box(dialog.get_by_role("img"))
    dialog.get_by_role("img").click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    expect(dialog.get_by_label("Pixels from the left").first).to_have_value(re.compile("^(199|20[01])$"))
    expect(dialog.get_by_label("Pixels from the top").first).to_have_value(re.compile("^(119|12[01])$"))
    dialog.get_by_label("Pixels from the left").first.fill("200")
    dialog.get_by_label("Pixels from the top").first.fill("120")
    dialog.get_by_label("x, m").first.fill("10")
    dialog.get_by_label("y, m").first.fill("6,0")
    assert find_violations(page) == []
    dialog.get_by_role("button", name="Save plan").click()
    expect(floor_map(page).locator("image.picture")).to_have_attribute("href", re.compile("^blob:"))
    plan, floor = (
        get_box(floor_map(page).locator("image.picture")),
        get_box(floor_map(page).locator("rect.outline")),
    )
    assert max(abs(plan[side] - floor[side]) for side in ("x", "y", "width", "height")) < 2


def _place_device(page: Page, demo: ServiceProcess) -> None:
    """Place a device by dragging it onto the plan, then move it with the mouse, and with fields."""
    page.get_by_role("link", name="Anchors", exact=True).click()
    page.get_by_role("searchbox", name="Find a device without a place").fill(SENSOR)
    item = page.get_by_role("listitem").filter(has=page.get_by_role("button", name=re.compile("^Place ")))
    expect(item).to_have_count(1)
    box = get_box(floor_map(page))
    x, y = to_pixels(page, 5, 3)
    item.drag_to(floor_map(page), target_position={"x": x - box["x"], "y": y - box["y"]})
    table = page.get_by_role("group", name="Placed devices")
    expect(table.get_by_role("row")).to_have_count(2)
    wait_until(page, lambda: _is_near(demo, (5, 3)))
    page.mouse.move(*to_pixels(page, 5, 3))
    page.mouse.down()
    page.mouse.move(*to_pixels(page, 8, 6), steps=3)
    page.mouse.up()
    wait_until(page, lambda: _is_near(demo, (8, 6)))
    table.get_by_role("button", name=re.compile("^Move ")).click()
    page.get_by_label("x, m").fill("2,5")
    page.get_by_label("y, m").fill("-0.5")
    page.keyboard.press("Enter")
    expect(table).to_contain_text("-0.5")
    assert _is_near(demo, (2.5, -0.5))
    _move_on_another_floor(page, demo, table.get_by_role("button", name=re.compile("^Move ")))


def _move_on_another_floor(page: Page, demo: ServiceProcess, move: Locator) -> None:
    """Move an anchor of the floor 0 while floor 1 is shown, and then to floor 1."""
    page.get_by_role("link", name="Floor 1").click()
    move.click()
    expect(page).to_have_url(re.compile("floor=0"))
    expect(page.get_by_role("heading", name=re.compile("^Place of .* on Floor 0$"))).to_be_visible()
    expect(page.get_by_label("x, m")).to_be_focused()
    page.get_by_role("button", name="Cancel").click()
    expect(move).to_be_focused()
    move.click()
    entered = floor_map(page).locator("circle.entered")
    expect(entered).to_have_count(1)
    page.get_by_label("x, m").fill("4")
    page.get_by_role("link", name="Floor 1").click()
    expect(entered).to_have_count(0)
    page.get_by_role("button", name="Save place").click()
    expect(page.get_by_text(re.compile("is on Floor 0 at x 4 m"))).to_be_visible()
    assert _is_near(demo, (4, -0.5))
    move.click()
    page.get_by_label("Floor", exact=True).select_option("Floor 1")
    expect(page).to_have_url(re.compile("floor=1"))
    page.get_by_role("button", name="Save place").click()
    expect(page.get_by_text(re.compile("is on Floor 1 at x 4 m"))).to_be_visible()
    assert _is_near(demo, (4, -0.5), floor=1)


def _is_near(demo: ServiceProcess, point: tuple[float, float], *, floor: int = 0) -> bool:
    place = demo.call("GET", f"/api/v1/devices/{SENSOR}")["live"]["place"]
    if place is None or place["floor"] != floor:
        return False
    return bool(abs(place["x"] - point[0]) < 0.2 and abs(place["y"] - point[1]) < 0.2)


def test_devices_are_listed_with_position_readings_reason_and_past(
    open_as: Open, demo: ServiceProcess
) -> None:
    with plan_site(demo, "Hall") as site:
        near, far, quiet = site.devices
        site.receive(near, (5, 4))
        site.receive(far, (15, 8))
        site.receive(quiet, (15, 8), anchors=2)
        site.wait_for_positions(near, far)
        page = open_as(f"/sites/{site.site}", Role.VIEWER)
        table = page.get_by_role("group", name="Devices on this site")
        expect(table.get_by_role("row")).to_have_count(3)
        expect(page.get_by_role("button", name="Edit")).to_have_count(0)
        table.get_by_role("link").first.click()
        expect(page).to_have_url(re.compile(f"device=bmac-{near}|device=bmac-{far}"))
        readings = page.get_by_role("group", name="Readings used")
        expect(readings.get_by_role("row")).to_have_count(1 + len(ANCHOR_PLACES))
        expect(page.get_by_role("main")).to_contain_text(re.compile(r"Within [\d.]+ m in 90 % of cases"))
        assert find_violations_in_all_themes(page) == []

        page.get_by_role("button", name="1 h", exact=True).click()
        expect(page).to_have_url(re.compile("playback=1h"))
        slider = page.get_by_role("slider", name="Time of the position")
        expect(slider).to_have_attribute("aria-valuetext", re.compile("Ground floor, x "))
        page.get_by_role("button", name="End playback").click()
        expect(slider).to_have_count(0)

        # The dot of the other device can be clicked on the map.
        page.get_by_role("link", name="Close").click()
        expect(readings).to_have_count(0)
        position = next(
            each
            for each in demo.call("GET", f"/api/v1/sites/{site.site}/positions")["items"]
            if each["device"] == f"bmac-{far}"
        )
        _tap(page, position["x"], position["y"])
        expect(page).to_have_url(re.compile(f"device=bmac-{far}"))

        page.goto(f"/sites/{site.site}?device=bmac-{quiet}")
        expect(page.get_by_role("main")).to_contain_text("2 anchors received the device")
        expect(page.get_by_role("main")).to_contain_text("3 are needed")


def test_a_survey_point_is_recorded_on_a_phone_and_withdrawn(open_as: Open, demo: ServiceProcess) -> None:
    with plan_site(demo, "Store") as site:
        carried = site.devices[0]
        page = open_as(f"/sites/{site.site}?view=survey", Role.OPERATOR)
        check_fits_width(page, 390)
        here = page.get_by_role("button", name="I am here")
        expect(here).to_be_disabled()
        page.get_by_role("combobox", name="Device that you carry").fill(carried)
        page.get_by_role("option").first.click()
        floor_map(page).scroll_into_view_if_needed()
        _tap(page, 5, 4)
        expect(page.get_by_label("x, m")).to_have_value(re.compile(r"^(4\.9\d*|5(\.\d+)?)$"))
        page.get_by_role("link", name="Upper floor").click()
        expect(page.get_by_label("x, m")).to_have_value("")
        page.get_by_role("link", name="Ground floor").click()
        _tap(page, 5, 4)
        here.click()
        status = page.get_by_role("status").filter(has_text="The recording has started")
        expect(status).to_have_count(1)
        expect(page.locator("div:focus")).to_contain_text("Stay where you are")
        site.receive(carried, (5, 4))
        site.wait_for_positions(carried)
        check_fits_width(page, 390)
        assert find_violations(page) == []
        page.get_by_role("button", name="Finish now").click()
        expect(page.get_by_role("group", name="Survey points").get_by_role("row")).to_have_count(2)
        expect(page.get_by_text("The recording has ended")).to_have_count(1)
        expect(page.locator("div:focus")).to_contain_text("Device that you carry")
        (point,) = demo.call("GET", f"/api/v1/sites/{site.site}/survey")["items"]
        assert point["anchors"] == len(ANCHOR_PLACES)
        page.get_by_role("button", name=re.compile("^Withdraw the point")).click()
        page.get_by_role("dialog").get_by_role("button", name="Withdraw point").click()
        expect(page.get_by_text("No survey points yet")).to_be_visible()
        assert demo.call("GET", f"/api/v1/sites/{site.site}/survey")["items"] == []


def test_a_zone_is_drawn_typed_renamed_and_deleted(open_as: Open, demo: ServiceProcess) -> None:
    site = demo.call("POST", "/api/v1/sites", {"name": "Office", "floors": FLOORS})["id"]
    try:
        page = open_as(f"/sites/{site}?view=zones", Role.OPERATOR)
        page.get_by_role("button", name="New zone").click()
        expect(page.get_by_label("Name")).to_be_focused()
        page.get_by_label("Name").fill("Cold room")
        for corner in ((2, 2), (6, 2), (6, 5)):
            _tap(page, *corner)
        corners = page.get_by_label("Corners")
        expect(corners).to_have_value(re.compile(r"^[\d., ]+\n[\d., ]+\n[\d., ]+$"))
        page.get_by_role("link", name="Upper floor").click()
        expect(floor_map(page).locator("polygon.drawn")).to_have_count(0)
        expect(page.get_by_role("main")).to_contain_text(re.compile("This zone is on .*Ground floor"))
        page.get_by_role("link", name="Ground floor").click()
        expect(floor_map(page).locator("polygon.drawn")).to_have_count(1)
        corners.fill("2, 2\n6; 2\n6 5\nx")
        page.get_by_role("button", name="Save zone").click()
        expect(page.get_by_role("main")).to_contain_text("Line 4 is not two numbers.")
        corners.fill("2, 2\n6; 2\n6,5 5")
        page.get_by_role("button", name="Save zone").click()
        expect(page.get_by_role("row").filter(has_text="Cold room")).to_contain_text("6")
        expect(page.get_by_role("button", name="New zone")).to_be_focused()
        page.get_by_role("button", name="Edit Cold room").click()
        page.get_by_label("Name").fill("Freezer")
        page.get_by_role("button", name="Save zone").click()
        expect(page.get_by_role("row").filter(has_text="Freezer")).to_be_visible()
        zones: list[Any] = demo.call("GET", f"/api/v1/sites/{site}/zones")["items"]
        assert [(each["name"], each["polygon"]) for each in zones] == [
            ("Freezer", [[2, 2], [6, 2], [6.5, 5]])
        ]
        page.get_by_role("button", name="Delete Freezer").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete zone").click()
        expect(page.get_by_text("No zones on this floor")).to_be_visible()
    finally:
        demo.call("DELETE", f"/api/v1/sites/{site}")
