"""Updates of many devices by broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator.updates.update_state import Error, ImageKey, State
from meshfleet.protocol.codes import Status
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.emulator.updates.harness import (
    BUTTON,
    BUTTON_MODEL,
    EMPTY,
    GATEWAY,
    GATEWAY_MODEL,
    MOTION,
    NEWER,
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

if TYPE_CHECKING:
    from meshfleet.protocol.firmware_image import ImageInfo

APPLY, ABORT = b"\1", b"\0"
ALL_SENSORS = (ONE, TWO, THREE, EMPTY)
UNKNOWN = Mac("c0ffee000000")


@pytest.fixture
def harness() -> UpdateHarness:
    return UpdateHarness()


def _start(harness: UpdateHarness, *targets: Mac, model: ModelNumber = MOTION, stage: bool = False) -> int:
    macs = bytes((stage, len(targets))) + b"".join(map(bytes.fromhex, targets))
    return harness.write(GATEWAY, "8124", image_key_bytes(model) + macs)


def _list_states(harness: UpdateHarness) -> list[ReportedUpdateState]:
    return [each for each in harness.update_states(GATEWAY, "8125") if each.state]


def _wait_for_end(harness: UpdateHarness) -> ReportedUpdateState:
    harness.advance_until(lambda: _list_states(harness)[-1].state in (State.DONE, State.FAILED))
    return _list_states(harness)[-1]


@pytest.mark.rule("firmware-9", "firmware-24")
def test_without_targets_all_devices_of_the_model_are_updated(harness: UpdateHarness) -> None:
    assert harness.read(GATEWAY, "8125") == bytes(13)
    assert _start(harness) == 0
    harness.deliver_image()
    end = _wait_for_end(harness)
    assert end[:3] == (State.DONE, 100, Error.NONE)
    assert end.image == ImageKey(MOTION, NEWER)
    assert end.counts == (3, 4)  # one has a low battery
    for device in (ONE, TWO, THREE):
        assert harness.state(device) is State.DONE
        assert harness.version(device) == NEWER
    assert harness.update_states(EMPTY)[-1][:3:2] == (State.FAILED, Error.BATTERY)
    assert len(harness.all_image_requests) == 1


@pytest.mark.rule("firmware-24")
def test_a_broadcast_reports_every_state_in_order(harness: UpdateHarness) -> None:
    _start(harness)
    harness.deliver_image()
    _wait_for_end(harness)
    harness.advance(120)
    states = _list_states(harness)
    expected = [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.APPLYING, State.DONE]
    assert list(dict.fromkeys(each.state for each in states)) == expected
    assert states == sorted(states, key=lambda each: (each.state, each.percent, each.counts[0]))
    assert {each.counts[1] for each in states} == {4}


def test_only_the_given_targets_are_updated(harness: UpdateHarness) -> None:
    assert _start(harness, ONE, THREE) == 0
    harness.deliver_image()
    assert _wait_for_end(harness).counts == (2, 2)
    assert harness.version(TWO) == Version(3, 0, 0)
    assert harness.update_states(TWO) == [] or harness.state(TWO) is State.IDLE


def test_targets_that_cannot_be_updated_are_left_out(harness: UpdateHarness) -> None:
    assert _start(harness, UNKNOWN, BUTTON, GATEWAY, ONE, ONE) == 0
    harness.deliver_image()
    assert _wait_for_end(harness).counts == (1, 1)


@pytest.mark.parametrize("targets", [(UNKNOWN,), (BUTTON,), (GATEWAY,), (UNKNOWN, BUTTON)])
def test_a_broadcast_without_any_valid_target_is_rejected(
    harness: UpdateHarness, targets: tuple[Mac, ...]
) -> None:
    assert _start(harness, *targets) == Status.INVALID_VALUE
    assert harness.all_image_requests == []
    assert harness.read(GATEWAY, "8125") == bytes(13)


@pytest.mark.parametrize("model", [BUTTON_MODEL, GATEWAY_MODEL, ModelNumber("FFFF")])
def test_a_model_without_connected_devices_is_rejected(harness: UpdateHarness, model: ModelNumber) -> None:
    assert _start(harness, model=model) == Status.INVALID_VALUE


def test_a_target_of_another_model_fails_while_the_others_continue(harness: UpdateHarness) -> None:
    assert _start(harness, ONE, TRACKER) == 0
    harness.deliver_image()
    assert _wait_for_end(harness)[:3] == (State.DONE, 100, Error.NONE)
    assert _list_states(harness)[-1].counts == (1, 2)
    assert harness.update_states(TRACKER)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)


def test_a_broadcast_fails_if_all_devices_fail(harness: UpdateHarness) -> None:
    _start(harness, TRACKER)
    harness.deliver_image()
    assert _wait_for_end(harness)[:3:2] == (State.FAILED, Error.WRONG_MODEL)
    assert _list_states(harness)[-1].counts == (0, 1)


@pytest.mark.parametrize("image_or_error", [Error.NO_IMAGE, Error.BAD_HASH, image(TRACKER_MODEL)])
def test_a_broadcast_without_its_image_fails_for_all(
    harness: UpdateHarness, image_or_error: Error | ImageInfo
) -> None:
    expected_error = image_or_error if isinstance(image_or_error, Error) else Error.WRONG_MODEL
    _start(harness, ONE, THREE)
    harness.deliver_image(image_or_error)
    assert _wait_for_end(harness)[:3:2] == (State.FAILED, expected_error)
    for device in (ONE, THREE):
        assert harness.update_states(device)[-1][:3:2] == (State.FAILED, expected_error)


@pytest.mark.rule("firmware-25")
def test_a_second_broadcast_is_rejected_until_the_first_has_ended(harness: UpdateHarness) -> None:
    _start(harness, ONE, stage=True)
    assert _start(harness, THREE) == Status.BUSY
    harness.deliver_image()
    for state in (State.TRANSFERRING, State.VERIFYING, State.STAGED):
        harness.wait_for_state(state, GATEWAY, "8125")
        assert _start(harness, THREE) == Status.BUSY
    harness.write(GATEWAY, "8126", ABORT)
    assert _start(harness, THREE) == 0


def test_a_device_that_is_being_updated_is_left_out(harness: UpdateHarness) -> None:
    harness.start(ONE, version=Version(3, 2, 0), stage=True)
    assert _start(harness, ONE) == Status.BUSY
    assert _start(harness, ONE, TWO) == 0
    assert _list_states(harness)[-1].counts == (0, 1)


def test_a_download_to_a_device_of_a_broadcast_is_rejected(harness: UpdateHarness) -> None:
    _start(harness)
    assert harness.start(ONE, version=Version(3, 2, 0)) == Status.BUSY


def test_devices_work_as_usual_during_a_broadcast(harness: UpdateHarness) -> None:
    _start(harness, ONE)
    harness.deliver_image(image(MOTION, 60_000))
    harness.advance(125)
    assert harness.state(GATEWAY, "8125") is State.TRANSFERRING
    assert len(harness.reports_of(ONE, "heartbeat")) >= 2
    assert harness.version(ONE) == Version(3, 0, 0)


# Staged


@pytest.mark.rule("firmware-24")
def test_a_staged_broadcast_is_applied_on_command(harness: UpdateHarness) -> None:
    _start(harness, ONE, TWO, THREE, stage=True)
    harness.deliver_image()
    harness.wait_for_state(State.STAGED, GATEWAY, "8125")
    harness.advance(600)
    assert {harness.state(device) for device in (ONE, TWO, THREE)} == {State.STAGED}
    assert harness.write(GATEWAY, "8126", APPLY) == 0
    assert _wait_for_end(harness)[:3] == (State.DONE, 100, Error.NONE)
    assert _list_states(harness)[-1].counts == (3, 3)
    assert harness.version(TWO) == NEWER


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.STAGED])
def test_a_broadcast_can_be_aborted_until_it_applies(harness: UpdateHarness, state: State) -> None:
    _start(harness, ONE, THREE, stage=True)
    if state is not State.FETCHING:
        harness.deliver_image()
    harness.wait_for_state(state, GATEWAY, "8125")
    assert harness.write(GATEWAY, "8126", ABORT) == 0
    if harness.image_requests:
        harness.deliver_image()
    harness.advance(300)
    assert _list_states(harness)[-1][:3:2] == (State.FAILED, Error.ABORTED)
    for device in (ONE, THREE):
        assert harness.update_states(device)[-1][:3:2] == (State.FAILED, Error.ABORTED)
        assert harness.version(device) == Version(3, 0, 0)


def test_an_image_for_another_model_does_not_change_the_error_of_an_aborted_broadcast(
    harness: UpdateHarness,
) -> None:
    _start(harness, ONE)
    harness.write(GATEWAY, "8126", ABORT)
    harness.deliver_image(image(TRACKER_MODEL))
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120"))[:3:2] == (State.FAILED, Error.ABORTED)


def test_a_broadcast_that_is_applying_cannot_be_aborted_or_applied(harness: UpdateHarness) -> None:
    _start(harness, ONE)
    harness.deliver_image()
    harness.wait_for_state(State.APPLYING, GATEWAY, "8125")
    assert harness.write(GATEWAY, "8126", ABORT) == Status.BUSY
    assert harness.write(GATEWAY, "8126", APPLY) == Status.BUSY
    assert _wait_for_end(harness).state is State.DONE


@pytest.mark.parametrize("action", [APPLY, ABORT])
def test_control_fails_without_a_broadcast(harness: UpdateHarness, action: bytes) -> None:
    assert harness.write(GATEWAY, "8126", action) == Status.FAILED


def test_a_broadcast_that_is_not_staged_cannot_be_applied(harness: UpdateHarness) -> None:
    _start(harness, stage=True)
    assert harness.write(GATEWAY, "8126", APPLY) == Status.BUSY
    harness.deliver_image()
    harness.wait_for_state(State.TRANSFERRING, GATEWAY, "8125")
    assert harness.write(GATEWAY, "8126", APPLY) == Status.BUSY


def test_one_device_of_a_broadcast_can_be_aborted_by_itself(harness: UpdateHarness) -> None:
    _start(harness, ONE, TWO)
    harness.deliver_image()
    assert harness.write(ONE, "8122", ABORT) == 0
    assert _wait_for_end(harness).counts == (1, 2)
    assert harness.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.ABORTED)


# Restarts


def test_a_device_that_restarts_fails_while_the_others_continue(harness: UpdateHarness) -> None:
    _start(harness, ONE, TWO)
    harness.deliver_image(image(MOTION, 20_000))
    harness.wait_for_state(State.TRANSFERRING, GATEWAY, "8125")
    harness.write(ONE, "8300", b"")
    assert _wait_for_end(harness)[:3] == (State.DONE, 100, Error.NONE)
    assert _list_states(harness)[-1].counts == (1, 2)
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )


def test_a_broadcast_whose_devices_all_failed_stays_failed(harness: UpdateHarness) -> None:
    _start(harness, ONE)
    harness.deliver_image(image(MOTION, 20_000))
    harness.wait_for_state(State.TRANSFERRING, GATEWAY, "8125")
    harness.write(ONE, "8300", b"")
    harness.wait_for_state(State.FAILED, GATEWAY, "8125")
    state_count = len(_list_states(harness))
    assert _start(harness, THREE) == 0
    harness.write(GATEWAY, "8126", ABORT)
    harness.advance(300)
    later_states = {each[:3:2] for each in _list_states(harness)[state_count:]}
    assert later_states <= {(State.FETCHING, Error.NONE), (State.FAILED, Error.ABORTED)}


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING])
def test_a_restart_of_the_gateway_ends_a_broadcast(harness: UpdateHarness, state: State) -> None:
    _start(harness, ONE, TWO)
    if state is not State.FETCHING:
        harness.deliver_image()
    harness.wait_for_state(state, GATEWAY, "8125")
    harness.write(GATEWAY, "8300", b"")
    harness.advance(300)
    value = ReportedUpdateState.from_bytes(harness.read(GATEWAY, "8125"))
    assert value[:3:2] == (State.FAILED, Error.TRANSFER_LOST)
    assert value.counts == (0, 2)
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )
    assert _start(harness, ONE) == 0
    harness.deliver_image()
    assert _wait_for_end(harness).state is State.DONE


def test_a_staged_broadcast_survives_a_restart_of_the_gateway(harness: UpdateHarness) -> None:
    _start(harness, ONE, stage=True)
    harness.deliver_image()
    harness.wait_for_state(State.STAGED, GATEWAY, "8125")
    harness.write(GATEWAY, "8300", b"")
    harness.advance(60)
    assert harness.write(GATEWAY, "8126", APPLY) == 0
    harness.advance(60)
    assert ReportedUpdateState.from_bytes(harness.read(GATEWAY, "8125")).state is State.DONE


def test_a_device_that_restarts_when_its_broadcast_is_applied_still_ends(
    harness: UpdateHarness,
) -> None:
    _start(harness, ONE, stage=True)
    harness.deliver_image()
    harness.wait_for_state(State.STAGED, GATEWAY, "8125")
    harness.write(ONE, "8300", b"")
    harness.advance(1)
    harness.write(GATEWAY, "8126", APPLY)
    harness.advance(120)
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120")).state in (
        State.DONE,
        State.FAILED,
        State.STAGED,
    )
    if harness.state(ONE) is not State.STAGED:
        assert _wait_for_end(harness).state is not State.APPLYING


def test_a_broadcast_with_a_malformed_list_is_an_invalid_value(harness: UpdateHarness) -> None:
    for suffix in (b"\0\1", b"\0\2" + bytes.fromhex(ONE), b"\2\0", b"\0"):
        assert harness.write(GATEWAY, "8124", image_key_bytes() + suffix) == Status.INVALID_VALUE
    assert harness.all_image_requests == []


def test_only_the_gateway_supports_broadcasts(harness: UpdateHarness) -> None:
    assert harness.write(ONE, "8124", image_key_bytes() + b"\0\0") == Status.NOT_SUPPORTED
