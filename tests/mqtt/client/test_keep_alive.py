"""Keep alive without a clock: the tests call every check."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.client.connection import CHECKS_PER_KEEP_ALIVE, KeepAliveAction, KeepAliveCheck


def _actions(keep_alive: KeepAliveCheck, events: list[str]) -> list[KeepAliveAction]:
    """Return the action of each check; before it, "r" stands for received and "s" for sent bytes."""
    actions = []
    for event in events:
        keep_alive.has_received |= "r" in event
        keep_alive.has_sent |= "s" in event
        actions.append(keep_alive.next_action())
    return actions


def test_no_ping_is_sent_while_both_sides_send() -> None:
    assert _actions(KeepAliveCheck(), ["rs", "rs", "sr"]) == [KeepAliveAction.NOTHING] * 3


def test_an_idle_connection_is_pinged_and_stays_open_with_responses() -> None:
    assert _actions(KeepAliveCheck(), ["", "sr", "", "sr"]) == [
        KeepAliveAction.PING,
        KeepAliveAction.NOTHING,
        KeepAliveAction.PING,
        KeepAliveAction.NOTHING,
    ]


def test_a_client_that_only_sends_pings_and_then_disconnects() -> None:
    assert _actions(KeepAliveCheck(), ["s", "s"]) == [KeepAliveAction.PING, KeepAliveAction.DISCONNECT]


def test_a_client_that_only_receives_pings_and_never_disconnects() -> None:
    assert _actions(KeepAliveCheck(), ["r", "r", "r"]) == [KeepAliveAction.PING] * 3


def test_the_check_after_an_unanswered_ping_disconnects() -> None:
    assert _actions(KeepAliveCheck(), ["rs", "", "s"]) == [
        KeepAliveAction.NOTHING,
        KeepAliveAction.PING,
        KeepAliveAction.DISCONNECT,
    ]


@given(st.lists(st.sampled_from(["", "r", "s", "rs"]), max_size=20))
def test_something_is_sent_within_every_keep_alive_interval(events: list[str]) -> None:
    """Count the checks without sent bytes; a ping counts as sent."""
    silent = 0
    for event, action in zip(events, _actions(KeepAliveCheck(), events), strict=True):
        silent = 0 if "s" in event else silent + 1
        assert silent < CHECKS_PER_KEEP_ALIVE
        if action is KeepAliveAction.DISCONNECT:
            break
        if action is KeepAliveAction.PING:
            silent = 0
