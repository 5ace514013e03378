"""Keep-alive without a clock: every beat is asked for by the test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.link.pulse import BEATS, Beat, Pulse


def _beats(pulse: Pulse, happened: list[str]) -> list[Beat]:
    """What each beat says: before it, "h" was heard and "s" was said."""
    beats = []
    for what in happened:
        pulse.heard |= "h" in what
        pulse.spoken |= "s" in what
        beats.append(pulse.beat())
    return beats


def test_while_both_sides_talk_nobody_pings() -> None:
    assert _beats(Pulse(), ["hs", "hs", "sh"]) == [Beat.FINE] * 3


def test_a_quiet_connection_is_pinged_and_lives_on_answers() -> None:
    assert _beats(Pulse(), ["", "sh", "", "sh"]) == [Beat.PING, Beat.FINE, Beat.PING, Beat.FINE]


def test_who_only_talks_asks_for_an_answer() -> None:
    assert _beats(Pulse(), ["s", "s"]) == [Beat.PING, Beat.DEAD]


def test_who_only_listens_says_something_and_never_takes_the_broker_for_dead() -> None:
    assert _beats(Pulse(), ["h", "h", "h"]) == [Beat.PING] * 3


def test_a_broker_that_does_not_answer_a_ping_is_dead_one_beat_later() -> None:
    assert _beats(Pulse(), ["hs", "", "s"]) == [Beat.FINE, Beat.PING, Beat.DEAD]


@given(st.lists(st.sampled_from(["", "h", "s", "hs"]), max_size=20))
def test_less_than_a_keep_alive_interval_passes_without_a_word_of_ours(happened: list[str]) -> None:
    """A ping is a word. Between two words lie fewer beats than make an interval."""
    silent = 0
    for what, beat in zip(happened, _beats(Pulse(), happened), strict=True):
        silent = 0 if "s" in what else silent + 1
        assert silent < BEATS
        if beat is Beat.DEAD:
            break
        if beat is Beat.PING:
            silent = 0
