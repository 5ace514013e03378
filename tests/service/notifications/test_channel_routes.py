"""Channels, routes and messages over REST."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import insert, select, update

from meshfleet.db.tables import channel, notification
from meshfleet.rest.channels import MAX_CHANNELS, WebhookFormat
from meshfleet.service.notifications.channels import load_channels
from meshfleet.settings import Settings
from meshfleet.settings.model import WebhookSettings
from tests.row_tables import each_row
from tests.service.http.running_service import run_service
from tests.service.notifications.notifier_harness import FAILED, NotifierHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.notifications.channels import StoredChannel
    from tests.service.http.running_service import RunningService

_URL: Final = "https://127.0.0.1:8443/hooks/T0000/very-secret-f3a"
_MASKED: Final = "https://127.0.0.1:8443/…f3a"
_KEY: Final = "R0UTINGKEY"
_MAIL: Final = {"kind": "email", "recipients": ["office@example.org"]}
_WEBHOOK: Final = {"kind": "webhook", "url": _URL}
_DAY_MS: Final = 24 * 3600 * 1000


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    settings = Settings(webhooks=WebhookSettings(allow=(ip_network("127.0.0.0/8"),)))
    with run_service(database, settings) as running:
        yield running


def create(service: RunningService, name: str = "Office", **fields: Any) -> Any:
    """Create a channel, of e-mails unless a kind is given, and return the response."""
    response = service.admin.post("/api/v1/channels", json={"name": name, **(fields or _MAIL)})
    assert response.status_code == 201, response.text
    return response.json()


def replace(service: RunningService, identity: str, **fields: Any) -> httpx.Response:
    return service.admin.put(f"/api/v1/channels/{identity}", json=fields)


def get(service: RunningService, path: str, **query: Any) -> Any:
    response = service.viewer.get(f"/api/v1{path}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def list_faults(response: httpx.Response) -> list[str]:
    assert response.status_code == 400, response.text
    return [each["field"] for each in response.json()["errors"]]


def load_stored(service: RunningService, identity: str) -> StoredChannel:
    found = service.database.read_now(load_channels, service.clock())
    return found[int(identity.removeprefix("channel-"))]


def fail(service: RunningService, identity: str, **values: Any) -> None:
    """Let a channel be as after failed attempts."""
    number = int(identity.removeprefix("channel-"))
    failing = {"problem": "gone", "failing_since": 1, "failures": 3, "retry_at": 9_999_999_999_999}
    statement = update(channel).where(channel.c.id == number).values({**failing, **values})
    service.database.write_now(lambda connection: connection.execute(statement))


def list_actions(service: RunningService) -> list[str]:
    rows = service.admin.get("/api/v1/audit").json()["items"]
    return [each["action"] for each in rows if "channel" in each["target"] or "routes" in each["target"]]


# Channels


@pytest.mark.rule("rest-299")
def test_routes_that_another_admin_has_changed_are_not_replaced(service: RunningService) -> None:
    one = create(service)["channel"]["id"]
    path, body = "/api/v1/alarm-routes", {"items": [{"name": "All", "channels": [one]}]}
    first = service.admin.get(path).headers["ETag"]
    changed = service.admin.put(path, json=body, headers={"If-Match": f'"other", {first}'})
    assert changed.status_code == 200, changed.text
    assert changed.headers["ETag"] == service.viewer.get(path).headers["ETag"] != first
    refused = service.admin.put(path, json={"items": []}, headers={"If-Match": first})
    assert (refused.status_code, refused.json()["code"]) == (412, "version-conflict")
    assert len(get(service, "/alarm-routes")["items"]) == 1
    for headers in ({"If-Match": "*"}, {}):
        assert service.admin.put(path, json=body, headers=headers).status_code == 200


@pytest.mark.both_databases
@pytest.mark.rule("rest-276")
def test_a_channel_is_created_changed_and_deleted_and_its_url_is_never_shown(service: RunningService) -> None:
    created = create(service, "Ops", **_WEBHOOK)
    assert created["secret"].startswith("whsec_")
    shown = created["channel"]
    path = f"/channels/{shown['id']}"
    assert shown == get(service, path) == get(service, "/channels")["items"][0]
    assert (shown["target"], shown["format"], shown["state"]) == (_MASKED, "standard", "ready")
    assert service.operator.put(f"/api/v1{path}", json={"name": "x", **_WEBHOOK}).status_code == 403

    changed = replace(service, shown["id"], name=" Operations ", kind="webhook", enabled=False)
    assert changed.status_code == 200, changed.text
    body = changed.json()
    assert (body["name"], body["target"], body["state"]) == ("Operations", _MASKED, "off")
    assert body["version"] == shown["version"] + 1
    assert load_stored(service, shown["id"]).target.url == _URL
    assert load_stored(service, shown["id"]).secrets == (created["secret"],)

    refused = service.admin.delete(f"/api/v1{path}")
    assert (refused.status_code, refused.json()["code"]) == (409, "channel-in-use")
    assert "Critical, Warnings, Information" in refused.json()["detail"]
    service.admin.put("/api/v1/alarm-routes", json={"items": []})
    assert service.admin.delete(f"/api/v1{path}").status_code == 204
    assert service.viewer.get(f"/api/v1{path}").status_code == 404
    assert list_actions(service) == [
        "channel.delete",
        "alarm-routes.change",
        "channel.change",
        "channel.create",
    ]
    audit = service.admin.get("/api/v1/audit").text
    assert "very-secret" not in audit
    assert created["secret"] not in audit


@pytest.mark.rule("rest-276")
def test_the_names_of_channels_are_unique_and_their_number_is_limited(service: RunningService) -> None:
    first = create(service, "Office")["channel"]["id"]
    create(service, "Other")
    body = {"name": "Other", **_MAIL}
    for refused in (service.admin.post("/api/v1/channels", json=body), replace(service, first, **body)):
        assert (refused.status_code, refused.json()["code"]) == (409, "already-exists")
    for number in range(MAX_CHANNELS - 2):
        create(service, f"Channel {number}")
    full = service.admin.post("/api/v1/channels", json={"name": "One more", **_MAIL})
    assert (full.status_code, "the maximum" in full.json()["detail"]) == (409, True)


@pytest.mark.rule("rest-276", "rest-277")
def test_fields_that_a_kind_needs_or_does_not_have_are_named(service: RunningService) -> None:
    addresses = ["a", "a@b@c.de", "a b@c.de", "a@b.de\nBcc: x@y.de", "<a@b.de>", "ä@b.de", "a@-b.de", "a@"]
    rows: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({"kind": "webhook"}, ["url"]),
        ({"kind": "webhook", "url": ""}, ["url"]),
        ({"kind": "watchdog"}, ["url"]),
        ({"kind": "email"}, ["recipients"]),
        ({**_WEBHOOK, "format": "pagerduty"}, ["routingKey"]),
        ({**_WEBHOOK, "routingKey": _KEY}, ["routingKey"]),
        ({**_WEBHOOK, "format": "pagerduty", "routingKey": "two\nlines"}, ["routingKey"]),
        ({**_WEBHOOK, "recipients": ["a@b.de"]}, ["recipients"]),
        ({**_WEBHOOK, "kind": "watchdog", "format": "text"}, ["format"]),
        ({**_MAIL, "url": _URL, "format": "text"}, ["url", "format"]),
        ({**_MAIL, "recipients": addresses}, [f"recipients[{number}]" for number in range(len(addresses))]),
        ({**_MAIL, "recipients": ["a@b.de", "A@b.de"]}, ["recipients[1]"]),
        ({**_MAIL, "recipients": ["a@b.de"] * 51}, ["recipients"]),
        ({**_MAIL, "name": "  "}, ["name"]),
        ({**_MAIL, "name": "a\nb"}, ["name"]),
    )
    faults = {}
    for fields, expected in rows:
        response = service.admin.post("/api/v1/channels", json={"name": "Office", **fields})
        if response.status_code != 400 or list_faults(response) != expected:
            faults[str(fields)] = response.text
    assert faults == {}
    assert get(service, "/channels")["items"] == []


@each_row(
    "url", ["https://10.0.0.1/hook", "http://127.0.0.1/hook", "https://169.254.169.254/", "ftp://x.org"]
)
def test_a_url_that_leads_inside_is_refused(service: RunningService, url: str) -> None:
    service_channel = get(service, "/channels")["items"] or [create(service, "Hook", **_WEBHOOK)["channel"]]
    for kind in ("webhook", "watchdog"):
        body = {"name": "Inside", "kind": kind, "url": url}
        refused = service.admin.post("/api/v1/channels", json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, "target-forbidden")
    refused = replace(service, service_channel[0]["id"], name="Hook", kind="webhook", url=url)
    assert (refused.status_code, refused.json()["code"]) == (400, "target-forbidden")


@pytest.mark.rule("rest-276")
def test_a_replaced_channel_keeps_its_kind_and_its_secrets(service: RunningService) -> None:
    fields = {**_WEBHOOK, "format": "pagerduty", "routingKey": _KEY}
    hook = create(service, "Hook", **fields)["channel"]["id"]
    mail = create(service, "Mail")["channel"]["id"]
    assert list_faults(replace(service, mail, name="Mail", **_WEBHOOK)) == ["kind"]
    assert list_faults(replace(service, hook, name="Hook", kind="webhook", format="text")) == ["format"]
    assert replace(service, hook, name="Hook", kind="webhook", format="pagerduty").status_code == 200
    assert load_stored(service, hook).target.routing_key == _KEY
    assert replace(service, hook, name="Hook", kind="webhook", format="cloudevents").status_code == 200
    target = load_stored(service, hook).target
    assert (target.url, target.format, target.routing_key) == (_URL, WebhookFormat.CLOUDEVENTS, None)
    assert replace(service, "channel-99", name="x", **_MAIL).status_code == 404


@pytest.mark.rule("rest-276")
def test_a_channel_that_is_switched_on_again_or_leads_elsewhere_is_tried_at_once(
    service: RunningService,
) -> None:
    created = create(service)["channel"]["id"]
    body = {"name": "Office", **_MAIL}
    fail(service, created)
    failing = get(service, f"/channels/{created}")
    assert (failing["state"], failing["problem"]) == ("failing", "gone")
    assert replace(service, created, **body).json()["state"] == "failing", "nothing has changed"
    other = {**body, "recipients": ["other@example.org"]}
    assert replace(service, created, **other).json()["problem"] is None
    fail(service, created, enabled=False)
    assert get(service, f"/channels/{created}")["state"] == "off"
    assert replace(service, created, **other).json()["state"] == "ready"
    assert load_stored(service, created).retry_at is None


@pytest.mark.rule("rest-277")
def test_a_replaced_secret_signs_for_another_day(service: RunningService) -> None:
    created = create(service, "Hook", **_WEBHOOK)
    path = f"/api/v1/channels/{created['channel']['id']}/secret"
    assert service.operator.post(path).status_code == 403
    rotated = service.admin.post(path).json()
    both = (rotated["secret"], created["secret"])
    assert load_stored(service, created["channel"]["id"]).secrets == both
    service.clock.move(seconds=_DAY_MS / 1000)
    assert load_stored(service, created["channel"]["id"]).secrets == both[:1]
    mail = create(service, "Mail")
    assert mail["secret"] is None
    refused = service.admin.post(f"/api/v1/channels/{mail['channel']['id']}/secret")
    assert refused.status_code == 409


@pytest.mark.rule("rest-280")
def test_a_test_sends_a_message_now(service: RunningService) -> None:
    created = create(service)["channel"]["id"]
    path = f"/api/v1/channels/{created}/test"
    assert service.admin.post("/api/v1/channels/channel-99/test").status_code == 404
    assert service.admin.post(path).status_code == 503, "nothing sends messages yet"
    harness = NotifierHarness(service.database, service.clock)
    service.channel_tester.attach(harness.notifier)
    delivered = service.admin.post(path).json()
    assert (delivered["delivered"], delivered["status"], delivered["problem"]) == (True, 200, None)
    assert [name for name, _ in harness.recorder.received] == ["Office"]
    harness.recorder.answer = lambda _name, _message: FAILED
    failed = service.admin.post(path).json()
    assert (failed["delivered"], failed["status"], failed["problem"]) == (False, 503, FAILED.problem)
    assert list_actions(service)[:2] == ["channel.test"] * 2


# Routes


@pytest.mark.rule("rest-278")
def test_the_first_channel_gets_routes(service: RunningService) -> None:
    assert get(service, "/alarm-routes") == {"items": []}
    assert not get(service, "/attention")["channelsConfigured"]
    watchdog = create(service, "Watchdog", kind="watchdog", url=_URL)
    assert watchdog["secret"] is None
    assert get(service, "/alarm-routes") == {"items": []}
    refused = service.admin.post("/api/v1/channels", json={"name": "x", **_MAIL, "timeZone": "Mars/Base"})
    assert list_faults(refused) == ["timeZone"]
    first = create(service, kind="email", recipients=["office@example.org"], timeZone="Europe/Zurich")[
        "channel"
    ]["id"]
    routes = get(service, "/alarm-routes")["items"]
    assert [each["match"]["severityAtLeast"] for each in routes] == ["critical", "warning", "info"]
    assert [each["channels"] for each in routes] == [[first]] * 3
    critical, warnings, information = routes
    assert (critical["hours"], critical["repeatSeconds"], critical["groupSeconds"]) == (None, 3600, 0)
    assert (warnings["hours"]["from"], warnings["hours"]["to"], warnings["quiet"]) == (
        *("07:00", "20:00"),
        "hold",
    )
    assert information["digest"] == "08:00"
    assert {each["timeZone"] for each in routes} == {"Europe/Zurich"}
    assert get(service, "/attention")["channelsConfigured"]
    service.admin.put("/api/v1/alarm-routes", json={"items": []})
    create(service, "Second")
    assert get(service, "/alarm-routes") == {"items": []}, "an admin has removed them"
    assert not get(service, "/attention")["channelsConfigured"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-278")
def test_routes_are_replaced_as_a_whole(service: RunningService) -> None:
    one, other = create(service, "One")["channel"]["id"], create(service, "Other")["channel"]["id"]
    mac = service.new_mac()
    service.admin.post("/api/v1/gateways", json={"mac": mac})
    route = {
        "name": "Freezers",
        "match": {"severityAtLeast": "info", "rules": [], "labels": ["Freezer"], "gateways": [mac]},
        "channels": [other, one],
        "timeZone": "Europe/Zurich",
        "hours": {"days": ["mon", "fri"], "from": "22:00", "to": "06:00"},
        "quiet": "pass",
        "groupSeconds": 60,
        "digest": None,
        "cleared": False,
        "repeatSeconds": 600,
        "continue": True,
    }
    smallest = {"name": " Rest ", "channels": [one]}
    response = service.admin.put("/api/v1/alarm-routes", json={"items": [route, smallest]})
    assert response.status_code == 200, response.text
    stored = get(service, "/alarm-routes")["items"]
    assert stored[0] == route
    assert stored[1] == {
        "name": "Rest",
        "match": {"severityAtLeast": "info", "rules": [], "labels": [], "gateways": []},
        "channels": [one],
        "timeZone": "UTC",
        "hours": None,
        "quiet": "hold",
        "groupSeconds": 300,
        "digest": None,
        "cleared": True,
        "repeatSeconds": None,
        "continue": False,
    }
    assert service.admin.put("/api/v1/alarm-routes", json={"items": stored}).json()["items"] == stored
    assert service.operator.put("/api/v1/alarm-routes", json={"items": []}).status_code == 403


@pytest.mark.rule("rest-278")
def test_everything_in_routes_that_does_not_exist_is_named(service: RunningService) -> None:
    one = create(service)["channel"]["id"]
    watchdog = create(service, "Watchdog", kind="watchdog", url=_URL)["channel"]["id"]
    rows: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({"channels": [one, "channel-99", watchdog]}, ["channels[1]", "channels[2]"]),
        ({"channels": ["channel-99999999999999999999"]}, ["channels[0]"]),
        ({"match": {"rules": ["gateway-offline", "no-rule"]}}, ["match.rules[1]"]),
        ({"match": {"gateways": ["c0ffee999999"]}}, ["match.gateways[0]"]),
        ({"match": {"labels": ["ok", ""]}}, ["match.labels[1]"]),
        ({"timeZone": "Europe/Nowhere"}, ["timeZone"]),
        ({"timeZone": "../UTC"}, ["timeZone"]),
        ({"timeZone": "Europe"}, ["timeZone"]),
        ({"hours": {"from": "07:00", "to": "07:00"}}, ["hours.to"]),
        ({"name": "\u202e"}, ["name"]),
        ({"timeZone": "", "match": {"rules": ["x"]}}, ["match.rules[0]", "timeZone"]),
    )
    before, faults = get(service, "/alarm-routes"), {}
    valid = {"name": "Good", "channels": [one]}
    for fields, expected in rows:
        items = [valid, {**valid, **fields}]
        response = service.admin.put("/api/v1/alarm-routes", json={"items": items})
        if response.status_code != 400 or list_faults(response) != [f"items[1].{each}" for each in expected]:
            faults[str(fields)] = response.text
    assert faults == {}
    for fields in ({"quiet": "x"}, {"digest": "8:00"}, {"channels": []}, {"repeatSeconds": 1}, {"match": 1}):
        response = service.admin.put("/api/v1/alarm-routes", json={"items": [{**valid, **fields}]})
        assert response.status_code == 400, fields
    assert get(service, "/alarm-routes") == before


# Messages


def add_messages(service: RunningService, identity: str, *states: str) -> list[str]:
    """Add messages in these states to a channel, and return their ids."""
    number = int(identity.removeprefix("channel-"))
    row = {"channel": number, "kind": "opened", "created_at": 1, "due": 2, "attempts": 5, "body": "{}"}
    end = {"finished_at": 3, "failed_at": 3, "problem": "refused"}
    nothing = dict.fromkeys(end)
    rows = [row | {"state": each} | (end if each in {"dead", "sent"} else nothing) for each in states]
    statement = insert(notification).returning(notification.c.id)

    def add(connection: Connection) -> list[int]:
        return [connection.execute(statement, each).scalar_one() for each in rows]

    numbers = service.database.write_now(add)
    return [f"delivery-{each}" for each in numbers]


@pytest.mark.rule("rest-279")
def test_messages_are_listed_page_by_page_and_by_state(service: RunningService) -> None:
    one, other = create(service, "One")["channel"]["id"], create(service, "Other")["channel"]["id"]
    states = ["held", "waiting", "sent", "dead", "folded", "dead"]
    added = add_messages(service, one, *states)
    add_messages(service, other, "sent")
    path = f"/channels/{one}/deliveries"
    listed = get(service, path)["items"]
    assert [(each["id"], each["state"]) for each in listed] == [*zip(added, states, strict=True)][::-1]
    assert [each["due"] is None for each in listed] == [True, True, True, True, False, False]
    first = get(service, path, MaxResults=4)
    second = get(service, path, MaxResults=4, NextToken=first["nextToken"])
    assert [*first["items"], *second["items"]] == listed
    assert [each["state"] for each in get(service, path, State=["dead", "held"])["items"]] == [
        *("dead", "dead"),
        "held",
    ]
    wrong = service.viewer.get(f"/api/v1{path}", params={"State": "lost"})
    assert list_faults(wrong) == ["State"]
    shown = get(service, f"/channels/{one}")
    assert (shown["waiting"], shown["dead"]) == (2, 2)
    for unknown in ("channel-99", "channel-0", "webhook", "channel-1%20"):
        assert service.viewer.get(f"/api/v1/channels/{unknown}/deliveries").status_code == 404


@pytest.mark.both_databases
@pytest.mark.rule("rest-279")
def test_messages_that_were_given_up_are_tried_again(service: RunningService) -> None:
    one, other = create(service, "One")["channel"]["id"], create(service, "Other")["channel"]["id"]
    sent, *dead = add_messages(service, one, "sent", "dead", "dead", "dead")
    (kept,) = add_messages(service, other, "dead")
    path = f"/api/v1/channels/{one}"
    retried = service.admin.post(f"{path}/deliveries/{dead[1]}/retry")
    assert retried.status_code == 200, retried.text
    body = retried.json()
    assert (body["state"], body["problem"], body["finishedAt"]) == ("waiting", None, None)
    for delivery, status in ((dead[1], 409), (sent, 409), (kept, 404), ("delivery-99", 404), ("x", 404)):
        assert service.admin.post(f"{path}/deliveries/{delivery}/retry").status_code == status, delivery
    fail(service, one)
    assert service.admin.post(f"{path}/retry-dead").json() == {"retried": 2}
    assert 0 < (load_stored(service, one).retry_at or 0) <= service.clock()
    assert service.admin.post(f"{path}/retry-dead").json() == {"retried": 0}
    columns = notification.c
    query = select(columns.state, columns.attempts, columns.failed_at, columns.body, columns.due)
    rows = service.database.read_now(lambda connection: connection.execute(query.order_by(columns.id)).all())
    assert [tuple(row)[:4] for row in rows[1:4]] == [("waiting", 0, None, "{}")] * 3
    assert all(2 < row.due <= service.clock() for row in rows[1:4])
    assert [row.state for row in (rows[0], rows[4])] == ["sent", "dead"]
    assert list_actions(service)[:3] == ["channel.retry"] * 3
