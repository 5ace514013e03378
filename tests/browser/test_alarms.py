"""Tests of the pages of alarms, and of their part of the overview."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from meshfleet.rest.alarms import AlarmNews, AlarmSeverity, UnreadAlarms, Verdict
from tests.browser.alarm_bodies import (
    RoutedAlarms,
    acknowledge,
    build_alarm,
    build_event,
    build_member,
    clear,
    format_time,
)
from tests.browser.axe import find_violations
from tests.browser.conftest import check_fits_width, go_to_page_by_key, visit, wait_until_connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page, WebSocketRoute

    from meshfleet.rest.alarms import Alarm
    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open

MIN_TARGET: Final = 44
"""Pixels that a target of a finger is high on a phone."""


def rows(page: Page) -> Locator:
    """Return the rows of the list of alarms."""
    return page.get_by_role("list", name="Alarms", exact=True).get_by_role("listitem")


def send_live_events(page: Page) -> Callable[[Alarm], None]:
    """Return a function that sends an alarm over the live connection of a tab."""
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.connect_to_server()

    def send(alarm: Alarm) -> None:
        event: dict[str, Any] = {"id": "0-0", "type": "alarm", "time": format_time(0)}
        sockets[-1].send(json.dumps(event | {"data": msgspec.to_builtins(alarm)}))

    page.route_web_socket("**/api/v1/live", connect)
    return send


@pytest.mark.part("long")
@pytest.mark.usefixtures("own_window")
def test_open_alarms_are_listed_and_updated_in_place(open_as: Open, page: Page) -> None:
    send = send_live_events(page)
    joined = msgspec.structs.replace(
        acknowledge(build_alarm(1, severity=AlarmSeverity.WARNING), "anna"),
        state="open",
        new_since_acknowledged=2,
    )
    routed = RoutedAlarms(page, [joined, acknowledge(build_alarm(2), "anna"), build_alarm(3)])
    open_as("/", Role.VIEWER)
    go_to_page_by_key(page, "e", "Alarms")
    wait_until_connected(page)
    expect(rows(page)).to_have_count(3)
    first = rows(page).first
    expect(first.get_by_role("link", name=re.compile("^Critical Gateway Hall 3 is offline"))).to_be_visible()
    expect(first).to_contain_text("Began 12m ago")
    expect(first).to_contain_text("24 devices affected")
    expect(rows(page).nth(1)).to_contain_text("Acknowledged by anna")
    expect(rows(page).nth(2)).to_contain_text("2 more since anna acknowledged it")

    # Rows neither move nor disappear: what is new waits for a click.
    routed.alarms["alarm-4"] = build_alarm(4)
    routed.alarms["alarm-3"] = clear(routed.alarms["alarm-3"])
    for name in ("alarm-4", "alarm-3"):
        send(routed.alarms[name])
    new = page.get_by_role("button", name="1 new")
    expect(new).to_be_visible()
    expect(first).to_contain_text("Ended now")
    expect(rows(page)).to_have_count(3)
    new.click()
    expect(first).to_contain_text("Hall 4")
    expect(rows(page)).to_have_count(3)
    expect(new).to_have_count(0)


def test_filters_are_in_the_url_and_an_empty_list_is_honest(open_as: Open, page: Page) -> None:
    open_as("/healthz")
    routed = RoutedAlarms(page, [clear(build_alarm(1, severity=AlarmSeverity.INFO))])
    routed.verdict = Verdict(tone="unknown", sentence="The state of the fleet is unknown.")
    page.goto("/alarms")
    expect(page.get_by_text("No open alarms.")).to_be_visible()
    expect(page.get_by_text("The state of the fleet is unknown.")).to_be_visible()
    page.get_by_role("link", name="Cleared").click()
    expect(rows(page)).to_contain_text("after 12 min")
    page.get_by_label("Severity").select_option("Critical")
    expect(page.get_by_text("No alarm matches these filters.")).to_be_visible()
    page.get_by_label("Rule").select_option("Gateway offline")
    page.get_by_label("Gateway", exact=True).fill("02:00:5E:00:00:01")
    expect(page).to_have_url(
        re.compile(r"/alarms\?State=cleared&Severity=critical&Rule=gateway-offline&Gateway=02005e000001$")
    )
    page.reload()
    expect(page.get_by_label("Severity")).to_have_value("critical")
    assert routed.queries[-1] == {
        "State": ["cleared"],
        "Severity": ["critical"],
        "Rule": ["gateway-offline"],
        "Gateway": ["02005e000001"],
    }
    page.get_by_role("button", name="Clear filters").click()
    expect(rows(page)).to_have_count(1)
    expect(page).to_have_url(re.compile(r"/alarms\?State=cleared$"))


def test_an_alarm_is_acknowledged_and_gets_a_note(open_as: Open, page: Page, browser_log: BrowserLog) -> None:
    browser_log.expect(409)
    open_as("/healthz", Role.OPERATOR)
    routed = RoutedAlarms(page, [build_alarm(7)])
    routed.members = [build_member(1), build_member(2, "clearing")]
    routed.events = [
        build_event("eclipse"),
        build_event("members", members=5, before=3),
        build_event("opened"),
    ]
    page.goto("/alarms/alarm-7")
    expect(page.get_by_role("heading", level=1)).to_have_text(routed.alarms["alarm-7"].sentence)
    main = page.get_by_role("main")
    expect(main).to_contain_text("Check its power and network.")
    expect(page.get_by_role("link", name="Open the gateway")).to_have_attribute(
        "href", "/gateways/02005e000001"
    )
    members = page.get_by_role("list", name="Part of this alarm").get_by_role("listitem")
    expect(members.first.get_by_role("link", name="Sensor 1")).to_have_attribute(
        "href", "/devices/bmac-c0ffee000001"
    )
    expect(members.nth(1)).to_contain_text("Well again, watched")
    happened = page.get_by_role("list", name="What happened").get_by_role("listitem")
    expect(happened.nth(0)).to_contain_text("eclipse")
    expect(happened.nth(1)).to_contain_text("It now has 5 devices, before it had 3.")

    page.get_by_role("button", name="Acknowledge").click()
    expect(main).to_contain_text("by operator")
    page.get_by_role("button", name="Take back").click()
    expect(page.get_by_role("button", name="Acknowledge")).to_be_focused()
    page.get_by_label("Note").fill("On my way")
    page.get_by_role("button", name="Add note").click()
    expect(happened.first).to_contain_text("operator wrote a note: On my way")
    expect(page.get_by_label("Note")).to_have_value("")
    assert routed.sent == [
        ("alarm-7/acknowledge", None),
        ("alarm-7/unacknowledge", None),
        ("alarm-7/notes", {"text": "On my way"}),
    ]

    # The alarm ends before the user has seen it.
    routed.alarms["alarm-7"] = clear(routed.alarms["alarm-7"])
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_text("This alarm has ended in the meantime")).to_be_visible()
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
    expect(main).to_contain_text("Cleared")


def test_alarms_are_worked_through_with_the_keyboard(open_as: Open, page: Page) -> None:
    open_as("/healthz", Role.OPERATOR)
    routed = RoutedAlarms(page, [build_alarm(number) for number in (1, 2, 3)])
    page.goto("/alarms")
    links = rows(page).locator(".alarm > a")
    expect(links).to_have_count(3)
    for key, number in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(links.nth(number)).to_be_focused()
    page.keyboard.press("e")
    expect(rows(page).nth(1)).to_contain_text("Acknowledged by operator")
    page.keyboard.press("s")
    expect(page.get_by_role("dialog", name="Silence this alarm")).to_be_visible()
    page.keyboard.press("Escape")
    for number in (0, 2):
        rows(page).nth(number).get_by_role("checkbox").check()
    selected = page.get_by_role("group", name="Selected alarms")
    expect(selected).to_contain_text("2 selected")
    assert find_violations(page) == []
    check_fits_width(page, 390)
    heights = page.get_by_role("main").locator("button, select, label:has(input)")
    assert min(heights.evaluate_all("all => all.map((each) => each.offsetHeight)")) >= MIN_TARGET
    selected.get_by_role("button", name="Acknowledge").click()
    expect(selected).to_have_count(0)
    expect(rows(page).nth(2)).to_contain_text("Acknowledged by operator")
    assert routed.sent == [("acknowledge", ["alarm-2"]), ("acknowledge", ["alarm-3", "alarm-1"])]
    links.first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Gateway Hall 3 is offline.")


def test_on_a_phone_the_buttons_of_an_alarm_are_at_hand(open_as: Open, page: Page) -> None:
    open_as("/healthz", Role.OPERATOR)
    routed = RoutedAlarms(page, [build_alarm(7)])
    routed.members = [build_member(number) for number in range(30)]
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/alarms/alarm-7")
    expect(page.get_by_role("list", name="Part of this alarm").get_by_role("listitem")).to_have_count(30)
    acknowledging = page.get_by_role("button", name="Acknowledge")
    expect(acknowledging).to_be_in_viewport(ratio=1)
    main = page.get_by_role("main")
    main.evaluate("each => each.scrollTo(0, each.scrollHeight)")
    expect(acknowledging).to_be_in_viewport(ratio=1)
    heights = main.locator("a, button").evaluate_all("all => all.map((each) => each.offsetHeight)")
    assert min(heights) >= MIN_TARGET
    check_fits_width(page, 320)


def test_an_unknown_alarm_is_not_found_and_viewers_only_read(
    open_as: Open, page: Page, browser_log: BrowserLog
) -> None:
    browser_log.expect(404)
    open_as("/healthz", Role.VIEWER)
    RoutedAlarms(page, [build_alarm(7)])
    page.goto("/alarms/alarm-7")
    expect(page.get_by_role("list", name="What happened")).to_be_visible()
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
    expect(page.get_by_label("Note")).to_have_count(0)
    for name in ("alarm-999999", "no%20alarm"):
        visit(page, f"/alarms/{name}")
        expect(page.get_by_role("heading", level=1)).to_have_text("Alarm not found")


def test_the_overview_says_what_needs_attention(open_as: Open, page: Page) -> None:
    open_as("/healthz", Role.VIEWER)
    routed = RoutedAlarms(page)
    page.goto("/")
    main = page.get_by_role("main")
    expect(main).to_contain_text("All 126 devices are online.")
    expect(page.get_by_role("region", name="Needs attention")).to_have_count(0)
    routed.alarms = {each.id: each for each in map(build_alarm, range(1, 9))}
    routed.more = 4
    routed.verdict = Verdict(tone="critical", sentence="2 of 126 devices are online. 12 things need you.")
    expect(main).to_contain_text("12 things need you.")
    urgent = page.get_by_role("list", name="Needs attention").get_by_role("listitem")
    expect(urgent).to_have_count(7)
    expect(urgent.first.get_by_role("link", name="Check its power and network.")).to_have_attribute(
        "href", "/gateways/02005e000001"
    )
    # What happened since the user looked last; opening it marks it as seen.
    routed.news = [
        AlarmNews(
            number=9,
            time=format_time(1),
            kind="opened",
            alarm="alarm-8",
            severity=AlarmSeverity.CRITICAL,
            sentence="Gateway Hall 8 is offline.",
        )
    ]
    routed.unread = UnreadAlarms(count=2, critical=True, up_to=9)
    page.reload()
    expect(page).to_have_title("(2) Overview · Meshfleet")
    page.get_by_role("button", name="News of alarms: 2 unread").click()
    news = page.get_by_role("list", name="What happened last")
    expect(news).to_contain_text("Opened: Gateway Hall 8 is offline.")
    expect(page).to_have_title("Overview · Meshfleet")
    assert routed.sent == [("seen", {"upTo": 9})]
    assert find_violations(page) == []
    check_fits_width(page, 320)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.keyboard.press("Escape")
    expect(news).to_have_count(0)
    page.get_by_role("link", name="All 12 alarms").click()
    expect(rows(page)).to_have_count(8)
    visit(page, "/")
    urgent.first.get_by_role("link", name=re.compile("Hall 8")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Gateway Hall 8 is offline.")
