"""What was connected before a start of ours is still, unless it stays silent or its gateway stays away."""

from __future__ import annotations

import pytest

from meshfleet.service.presence.store import PresenceSnapshot
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    HOUR,
    MINUTE,
    SECOND,
    STEP,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)

GRACE = 60
"""Seconds that gateways have."""


def started(*devices: tuple[str, str | None, int | None], by_hearing: bool = False) -> PresenceHarness:
    """A start after which both gateways and these devices are known, with their gateways and rhythms."""
    rows = [
        (mac_to_number(device), gateway and mac_to_number(gateway), rhythm)
        for device, gateway, rhythm in devices
    ]
    rows += [(mac_to_number(each), None, MINUTE) for each in (A, B)]
    snapshot = PresenceSnapshot({mac_to_number(A), mac_to_number(B)}, rows)  # type: ignore[arg-type] # None stays None
    return PresenceHarness(external_broker=by_hearing, snapshot=snapshot)


@pytest.mark.rule("rest-51")
def test_what_was_connected_is_still_and_nothing_is_told_anew() -> None:
    scene = started((D, A, None), (E, B, None))
    assert scene.collect_changes() == []
    assert all(map(scene.is_connected, (A, B, D, E)))
    scene.connect(A, B)
    assert scene.commit_and_collect(heartbeat(scene.now), heartbeat(scene.now, device=A)) == []
    assert scene.advance(3000) == []


@pytest.mark.rule("rest-51", "rest-192")
def test_silence_is_counted_from_the_start_in_remembered_rhythms() -> None:
    scene = started((D, A, 2 * MINUTE), (E, A, None))
    scene.connect(A, B)
    assert scene.advance(360 - STEP) == []
    assert summarize(scene.advance(3 * STEP)) == [(D, False, "silent")]
    assert scene.advance(3600 - 360 - 3 * STEP) == []
    assert summarize(scene.advance(3 * STEP)) == [(E, False, "silent")]


@pytest.mark.rule("rest-77", "rest-192")
def test_gateways_have_a_minute_to_come_back() -> None:
    scene = started((D, A, None), (E, B, None))
    scene.poll_gateways()
    assert scene.collect_changes() == []
    for _ in range(GRACE // STEP - 1):
        assert scene.advance(STEP) == []
        scene.poll_gateways()
    scene.connect(A)
    assert scene.collect_changes() == []
    scene.advance(STEP)
    scene.poll_gateways()
    scene.collect_changes()
    assert summarize(scene.changes) == [(B, False, "connection"), (E, False, "gateway")]
    assert scene.tracker.connected_gateway_count == 1


@pytest.mark.rule("rest-77")
def test_one_that_came_and_goes_again_within_that_minute_is_gone() -> None:
    scene = started((D, A, None))
    scene.connect(A)
    assert scene.advance(STEP) == []
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-77")
def test_nobody_has_less_than_that_minute_because_our_clock_was_set() -> None:
    """A machine without a battery learns the time only after its start."""
    scene = started((D, A, None))
    scene.poll_gateways()
    scene.collect_changes()
    scene.now += 1000 * HOUR
    scene.poll_gateways()
    assert scene.collect_changes() == []
    scene.connect(A, B)
    assert scene.advance(600) == []


def test_a_clock_that_goes_back_after_a_start_does_not_keep_gateways_for_ever() -> None:
    scene = started((D, A, None))
    scene.now -= 1000 * HOUR
    for _ in range(4 * GRACE // STEP):
        scene.poll_gateways()
        scene.advance(STEP)
    assert sorted(summarize(scene.changes)) == [
        (A, False, "connection"),
        (B, False, "connection"),
        (D, False, "gateway"),
    ]


@pytest.mark.rule("rest-51")
def test_a_device_that_moved_while_we_were_away_does_not_go_with_its_old_gateway() -> None:
    scene = started((D, A, None))
    scene.connect(B)
    scene.commit_and_collect(temperature(scene.now, gateway=B))
    scene.advance(GRACE)
    scene.poll_gateways()
    scene.collect_changes()
    assert summarize(scene.changes) == [(A, False, "connection")]


def test_a_device_of_which_no_gateway_is_known_is_watched_too() -> None:
    scene = started((D, None, MINUTE))
    scene.connect(A, B)
    assert summarize(scene.advance(190)) == [(D, False, "silent")]
    assert scene.changes[0].gateway == 0


@pytest.mark.rule("rest-78")
def test_on_another_broker_gateways_have_their_own_time_and_take_their_devices_along() -> None:
    scene = started((D, A, None), (E, B, None), by_hearing=True)
    assert scene.advance(180 - STEP, HeartbeatSource(B, gateway=B)) == []
    assert summarize(scene.advance(3 * STEP, HeartbeatSource(B, gateway=B))) == [
        (A, False, "silent"),
        (D, False, "gateway"),
    ]


@pytest.mark.rule("rest-78")
def test_on_another_broker_a_gateway_that_another_hears_does_not_stay_by_that() -> None:
    """Before the start it belonged to the other one, as devices do."""
    known = PresenceSnapshot(
        {mac_to_number(A), mac_to_number(B)},
        [(mac_to_number(A), mac_to_number(B), MINUTE), (mac_to_number(B), mac_to_number(B), MINUTE)],
    )
    scene = PresenceHarness(external_broker=True, snapshot=known)
    scene.advance(600, HeartbeatSource(A, gateway=B), HeartbeatSource(B, gateway=B))
    assert summarize(scene.changes) == [(A, False, "silent")]


def test_the_start_itself_may_take_long() -> None:
    scene = started((D, A, MINUTE))
    scene.now += 10 * MINUTE + SECOND
    assert scene.collect_changes() == []
    scene.connect(A, B)
    assert scene.advance(170) == []
