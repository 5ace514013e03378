"""Webhooks: what receivers get in each format, and what becomes of messages that they do not accept."""

from __future__ import annotations

import json
import logging
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from standardwebhooks import Webhook, WebhookVerificationError

from meshfleet.client import verify_webhook
from meshfleet.errors import InvalidWebhook
from meshfleet.rest.channels import ChannelKind, WebhookFormat
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome, OutgoingMessage
from meshfleet.service.notifications.http_sender import HttpSender
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageEntry, MessageKind
from meshfleet.service.notifications.signature import create_secret
from meshfleet.service.notifications.watchdog import WatchdogDeliverer
from meshfleet.service.notifications.webhook import MAX_BODY_BYTES, WebhookDeliverer
from meshfleet.settings.model import WebhookSettings
from tests.eventually import RETRY_TIMEOUTS
from tests.row_tables import each_row
from tests.service.notifications.receivers import (
    LOOPBACK,
    Answer,
    WebhookReceiver,
    build_channel,
    write_authority,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.service.notifications.target_guard import Resolver

pytestmark = pytest.mark.anyio

PUBLIC_URL = "https://fleet.example.org"
SECRET, OLD_SECRET = create_secret(), create_secret()

ALARM: dict[str, Any] = {
    "id": "alarm-12",
    "key": "gateway-offline:ab",
    "rule": "gateway-offline",
    "severity": "critical",
    "state": "open",
    "sentence": "Gateway Büro is offline. 24 devices are cut off with it.",
    "action": {"code": "check-power", "text": "Check the power of the gateway.", "href": "/gateways/ab"},
    "subject": {"kind": "gateway", "id": "bmac-0000000000ab", "name": "Büro"},
    "since": "2026-11-15T10:00:00.000Z",
    "openedAt": "2026-11-15T10:02:00.000Z",
    "clearedAt": None,
    "memberCount": 25,
    "version": 3,
}
OPENED = EventMessage(type="alarm.opened", timestamp="2026-11-15T10:02:00.000Z", data=ALARM)
TEST = EventMessage(type="channel.test", timestamp="2026-11-15T10:02:00.000Z", data={"channel": "Ops"})
ENTRY = MessageEntry(
    kind=MessageKind.OPENED,
    alarm="alarm-12",
    severity="critical",
    sentence="Gateway Büro is offline.",
    action="Check the power.",
    since="2026-11-15T10:00:00.000Z",
)
FOR_PEOPLE = HumanMessage(entries=[ENTRY], kind=MessageKind.OPENED)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def build_message(body: EventMessage | HumanMessage = OPENED, *, now: int | None = None) -> OutgoingMessage:
    is_alarm = isinstance(body, EventMessage) and body.type.startswith("alarm.")
    return OutgoingMessage(
        "msg_1",
        int(time.time() * 1000) if now is None else now,
        body,
        thread="alarm-12" if is_alarm else None,
    )


async def deliver(
    url: str | None,
    message: OutgoingMessage,
    *,
    settings: WebhookSettings = LOOPBACK,
    resolve: Resolver | None = None,
    timeout_seconds: float = 60,
    **target: Any,
) -> DeliveryResult:
    sender = HttpSender(settings, resolve=resolve, timeout=timeout_seconds)
    deliverer = WebhookDeliverer(sender, public_url=PUBLIC_URL, installation="0123abcd")
    return await deliverer.deliver(build_channel(secrets=(SECRET, OLD_SECRET), url=url, **target), message)


async def resolve_to_loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


# --- Formats ---


@each_row("body_format", [*WebhookFormat])
@each_row("body", [OPENED, TEST])
async def test_every_body_is_signed_with_all_secrets(
    receiver: WebhookReceiver, body_format: WebhookFormat, body: EventMessage
) -> None:
    result = await deliver(receiver.url, build_message(body), format=body_format, routing_key="key")
    assert result == DeliveryResult(Outcome.DELIVERED, 204)
    request = receiver.requests[-1]
    assert (request.method, request.path) == ("POST", "/hook")
    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["user-agent"].startswith("Meshfleet/")
    for secret in (SECRET, OLD_SECRET):
        Webhook(secret).verify(request.body, request.headers)
        verify_webhook(request.body, request.headers, secret)
    with pytest.raises(WebhookVerificationError):
        Webhook(create_secret()).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body.replace(b"a", b"b", 1), request.headers)


async def test_the_signature_of_an_old_attempt_is_refused(receiver: WebhookReceiver) -> None:
    await deliver(receiver.url, build_message(now=int((time.time() - 3600) * 1000)))
    (request,) = receiver.requests
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(request.body, request.headers)
    with pytest.raises(InvalidWebhook, match="s old"):
        verify_webhook(request.body, request.headers, SECRET)


async def test_a_standard_webhook_has_type_time_and_alarm(receiver: WebhookReceiver) -> None:
    await deliver(receiver.url, build_message())
    (request,) = receiver.requests
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == {
        "type": "alarm.opened",
        "timestamp": "2026-11-15T10:02:00.000Z",
        "data": ALARM,
    }


async def test_a_cloudevent_names_service_and_alarm(receiver: WebhookReceiver) -> None:
    await deliver(receiver.url, build_message(), format=WebhookFormat.CLOUDEVENTS)
    await deliver(receiver.url, build_message(TEST), format=WebhookFormat.CLOUDEVENTS)
    event, test = receiver.requests
    assert event.headers["content-type"] == "application/cloudevents+json"
    assert json.loads(event.body) == {
        "specversion": "1.0",
        "id": "msg_1",
        "source": PUBLIC_URL,
        "type": "meshfleet.alarm.opened",
        "subject": "alarm-12",
        "time": "2026-11-15T10:02:00.000Z",
        "datacontenttype": "application/json",
        "data": ALARM,
    }
    assert json.loads(test.body)["type"] == "meshfleet.channel.test"
    assert "subject" not in json.loads(test.body)


@each_row(
    ("kind", "action"),
    [
        ("alarm.opened", "trigger"),
        ("alarm.updated", "trigger"),
        ("alarm.acknowledged", "acknowledge"),
        ("alarm.cleared", "resolve"),
    ],
)
async def test_pagerduty_gets_one_incident_for_an_alarm(
    receiver: WebhookReceiver, kind: str, action: str
) -> None:
    event = EventMessage(type=kind, timestamp=OPENED.timestamp, data=ALARM)
    await deliver(receiver.url, build_message(event), format=WebhookFormat.PAGERDUTY, routing_key="key")
    body = json.loads(receiver.requests[-1].body)
    assert (body["event_action"], body["routing_key"]) == (action, "key")
    assert body["dedup_key"] == "meshfleet-0123abcd-alarm-12"
    assert body["payload"]["summary"] == ALARM["sentence"]
    assert body["payload"]["severity"] == "critical"
    assert body["payload"]["source"] == "Büro"
    assert body["payload"]["custom_details"] == ALARM
    assert body["links"] == [{"href": f"{PUBLIC_URL}/alarms/alarm-12", "text": "Open in Meshfleet"}]


async def test_a_test_of_pagerduty_says_that_nothing_is_wrong(receiver: WebhookReceiver) -> None:
    await deliver(receiver.url, build_message(TEST), format=WebhookFormat.PAGERDUTY, routing_key="key")
    body = json.loads(receiver.requests[-1].body)
    assert body["payload"]["severity"] == "info"
    assert "Test message of the channel Ops: nothing is wrong" in body["payload"]["summary"]
    assert body["dedup_key"] == "meshfleet-0123abcd-msg_1"


async def test_people_get_a_text(receiver: WebhookReceiver) -> None:
    await deliver(receiver.url, build_message(FOR_PEOPLE), format=WebhookFormat.TEXT)
    (request,) = receiver.requests
    assert json.loads(request.body) == {
        "text": "[Critical] Gateway Büro is offline.\nSince 2026-11-15 10:00 UTC\nTo do: Check the power.\n"
        f"{PUBLIC_URL}/alarms/alarm-12"
    }


@each_row("body_format", [*WebhookFormat])
async def test_no_body_is_larger_than_20_kb(receiver: WebhookReceiver, body_format: WebhookFormat) -> None:
    large = {**ALARM, "sentence": "ü" * 5000, "members": ["x" * 100] * 1000}
    await deliver(
        receiver.url,
        build_message(EventMessage(type="alarm.opened", timestamp=OPENED.timestamp, data=large)),
        format=body_format,
    )
    body = receiver.requests[-1].body
    assert len(body) <= MAX_BODY_BYTES
    assert b"alarm-12" in body
    if body_format is not WebhookFormat.TEXT:
        assert b'"truncated":true' in body


async def test_a_text_that_is_too_large_lists_fewer_alarms(receiver: WebhookReceiver) -> None:
    entry = MessageEntry(
        kind=MessageKind.OPENED,
        alarm="alarm-1",
        severity="warning",
        sentence="ü" * 900,
        action="ü" * 900,
        since="2026-11-15T10:00:00.000Z",
    )
    await deliver(
        receiver.url, build_message(HumanMessage(entries=[entry] * 20, more=3)), format=WebhookFormat.TEXT
    )
    (request,) = receiver.requests
    assert len(request.body) <= MAX_BODY_BYTES
    text = json.loads(request.body)["text"]
    assert text.startswith("23 alarms:")
    assert "18 more alarms are not listed here." in text


async def test_a_message_for_people_is_refused_by_a_channel_for_programs(receiver: WebhookReceiver) -> None:
    result = await deliver(receiver.url, build_message(FOR_PEOPLE))
    assert result.outcome is Outcome.MESSAGE_REFUSED
    assert receiver.connections == 0


# --- Results ---


@each_row(
    ("status", "outcome", "words"),
    [
        (200, Outcome.DELIVERED, None),
        (202, Outcome.DELIVERED, None),
        (204, Outcome.DELIVERED, None),
        (301, Outcome.CHANNEL_FAILED, "redirects"),
        (302, Outcome.CHANNEL_FAILED, "redirects"),
        (304, Outcome.CHANNEL_FAILED, "redirects"),
        (400, Outcome.MESSAGE_REFUSED, "check the format"),
        (401, Outcome.CHANNEL_FAILED, "refuses access"),
        (403, Outcome.CHANNEL_FAILED, "refuses access"),
        (404, Outcome.CHANNEL_FAILED, "does not know the URL"),
        (405, Outcome.MESSAGE_REFUSED, "check the format"),
        (408, Outcome.CHANNEL_FAILED, "in time"),
        (410, Outcome.CHANNEL_GONE, "set a new URL"),
        (413, Outcome.MESSAGE_REFUSED, "check the format"),
        (422, Outcome.MESSAGE_REFUSED, "check the format"),
        (429, Outcome.CHANNEL_FAILED, "too many messages"),
        (500, Outcome.CHANNEL_FAILED, "error of its own"),
        (503, Outcome.CHANNEL_FAILED, "error of its own"),
        (599, Outcome.CHANNEL_FAILED, "error of its own"),
    ],
)
async def test_the_status_decides_about_channel_and_message(
    receiver: WebhookReceiver, status: int, outcome: Outcome, words: str | None
) -> None:
    receiver.answer = lambda _: Answer(status)
    result = await deliver(f"{receiver.url}/secret", build_message())
    assert (result.outcome, result.status) == (outcome, status)
    if words is None:
        assert result.problem is None
    else:
        assert result.problem is not None
        assert words in result.problem
        assert f"HTTP {status}" in result.problem
        assert "/secret" not in result.problem
        assert "127.0.0.1" not in result.problem


NOW = datetime(2026, 11, 15, 10, tzinfo=UTC)


@each_row(
    ("text", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("99999", 3600),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW + timedelta(days=9), usegmt=True), 3600),
        (format_datetime(NOW - timedelta(days=9), usegmt=True), 0),
        ("soon", None),
        ("-5", None),
        ("9" * 100, None),
        ("Fri, 99 Nov 2026 10:00:00 GMT", None),
    ],
)
async def test_the_receiver_says_when_to_try_again(
    receiver: WebhookReceiver, text: str, seconds: float | None
) -> None:
    receiver.answer = lambda _: Answer(503, (("Retry-After", text),))
    result = await deliver(receiver.url, build_message(now=int(NOW.timestamp() * 1000)))
    assert result.retry_after == seconds


async def test_a_silent_receiver_fails_the_channel(receiver: WebhookReceiver) -> None:
    receiver.answer = lambda _: Answer(delay=60)
    for seconds in RETRY_TIMEOUTS:
        result = await deliver(receiver.url, build_message(), timeout_seconds=seconds)
        assert result.outcome is Outcome.CHANNEL_FAILED
        assert result.problem is not None
        assert f"did not answer within {seconds:g} s" in result.problem
        if receiver.requests:
            break
    assert receiver.requests


async def test_a_receiver_that_is_away_fails_the_channel() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # but it does not listen
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/secret"
        result = await deliver(url, build_message())
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem == ("the receiver refuses connections: check that it runs, and the port of the URL")


async def test_another_address_is_tried_if_one_refuses_connections(receiver: WebhookReceiver) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]  # it listens on the second one only

    url = f"http://hooks.example.org:{receiver.port}/hook"
    result = await deliver(url, build_message(), resolve=resolve)
    assert result.outcome is Outcome.DELIVERED
    assert len(receiver.requests) == 1


async def test_a_host_that_cannot_be_resolved_fails_the_channel() -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    result = await deliver("https://hooks.example.org/secret", build_message(), resolve=resolve)
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem is not None
    assert "cannot be resolved" in result.problem


async def test_a_channel_without_a_url_fails() -> None:
    result = await deliver(None, build_message())
    assert (result.outcome, result.problem) == (Outcome.CHANNEL_FAILED, "the channel has no URL: set one")


async def test_a_defect_is_a_result_and_does_not_reveal_the_url(caplog: pytest.LogCaptureFixture) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        raise RuntimeError("https://hooks.example.org/secret")

    result = await deliver("https://hooks.example.org/secret", build_message(), resolve=resolve)
    assert result.problem == "internal error (RuntimeError)"
    assert "secret" not in caplog.text


async def test_urls_are_not_logged(receiver: WebhookReceiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await deliver(f"{receiver.url}/top-secret", build_message())
    assert receiver.requests[0].path == "/hook/top-secret"
    assert "top-secret" not in caplog.text


# --- Targets ---


async def test_no_connection_is_made_to_a_forbidden_address(receiver: WebhookReceiver) -> None:
    for host in ("127.0.0.1", "2130706433", "0x7f000001", "127.1", "0177.0.0.1", "localhost"):
        url = f"http://{host}:{receiver.port}/"
        result = await deliver(url, build_message(), settings=WebhookSettings(allow_http=True))
        assert result.outcome is Outcome.CHANNEL_FAILED
        assert result.problem is not None
        assert "webhooks.allow" in result.problem
    assert receiver.connections == 0


async def test_a_name_that_becomes_private_is_not_called(receiver: WebhookReceiver) -> None:
    url = f"http://hooks.example.org:{receiver.port}/"
    result = await deliver(
        url, build_message(), settings=WebhookSettings(allow_http=True), resolve=resolve_to_loopback
    )
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert receiver.connections == 0


async def test_the_connection_goes_to_the_address_that_was_checked(receiver: WebhookReceiver) -> None:
    asked = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    url = f"http://name.invalid:{receiver.port}/a?b=c"  # the system cannot resolve it
    result = await deliver(url, build_message(), resolve=resolve)
    assert result.outcome is Outcome.DELIVERED
    (request,) = receiver.requests
    assert (request.headers["host"], request.path) == (f"name.invalid:{receiver.port}", "/a?b=c")
    assert asked == [("name.invalid", receiver.port)]


async def test_a_redirect_is_not_followed(receiver: WebhookReceiver) -> None:
    with WebhookReceiver() as inner:
        for status in (301, 302, 303, 307, 308):
            answer = Answer(status, (("Location", f"http://localhost:{inner.port}/"),))
            receiver.answer = lambda _, answer=answer: answer  # type: ignore[misc] # a default value
            result = await deliver(receiver.url, build_message())
            assert result.outcome is Outcome.CHANNEL_FAILED
        assert inner.connections == 0


async def test_a_proxy_of_the_environment_is_not_used(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WebhookReceiver() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{proxy.port}")
        await deliver(receiver.url, build_message())
        assert proxy.connections == 0
    assert len(receiver.requests) == 1


# --- TLS ---


async def test_the_certificate_must_be_for_the_name_of_the_host(
    authority: trustme.CA, tmp_path: Path
) -> None:
    settings = WebhookSettings(allow=(ip_network("127.0.0.1"),), ca=write_authority(authority, tmp_path))
    with WebhookReceiver(authority, host="hooks.example.org") as receiver:
        result = await deliver(receiver.url, build_message(), settings=settings, resolve=resolve_to_loopback)
        assert result == DeliveryResult(Outcome.DELIVERED, 204)
        assert receiver.requests[0].headers["host"] == f"hooks.example.org:{receiver.port}"
        for host in ("other.example.org", "127.0.0.1"):
            url = f"https://{host}:{receiver.port}/hook"
            result = await deliver(url, build_message(), settings=settings, resolve=resolve_to_loopback)
            assert result.outcome is Outcome.CHANNEL_FAILED
            assert result.problem is not None
            assert "the certificate of the receiver is not trusted" in result.problem
        assert len(receiver.requests) == 1


async def test_a_certificate_may_be_for_an_address(authority: trustme.CA, tmp_path: Path) -> None:
    settings = WebhookSettings(allow=(ip_network("127.0.0.1"),), ca=write_authority(authority, tmp_path))
    with WebhookReceiver(authority) as receiver:
        result = await deliver(receiver.url, build_message(), settings=settings)
    assert result.outcome is Outcome.DELIVERED


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    settings = WebhookSettings(allow=(ip_network("127.0.0.1"),))
    with WebhookReceiver(authority) as receiver:
        result = await deliver(receiver.url, build_message(), settings=settings)
        assert receiver.requests == []
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem is not None
    assert "webhooks.ca" in result.problem


async def test_a_receiver_without_tls_fails_the_handshake(receiver: WebhookReceiver) -> None:
    result = await deliver(f"https://127.0.0.1:{receiver.port}/", build_message())
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem is not None
    assert "TLS handshake" in result.problem


# --- Watchdogs ---


async def test_a_watchdog_is_called_without_a_message(receiver: WebhookReceiver) -> None:
    deliverer = WatchdogDeliverer(HttpSender(LOOPBACK))
    channel = build_channel(ChannelKind.WATCHDOG, url=receiver.url)
    assert await deliverer.deliver(channel, build_message(TEST)) == DeliveryResult(Outcome.DELIVERED, 204)
    (request,) = receiver.requests
    assert (request.method, request.body) == ("GET", b"")


async def test_a_watchdog_is_guarded_like_a_webhook(receiver: WebhookReceiver) -> None:
    deliverer = WatchdogDeliverer(HttpSender(WebhookSettings(allow_http=True)))
    for url in (receiver.url, None):
        channel = build_channel(ChannelKind.WATCHDOG, url=url)
        assert (await deliverer.deliver(channel, build_message(TEST))).outcome is Outcome.CHANNEL_FAILED
    assert receiver.connections == 0
