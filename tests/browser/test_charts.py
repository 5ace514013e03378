"""Tests of the charts of a device: time range, cursor, tables, and gaps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import check_fits_width, wait_until, wait_until_loaded
from tests.browser.device_page import TRACKER, measurements, newest_row

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

_PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
_DRAWN = """chart => {
  const canvas = chart.querySelector("canvas");
  const [whole, area] = [canvas, chart.querySelector(".u-over")].map((each) => each.getBoundingClientRect());
  const copy = new OffscreenCanvas(area.width, area.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, whole.left - area.left, whole.top - area.top);
  const { data, width } = copy.getImageData(0, 0, area.width, area.height);
  const columns = Array(width).fill(false);
  for (let at = 0; at < data.length; at += 4) {
    const colours = data.slice(at, at + 3);
    const isColoured = Math.max(...colours) - Math.min(...colours) > 40;
    if (isColoured && data[at + 3] > 200) columns[(at / 4) % width] = true;
  }
  return columns;
}"""
"""For each pixel column of a chart, whether it contains a line; grid lines are gray, and areas are pale."""

_OFF = """chart => {
  const [from, to, now] = [chart.ariaValueMin, chart.ariaValueMax, chart.ariaValueNow].map(Number);
  const area = chart.querySelector(".u-over").getBoundingClientRect();
  const line = chart.querySelector(".u-cursor-x").getBoundingClientRect();
  return Math.abs(line.left - area.left - area.width * (now - from) / (to - from));
}"""
"""Pixels between the cursor line and the position of the time that it reports."""

WIDTHS = (390, 768, 1440)


def test_the_range_is_requested_stored_in_the_url_and_downloaded(
    open_as: Open, demo: ServiceProcess, browser_log: BrowserLog
) -> None:
    page = open_as(f"/devices/{TRACKER}")
    expect(measurements(page).get_by_role("slider")).to_have_count(3)
    page.get_by_role("button", name="Pause live values").click()
    with page.expect_response(lambda response: "/series?Identifier=8802" in response.url):
        measurements(page).get_by_role("button", name="24 h").click()
    expect(measurements(page).get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")
    assert parse_qs(urlsplit(page.url).query) == {"range": ["24h"]}

    asked = next(each for each in reversed(browser_log.requests) if "/series?Identifier=8802" in each)
    address = asked.removeprefix("GET ")
    query = parse_qs(urlsplit(address).query)
    start, end = (datetime.fromisoformat(query[key][0]) for key in ("From", "To"))
    assert end - start == timedelta(hours=24)
    # The table shows the values that the service returned.
    measurements(page).get_by_role("button", name="Show as table").click()
    last = [bucket for bucket in demo.call("GET", address)["items"] if bucket["count"]][-1]
    texts = newest_row(page, "Humidity").all_inner_texts()
    shown_values = [float(text.replace(",", "")) for text in texts[1:]]
    # Three digits are shown; a half may be rounded either way.
    assert shown_values == pytest.approx(
        [last[key] for key in ("min", "mean", "max", "last", "count")], abs=0.000501
    )

    page.reload()
    expect(measurements(page).get_by_role("button", name="24 h")).to_have_attribute("aria-pressed", "true")

    # All samples can be downloaded.
    measurements(page).get_by_role("button", name="CSV").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download Pressure as CSV").click()
    lines = saved.value.path().read_text("utf-8").splitlines()
    assert saved.value.suggested_filename == f"{TRACKER}-8801.csv"
    assert lines[0].startswith("time,kind,identifier")
    assert len(lines) > 1
    assert all(",8801," in line for line in lines[1:])


def test_a_chart_is_read_by_keyboard_and_zoomed(open_as: Open) -> None:
    page = open_as(f"/devices/{TRACKER}?range=15m")
    chart = measurements(page).get_by_role("slider", name="Temperature")
    expect(chart.locator("canvas")).to_be_visible()
    wait_until(page, lambda: any(chart.evaluate(_DRAWN)))

    # By keyboard.
    chart.focus()
    page.keyboard.press("Home")
    first = chart.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowRight")
    expect(chart).not_to_have_attribute("aria-valuetext", first or "")
    # The other charts show the same time.
    moments = {str(each.get_attribute("aria-valuenow")) for each in page.get_by_role("slider").all()}
    assert len(moments) == 1
    later = measurements(page).get_by_role("button", name="Later")
    expect(later).to_be_disabled()
    measurements(page).get_by_role("button", name="Zoom in").click()
    page.wait_for_url("**from=*")
    for _ in range(4):
        later.click()
    assert int(parse_qs(urlsplit(page.url).query)["to"][0]) <= page.evaluate("Date.now()")
    measurements(page).get_by_role("button", name="Back to now").click()
    page.wait_for_url(lambda url: "from=" not in url)

    # By dragging.
    box = chart.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url("**from=*")
    query = parse_qs(urlsplit(page.url).query)
    assert 0 < int(query["to"][0]) - int(query["from"][0]) < timedelta(minutes=7) / timedelta(milliseconds=1)
    # Another time is now below the resting pointer: none is shown until it moves.
    expect(chart).to_have_attribute("aria-valuetext", re.compile("no time chosen"))
    measurements(page).get_by_role("button", name="Zoom out").click()
    page.wait_for_url(lambda url: f"from={query['from'][0]}" not in url)
    page.go_back()
    page.wait_for_url(f"**from={query['from'][0]}*")
    page.go_back()
    page.wait_for_url("**?range=15m")

    # The cursor keeps its time when the chart shows another range. A resting pointer may remove it.
    page.mouse.move(0, 0)
    wait_until(page, lambda: any(chart.evaluate(_DRAWN)))
    chart.focus()

    def is_chosen() -> bool:
        page.keyboard.press("Home")
        return "no time chosen" not in str(chart.get_attribute("aria-valuetext"))

    wait_until(page, is_chosen, "a time in the chart")
    wait_until(page, lambda: chart.evaluate(_OFF) < 3)
    measurements(page).get_by_role("button", name="24 h").click()
    page.wait_for_url("**range=24h")
    page.evaluate(_PAINTED)
    wait_until(page, lambda: chart.evaluate(_OFF) < 3)


def test_missing_samples_are_a_gap_in_the_line(open_as: Open, demo: ServiceProcess) -> None:
    now = datetime.now(UTC)
    asked = {
        "Identifier": "8800",
        "From": now - timedelta(hours=9),
        "To": now - timedelta(hours=4),
        "Points": 500,
    }
    address = f"/api/v1/devices/{TRACKER}/series?{urlencode(asked)}"
    buckets = demo.call("GET", address)["items"]
    # The demo history has a gap of a quarter of an hour on its last day: the gateway was unplugged.
    begin, end = next(
        (datetime.fromisoformat(each["time"]), datetime.fromisoformat(after["time"]))
        for each, after in pairwise(buckets)
        if not each["count"]
    )
    gap = end - begin
    start, stop = (int(each.timestamp() * 1000) for each in (begin - gap, end + gap))
    page = open_as(f"/devices/{TRACKER}?from={start}&to={stop}")
    chart = measurements(page).get_by_role("slider", name="Temperature")
    expect(chart.locator("canvas")).to_be_visible()
    wait_until(page, lambda: any(chart.evaluate(_DRAWN)))
    drawn: list[bool] = chart.evaluate(_DRAWN)
    third, margin = len(drawn) // 3, len(drawn) // 12
    before, gone, after = (drawn[at * third + margin : (at + 1) * third - margin] for at in range(3))
    assert all(before)
    assert not any(gone)
    assert all(after)


def test_chart_code_is_loaded_when_there_are_values(open_as: Open, browser_log: BrowserLog) -> None:
    page = open_as(f"/devices?Ids={TRACKER}")
    row = page.get_by_role("row").filter(has_text="CA:5B:DA:1A:00:06")
    expect(row).to_be_visible()
    assert not [each for each in browser_log.requests if "/assets/plot" in each]
    row.get_by_role("link").first.click()
    expect(page.get_by_role("slider").first.locator("canvas")).to_be_visible()
    assert [each for each in browser_log.requests if "/assets/plot" in each]


def test_charts_and_tables_are_accessible(open_as: Open, page: Page, browser_log: BrowserLog) -> None:
    # Two minutes only: axe finds the same in one row as in hundreds.
    until_now = int(datetime.now(UTC).timestamp() * 1000)
    open_as(f"/devices/{TRACKER}?from={until_now - 120_000}&to={until_now}")
    expect(page.get_by_role("slider", name="Temperature").locator("canvas")).to_be_visible()
    wait_until_loaded(page, browser_log)
    for button in page.get_by_role("button", name="Show as table").all():
        button.click()
    expect(page.get_by_role("table", name="Temperature")).to_be_visible()
    assert find_violations_in_all_themes(page) == []
    for width in WIDTHS:
        check_fits_width(page, width)
