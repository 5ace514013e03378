"""Injected failures of updates."""

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

INJECTED_ERRORS = {Error.TRANSFER_LOST, Error.BAD_HASH, Error.ROLLED_BACK}
OLD = Version(3, 0, 0)


def _update(harness: UpdateHarness, size: int = 6000) -> ReportedUpdateState:
    """Update one device and return the final state."""
    harness.start(ONE)
    harness.deliver_image(image(MOTION, size))
    harness.advance_until(lambda: harness.state(ONE) in (State.DONE, State.FAILED))
    result = harness.update_states(ONE)[-1]
    harness.advance(20.0)  # for a possible restart
    return result


@pytest.mark.rule("gateway-38")
def test_each_kind_of_failure_occurs() -> None:
    harness = UpdateHarness(update_fail=1.0)
    results = [_update(harness) for _ in range(40)]
    assert {result.state for result in results} == {State.FAILED}
    assert {result.error for result in results} == INJECTED_ERRORS
    assert harness.version(ONE) == OLD


def test_an_injected_failure_occurs_with_a_short_image() -> None:
    harness = UpdateHarness(update_fail=1.0)
    assert {_update(harness, 100).state for _ in range(20)} == {State.FAILED}


def test_without_the_fault_no_update_fails() -> None:
    harness = UpdateHarness()
    assert {_update(harness).state for _ in range(20)} == {State.DONE}


@pytest.mark.rule("gateway-39")
def test_the_given_fraction_of_updates_fails() -> None:
    harness = UpdateHarness(update_fail=0.5)
    counts = Counter(_update(harness).state for _ in range(24))
    assert counts[State.DONE] > 3
    assert counts[State.FAILED] > 3


def test_failures_are_the_same_in_every_run() -> None:
    runs = []
    for _ in range(2):
        harness = UpdateHarness(update_fail=0.5)
        runs.append([_update(harness)[:3] for _ in range(10)])
    assert runs[0] == runs[1]


def test_each_error_occurs_in_its_own_state() -> None:
    harness = UpdateHarness(update_fail=1.0)
    for _ in range(15):
        before = len(harness.update_states(ONE))
        result = _update(harness)
        states = {each.state for each in harness.update_states(ONE)[before:]}
        assert (State.VERIFYING in states) == (result.error is not Error.TRANSFER_LOST)
        assert (State.APPLYING in states) == (result.error is Error.ROLLED_BACK)
        assert (result.percent == 100) == (result.error is not Error.TRANSFER_LOST)


def test_a_device_that_loses_power_restarts_with_its_old_version() -> None:
    harness = UpdateHarness(update_fail=1.0)
    harness.advance_until(lambda: _update(harness).error is Error.TRANSFER_LOST, within=50_000)
    assert harness.version(ONE) == OLD
    assert int.from_bytes(harness.read(ONE, "8101"), "big") < 60
    assert harness.read(ONE, "8102") == b"\0"


def test_a_device_that_rolls_back_restarts_with_its_old_version() -> None:
    harness = UpdateHarness(update_fail=1.0)
    harness.advance_until(lambda: _update(harness).error is Error.ROLLED_BACK, within=50_000)
    assert harness.version(ONE) == OLD
    assert int.from_bytes(harness.read(ONE, "8101"), "big") < 30
    assert harness.reports_of(ONE, "8001")[-1].content["value"] == "030000"


def test_a_broadcast_fails_if_all_its_updates_fail_and_stays_failed() -> None:
    harness = UpdateHarness(update_fail=1.0)
    for _ in range(8):
        before = len(harness.update_states(GATEWAY, "8125"))
        targets = bytes((0, 3)) + b"".join(map(bytes.fromhex, (ONE, TWO, THREE)))
        assert harness.write(GATEWAY, "8124", image_key_bytes() + targets) == 0
        harness.deliver_image()
        harness.advance(400)
        states = [each for each in harness.update_states(GATEWAY, "8125")[before:] if each.state]
        failed_states = [each for each in states if each.state is State.FAILED]
        assert states[-1].state is State.FAILED
        assert states[-1].error in INJECTED_ERRORS
        assert states[-1].counts == (0, 3)
        assert states[-len(failed_states) :] == failed_states, "no state follows the end"


def test_each_kind_of_failure_occurs_in_nordic_dfu() -> None:
    harness = UpdateHarness(update_fail=1.0)
    errors = set()
    for _ in range(15):
        if (
            harness.reports_of(TRACKER, "8110")[-1:] == []
            or harness.reports_of(TRACKER, "8110")[-1].content["value"] != "01"
        ):
            assert harness.write(TRACKER, "8110", b"\1") == 0
            harness.advance(1)
        raw = bytes.fromhex("c00000000040") + image_key_bytes(TRACKER_MODEL, Version(3, 2, 0))
        assert harness.write(GATEWAY, "8131", raw) == 0
        harness.deliver_image(image(TRACKER_MODEL))
        harness.advance_until(lambda: harness.state(GATEWAY, "8130") is State.FAILED)
        errors.add(harness.update_states(GATEWAY, "8130")[-1].error)
        harness.advance(30)
    assert errors == INJECTED_ERRORS
    harness.advance(900)
    assert harness.version(TRACKER) == Version(3, 1, 4)
