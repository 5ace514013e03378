"""A device is connected while its reports arrive within three of its usual intervals."""

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

DETECTION_SECONDS = 2 * STEP
"""Seconds within which silence is detected."""


@pytest.mark.rule("rest-51")
def test_a_device_connects_once_with_its_first_report() -> None:
    harness = PresenceHarness(A)
    (change,) = harness.commit_and_collect(heartbeat(NOON))
    assert change == (mac_to_number(D), True, NOON, "heard", mac_to_number(A))
    assert harness.advance(600, HeartbeatSource(D)) == []
    assert harness.is_connected(D)


@pytest.mark.rule("rest-51", "rest-52")
@each_row("minutes", [1, 2, 7, 20, 45])
def test_a_device_disconnects_after_three_intervals_and_not_before(minutes: int) -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(9 * minutes * 60, HeartbeatSource(D, minutes * 60))
    assert harness.interval(D) == minutes * MINUTE
    assert harness.advance(3 * minutes * 60 - STEP) == []
    (change,) = harness.advance(STEP + DETECTION_SECONDS)
    assert change[:2] == (mac_to_number(D), False)
    assert (change.cause, change.gateway) == ("silent", mac_to_number(A))
    assert change.at - harness.now >= -DETECTION_SECONDS * SECOND
    assert not harness.is_connected(D)


@pytest.mark.rule("rest-51", "rest-52")
@each_row("minutes", [1, 19, 20])
def test_a_device_with_an_unknown_interval_disconnects_after_an_hour(minutes: int) -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(2 * minutes * 60, HeartbeatSource(D, minutes * 60))
    assert harness.advance(3600 - STEP) == []
    assert summarize(harness.advance(STEP + DETECTION_SECONDS)) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_a_learned_interval_shortens_the_timeout() -> None:
    """Learn the interval after the first check was scheduled in an hour."""
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(180, HeartbeatSource(D))
    assert harness.advance(180 - STEP) == []
    assert summarize(harness.advance(180 + DETECTION_SECONDS)) == [(D, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_a_changed_interval_changes_the_timeout() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(9 * 1200, HeartbeatSource(D, 1200))
    harness.advance(600, HeartbeatSource(D))
    assert summarize(harness.advance(360 + DETECTION_SECONDS)) == [(D, False, "silent")]
    harness.commit_and_collect(heartbeat(harness.now))
    assert harness.advance(9 * 600, HeartbeatSource(D, 150)) == []
    assert harness.interval(D) == 150 * SECOND
    assert harness.advance(450 - STEP) == []


@pytest.mark.rule("rest-51")
def test_a_report_just_before_the_timeout_keeps_a_device_connected() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    for _ in range(20):
        assert harness.advance(175) == []
        harness.commit(temperature(harness.now))
    assert harness.is_connected(D)


@pytest.mark.rule("rest-51")
def test_a_silent_device_reconnects_with_a_report_and_disconnects_again() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    for _ in range(3):
        assert summarize(harness.advance(200)) == [(D, False, "silent")]
        assert harness.advance(300) == []
        assert summarize(harness.commit_and_collect(temperature(harness.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51")
def test_each_device_has_its_own_timeout() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    harness.advance(4 * 1200, HeartbeatSource(D), HeartbeatSource(E, 1200))
    assert summarize(harness.advance(180 + DETECTION_SECONDS)) == [(D, False, "silent")]
    assert harness.advance(3600 - 200) == []
    assert summarize(harness.advance(60)) == [(E, False, "silent")]


@pytest.mark.rule("rest-51", "rest-52")
def test_duplicate_and_late_heartbeats_do_not_shorten_the_interval() -> None:
    """Send each heartbeat three times, and once more after the next one."""
    harness = PresenceHarness(A, B)
    for minute in range(30):
        harness.now = NOON + minute * 2 * MINUTE
        message = heartbeat(harness.now)
        late = [heartbeat(harness.now - 2 * MINUTE)] if minute else []
        harness.commit(message, message)
        harness.commit(*late, heartbeat(harness.now + 3, gateway=B))
        harness.commit(message)
        harness.advance(10)
    assert harness.interval(D) == pytest.approx(2 * MINUTE, abs=10)
    assert all(change.connected for change in harness.changes)


def test_a_heartbeat_in_a_batch_with_other_reports_counts() -> None:
    """Commit both in one batch, as gateways send them."""
    harness = PresenceHarness(A)
    for minute in range(9):
        harness.now = NOON + minute * MINUTE
        harness.commit_and_collect(heartbeat(harness.now), temperature(harness.now, seq=minute))
    assert harness.interval(D) == MINUTE


# --- Interruptions of the service ---


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
def test_a_suspension_or_a_clock_set_ahead_disconnects_no_device(pause: int) -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    harness.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    harness.now += pause * SECOND
    assert harness.collect_changes() == []
    assert harness.advance(175, HeartbeatSource(D)) == []
    assert summarize(harness.advance(STEP + DETECTION_SECONDS, HeartbeatSource(D))) == [(E, False, "silent")]
    assert harness.is_connected(D)


@pytest.mark.rule("rest-51")
@each_row(
    "seconds_back",
    [
        pytest.param(1, id="1 s"),
        pytest.param(200, id="200 s"),
        pytest.param(7200, id="2 h"),
        pytest.param(365 * 86400, id="a year"),
    ],
)
def test_a_clock_set_back_disconnects_no_device_and_hides_no_silent_one(seconds_back: int) -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    harness.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    harness.now -= seconds_back * SECOND
    assert harness.collect_changes() == []
    assert harness.advance(170, HeartbeatSource(D)) == []
    assert summarize(harness.advance(30, HeartbeatSource(D))) == [(E, False, "silent")]
    assert harness.advance(600, HeartbeatSource(D)) == []


def test_a_short_pause_does_not_restart_the_timeouts() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    for _ in range(6):
        harness.now += 29 * SECOND
        assert harness.collect_changes() == []
    harness.now += 29 * SECOND
    assert summarize(harness.collect_changes()) == [(D, False, "silent")]


@pytest.mark.rule("rest-192")
def test_gateways_have_a_minute_to_reconnect_after_a_suspension() -> None:
    """Reconnect a gateway after a suspension. Devices that were silent before do not reconnect with it."""
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    harness.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    assert summarize(harness.advance(300, HeartbeatSource(D))) == [(E, False, "silent")]
    harness.now += 8 * HOUR
    harness.disconnect(A)
    assert harness.collect_changes() == []
    assert harness.advance(50) == []
    harness.connect(A)
    assert harness.collect_changes() == []
    assert (harness.is_connected(D), harness.is_connected(E)) == (True, False)
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-192")
def test_a_gateway_that_does_not_reconnect_after_a_pause_disconnects_with_its_devices() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.tracker.pause_detection(harness.now)
    harness.disconnect(A)
    for _ in range(11):
        assert harness.advance(STEP) == []
        harness.poll_gateways()
    assert summarize(harness.advance(2 * STEP)) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-192")
def test_no_device_is_silent_while_reports_cannot_be_received() -> None:
    """Flush without reports, as when an external broker is unavailable."""
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    for _ in range(120):
        harness.tracker.pause_detection(harness.now)
        assert harness.advance(STEP) == []
    assert harness.advance(180 - STEP) == []
    assert summarize(harness.advance(STEP + DETECTION_SECONDS)) == [(D, False, "silent")]
