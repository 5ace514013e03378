"""What was connected before a start of ours is still, unless it stays silent or its gateway stays away."""

from __future__ import annotations

import pytest

from meshfleet.service.presence.store import Known
from tests.service.ingest.messages import A, B, D, E, heartbeat, number, temperature
from tests.service.presence.scene import HOUR, MINUTE, SECOND, STEP, Pulse, Scene, brief

GRACE = 60
"""Seconds that gateways have."""


def started(*devices: tuple[str, str | None, int | None], by_hearing: bool = False) -> Scene:
    """A start after which both gateways and these devices are known, with their gateways and rhythms."""
    rows = [(number(device), gateway and number(gateway), rhythm) for device, gateway, rhythm in devices]
    rows += [(number(each), None, MINUTE) for each in (A, B)]
    return Scene(by_hearing=by_hearing, known=Known({number(A), number(B)}, rows))  # type: ignore[arg-type] # None stays None


@pytest.mark.rule("rest-51")
def test_what_was_connected_is_still_and_nothing_is_told_anew() -> None:
    scene = started((D, A, None), (E, B, None))
    assert scene.look() == []
    assert all(map(scene.has, (A, B, D, E)))
    scene.connect(A, B)
    assert scene.see(heartbeat(scene.now), heartbeat(scene.now, device=A)) == []
    assert scene.go_on(3000) == []


@pytest.mark.rule("rest-51", "rest-192")
def test_silence_is_counted_from_the_start_in_remembered_rhythms() -> None:
    scene = started((D, A, 2 * MINUTE), (E, A, None))
    scene.connect(A, B)
    assert scene.go_on(360 - STEP) == []
    assert brief(scene.go_on(3 * STEP)) == [(D, False, "silent")]
    assert scene.go_on(3600 - 360 - 3 * STEP) == []
    assert brief(scene.go_on(3 * STEP)) == [(E, False, "silent")]


@pytest.mark.rule("rest-77", "rest-192")
def test_gateways_have_a_minute_to_come_back() -> None:
    scene = started((D, A, None), (E, B, None))
    scene.call_roll()
    assert scene.look() == []
    for _ in range(GRACE // STEP - 1):
        assert scene.go_on(STEP) == []
        scene.call_roll()
    scene.connect(A)
    assert scene.look() == []
    scene.go_on(STEP)
    scene.call_roll()
    scene.look()
    assert brief(scene.changes) == [(B, False, "connection"), (E, False, "gateway")]
    assert scene.presence.gateways_connected == 1


@pytest.mark.rule("rest-77")
def test_one_that_came_and_goes_again_within_that_minute_is_gone() -> None:
    scene = started((D, A, None))
    scene.connect(A)
    assert scene.go_on(STEP) == []
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-77")
def test_nobody_has_less_than_that_minute_because_our_clock_was_set() -> None:
    """A machine without a battery learns the time only after its start."""
    scene = started((D, A, None))
    scene.call_roll()
    scene.look()
    scene.now += 1000 * HOUR
    scene.call_roll()
    assert scene.look() == []
    scene.connect(A, B)
    assert scene.go_on(600) == []


def test_a_clock_that_goes_back_after_a_start_does_not_keep_gateways_for_ever() -> None:
    scene = started((D, A, None))
    scene.now -= 1000 * HOUR
    for _ in range(4 * GRACE // STEP):
        scene.call_roll()
        scene.go_on(STEP)
    assert sorted(brief(scene.changes)) == [
        (A, False, "connection"),
        (B, False, "connection"),
        (D, False, "gateway"),
    ]


@pytest.mark.rule("rest-51")
def test_a_device_that_moved_while_we_were_away_does_not_go_with_its_old_gateway() -> None:
    scene = started((D, A, None))
    scene.connect(B)
    scene.see(temperature(scene.now, gateway=B))
    scene.go_on(GRACE)
    scene.call_roll()
    scene.look()
    assert brief(scene.changes) == [(A, False, "connection")]


def test_a_device_of_which_no_gateway_is_known_is_watched_too() -> None:
    scene = started((D, None, MINUTE))
    scene.connect(A, B)
    assert brief(scene.go_on(190)) == [(D, False, "silent")]
    assert scene.changes[0].gateway == 0


@pytest.mark.rule("rest-78")
def test_on_another_broker_gateways_have_their_own_time_and_take_their_devices_along() -> None:
    scene = started((D, A, None), (E, B, None), by_hearing=True)
    assert scene.go_on(180 - STEP, Pulse(B, gateway=B)) == []
    assert brief(scene.go_on(3 * STEP, Pulse(B, gateway=B))) == [(A, False, "silent"), (D, False, "gateway")]


@pytest.mark.rule("rest-78")
def test_on_another_broker_a_gateway_that_another_hears_does_not_stay_by_that() -> None:
    """Before the start it belonged to the other one, as devices do."""
    known = Known({number(A), number(B)}, [(number(A), number(B), MINUTE), (number(B), number(B), MINUTE)])
    scene = Scene(by_hearing=True, known=known)
    scene.go_on(600, Pulse(A, gateway=B), Pulse(B, gateway=B))
    assert brief(scene.changes) == [(A, False, "silent")]


def test_the_start_itself_may_take_long() -> None:
    scene = started((D, A, MINUTE))
    scene.now += 10 * MINUTE + SECOND
    assert scene.look() == []
    scene.connect(A, B)
    assert scene.go_on(170) == []
