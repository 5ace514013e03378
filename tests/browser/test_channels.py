"""Tests of the page of notifications: channels, their deliveries, and routes. Alarms are silenced, too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pytest
from playwright.sync_api import expect

from meshfleet.client.webhooks import verify_webhook
from meshfleet.rest.accounts import Role
from meshfleet.rest.channels import ALARM_ROUTES_PATH, CHANNELS_PATH, Delivery, DeliveryPage, DeliveryState
from tests.browser.alarm_bodies import RoutedAlarms, build_alarm, build_event, format_time, silence
from tests.browser.axe import find_violations_in_all_themes
from tests.browser.conftest import check_fits_width, visit
from tests.service.notifications.receivers import Answer, WebhookReceiver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Locator, Page, Route

    from tests.browser.browser_log import BrowserLog
    from tests.browser.conftest import Open
    from tests.scenarios.service_process import ServiceProcess

    NewChannel = Callable[..., str]

PATH: Final = "/settings/channels"

MIN_TARGET: Final = 44
"""Pixels that a target of a finger is high on a phone."""


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    """Run a receiver of webhooks."""
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def name(demo: ServiceProcess) -> Iterator[str]:
    """Yield a name that channels of a test begin with. They are deleted at the end, with all routes."""
    unique_name = f"Ops {uuid4().hex[:8]}"
    yield unique_name
    demo.call("PUT", ALARM_ROUTES_PATH, {"items": []})
    for each in demo.call("GET", CHANNELS_PATH)["items"]:
        if each["name"].startswith(unique_name):
            demo.call("DELETE", f"{CHANNELS_PATH}/{each['id']}")


@pytest.fixture
def new_channel(demo: ServiceProcess, receiver: WebhookReceiver, name: str) -> NewChannel:
    """Return a function that creates a channel without routes, and returns its id."""

    def create(suffix: str = "", **changes: Any) -> str:
        body = {"name": f"{name}{suffix}", "kind": "webhook", "url": f"{receiver.url}/secret-f3a", **changes}
        channel: str = demo.call("POST", CHANNELS_PATH, body)["channel"]["id"]
        demo.call("PUT", ALARM_ROUTES_PATH, {"items": []})
        return channel

    return create


def find_channel(page: Page, name: str) -> Locator:
    """Return the row of a channel."""
    return page.get_by_role("list", name="Channels").get_by_role("listitem").filter(has_text=name)


def choose_action(page: Page, name: str, action: str) -> None:
    """Choose an action in the menu of a channel."""
    page.get_by_role("button", name=f"Actions for {name}").click()
    page.get_by_role("button", name=action, exact=True).click()


def test_a_webhook_is_created_and_tested_and_its_secret_is_shown_once(
    open_as: Open, page: Page, browser_log: BrowserLog, receiver: WebhookReceiver, name: str
) -> None:
    browser_log.expect(400)
    open_as(PATH)
    page.get_by_role("button", name="Add channel").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill(name)
    assert find_violations_in_all_themes(page) == []
    dialog.get_by_label("URL").fill("http://169.254.169.254/latest")
    dialog.get_by_role("button", name="Add channel").click()
    expect(dialog.get_by_label("URL")).to_have_attribute("aria-invalid", "true")
    expect(dialog).to_contain_text("Nothing was saved: see the marked fields.")
    dialog.get_by_label("URL").fill(f"{receiver.url}/secret-f3a")
    dialog.get_by_role("button", name="Add channel").click()
    expect(dialog).to_contain_text("This secret is shown only once.")
    secret = dialog.locator("dl .mono").inner_text()
    assert find_violations_in_all_themes(page) == []
    dialog.get_by_role("button", name="I have stored it").click()
    expect(dialog).to_have_count(0)
    assert secret not in page.content()

    row = find_channel(page, name)
    expect(row).to_contain_text("Ready")
    expect(row).to_contain_text(f"127.0.0.1:{receiver.port}/…f3a")
    testing = page.get_by_role("button", name=f"Test {name}")
    testing.click()
    expect(row.get_by_role("status")).to_have_text(re.compile(r"^Delivered in \d+ ms \(status 204\)\.$"))
    expect(testing).to_be_focused()
    request = receiver.requests[-1]
    verify_webhook(request.body, request.headers, secret)
    receiver.answer = lambda _: Answer(status=500)
    testing.click()
    expect(row.get_by_role("status")).to_have_text(
        re.compile(r"^Not delivered: the receiver has an error.*500")
    )

    # A new secret is shown once, too. The first channel has got routes, so it cannot be deleted yet.
    choose_action(page, name, "New secret")
    dialog.get_by_role("button", name="New secret").click()
    expect(dialog).to_contain_text("For 24 hours messages are signed with the old secret, too.")
    expect(dialog.locator("dl .mono")).not_to_have_text(secret)
    dialog.get_by_role("button", name="I have stored it").click()
    choose_action(page, name, "Turn off")
    expect(row).to_contain_text("Off")
    choose_action(page, name, "Delete")
    expect(dialog).to_contain_text("Routes lead to this channel: Critical, Warnings, Information.")
    expect(dialog.get_by_role("button", name="Delete channel")).to_be_disabled()


def test_a_channel_is_edited_and_deleted(
    open_as: Open, page: Page, new_channel: NewChannel, name: str
) -> None:
    new_channel()
    open_as(PATH)
    choose_action(page, name, "Edit")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("URL")).to_have_value("")
    dialog.get_by_label("Name").fill(f"{name} again")
    dialog.get_by_label("Format").select_option("CloudEvents")
    dialog.get_by_role("button", name="Save").click()
    expect(find_channel(page, f"{name} again")).to_contain_text("Webhook · CloudEvents")
    choose_action(page, f"{name} again", "Delete")
    dialog.get_by_role("button", name="Delete channel").click()
    expect(find_channel(page, name)).to_have_count(0)


def test_deliveries_that_were_given_up_are_tried_again(
    open_as: Open, page: Page, new_channel: NewChannel, name: str
) -> None:
    """Show made-up messages: real ones are given up after days."""
    channel = new_channel()
    deliveries = [
        build_delivery(3, DeliveryState.DEAD, problem="the receiver does not accept the message (HTTP 422)"),
        build_delivery(2, DeliveryState.SENT, kind="summary", alarm=None),
    ]
    retried = []

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            retried.append(route.request.url.rpartition(CHANNELS_PATH)[2])
            deliveries[0] = build_delivery(3, DeliveryState.WAITING)
            route.fulfill(json=msgspec.to_builtins(deliveries[0]))
        else:
            chosen = [each for each in deliveries if f"State={each.state}" in route.request.url]
            items = chosen if "State=" in route.request.url else deliveries
            route.fulfill(json=msgspec.to_builtins(DeliveryPage(items=items, next_token=None)))

    page.route(f"**{CHANNELS_PATH}/*/deliveries**", answer)
    page.route(f"**{CHANNELS_PATH}/*/deliveries/*/retry", answer)
    open_as(PATH)
    page.get_by_role("button", name=f"Deliveries {name}").click()
    rows = page.get_by_role("list", name="Deliveries").get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("Several alarms")
    expect(rows.first).to_contain_text("The receiver does not accept the message (HTTP 422).")
    assert find_violations_in_all_themes(page) == []
    page.get_by_label("State").select_option("Given up")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile(rf"\?Channel={channel}&State=dead$"))
    rows.get_by_role("button", name="Try again: delivery-3").click()
    expect(page.get_by_text("No message is in this state.")).to_be_visible()
    assert retried == [f"/{channel}/deliveries/delivery-3/retry"]
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(rf"{PATH}$"))
    expect(page.get_by_role("button", name=f"Deliveries {name}")).to_be_focused()


def build_delivery(
    number: int,
    state: DeliveryState,
    *,
    kind: str = "opened",
    alarm: str | None = "alarm-7",
    problem: str | None = None,
) -> Delivery:
    """Build a message of a channel."""
    is_waiting = state is DeliveryState.WAITING
    return Delivery(
        id=f"delivery-{number}",
        alarm=alarm,
        kind=kind,
        state=state,
        created_at=format_time(90),
        due=format_time(0) if is_waiting else None,
        finished_at=None if is_waiting else format_time(3),
        problem=problem,
    )


def test_routes_are_edited_as_sentences_and_saved_together(
    open_as: Open, page: Page, demo: ServiceProcess, new_channel: NewChannel, name: str
) -> None:
    hook, mail = new_channel(), new_channel(" mail", kind="email", url=None, recipients=["ops@example.org"])
    critical = {"name": "Night shift", "match": {"severityAtLeast": "critical"}, "channels": [hook]}
    demo.call("PUT", ALARM_ROUTES_PATH, {"items": [critical]})
    open_as(PATH)
    routes = page.get_by_role("list", name="Routes").get_by_role("listitem")
    expect(routes).to_contain_text(f"Critical → {name}, always.")

    page.get_by_role("button", name="Add route").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("By day")
    dialog.get_by_label("Alarms", exact=True).select_option("Warning or critical")
    expect(dialog.get_by_text("Choose at least one channel.")).to_be_visible()
    dialog.get_by_role("checkbox", name=f"{name} mail").check()
    dialog.get_by_text("Only some alarms").click()
    dialog.get_by_role("checkbox", name="Gateway offline").check()
    dialog.get_by_label("Gateways", exact=True).fill("head office")
    dialog.get_by_label("Gateways", exact=True).press("Enter")
    dialog.get_by_role("radio", name="In these hours").check()
    for day in ("Sat", "Sun"):
        dialog.get_by_role("checkbox", name=day).uncheck()
    dialog.get_by_label("Time zone").fill("Nowhere/Town")
    expect(dialog.get_by_role("button", name="Apply")).to_be_disabled()
    dialog.get_by_label("Time zone").fill("Europe/Zurich")
    assert find_violations_in_all_themes(page) == []
    dialog.get_by_role("button", name="Apply").click()
    expect(routes.nth(1)).to_contain_text(
        "Warning or critical, only Gateway offline, of Head office →"
        f" {name} mail, Mon\N{EN DASH}Fri 07:00\N{EN DASH}20:00 Europe/Zurich, the rest is held;"
        " together every 5 min."
    )

    # Nothing is lost by accident, and the focus stays on the route that moves.
    page.get_by_role("button", name="Move By day up").press("Enter")
    expect(routes.first).to_contain_text("By day")
    expect(page.get_by_role("button", name="Move By day down")).to_be_focused()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Labels").click()
    page.get_by_role("button", name="Stay here").click()
    page.get_by_role("button", name="Save routes").click()
    expect(page.get_by_text("The routes were saved.")).to_be_visible()
    saved = demo.call("GET", ALARM_ROUTES_PATH)["items"]
    assert [each["name"] for each in saved] == ["By day", "Night shift"]
    assert saved[0]["channels"] == [mail]
    assert saved[0]["match"]["gateways"] == ["02005e000001"]
    assert saved[0]["hours"] == {"days": ["mon", "tue", "wed", "thu", "fri"], "from": "07:00", "to": "20:00"}
    assert saved[0]["timeZone"] == "Europe/Zurich"

    # Nothing is deleted until it is saved.
    page.get_by_role("button", name="Delete Night shift").click()
    page.get_by_role("button", name="Discard changes").click()
    expect(routes).to_have_count(2)


def test_viewers_see_channels_and_routes_without_buttons(
    open_as: Open, page: Page, demo: ServiceProcess, new_channel: NewChannel, name: str
) -> None:
    demo.call("PUT", ALARM_ROUTES_PATH, {"items": [{"name": "All", "channels": [new_channel()]}]})
    open_as(PATH, Role.VIEWER)
    expect(find_channel(page, name)).to_contain_text("Last delivered: never")
    expect(page.get_by_role("list", name="Routes")).to_contain_text("All alarms →")
    expect(page.get_by_role("main").get_by_role("button")).to_have_count(1)
    expect(page.get_by_role("button", name=f"Deliveries {name}")).to_be_visible()
    check_fits_width(page, 390)


def test_an_alarm_is_silenced_on_a_phone(open_as: Open, page: Page) -> None:
    open_as("/healthz", Role.OPERATOR)
    routed = RoutedAlarms(page, [build_alarm(7)])
    routed.events = [
        build_event("not-delivered", channel="Chat", kind="opened"),
        build_event("notified", channel="Mail", kind="opened"),
        build_event("opened"),
    ]
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/alarms/alarm-7")
    happened = page.get_by_role("list", name="What happened").get_by_role("listitem")
    expect(happened.nth(0)).to_contain_text("Chat could not be told: opened.")
    expect(happened.nth(1)).to_contain_text("Mail was told: opened.")
    silencing = page.get_by_role("button", name="Silence", exact=True)
    main = page.get_by_role("main")
    for position in ("0", "each.scrollHeight"):
        main.evaluate(f"each => each.scrollTo(0, {position})")
        expect(silencing).to_be_in_viewport(ratio=1)
        expect(page.get_by_role("button", name="Acknowledge")).to_be_in_viewport(ratio=1)
    silencing.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name="4 hours").check()
    dialog.get_by_label("Note").fill("Power is off until tonight")
    assert find_violations_in_all_themes(page) == []
    heights = dialog.locator("button, label:has(input)").evaluate_all(
        "all => all.map(each => each.offsetHeight)"
    )
    assert min(heights) >= MIN_TARGET
    check_fits_width(page, 320)
    page.set_viewport_size({"width": 390, "height": 844})
    dialog.get_by_role("button", name="Silence", exact=True).click()
    expect(main).to_contain_text(re.compile(r"Silenced until (\d+ \w+, )?\d\d:\d\d by operator"))
    ending = page.get_by_role("button", name="End silence")
    expect(ending).to_be_focused()
    expect(happened.first).to_contain_text("operator silenced the alarm until")
    assert find_violations_in_all_themes(page) == []
    ending.click()
    expect(silencing).to_be_visible()
    expect(happened.first).to_contain_text("operator ended the silence.")
    assert routed.sent == [
        ("alarm-7/silence", {"seconds": 4 * 3600, "note": "Power is off until tonight"}),
        ("alarm-7/unsilence", None),
    ]
    check_fits_width(page, 320)


def test_the_overview_tells_of_silenced_alarms_and_missing_channels(open_as: Open, page: Page) -> None:
    open_as("/healthz")
    routed = RoutedAlarms(page, [build_alarm(1), silence(build_alarm(2), "anna", minutes=30)])
    routed.channels_configured = False
    page.goto("/")
    main = page.get_by_role("main")
    expect(main).to_contain_text("Alarms are not sent anywhere.")
    page.get_by_role("link", name="1 alarm is silenced.").click()
    rows = page.get_by_role("list", name="Alarms", exact=True).get_by_role("listitem")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(re.compile(r"Silenced until (\d+ \w+, )?\d\d:\d\d by anna"))
    visit(page, "/")
    page.get_by_role("link", name="Add a channel.").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Notifications")
