"""A device is connected while it is heard within three of its usual intervals."""

from __future__ import annotations

import pytest

from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    STEP,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)

LATE = 2 * STEP
"""Seconds within which silence is noticed."""


@pytest.mark.rule("rest-51")
def test_a_device_that_is_heard_comes_once() -> None:
    scene = PresenceHarness(A)
    (change,) = scene.commit_and_collect(heartbeat(NOON))
    assert change == (mac_to_number(D), True, NOON, "heard", mac_to_number(A))
    assert scene.advance(600, HeartbeatSource(D)) == []
    assert scene.is_connected(D)


@pytest.mark.rule("rest-51", "rest-52")
@each_row("minutes", [1, 2, 7, 20, 45])
def test_it_goes_after_three_intervals_and_not_before(minutes: int) -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(9 * minutes * 60, HeartbeatSource(D, minutes * 60))
    assert scene.interval(D) == minutes * MINUTE
    assert scene.advance(3 * minutes * 60 - STEP) == []
    (change,) = scene.advance(STEP + LATE)
    assert change[:2] == (mac_to_number(D), False)
    assert (change.cause, change.gateway) == ("silent", mac_to_number(A))
    assert change.at - scene.now >= -LATE * SECOND
    assert not scene.is_connected(D)


@pytest.mark.rule("rest-51", "rest-52")
@each_row("minutes", [1, 19, 20])
def test_one_whose_rhythm_is_not_known_has_an_hour(minutes: int) -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(2 * minutes * 60, HeartbeatSource(D, minutes * 60))
    assert scene.advance(3600 - STEP) == []
    assert summarize(scene.advance(STEP + LATE)) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_a_device_that_is_known_well_is_missed_after_its_own_time_not_that_of_a_stranger() -> None:
    """Its silence was to be looked for in an hour when it was first heard."""
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(180, HeartbeatSource(D))
    assert scene.advance(180 - STEP) == []
    assert summarize(scene.advance(180 + LATE)) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_a_rhythm_that_becomes_quicker_makes_silence_noticed_sooner_and_slower_later() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(9 * 1200, HeartbeatSource(D, 1200))
    scene.advance(600, HeartbeatSource(D))
    assert summarize(scene.advance(360 + LATE)) == [(D, False, "silent")]
    scene.commit_and_collect(heartbeat(scene.now))
    assert scene.advance(9 * 600, HeartbeatSource(D, 150)) == []
    assert scene.interval(D) == 150 * SECOND
    assert scene.advance(450 - STEP) == []


@pytest.mark.rule("rest-51")
def test_a_heartbeat_at_the_last_moment_keeps_it() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    for _ in range(20):
        assert scene.advance(175) == []
        scene.commit(temperature(scene.now))
    assert scene.is_connected(D)


@pytest.mark.rule("rest-51")
def test_one_that_goes_silent_comes_back_when_it_is_heard_and_goes_again() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    for _ in range(3):
        assert summarize(scene.advance(200)) == [(D, False, "silent")]
        assert scene.advance(300) == []
        assert summarize(scene.commit_and_collect(temperature(scene.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51")
def test_each_device_is_missed_by_its_own_rhythm() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.advance(4 * 1200, HeartbeatSource(D), HeartbeatSource(E, 1200))
    assert summarize(scene.advance(180 + LATE)) == [(D, False, "silent")]
    assert scene.advance(3600 - 200) == []
    assert summarize(scene.advance(60)) == [(E, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_duplicates_and_late_heartbeats_make_nobody_hasty() -> None:
    """All come three times, and once more when the next is there already."""
    scene = PresenceHarness(A, B)
    for minute in range(30):
        scene.now = NOON + minute * 2 * MINUTE
        beat = heartbeat(scene.now)
        again = [heartbeat(scene.now - 2 * MINUTE)] if minute else []
        scene.commit(beat, beat)
        scene.commit(*again, heartbeat(scene.now + 3, gateway=B))
        scene.commit(beat)
        scene.advance(10)
    assert scene.interval(D) == pytest.approx(2 * MINUTE, abs=10)
    assert all(change.connected for change in scene.changes)


def test_a_heartbeat_beside_other_reports_is_not_lost() -> None:
    """They come in one batch, as gateways send them."""
    scene = PresenceHarness(A)
    for minute in range(9):
        scene.now = NOON + minute * MINUTE
        scene.commit_and_collect(heartbeat(scene.now), temperature(scene.now, seq=minute))
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
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    scene.now += pause * SECOND
    assert scene.collect_changes() == []
    assert scene.advance(175, HeartbeatSource(D)) == []
    assert summarize(scene.advance(STEP + LATE, HeartbeatSource(D))) == [(E, False, "silent")]
    assert scene.is_connected(D)


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
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    scene.now -= back * SECOND
    assert scene.collect_changes() == []
    assert scene.advance(170, HeartbeatSource(D)) == []
    assert summarize(scene.advance(30, HeartbeatSource(D))) == [(E, False, "silent")]
    assert scene.advance(600, HeartbeatSource(D)) == []


def test_a_short_pause_is_none() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    for _ in range(6):
        scene.now += 29 * SECOND
        assert scene.collect_changes() == []
    scene.now += 29 * SECOND
    assert summarize(scene.collect_changes()) == [(D, False, "silent")]


@pytest.mark.rule("rest-192")
def test_a_gateway_that_lost_us_while_we_slept_has_a_minute_to_come_back() -> None:
    """Connections end while a machine sleeps. Who was silent before does not come with them."""
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    assert summarize(scene.advance(300, HeartbeatSource(D))) == [(E, False, "silent")]
    scene.now += 8 * HOUR
    scene.disconnect(A)
    assert scene.collect_changes() == []
    assert scene.advance(50) == []
    scene.connect(A)
    assert scene.collect_changes() == []
    assert (scene.is_connected(D), scene.is_connected(E)) == (True, False)
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-192")
def test_a_gateway_that_does_not_come_back_after_a_pause_of_ours_goes_with_its_devices() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.tracker.pause_detection(scene.now)
    scene.disconnect(A)
    for _ in range(11):
        assert scene.advance(STEP) == []
        scene.poll_gateways()
    assert summarize(scene.advance(2 * STEP)) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-192")
def test_nobody_is_silent_while_no_reports_can_come_in() -> None:
    """As when another broker is away: flushes go on, and there is nothing to hear."""
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    for _ in range(120):
        scene.tracker.pause_detection(scene.now)
        assert scene.advance(STEP) == []
    assert scene.advance(180 - STEP) == []
    assert summarize(scene.advance(STEP + LATE)) == [(D, False, "silent")]
