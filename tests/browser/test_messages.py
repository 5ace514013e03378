"""Tests of the messages page: live reports, requests by hand, and the request history."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations
from tests.browser.conftest import wait_until, wait_until_connected
from tests.browser.demo_gateways import connected_gateway, new_mac
from tests.browser.device_page import TRACKER

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, WebSocketRoute

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway

SENSOR = "ca5bda1a0004"
EVENT = "8400"

_MANY_ROWS = 30
"""Number of rows that exceeds the test window."""


def _format_mac(mac: str) -> str:
    """Return a MAC as it is displayed."""
    return ":".join(mac[place : place + 2] for place in range(0, 12, 2)).upper()


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _report_events(gateway: ScriptedGateway, *sequence: int) -> None:
    """Report events of a gateway."""
    for number in sequence:
        topic = f"mt/gateway/{gateway.mac}/device/{gateway.mac}/event/{EVENT}"
        gateway.report(topic, time=_format_now(), seq=number)


def _report_heartbeat(gateway: ScriptedGateway, device: str) -> None:
    """Report a heartbeat of a device behind a gateway, or of the gateway itself."""
    gateway.report(f"mt/gateway/{gateway.mac}/device/{device}/heartbeat", time=_format_now(), seq=1, status=0)


def _report_rows(page: Page) -> Locator:
    """Return the rows of the reports, without opened details."""
    group = page.get_by_role("group", name="Reports, the newest first")
    return group.get_by_role("row").filter(
        has=page.get_by_role("button", name=re.compile("(Show|Hide) report"))
    )


def _select_device(page: Page, label: str, text: str, mac: str) -> None:
    """Search for a device or a gateway and select it."""
    box = page.get_by_role("combobox", name=label, exact=True)
    box.click()
    box.fill(text)
    found = page.get_by_role("listbox", name=re.compile("^Matching ")).get_by_role("option")
    expect(found).to_have_count(1)
    expect(found).to_contain_text(_format_mac(mac))
    box.press("Enter")


def _choose_property(page: Page, name: str) -> None:
    box = page.get_by_role("combobox", name="Property")
    box.fill(name)
    box.press("Escape")


def test_only_reports_that_match_the_filter_are_shown(open_as: Open, demo: ServiceProcess) -> None:
    with (
        new_mac(demo) as mac,
        new_mac(demo) as other,
        connected_gateway(demo, mac, demo.claim(mac).password) as gateway,
    ):
        page = open_as("/messages", Role.VIEWER)
        expect(_report_rows(page).first).to_be_visible()  # reports of all devices
        _select_device(page, "Gateway", mac.upper(), mac)
        expect(page).to_have_url(re.compile(f"Gateway={mac}"))
        expect(page.get_by_text("No reports yet")).to_be_visible()
        _report_heartbeat(gateway, other)
        _report_events(gateway, 7)
        expect(_report_rows(page)).to_have_count(2)
        expect(_report_rows(page).filter(has_text=_format_mac(other))).to_contain_text("Heartbeat")

        page.get_by_role("group", name="Kinds of reports").get_by_role("button", name="Event").click()
        expect(page).to_have_url(re.compile("Kind=event"))
        expect(_report_rows(page)).to_have_count(1)
        expect(_report_rows(page)).to_contain_text(_format_mac(mac))
        expect(_report_rows(page)).to_contain_text("seq 7")
        page.get_by_role("button", name="Show report").click()
        told = json.loads(page.get_by_role("region", name="Report", exact=True).inner_text())
        assert (told["kind"], told["device"], told["gateway"]) == ("event", f"bmac-{mac}", mac)
        assert find_violations(page) == []

        page.goto(f"/messages?Gateway={mac}&Ids=bmac-{other}&Kind=heartbeat")
        wait_until_connected(page)
        _report_events(gateway, 8)
        _report_heartbeat(gateway, mac)
        _report_heartbeat(gateway, other)
        expect(_report_rows(page)).to_have_count(1)
        expect(_report_rows(page)).to_contain_text(_format_mac(other))
        page.get_by_role("button", name="Clear all").click()
        expect(page).to_have_url(f"{demo.url}/messages")
        expect(_report_rows(page).filter(has_not_text=_format_mac(other)).first).to_be_visible()


def test_new_reports_wait_while_the_user_reads(open_as: Open, demo: ServiceProcess) -> None:
    with new_mac(demo) as mac, connected_gateway(demo, mac, demo.claim(mac).password) as gateway:
        page = open_as(f"/messages?Gateway={mac}&Kind=event", Role.VIEWER)
        wait_until_connected(page)
        _report_events(gateway, 1)
        expect(_report_rows(page)).to_have_count(1)

        page.get_by_role("button", name="Pause", exact=True).and_(page.locator("main button")).click()
        _report_events(gateway, 2, 3)
        expect(page.get_by_role("button", name="2 new · Show")).to_be_visible()
        expect(_report_rows(page)).to_have_count(1)
        page.get_by_role("button", name="Resume").click()
        expect(_report_rows(page)).to_have_count(3)
        expect(_report_rows(page).first).to_contain_text("seq 3")

        _report_rows(page).first.hover()
        _report_events(gateway, 4)
        expect(page.get_by_role("button", name="1 new · Show")).to_be_visible()
        expect(_report_rows(page)).to_have_count(3)
        page.get_by_role("heading", level=1).hover()
        expect(_report_rows(page)).to_have_count(4)

        # With the keyboard focus in the list, it stands still.
        page.get_by_role("button", name="Show report").first.focus()
        page.keyboard.press("Tab")
        _report_events(gateway, 5)
        expect(page.get_by_role("button", name="1 new · Show")).to_be_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="1 new · Show")).to_be_visible()
        expect(_report_rows(page)).to_have_count(4)
        page.get_by_role("button", name="1 new · Show").click()
        expect(_report_rows(page)).to_have_count(5)

        # While a report is open, the list stands still, wherever the pointer is.
        page.get_by_role("button", name="Show report").first.click()
        page.get_by_role("heading", level=1).hover()
        _report_events(gateway, 6)
        page.get_by_role("button", name="1 new · Show").click()
        expect(_report_rows(page)).to_have_count(6)
        expect(page.get_by_role("region", name="Report", exact=True)).to_contain_text('"seq": 5')

        page.get_by_role("button", name="Clear", exact=True).click()
        expect(page.get_by_text("No reports yet")).to_be_visible()


@pytest.mark.part("long")
def test_all_reports_are_counted_and_few_are_rendered(open_as: Open, demo: ServiceProcess) -> None:
    with new_mac(demo) as mac, connected_gateway(demo, mac, demo.claim(mac).password) as gateway:
        page = open_as(f"/messages?Gateway={mac}&Kind=event", Role.VIEWER)
        wait_until_connected(page)
        main = page.get_by_role("main")
        for heard in range(0, 400, 100):
            _report_events(gateway, *(number % 256 for number in range(heard, heard + 100)))
            expect(main).to_contain_text(f"{min(heard + 100, 300)} reports")
        expect(main).to_contain_text("100 older ones dropped")
        expect(_report_rows(page).first).to_contain_text(f"seq {399 % 256}")
        drawn = _report_rows(page).count()
        assert drawn <= _MANY_ROWS
        # All reports can be shown.
        more = page.get_by_role("button", name="Show more")
        more.click()
        expect(_report_rows(page).nth(drawn)).to_be_visible()
        while more.is_visible():
            _report_rows(page).last.scroll_into_view_if_needed()
            page.wait_for_function("drawn => document.querySelectorAll('tbody tr').length > drawn", arg=drawn)
            drawn = _report_rows(page).count()
        expect(_report_rows(page)).to_have_count(300)
        expect(_report_rows(page).last).to_contain_text("seq 100")

        # Only reports that match the filter are counted.
        page.get_by_role("group", name="Kinds of reports").get_by_role("button", name="Heartbeat").click()
        expect(main).not_to_contain_text("older ones dropped")
        expect(main).to_contain_text("300 reports")


@pytest.mark.usefixtures("own_window")
def test_an_empty_log_explains_why(open_as: Open, page: Page, browser_log: BrowserLog) -> None:
    browser_log.allow("WebSocket connection")
    is_deaf = True

    def connect(socket: WebSocketRoute) -> None:
        if is_deaf:
            socket.close(code=1012)
        else:
            socket.connect_to_server()

    page.route_web_socket("**/api/v1/live", connect)
    # One device only: reports of the whole fleet may be a flood.
    open_as(f"/messages?Ids={TRACKER}", Role.VIEWER)
    main = page.get_by_role("main")
    expect(main).to_contain_text("There is no connection to the service.")
    is_deaf = False
    expect(_report_rows(page).first).to_be_visible()
    expect(main.get_by_role("status").get_by_text("Listening", exact=True)).to_be_visible()
    page.get_by_role("banner").get_by_role("button", name=re.compile("Pause")).click()
    expect(main).to_contain_text("Live values of the whole console are paused")


def test_a_request_by_hand_gets_a_response_and_is_in_the_history(open_as: Open) -> None:
    page = open_as("/messages", Role.OPERATOR)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    _select_device(page, "Device or gateway", "Meeting room “Ada”", SENSOR)
    expect(page).to_have_url(re.compile(f"To=bmac-{SENSOR}"))
    _choose_property(page, "8006")
    name = page.get_by_role("combobox", name="Property").input_value()
    body = json.loads(page.get_by_role("region", name="Body of the request").inner_text())
    assert body == {"operation": "read", "identifier": name, "timeoutMs": 15000}
    _choose_property(page, "tx-power")
    page.get_by_role("button", name="Send", exact=True).click()
    outcome = page.get_by_role("region", name="Outcome")
    expect(outcome.get_by_text(re.compile(r"^-?\d+ dBm$"))).to_be_visible()
    expect(outcome.get_by_text(re.compile(r"^\d[\d,]* ms$"))).to_be_visible()
    expect(outcome.get_by_role("list", name="Route").get_by_role("listitem").first).to_contain_text(
        "Head office"
    )

    history = page.get_by_role("link", name="History", exact=True)
    history.click()
    rows = (
        page.get_by_role("group", name="Requests to this device")
        .get_by_role("row")
        .filter(has_text="operator")
    )
    expect(rows.first).to_contain_text("tx-power")
    before = rows.count()
    page.get_by_role("button", name="Send again: Read tx-power").click()
    expect(rows).to_have_count(before + 1)
    rows.first.get_by_role("button", name="Details of Read").click()
    expect(page.get_by_role("region", name="Response", exact=True)).to_contain_text("responseTime")
    assert find_violations(page) == []


def test_requests_that_change_a_device_are_confirmed_first(open_as: Open, demo: ServiceProcess) -> None:
    def answer(asked: IncomingRequest) -> list[OutgoingMessage]:
        if asked.topic.endswith("/apiversion"):
            return [asked.build_response(version="2.4.0")]
        return [asked.build_response(responseTime=3, origin=0)] if "/write-decoded/" in asked.topic else []

    with new_mac(demo) as mac, connected_gateway(demo, mac, demo.claim(mac).password, answer) as gateway:
        page = open_as(f"/messages?To={mac}", Role.OPERATOR)
        wait_until(page, lambda: demo.call("GET", f"/api/v1/gateways/{mac}")["apiVersion"] == "2.4.0")
        page.get_by_text("Write", exact=True).click()
        _choose_property(page, "tx-power")
        send = page.get_by_role("button", name="Send…")
        send.click()
        expect(page.get_by_text("Enter a value.")).to_be_visible()
        page.get_by_label("Write no value (NULL)").check()
        send.click()
        dialog = page.get_by_role("dialog", name="Write tx-power?")
        expect(dialog).to_contain_text("no value (NULL)")
        expect(dialog).to_contain_text(_format_mac(mac))
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        send.click()
        assert _list_changes(gateway) == []
        dialog.get_by_role("button", name="Write").click()
        expect(page.get_by_role("region", name="Outcome")).to_contain_text("no value (NULL) was written")
        assert [body.get("value") for body in _list_changes(gateway)] == [None]

        # An ack has no response; a read without one says what may have happened.
        page.get_by_text("Ack", exact=True).click()
        box = page.get_by_role("combobox", name="Measurement or event")
        box.fill("temperature")
        box.press("Escape")
        page.get_by_label("Time of the sample").fill("2026-11-16T12:00:00")
        page.get_by_role("button", name="Send…").click()
        page.get_by_role("dialog", name="Acknowledge temperature?").get_by_role(
            "button", name="Acknowledge"
        ).click()
        outcome = page.get_by_role("region", name="Outcome")
        expect(outcome).to_contain_text("Devices do not respond to an ack.")
        wait_until(page, lambda: len(_list_changes(gateway)) == 2)
        assert _list_changes(gateway)[-1]["time"] == "2026-11-16T12:00:00.000Z"
        page.get_by_text("Read", exact=True).click()
        _choose_property(page, "tx-power")
        page.get_by_text("Advanced").click()
        page.get_by_label("Seconds to wait").fill("2")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(outcome).to_contain_text("No response arrived in time.")


def _list_changes(gateway: ScriptedGateway) -> list[dict[str, object]]:
    """Return the bodies of writes and acks; the service itself sends other requests."""
    return [each.body for each in gateway.requests if re.search("/(write|ack)", each.topic)]


def test_viewers_see_reports_and_cannot_send_requests(open_as: Open) -> None:
    page = open_as("/messages?view=ask", Role.VIEWER)
    expect(_report_rows(page).first).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_have_count(0)
    page.get_by_role("button", name="Show report").first.click()
    expect(page.get_by_role("button", name="Only this device")).to_be_visible()
    expect(page.get_by_role("button", name="Ask this device")).to_have_count(0)
    page.get_by_role("link", name="History", exact=True).click()
    _select_device(page, "Device or gateway", SENSOR, SENSOR)
    expect(page.get_by_role("heading", name="History")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_have_count(0)
