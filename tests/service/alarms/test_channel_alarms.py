"""Alarms of channels: messages that were given up, and channels that their receivers switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, update

from meshfleet.db.tables import channel, notification
from meshfleet.rest.channels import ChannelKind, NewChannel
from meshfleet.service.actor import SERVICE
from meshfleet.service.notifications import channel_commands, delivery_commands
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.test_watches import DAY, execute, list_alarms

if TYPE_CHECKING:
    from tests.service.alarms.presence_log import PresenceLog

FAILING = "Channel Ops does not deliver messages about alarms."
GIVEN_UP = "1 message to Ops could not be delivered and was given up."
SWITCHED_OFF = "Channel Ops was switched off by its receiver (410)."


def add_channel(log: PresenceLog) -> None:
    new = NewChannel(name="Ops", kind=ChannelKind.WEBHOOK, url="https://example.com/hook")
    log.database.write_now(channel_commands.create_channel, new, by=SERVICE, now=log.now)


def switch_channel(log: PresenceLog, *, enabled: bool) -> None:
    """Switch the channel on or off, as an admin does."""
    new = NewChannel(name="Ops", kind=ChannelKind.WEBHOOK, enabled=enabled)
    log.database.write_now(channel_commands.replace_channel, 1, new, by=SERVICE, now=log.now)


def set_channel(log: PresenceLog, **values: Any) -> None:
    execute(log, update(channel).values(**values))


def give_up_message(log: PresenceLog, **values: Any) -> None:
    row = {
        "channel": 1,
        "kind": "opened",
        "state": "dead",
        "created_at": log.now,
        "due": log.now,
        "attempts": 5,
        "finished_at": log.now,
    }
    execute(log, insert(notification).values(**row | values))


def list_channels(log: PresenceLog, *states: str) -> list[tuple[str, str]]:
    """Return severity and sentence of alarms of channels."""
    found = list_alarms(log, *states)
    return [(severity, sentence) for rule, severity, sentence in found if rule == "channel-failing"]


def test_a_message_that_was_given_up_is_an_alarm_for_a_day(log: PresenceLog) -> None:
    add_channel(log)
    give_up_message(log)
    log.run(10 * MINUTE, step=5 * MINUTE)
    assert list_channels(log) == []
    set_channel(log, delivered_at=log.now)
    log.run(10 * MINUTE, step=5 * MINUTE)
    assert list_channels(log) == [("info", GIVEN_UP)]
    give_up_message(log)
    log.run(5 * MINUTE, step=5 * MINUTE)
    text = "2 messages to Ops could not be delivered and were given up."
    assert list_channels(log) == [("warning", text)]
    set_channel(log, delivered_at=log.now)
    log.run(23 * HOUR, step=HOUR)
    assert len(list_channels(log)) == 1
    log.run(2 * HOUR, step=HOUR)
    assert list_channels(log) == []
    text = "Messages to Ops that were given up are tried again, or are a day old."
    assert list_channels(log, "cleared") == [("warning", text)]


def test_messages_that_are_tried_again_are_no_alarm(log: PresenceLog) -> None:
    add_channel(log)
    give_up_message(log)
    log.run(20 * MINUTE, step=10 * MINUTE)
    assert list_channels(log) == [("warning", GIVEN_UP)]
    log.database.write_now(delivery_commands.retry_dead_deliveries, 1, by=SERVICE, now=log.now)
    log.run(MINUTE)
    assert list_channels(log) == []


def test_messages_of_a_channel_that_was_off_are_not_missed(log: PresenceLog) -> None:
    add_channel(log)
    give_up_message(log, problem="the channel was off")
    log.run(20 * MINUTE, step=10 * MINUTE)
    assert list_channels(log) == []


def test_a_failing_channel_counts_the_messages_that_were_given_up(log: PresenceLog) -> None:
    add_channel(log)
    set_channel(log, failing_since=log.now, problem="refused")
    log.run(20 * MINUTE, step=10 * MINUTE)
    give_up_message(log)
    log.run(20 * MINUTE, step=10 * MINUTE)
    assert list_channels(log) == [("warning", f"{FAILING} 1 message had to be given up.")]
    set_channel(log, failing_since=None, problem=None, delivered_at=log.now)
    log.run(MINUTE)
    assert list_channels(log) == [("info", GIVEN_UP)]


@pytest.mark.both_databases
def test_a_channel_that_its_receiver_switched_off_is_an_alarm(log: PresenceLog) -> None:
    add_channel(log)
    log.run(MINUTE)
    set_channel(log, enabled=False, problem="gone", tried_at=log.now)
    log.run(20 * MINUTE, step=10 * MINUTE)
    assert list_channels(log) == [("warning", SWITCHED_OFF)]
    switch_channel(log, enabled=True)
    log.run(MINUTE)
    assert list_channels(log) == []
    text = "Channel Ops was switched on again, or deleted, after 20 min."
    assert list_channels(log, "cleared") == [("warning", text)]


def test_a_channel_that_an_admin_switched_off_is_no_alarm(log: PresenceLog) -> None:
    add_channel(log)
    for failing_since in (None, log.now):  # a message was refused, or the channel fails
        set_channel(log, problem="HTTP 422", tried_at=log.now, failing_since=failing_since)
        switch_channel(log, enabled=False)
        log.run(20 * MINUTE, step=10 * MINUTE)
        assert list_channels(log) == []
        switch_channel(log, enabled=True)


def test_a_channel_that_was_switched_off_before_the_audit_log_begins(log: PresenceLog) -> None:
    values = {"kind": "email", "target": "{}", "created_at": 0, "failures": 1, "version": 1}
    off = {"enabled": False, "problem": "HTTP 503", "failing_since": log.now, "tried_at": log.now}
    execute(log, insert(channel).values(id=1, name="Ops", retry_at=log.now + 1000, **off | values))
    log.run(20 * MINUTE, step=10 * MINUTE)
    assert list_channels(log) == []
    set_channel(log, tried_at=log.now)  # 410 was the answer to the next attempt
    log.run(2 * DAY, step=DAY)
    assert list_channels(log) == [("warning", SWITCHED_OFF)]
