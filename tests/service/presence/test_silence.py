"""A device is connected while it is heard within three of its usual intervals."""

from __future__ import annotations

import pytest

from tests.service.ingest.messages import A, B, D, E, heartbeat, number, temperature
from tests.service.presence.scene import HOUR, MINUTE, NOON, SECOND, STEP, Pulse, Scene, brief
from tests.tables import each_row

LATE = 2 * STEP
"""Seconds within which silence is noticed."""


@pytest.mark.rule("rest-51")
def test_a_device_that_is_heard_comes_once() -> None:
    scene = Scene(A)
    (change,) = scene.see(heartbeat(NOON))
    assert change == (number(D), True, NOON, "heard", number(A))
    assert scene.go_on(600, Pulse(D)) == []
    assert scene.has(D)


@pytest.mark.rule("rest-51", "rest-52")
@each_row("minutes", [1, 2, 7, 20, 45])
def test_it_goes_after_three_intervals_and_not_before(minutes: int) -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(9 * minutes * 60, Pulse(D, minutes * 60))
    assert scene.interval(D) == minutes * MINUTE
    assert scene.go_on(3 * minutes * 60 - STEP) == []
    (change,) = scene.go_on(STEP + LATE)
    assert change[:2] == (number(D), False)
    assert (change.cause, change.gateway) == ("silent", number(A))
    assert change.at - scene.now >= -LATE * SECOND
    assert not scene.has(D)


@pytest.mark.rule("rest-51", "rest-52")
@each_row("minutes", [1, 19, 20])
def test_one_whose_rhythm_is_not_known_has_an_hour(minutes: int) -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(2 * minutes * 60, Pulse(D, minutes * 60))
    assert scene.go_on(3600 - STEP) == []
    assert brief(scene.go_on(STEP + LATE)) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_a_device_that_is_known_well_is_missed_after_its_own_time_not_that_of_a_stranger() -> None:
    """Its silence was to be looked for in an hour when it was first heard."""
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(180, Pulse(D))
    assert scene.go_on(180 - STEP) == []
    assert brief(scene.go_on(180 + LATE)) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_a_rhythm_that_becomes_quicker_makes_silence_noticed_sooner_and_slower_later() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(9 * 1200, Pulse(D, 1200))
    scene.go_on(600, Pulse(D))
    assert brief(scene.go_on(360 + LATE)) == [(D, False, "silent")]
    scene.see(heartbeat(scene.now))
    assert scene.go_on(9 * 600, Pulse(D, 150)) == []
    assert scene.interval(D) == 150 * SECOND
    assert scene.go_on(450 - STEP) == []


@pytest.mark.rule("rest-51")
def test_a_heartbeat_at_the_last_moment_keeps_it() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    for _ in range(20):
        assert scene.go_on(175) == []
        scene.take(temperature(scene.now))
    assert scene.has(D)


@pytest.mark.rule("rest-51")
def test_one_that_goes_silent_comes_back_when_it_is_heard_and_goes_again() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    for _ in range(3):
        assert brief(scene.go_on(200)) == [(D, False, "silent")]
        assert scene.go_on(300) == []
        assert brief(scene.see(temperature(scene.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51")
def test_each_device_is_missed_by_its_own_rhythm() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.go_on(4 * 1200, Pulse(D), Pulse(E, 1200))
    assert brief(scene.go_on(180 + LATE)) == [(D, False, "silent")]
    assert scene.go_on(3600 - 200) == []
    assert brief(scene.go_on(60)) == [(E, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_duplicates_and_late_heartbeats_make_nobody_hasty() -> None:
    """All come three times, and once more when the next is there already."""
    scene = Scene(A, B)
    for minute in range(30):
        scene.now = NOON + minute * 2 * MINUTE
        beat = heartbeat(scene.now)
        again = [heartbeat(scene.now - 2 * MINUTE)] if minute else []
        scene.take(beat, beat)
        scene.take(*again, heartbeat(scene.now + 3, gateway=B))
        scene.take(beat)
        scene.go_on(10)
    assert scene.interval(D) == pytest.approx(2 * MINUTE, abs=10)
    assert all(change.connected for change in scene.changes)


def test_a_heartbeat_beside_other_reports_is_not_lost() -> None:
    """They come in one batch, as gateways send them."""
    scene = Scene(A)
    for minute in range(9):
        scene.now = NOON + minute * MINUTE
        scene.see(heartbeat(scene.now), temperature(scene.now, seq=minute))
    assert scene.interval(D) == MINUTE


# --- When it is not they who were away ---


@pytest.mark.rule("rest-51", "rest-192")
@each_row(
    "pause",
    [
        pytest.param(31, id="31 s"),
        pytest.param(200, id="200 s"),
        pytest.param(7200, id="2 h"),
        pytest.param(365 * 86400, id="a year"),
    ],
)
def test_nobody_is_silent_because_we_slept_or_our_clock_went_forward(pause: int) -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.go_on(600, Pulse(D), Pulse(E))
    scene.now += pause * SECOND
    assert scene.look() == []
    assert scene.go_on(175, Pulse(D)) == []
    assert brief(scene.go_on(STEP + LATE, Pulse(D))) == [(E, False, "silent")]
    assert scene.has(D)


@pytest.mark.rule("rest-51")
@each_row(
    "back",
    [
        pytest.param(1, id="1 s"),
        pytest.param(200, id="200 s"),
        pytest.param(7200, id="2 h"),
        pytest.param(365 * 86400, id="a year"),
    ],
)
def test_a_clock_of_ours_that_was_set_back_makes_nobody_silent_nor_hides_who_is(back: int) -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.go_on(600, Pulse(D), Pulse(E))
    scene.now -= back * SECOND
    assert scene.look() == []
    assert scene.go_on(170, Pulse(D)) == []
    assert brief(scene.go_on(30, Pulse(D))) == [(E, False, "silent")]
    assert scene.go_on(600, Pulse(D)) == []


def test_a_short_pause_is_none() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    for _ in range(6):
        scene.now += 29 * SECOND
        assert scene.look() == []
    scene.now += 29 * SECOND
    assert brief(scene.look()) == [(D, False, "silent")]


@pytest.mark.rule("rest-192")
def test_a_gateway_that_lost_us_while_we_slept_has_a_minute_to_come_back() -> None:
    """Connections end while a machine sleeps. Who was silent before does not come with them."""
    scene = Scene(A)
    scene.see(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.go_on(600, Pulse(D), Pulse(E))
    assert brief(scene.go_on(300, Pulse(D))) == [(E, False, "silent")]
    scene.now += 8 * HOUR
    scene.disconnect(A)
    assert scene.look() == []
    assert scene.go_on(50) == []
    scene.connect(A)
    assert scene.look() == []
    assert (scene.has(D), scene.has(E)) == (True, False)
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-192")
def test_a_gateway_that_does_not_come_back_after_a_pause_of_ours_goes_with_its_devices() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.presence.miss_out(scene.now)
    scene.disconnect(A)
    for _ in range(11):
        assert scene.go_on(STEP) == []
        scene.call_roll()
    assert brief(scene.go_on(2 * STEP)) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-192")
def test_nobody_is_silent_while_no_reports_can_come_in() -> None:
    """As when another broker is away: flushes go on, and there is nothing to hear."""
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    for _ in range(120):
        scene.presence.miss_out(scene.now)
        assert scene.go_on(STEP) == []
    assert scene.go_on(180 - STEP) == []
    assert brief(scene.go_on(STEP + LATE)) == [(D, False, "silent")]
