"""Tests of the gateway pages: claiming, credentials that are shown once, and live updates."""

from __future__ import annotations

import csv
import io
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from meshfleet.protocol.times import format_millis
from meshfleet.rest.accounts import Role
from tests.browser.axe import find_violations, find_violations_in_all_themes
from tests.browser.conftest import visit, wait_until
from tests.browser.demo_gateways import connected_gateway, new_mac

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import APIResponse, Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage

_STORED_VALUES = """
() => JSON.stringify([
  document.documentElement.outerHTML, [...document.querySelectorAll("input")].map((each) => each.value),
  {...sessionStorage}, {...localStorage}, document.cookie, location.href, history.state,
])
"""

_CAN_RELOAD = "() => dispatchEvent(new Event('beforeunload', {cancelable: true}))"
"""Whether a browser would reload the page without asking."""


@pytest.fixture
def mac(demo: ServiceProcess) -> Iterator[str]:
    """Yield the MAC of a gateway that a test may claim."""
    with new_mac(demo) as made:
        yield made


def _format_mac(mac: str) -> str:
    return ":".join(mac[place : place + 2] for place in range(0, 12, 2)).upper()


def _read_password(dialog: Locator) -> str:
    text = dialog.locator("dl > div").filter(has_text="Password").locator(".mono").inner_text()
    assert len(text) > 20
    return text


def _find_state(page: Page) -> Locator:
    return page.get_by_role("main").locator("header").get_by_role("status").first


def test_claiming_shows_the_password_once_and_then_the_connection(
    open_as: Open, demo: ServiceProcess, mac: str, browser_log: BrowserLog
) -> None:
    page = open_as("/gateways")
    page.get_by_role("button", name="Claim gateway").click()
    asking = page.get_by_role("dialog", name="Claim a gateway")
    claim = asking.get_by_role("button", name="Claim", exact=True)
    asking.get_by_label("MAC").fill("02-00-5g")
    expect(asking).to_contain_text("“g” is not a hex digit")
    expect(claim).to_be_disabled()
    asking.get_by_label("MAC").fill(_format_mac(mac))
    asking.get_by_label("Name").fill(f"Lobby {mac}")
    assert find_violations(page) == []
    claim.click()

    told = page.get_by_role("dialog", name=f"Credentials of Lobby {mac}")
    password = _read_password(told)
    assert find_violations(page) == []
    expect(page.locator("tr").filter(has_text=_format_mac(mac))).to_have_count(1)
    expect(page.get_by_text(re.compile("added"))).to_have_count(0)
    told.get_by_text("Command for an emulated gateway").click()
    command = told.locator("pre").filter(has_text="meshfleet gateway")
    expect(command).to_have_text(
        re.compile(rf"^MESHFLEET_BROKER='mqtt://{mac}:.* meshfleet gateway --mac {mac}$")
    )
    for _ in range(3):  # a browser closes a dialog at the second Esc, even if the page prevented the first
        page.keyboard.press("Escape")
    expect(told).to_contain_text("This password cannot be shown again")
    expect(told).to_contain_text(password)
    told.get_by_role("button", name="I have stored it").click()

    expect(page).to_have_url(f"{demo.url}/gateways/{mac}")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Lobby {mac}")
    expect(page.get_by_text("Waiting for it to connect")).to_be_visible()
    assert password not in page.evaluate(_STORED_VALUES)
    assert not any(password in each for each in browser_log.requests)
    with connected_gateway(demo, mac, password):
        expect(_find_state(page)).to_have_text("Online")
        expect(page.get_by_text("Waiting for it to connect")).to_have_count(0)
    expect(_find_state(page)).to_have_text("Offline")


def test_the_password_stays_shown_after_back_and_after_the_session_ends(
    open_as: Open, demo: ServiceProcess, mac: str, browser_log: BrowserLog
) -> None:
    browser_log.allow(401)
    page = open_as("/labels")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Gateways").click()
    page.get_by_role("button", name="Claim gateway").click()
    page.keyboard.type(_format_mac(mac))
    page.keyboard.press("Enter")
    told = page.get_by_role("dialog", name=re.compile("Credentials of"))
    password = _read_password(told)
    page.keyboard.press("Enter")  # an accidental key does not close it
    page.go_back()
    expect(told).to_contain_text("This password cannot be shown again")
    expect(page).to_have_url(f"{demo.url}/gateways")
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    page.request.post("/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
    wait_until(page, lambda: page.evaluate("sessionStorage.getItem('meshfleet.token')") is None)
    expect(told).to_contain_text(password)
    told.get_by_role("button", name="I have stored it").click()
    expect(page.get_by_text("Your session has ended. Please sign in again.")).to_be_visible()
    assert password not in page.evaluate(_STORED_VALUES)


@pytest.mark.parametrize("action", ["claimed", "renewed"])
def test_navigation_is_blocked_while_a_password_is_created(
    open_as: Open, demo: ServiceProcess, mac: str, browser_log: BrowserLog, action: str
) -> None:
    browser_log.allow(401)
    if action == "renewed":
        demo.claim(mac)
    page = open_as("/labels")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Gateways").click()
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        if route.request.method == "POST":
            held.append((route, route.fetch()))
        else:
            route.continue_()

    page.route(re.compile("/api/v1/gateways(/.*/credentials)?$"), hold)
    if action == "claimed":
        page.get_by_role("button", name="Claim gateway").click()
        page.keyboard.type(_format_mac(mac))
        page.keyboard.press("Enter")
    else:
        page.get_by_role("row").filter(has_text=_format_mac(mac)).get_by_role("link").first.click()
        page.get_by_role("button", name="New password").click()
        page.get_by_role("button", name="Create new password").click()
    wait_until(page, lambda: held)
    address = page.url
    asking = page.get_by_role("dialog")
    page.go_back()
    expect(asking).to_contain_text("the password is being created")
    expect(page).to_have_url(address)
    page.keyboard.press("Escape")
    asking.get_by_role("button", name="Cancel").click()
    expect(asking).to_contain_text("the password is being created")
    # A session that ends or a reload does not lose it either.
    token = page.evaluate("sessionStorage.getItem('meshfleet.token')")
    page.request.post("/api/v1/auth/logout", headers={"Authorization": f"Bearer {token}"})
    wait_until(page, lambda: page.evaluate("sessionStorage.getItem('meshfleet.token')") is None)
    assert page.evaluate(_CAN_RELOAD) is False
    for route, answer in held:
        route.fulfill(response=answer)
    told = page.get_by_role("dialog", name=re.compile("Credentials of"))
    assert _read_password(told) == held[0][1].json()["password"]
    assert page.evaluate(_CAN_RELOAD) is False
    told.get_by_role("button", name="I have stored it").click()
    expect(page.get_by_text("Your session has ended. Please sign in again.")).to_be_visible()
    assert page.evaluate(_CAN_RELOAD) is True


def test_a_new_password_disconnects_the_gateway_until_it_uses_it(
    open_as: Open, demo: ServiceProcess, mac: str, browser_log: BrowserLog
) -> None:
    browser_log.expect("ERR_FAILED")
    first = demo.claim(mac).password
    with connected_gateway(demo, mac, first):
        page = open_as(f"/gateways/{mac}")
        expect(_find_state(page)).to_have_text("Online")
        page.get_by_role("button", name="New password").click()
        asking = page.get_by_role("dialog", name="Create a new password?")
        expect(asking).to_contain_text("disconnected at once")
        # Without a response it is unknown whether there is a new password.
        credentials = "**/credentials"
        page.route(credentials, lambda route: route.abort())
        asking.get_by_role("button", name="Create new password").click()
        expect(asking.get_by_role("alert")).to_contain_text(
            "A password may have been created that was not shown"
        )
        page.unroute(credentials)
        asking.get_by_role("button", name="Create new password").click()
        told = page.get_by_role("dialog", name=re.compile("Credentials of"))
        second = _read_password(told)
        assert second != first
        expect(_find_state(page)).to_have_text("Offline")
    expect(told).to_contain_text("Waiting for it to connect")
    with connected_gateway(demo, mac, second):
        expect(told).to_contain_text("It is connected.")
        told.get_by_role("button", name="I have stored it").click()
        expect(_find_state(page)).to_have_text("Online")
        assert second not in page.evaluate(_STORED_VALUES)


def test_rows_change_in_place_and_releasing_requires_the_typed_name(
    open_as: Open, demo: ServiceProcess, mac: str
) -> None:
    page = open_as("/gateways")
    expect(page.get_by_role("row").filter(has_text="Head office")).to_contain_text("Online")
    password = demo.claim(mac).password
    row = page.get_by_role("row").filter(has_text=_format_mac(mac))
    page.get_by_role("button", name=re.compile("added")).click()
    expect(row).to_contain_text("Offline")
    with connected_gateway(demo, mac, password):
        expect(row).to_contain_text("Online")

    # Releasing requires the name or the MAC.
    row.get_by_role("link").first.click()
    page.get_by_role("button", name="Release").click()
    asking = page.get_by_role("dialog", name="Release this gateway?")
    release = asking.get_by_role("button", name="Release gateway")
    asking.get_by_label("Type its name").fill("02:00:5e:00:00:01")
    expect(release).to_be_disabled()
    asking.get_by_label("Type its name").fill(_format_mac(mac))
    assert find_violations(page) == []
    release.click()
    expect(page).to_have_url(f"{demo.url}/gateways")
    expect(page.get_by_role("row").filter(has_text="Head office")).to_be_visible()
    expect(row).to_have_count(0)
    assert mac not in {each["mac"] for each in demo.call("GET", "/api/v1/gateways?MaxResults=1000")["items"]}

    # A release by another user is shown.
    demo.claim(mac)
    page.get_by_role("button", name=re.compile("added")).click()
    expect(row).to_contain_text("Offline")
    demo.release(mac)
    expect(row).to_contain_text("Released")


@pytest.mark.usefixtures("own_window")
def test_a_release_without_an_event_is_noticed(open_as: Open, demo: ServiceProcess, mac: str) -> None:
    demo.claim(mac)
    page = open_as("/healthz")
    # Without events, only polling can notice it.
    page.route_web_socket(
        "**/api/v1/live", lambda socket: socket.connect_to_server().on_message(lambda _: None)
    )
    page.goto("/gateways")
    row = page.get_by_role("row").filter(has_text=_format_mac(mac))
    expect(row).to_contain_text("Offline")
    demo.release(mac)
    expect(row).to_contain_text("Released")
    expect(page.get_by_role("row").filter(has_text="Head office")).to_contain_text("Online")


def test_a_gateway_shows_its_devices_and_an_unknown_one_is_not_found(
    open_as: Open, browser_log: BrowserLog
) -> None:
    page = open_as("/gateways/02005e000001")
    devices = page.get_by_role("region", name="Devices behind it").get_by_role("table")
    expect(devices.get_by_role("row").filter(has_text="CA:5B:DA:1A:00:02")).to_contain_text("Online")
    link = page.get_by_role("link", name="Open in the list of devices")
    expect(link).to_have_attribute("href", "/devices?Gateway=02005e000001")
    browser_log.expect(404)
    visit(page, "/gateways/02005e0000ff")
    expect(page.get_by_role("heading", level=1)).to_have_text("Gateway not found")
    visit(page, "/gateways/no%20mac")
    expect(page.get_by_role("heading", level=1)).to_have_text("Gateway not found")


def test_credentials_are_for_admins(open_as: Open) -> None:
    for role in (Role.VIEWER, Role.OPERATOR):
        page = open_as("/gateways", role)
        expect(page.get_by_role("row").filter(has_text="Head office")).to_be_visible()
        expect(page.get_by_role("button", name=f"Account: {role}")).to_be_visible()
        expect(page.get_by_role("button", name="Claim gateway")).to_have_count(0)
        page.get_by_role("link", name="Head office").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Head office")
        expect(page.get_by_role("button", name=re.compile("New password|Release"))).to_have_count(0)


@pytest.mark.rule("rest-75")
def test_the_gateway_page_shows_a_wrong_clock(open_as: Open, demo: ServiceProcess, mac: str) -> None:
    def respond_with_wrong_time(request: IncomingRequest) -> list[OutgoingMessage]:
        six_hours = time.time_ns() // 1_000_000 + (6 * 3600 + 30) * 1000
        return [request.build_response(version="2.4.0", time=format_millis(six_hours))]

    page = open_as(f"/gateways/{demo.call('GET', '/api/v1/gateways')['items'][0]['mac']}")
    expect(page.get_by_text("API version")).to_be_visible()
    expect(page.get_by_text("Clock", exact=True)).to_have_count(0)
    with connected_gateway(demo, mac, demo.claim(mac).password, respond_with_wrong_time):
        wait_until(page, lambda: demo.call("GET", f"/api/v1/gateways/{mac}")["clockOffset"])
        visit(page, f"/gateways/{mac}")
        expect(page.locator("dl > div").filter(has_text="Clock")).to_contain_text("6 h ahead")


def test_many_gateways_are_claimed_from_a_list_and_their_credentials_downloaded_once(
    open_as: Open, demo: ServiceProcess, mac: str, browser_log: BrowserLog, tmp_path: Path
) -> None:
    with new_mac(demo) as other:
        page = open_as("/gateways")
        page.get_by_role("button", name="Add many").click()
        asking = page.get_by_role("dialog", name="Add many gateways")
        claim = asking.get_by_role("button", name="Claim all")
        expect(claim).to_be_disabled()
        asking.get_by_label("Or paste the list").fill(f"mac,name\n{mac},Lobby\n02005g,\n{mac},\n2E+11,\n")
        expect(asking.get_by_role("status").filter(has_text="3 lines are wrong.")).to_be_visible()
        rows = asking.get_by_role("group", name="Gateways in the list").locator("tbody tr")
        expect(rows).to_have_text(
            [
                re.compile("^302005g.*The MAC is not 12 hex digits"),
                re.compile("^4.*The MAC is also in line 2"),
                re.compile("^5.*A spreadsheet program made a number"),
            ]
        )
        expect(claim).to_be_disabled()
        assert find_violations(page) == []

        file = tmp_path / "gateways.csv"
        content = (
            "\ufeffsep=|\r\nlabels|MAC|name|password\r\n"
            f'"{mac};2nd ""{mac}"""|{_format_mac(mac)}|Lobby {mac}|\r\n|{other}||old\r\n'
        )
        file.write_text(content, newline="")
        asking.get_by_label("CSV file").set_input_files(file)
        expect(asking).to_contain_text("2 gateways can be claimed.")
        expect(rows.first).to_contain_text(f'{mac}, 2nd "{mac}"')
        assert find_violations(page) == []
        claim.press("Enter")

        told = page.get_by_role("dialog", name="Credentials of 2 gateways")
        expect(told).to_be_visible()
        assert find_violations(page) == []
        page.keyboard.press("Escape")
        expect(told).to_contain_text("These passwords cannot be shown again")
        with page.expect_download() as saving:
            told.get_by_role("button", name="Download credentials.csv").press("Enter")
        first, second = csv.DictReader(io.StringIO(saving.value.path().read_text()))
        assert [first["mac"], first["username"], second["mac"]] == [mac, mac, other]
        told.get_by_role("button", name="I have stored it").click()
        expect(told).to_have_count(0)
        expect(page.locator("tr").filter(has_text=f"Lobby {mac}")).to_have_count(1)
        stored = page.evaluate(_STORED_VALUES)
        assert not any(each["password"] in stored for each in (first, second))
        assert not any(first["password"] in each for each in browser_log.requests)
        with connected_gateway(demo, mac, first["password"]):
            expect(page.locator("tr").filter(has_text=f"Lobby {mac}")).to_contain_text("Online")
        for label in (mac, f'2nd "{mac}"'):
            demo.call("DELETE", f"/api/v1/labels/{quote(label)}")


def test_gateways_that_are_claimed_are_marked_and_left_out(
    open_as: Open, demo: ServiceProcess, mac: str, browser_log: BrowserLog
) -> None:
    browser_log.expect("ERR_FAILED")
    with new_mac(demo) as other:
        demo.claim(other)
        page = open_as("/gateways")
        # Without the list of gateways the service itself refuses those that are claimed.
        page.route("**/api/v1/gateways?MaxResults=1000", lambda route: route.abort())
        page.get_by_role("button", name="Add many").click()
        asking = page.get_by_role("dialog", name="Add many gateways")
        expect(asking).to_contain_text("already claimed cannot be marked now")
        asking.get_by_role("button", name="Cancel").click()
        page.unroute("**/api/v1/gateways?MaxResults=1000")
        page.get_by_role("button", name="Add many").click()
        asking.get_by_label("Or paste the list").fill(f"mac\n{mac}\n{other}\n")
        claim = asking.get_by_role("button", name="Claim all")
        rows = asking.get_by_role("group", name="Gateways in the list").locator("tbody tr")
        expect(rows).to_have_text([re.compile("^3.*The gateway is already claimed.")])
        expect(claim).to_be_disabled()
        assert find_violations_in_all_themes(page) == []
        asking.get_by_role("checkbox", name="Leave out gateways that are already claimed").press("Space")
        expect(asking.get_by_role("status").filter(has_text="1 gateway can be claimed.")).to_be_visible()
        expect(rows.last).to_contain_text("Already claimed, left out")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert find_violations_in_all_themes(page) == []
        claim.press("Enter")
        told = page.get_by_role("dialog", name="Credentials of 1 gateway")
        told.get_by_role("button", name="I have stored it").click()


def test_a_list_of_more_than_a_thousand_gateways_is_refused_at_once(open_as: Open) -> None:
    page = open_as("/gateways")
    page.get_by_role("button", name="Add many").click()
    asking = page.get_by_role("dialog", name="Add many gateways")
    macs = "".join(f"02005e04{number:04x}\n" for number in range(1001))
    asking.get_by_label("Or paste the list").fill(f"mac\n{macs}wrong\n")
    expect(asking).to_contain_text("1,002 gateways are too many: at most 1,000 can be claimed at once here.")
    expect(asking).to_contain_text("meshfleet gateways add --csv")
    expect(asking.get_by_role("group", name="Gateways in the list")).to_have_count(0)
    expect(asking.get_by_role("button", name="Claim all")).to_be_disabled()
