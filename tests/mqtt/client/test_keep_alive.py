"""Keep-alive without a clock: every beat is asked for by the test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.client.connection import CHECKS_PER_KEEP_ALIVE, KeepAliveAction, KeepAliveCheck


def _beats(pulse: KeepAliveCheck, happened: list[str]) -> list[KeepAliveAction]:
    """What each beat says: before it, "h" was heard and "s" was said."""
    beats = []
    for what in happened:
        pulse.has_received |= "h" in what
        pulse.has_sent |= "s" in what
        beats.append(pulse.next_action())
    return beats


def test_while_both_sides_talk_nobody_pings() -> None:
    assert _beats(KeepAliveCheck(), ["hs", "hs", "sh"]) == [KeepAliveAction.NOTHING] * 3


def test_a_quiet_connection_is_pinged_and_lives_on_answers() -> None:
    assert _beats(KeepAliveCheck(), ["", "sh", "", "sh"]) == [
        KeepAliveAction.PING,
        KeepAliveAction.NOTHING,
        KeepAliveAction.PING,
        KeepAliveAction.NOTHING,
    ]


def test_who_only_talks_asks_for_an_answer() -> None:
    assert _beats(KeepAliveCheck(), ["s", "s"]) == [KeepAliveAction.PING, KeepAliveAction.DISCONNECT]


def test_who_only_listens_says_something_and_never_takes_the_broker_for_dead() -> None:
    assert _beats(KeepAliveCheck(), ["h", "h", "h"]) == [KeepAliveAction.PING] * 3


def test_a_broker_that_does_not_answer_a_ping_is_dead_one_beat_later() -> None:
    assert _beats(KeepAliveCheck(), ["hs", "", "s"]) == [
        KeepAliveAction.NOTHING,
        KeepAliveAction.PING,
        KeepAliveAction.DISCONNECT,
    ]


@given(st.lists(st.sampled_from(["", "h", "s", "hs"]), max_size=20))
def test_less_than_a_keep_alive_interval_passes_without_a_word_of_ours(happened: list[str]) -> None:
    """A ping is a word. Between two words lie fewer beats than make an interval."""
    silent = 0
    for what, beat in zip(happened, _beats(KeepAliveCheck(), happened), strict=True):
        silent = 0 if "s" in what else silent + 1
        assert silent < CHECKS_PER_KEEP_ALIVE
        if beat is KeepAliveAction.DISCONNECT:
            break
        if beat is KeepAliveAction.PING:
            silent = 0
