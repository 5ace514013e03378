"""E-mails: what mail servers get, and what becomes of messages that they do not accept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.rest.channels import ChannelKind
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome, OutgoingMessage
from meshfleet.service.notifications.mail import MailDeliverer
from meshfleet.service.notifications.messages import HumanMessage, MessageEntry, MessageKind
from meshfleet.settings.model import MailSettings
from tests.eventually import RETRY_TIMEOUTS
from tests.row_tables import each_row
from tests.service.notifications.receivers import build_channel, run_mail_receiver, write_authority

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

RECIPIENTS = ("ann@example.org", "bob@example.org")
LOGIN = {"user": "meshfleet", "password": "topsecret"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def build_message(
    sentence: str = "Gateway Büro is offline.", *, number: int = 1, kind: MessageKind = MessageKind.OPENED
) -> OutgoingMessage:
    entry = MessageEntry(
        kind=kind,
        alarm="alarm-12",
        severity="critical",
        sentence=sentence,
        action="Check the power.",
        since="2026-11-15T10:00:00.000Z",
    )
    body = HumanMessage(entries=[entry], kind=kind)
    return OutgoingMessage(f"msg_{number}", 1_794_736_800_000, body, thread="alarm-12")


async def deliver(
    settings: MailSettings,
    message: OutgoingMessage | None = None,
    *,
    recipients: tuple[str, ...] = RECIPIENTS,
    timeout_seconds: float = 60,
) -> DeliveryResult:
    deliverer = MailDeliverer(
        settings, public_url="https://fleet.example.org", installation="0123abcd", timeout=timeout_seconds
    )
    channel = build_channel(ChannelKind.EMAIL, recipients=recipients)
    try:
        return await deliverer.deliver(channel, message or build_message())
    finally:
        deliverer.close()


# --- Content ---


async def test_one_mail_goes_to_all_recipients() -> None:
    async with run_mail_receiver() as receiver:
        assert await deliver(receiver.build_settings()) == DeliveryResult(Outcome.DELIVERED, 250)
    (mail,) = receiver.mails
    assert (mail.sender, mail.recipients) == ("meshfleet@example.org", list(RECIPIENTS))
    assert mail.message["From"] == "meshfleet@example.org"
    assert mail.message["To"] == "ann@example.org, bob@example.org"
    assert mail.message["Subject"] == "[Critical] Gateway Büro is offline."
    assert mail.message["Date"].datetime.timestamp() == 1_794_736_800
    assert mail.message["Auto-Submitted"] == "auto-generated"
    assert mail.content.isascii()  # no server has to support more
    for text in (mail.get_text("plain"), mail.get_text("html")):
        assert "Gateway Büro is offline." in text
        assert "Since 2026-11-15 10:00 UTC" in text
        assert "To do: Check the power." in text
        assert "https://fleet.example.org/alarms/alarm-12" in text


async def test_mails_about_one_alarm_are_one_thread() -> None:
    async with run_mail_receiver() as receiver:
        for number in (1, 2, 2):
            await deliver(receiver.build_settings(), build_message(number=number))
    first, second, repeated = (each.message for each in receiver.mails)
    assert first["Message-ID"] == "<msg_1.0123abcd@example.org>"
    assert second["Message-ID"] == repeated["Message-ID"] == "<msg_2.0123abcd@example.org>"
    for each in (first, second):
        assert each["References"] == each["In-Reply-To"] == "<alarm-12.0123abcd@example.org>"


@each_row(
    "sentence",
    [
        "Device x\r\nBcc: eve@example.org is offline.",
        "Device x\nBcc: eve@example.org\n\nHello is offline.",
        "Device x\u2028Bcc: eve@example.org\x0b\x0c\x85 is offline.",
        "Device \x00\x1b[31m is offline.",
        "Device " + "x" * 5000 + " is offline.",
        "Device \N{PILE OF POO} \u202e is offline.",
    ],
)
async def test_a_name_adds_no_header(sentence: str) -> None:
    async with run_mail_receiver() as receiver:
        result = await deliver(receiver.build_settings(), build_message(sentence))
    assert result.outcome is Outcome.DELIVERED
    (mail,) = receiver.mails
    assert mail.message["Bcc"] is None
    assert mail.recipients == list(RECIPIENTS)
    assert mail.message["Subject"].startswith("[Critical] Device ")
    assert len(mail.message["Subject"]) <= 200
    assert "\n" not in mail.message["Subject"]


async def test_a_name_is_escaped_in_html() -> None:
    async with run_mail_receiver() as receiver:
        await deliver(receiver.build_settings(), build_message('<script>alert("1")</script> & more'))
    html = receiver.mails[0].get_text("html")
    assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; more" in html
    assert "<script" not in html


async def test_a_line_that_is_a_dot_does_not_end_the_mail() -> None:
    message = OutgoingMessage("msg_1", 0, HumanMessage(entries=[], kind=MessageKind.TEST))
    async with run_mail_receiver() as receiver:
        await deliver(receiver.build_settings(), message)
        await deliver(receiver.build_settings(), build_message("."))
    test, dot = receiver.mails
    assert "This is a test message of the channel Ops" in test.get_text("plain")
    assert test.message["References"] is None
    assert "Sent by Meshfleet" in dot.get_text("plain")


# --- Connection ---


async def test_the_connection_changes_to_tls_before_the_login(authority: trustme.CA, tmp_path: Path) -> None:
    async with run_mail_receiver(authority, require_starttls=True, auth_required=True) as receiver:
        receiver.login = ("meshfleet", "topsecret")
        settings = receiver.build_settings(tls="starttls", ca=write_authority(authority, tmp_path), **LOGIN)
        assert await deliver(settings) == DeliveryResult(Outcome.DELIVERED, 250)
    assert receiver.logins == [("meshfleet", "topsecret")]
    assert receiver.was_encrypted == [True]


async def test_a_connection_may_begin_with_tls(authority: trustme.CA, tmp_path: Path) -> None:
    async with run_mail_receiver(authority, implicit=True) as receiver:
        receiver.login = ("meshfleet", "topsecret")
        settings = receiver.build_settings(tls="tls", ca=write_authority(authority, tmp_path), **LOGIN)
        assert await deliver(settings) == DeliveryResult(Outcome.DELIVERED, 250)
    assert receiver.logins == [("meshfleet", "topsecret")]
    assert receiver.was_encrypted == [True]


async def test_a_server_without_starttls_gets_no_login() -> None:
    async with run_mail_receiver() as receiver:
        result = await deliver(receiver.build_settings(tls="starttls", **LOGIN))
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem is not None
    assert "does not support STARTTLS" in result.problem
    assert not receiver.logins
    assert not receiver.mails


async def test_the_certificate_must_be_trusted_and_for_the_host(
    authority: trustme.CA, tmp_path: Path
) -> None:
    ca = write_authority(authority, tmp_path)
    for host, file in (("127.0.0.1", None), ("other.example.org", ca)):
        async with run_mail_receiver(authority, host=host) as receiver:
            result = await deliver(receiver.build_settings(tls="starttls", ca=file, **LOGIN))
        assert result.outcome is Outcome.CHANNEL_FAILED
        assert result.problem is not None
        assert "the certificate of the mail server is not trusted" in result.problem
        assert not receiver.logins
        assert not receiver.mails


async def test_a_wrong_mode_of_tls_is_explained(authority: trustme.CA, tmp_path: Path) -> None:
    ca = write_authority(authority, tmp_path)
    async with run_mail_receiver(authority) as receiver:
        result = await deliver(receiver.build_settings(tls="tls", ca=ca))
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem is not None
    assert "mail.tls" in result.problem


async def test_a_wrong_password_fails_the_channel(authority: trustme.CA, tmp_path: Path) -> None:
    async with run_mail_receiver(authority) as receiver:
        settings = receiver.build_settings(tls="starttls", ca=write_authority(authority, tmp_path), **LOGIN)
        result = await deliver(settings)
    assert (result.outcome, result.status) == (Outcome.CHANNEL_FAILED, 535)
    assert result.problem is not None
    assert "check mail.user and mail.password" in result.problem
    assert "topsecret" not in result.problem


async def test_without_a_server_or_a_sender_the_setting_is_named() -> None:
    assert await deliver(MailSettings()) == DeliveryResult(
        Outcome.CHANNEL_FAILED, problem="no mail server is set: set mail.host"
    )
    assert await deliver(MailSettings(host="127.0.0.1")) == DeliveryResult(
        Outcome.CHANNEL_FAILED, problem="no sender is set: set mail.from"
    )


async def test_a_server_that_is_away_fails_the_channel() -> None:
    async with run_mail_receiver() as receiver:
        pass
    result = await deliver(receiver.build_settings())
    assert result.outcome is Outcome.CHANNEL_FAILED
    assert result.problem is not None
    assert "refuses connections" in result.problem


async def test_a_server_that_hangs_up_fails_the_channel() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await deliver(MailSettings(host="127.0.0.1", port=port, sender="a@example.org", tls="off"))
    assert result.outcome is Outcome.CHANNEL_FAILED


async def test_a_server_that_hangs_fails_the_channel() -> None:
    async with run_mail_receiver() as receiver:
        receiver.is_silent = True
        for seconds in RETRY_TIMEOUTS:
            result = await deliver(receiver.build_settings(), timeout_seconds=seconds)
            assert result.outcome is Outcome.CHANNEL_FAILED
            assert result.problem is not None
            assert "mail server did not answer" in result.problem
            if receiver.mails:
                break
    assert receiver.mails


# --- Replies ---


@each_row(
    ("replies", "outcome", "status"),
    [
        ({"sender": "451 try later"}, Outcome.CHANNEL_FAILED, 451),
        ({"sender": "550 not you"}, Outcome.CHANNEL_FAILED, 550),
        ({"sender": "552 too large"}, Outcome.MESSAGE_REFUSED, 552),
        ({"data": "451 try later"}, Outcome.CHANNEL_FAILED, 451),
        ({"data": "421 shutting down"}, Outcome.CHANNEL_FAILED, 421),
        ({"data": "554 looks like spam"}, Outcome.MESSAGE_REFUSED, 554),
        ({"ann": "550 unknown", "bob": "550 unknown"}, Outcome.MESSAGE_REFUSED, 550),
        ({"ann": "550 unknown", "bob": "450 busy"}, Outcome.CHANNEL_FAILED, 450),
        ({"ann": "450 busy", "bob": "450 busy"}, Outcome.CHANNEL_FAILED, 450),
    ],
)
async def test_the_reply_decides_about_channel_and_message(
    replies: dict[str, str], outcome: Outcome, status: int
) -> None:
    async with run_mail_receiver() as receiver:
        receiver.sender_reply = replies.get("sender", "250 OK")
        receiver.data_reply = replies.get("data", "250 OK")
        receiver.refused = {
            f"{name}@example.org": reply for name, reply in replies.items() if name in {"ann", "bob"}
        }
        result = await deliver(receiver.build_settings())
    assert (result.outcome, result.status) == (outcome, status)
    assert result.problem is not None
    assert f"(SMTP {status})" in result.problem
    assert not any(reply.partition(" ")[2] in result.problem for reply in replies.values())


async def test_some_refused_recipients_are_a_problem_of_a_delivered_message() -> None:
    async with run_mail_receiver() as receiver:
        receiver.refused = {"bob@example.org": "550 unknown"}
        result = await deliver(receiver.build_settings())
    assert result.outcome is Outcome.DELIVERED
    assert result.problem == (
        "the mail server refused 1 of 2 recipients: check the addresses of the channel (SMTP 550)"
    )
    assert receiver.mails[0].recipients == ["ann@example.org"]


@each_row(
    "recipient",
    [
        "",
        "ann",
        "ann@",
        "@example.org",
        "a@b@c",
        "a b@example.org",
        "a@example.org\r\nRCPT TO:<eve@b.org>",
        "<a@b>",
    ],
)
async def test_an_invalid_recipient_is_not_sent_to_the_server(recipient: str) -> None:
    async with run_mail_receiver() as receiver:
        result = await deliver(receiver.build_settings(), recipients=(recipient,))
        assert result.outcome is Outcome.MESSAGE_REFUSED
        result = await deliver(receiver.build_settings(), recipients=(recipient, "ann@example.org"))
    assert result.outcome is Outcome.DELIVERED
    assert receiver.mails[0].recipients == ["ann@example.org"]


async def test_an_address_with_other_letters_needs_a_server_that_supports_it() -> None:
    async with run_mail_receiver() as receiver:
        result = await deliver(receiver.build_settings(), recipients=("jürg@example.org",))
        assert result.outcome is Outcome.CHANNEL_FAILED
    async with run_mail_receiver(enable_SMTPUTF8=True) as receiver:
        result = await deliver(receiver.build_settings(), recipients=("jürg@example.org",))
        assert result.outcome is Outcome.DELIVERED
    assert receiver.mails[0].recipients == ["jürg@example.org"]
