"""Texts of messages for people."""

from __future__ import annotations

import pytest

from meshfleet.service.notifications.message_text import (
    build_chat_text,
    build_message_text,
    build_subject,
    escape_chat,
)
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageEntry, MessageKind
from tests.row_tables import each_row

URL = "https://fleet.example.org"


def build_entry(
    kind: MessageKind = MessageKind.OPENED, sentence: str = "Gateway A is offline.", *, number: int = 1
) -> MessageEntry:
    return MessageEntry(
        kind=kind,
        alarm=f"alarm-{number}",
        severity="critical",
        sentence=sentence,
        action="" if kind is MessageKind.CLEARED else "Check the power.",
        since="2026-11-15T10:00:00.000Z",
    )


CLEARED = build_entry(MessageKind.CLEARED, "Device B was silent.", number=2)


@each_row(
    ("message", "subject"),
    [
        (HumanMessage(entries=[build_entry()]), "[Critical] Gateway A is offline."),
        (HumanMessage(entries=[build_entry(MessageKind.UPDATED)]), "[Critical] Gateway A is offline."),
        (
            HumanMessage(entries=[build_entry(MessageKind.REPEATED)]),
            "[Critical] Still open: Gateway A is offline.",
        ),
        (
            HumanMessage(entries=[build_entry(MessageKind.STILL_OPEN)]),
            "[Critical] Still open: Gateway A is offline.",
        ),
        (
            HumanMessage(entries=[build_entry(MessageKind.ACKNOWLEDGED)]),
            "[Acknowledged] Gateway A is offline.",
        ),
        (HumanMessage(entries=[CLEARED]), "[Cleared] Device B was silent."),
        (HumanMessage(entries=[CLEARED, build_entry()], more=1), "3 alarms: Gateway A is offline."),
        (HumanMessage(entries=[CLEARED, CLEARED]), "[Cleared] 2 alarms: Device B was silent."),
        (HumanMessage(entries=[], passed=3), "[Cleared] 3 alarms were opened and cleared meanwhile."),
        (HumanMessage(entries=[], passed=1), "[Cleared] 1 alarm was opened and cleared meanwhile."),
        (HumanMessage(entries=[], kind=MessageKind.TEST), "[Test] Test message of the channel Ops"),
        (HumanMessage(entries=[build_entry(sentence="a\r\nb\tc\u2029d")]), "[Critical] a b c d"),
    ],
)
def test_the_subject_says_what_is_wrong(message: HumanMessage, subject: str) -> None:
    assert build_subject(message, "Ops") == subject


def test_the_body_lists_open_alarms_first_and_what_is_left_out() -> None:
    message = HumanMessage(entries=[CLEARED, build_entry()], more=34, passed=3)
    text = build_message_text(message, public_url=URL, channel_name="Ops")
    assert text.plain == (
        "[Critical] Gateway A is offline.\n"
        "Since 2026-11-15 10:00 UTC\n"
        "To do: Check the power.\n"
        "https://fleet.example.org/alarms/alarm-1\n"
        "\n"
        "[Cleared] Device B was silent.\n"
        "Began 2026-11-15 10:00 UTC\n"
        "https://fleet.example.org/alarms/alarm-2\n"
        "\n"
        "34 more alarms are not listed here.\n"
        "https://fleet.example.org/alarms\n"
        "\n"
        "3 alarms were opened and cleared meanwhile.\n"
        "\n"
        "-- \n"
        "Sent by Meshfleet at https://fleet.example.org to the channel Ops.\n"
    )
    for line in text.plain.splitlines():
        if line and line != "-- ":
            assert line in text.html


def test_a_test_says_that_it_is_one() -> None:
    message = HumanMessage(entries=[], kind=MessageKind.TEST)
    for text in (
        build_chat_text(message, public_url=URL, channel_name="Ops"),
        build_message_text(message, public_url=URL, channel_name="Ops").plain,
    ):
        assert "This is a test message of the channel Ops" in text
        assert "No alarm was opened" in text


@pytest.mark.parametrize("kind", ["opened", "cleared"])
def test_an_event_can_be_told_to_people(kind: str) -> None:
    alarm = {
        "id": "alarm-1",
        "severity": "warning",
        "sentence": "Gateway A is offline.",
        "action": {"text": "Check the power."},
        "since": "2026-11-15T10:00:00.000Z",
    }
    event = EventMessage(type=f"alarm.{kind}", timestamp="2026-11-15T10:00:00.000Z", data=alarm)
    text = build_chat_text(event, public_url=URL, channel_name="Ops")
    assert ("To do: Check the power." in text) is (kind == "opened")
    assert text.startswith("[Warning]" if kind == "opened" else "[Cleared]")


@each_row(
    ("name", "shown"),
    [
        ("Sensor 1", "Sensor 1"),
        ("sensor_room_1", "sensor_room_1"),
        ("_secret_", "＿secret＿"),  # noqa: RUF001 # that is how it is escaped
        ("__init__", "＿＿init＿＿"),  # noqa: RUF001
        ("*bold* ~gone~ `code`", "∗bold∗ ∼gone∼ ˋcodeˋ"),  # noqa: RUF001
        ("<!channel> & <http://evil|click>", "&lt;!channel&gt; &amp; &lt;http:\u200b//evil|click&gt;"),
        ("@here @channel a@b.org", "@\u200bhere @\u200bchannel a@\u200bb.org"),
        ("[click](https://evil)", "[click]\u200b(https:\u200b//evil)"),
    ],
)
def test_a_name_is_no_markup_in_a_chat(name: str, shown: str) -> None:
    assert escape_chat(name) == shown
    message = HumanMessage(entries=[build_entry(sentence=f"Device {name} is silent.")])
    text = build_chat_text(message, public_url=URL, channel_name="Ops")
    assert text.splitlines()[0] == f"[Critical] Device {shown} is silent."
    assert text.splitlines()[-1] == f"{URL}/alarms/alarm-1"


def test_the_name_of_a_channel_is_no_markup_in_a_chat() -> None:
    message = HumanMessage(entries=[], kind=MessageKind.TEST)
    assert "<" not in build_chat_text(message, public_url=URL, channel_name="<!here>")
