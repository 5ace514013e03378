"""Updates that fail because somebody wants to see that."""

from __future__ import annotations

from collections import Counter

import pytest

from meshfleet.emulator.updates.update_state import Error, State
from meshfleet.protocol.ids import Version
from tests.emulator.updates.harness import (
    GATEWAY,
    MOTION,
    ONE,
    THREE,
    TRACKER,
    TRACKER_MODEL,
    TWO,
    ReportedUpdateState,
    UpdateHarness,
    image,
    image_key_bytes,
)

WAYS = {Error.TRANSFER_LOST, Error.BAD_HASH, Error.ROLLED_BACK}
OLD = Version(3, 0, 0)


def _update(house: UpdateHarness, size: int = 6000) -> ReportedUpdateState:
    """Update one device once, to whatever end."""
    house.start(ONE)
    house.deliver_image(image(MOTION, size))
    house.advance_until(lambda: house.state(ONE) in (State.DONE, State.FAILED))
    end = house.update_states(ONE)[-1]
    house.advance(20.0)  # it may have to restart
    return end


@pytest.mark.rule("gateway-38")
def test_with_all_updates_failing_each_way_of_failing_is_seen() -> None:
    house = UpdateHarness(update_fail=1.0)
    ends = [_update(house) for _ in range(40)]
    assert {end.state for end in ends} == {State.FAILED}
    assert {end.error for end in ends} == WAYS
    assert house.version(ONE) == OLD


def test_an_update_that_shall_fail_fails_however_short_its_image_is() -> None:
    house = UpdateHarness(update_fail=1.0)
    assert {_update(house, 100).state for _ in range(20)} == {State.FAILED}


def test_without_the_fault_no_update_fails() -> None:
    house = UpdateHarness()
    assert {_update(house).state for _ in range(20)} == {State.DONE}


@pytest.mark.rule("gateway-39")
def test_a_fraction_fails_and_the_rest_does_not() -> None:
    house = UpdateHarness(update_fail=0.5)
    counted = Counter(_update(house).state for _ in range(24))
    assert counted[State.DONE] > 3
    assert counted[State.FAILED] > 3


def test_the_same_run_fails_in_the_same_way() -> None:
    runs = []
    for _ in range(2):
        house = UpdateHarness(update_fail=0.5)
        runs.append([_update(house)[:3] for _ in range(10)])
    assert runs[0] == runs[1]


def test_each_error_comes_at_its_own_place() -> None:
    house = UpdateHarness(update_fail=1.0)
    for _ in range(15):
        before = len(house.update_states(ONE))
        end = _update(house)
        states = {each.state for each in house.update_states(ONE)[before:]}
        assert (State.VERIFYING in states) == (end.error is not Error.TRANSFER_LOST)
        assert (State.APPLYING in states) == (end.error is Error.ROLLED_BACK)
        assert (end.percent == 100) == (end.error is not Error.TRANSFER_LOST)


def test_a_device_that_loses_its_power_starts_anew_with_its_old_version() -> None:
    house = UpdateHarness(update_fail=1.0)
    house.advance_until(lambda: _update(house).error is Error.TRANSFER_LOST, within=50_000)
    assert house.version(ONE) == OLD
    assert int.from_bytes(house.read(ONE, "8101"), "big") < 60
    assert house.read(ONE, "8102") == b"\0"


def test_a_device_that_rolls_back_restarts_with_its_old_version() -> None:
    house = UpdateHarness(update_fail=1.0)
    house.advance_until(lambda: _update(house).error is Error.ROLLED_BACK, within=50_000)
    assert house.version(ONE) == OLD
    assert int.from_bytes(house.read(ONE, "8101"), "big") < 30
    assert house.reports_of(ONE, "8001")[-1].content["value"] == "030000"


def test_a_broadcast_fails_when_all_its_updates_do_and_stays_failed() -> None:
    house = UpdateHarness(update_fail=1.0)
    for _ in range(8):
        before = len(house.update_states(GATEWAY, "8125"))
        targets = bytes((0, 3)) + b"".join(map(bytes.fromhex, (ONE, TWO, THREE)))
        assert house.write(GATEWAY, "8124", image_key_bytes() + targets) == 0
        house.deliver_image()
        house.advance(400)
        told = [each for each in house.update_states(GATEWAY, "8125")[before:] if each.state]
        ends = [each for each in told if each.state is State.FAILED]
        assert told[-1].state is State.FAILED
        assert told[-1].error in WAYS
        assert told[-1].counts == (0, 3)
        assert told[-len(ends) :] == ends, "nothing comes behind the end"


def test_nordic_dfu_fails_in_each_way_too() -> None:
    house = UpdateHarness(update_fail=1.0)
    errors = set()
    for _ in range(15):
        if (
            house.reports_of(TRACKER, "8110")[-1:] == []
            or house.reports_of(TRACKER, "8110")[-1].content["value"] != "01"
        ):
            assert house.write(TRACKER, "8110", b"\1") == 0
            house.advance(1)
        raw = bytes.fromhex("c00000000040") + image_key_bytes(TRACKER_MODEL, Version(3, 2, 0))
        assert house.write(GATEWAY, "8131", raw) == 0
        house.deliver_image(image(TRACKER_MODEL))
        house.advance_until(lambda: house.state(GATEWAY, "8130") is State.FAILED)
        errors.add(house.update_states(GATEWAY, "8130")[-1].error)
        house.advance(30)
    assert errors == WAYS
    house.advance(900)
    assert house.version(TRACKER) == Version(3, 1, 4)
