"""One image for many devices at once."""

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
ALL = (ONE, TWO, THREE, EMPTY)
STRANGER = Mac("c0ffee000000")


@pytest.fixture
def house() -> UpdateHarness:
    return UpdateHarness()


def _start(house: UpdateHarness, *targets: Mac, model: ModelNumber = MOTION, stage: bool = False) -> int:
    macs = bytes((stage, len(targets))) + b"".join(map(bytes.fromhex, targets))
    return house.write(GATEWAY, "8124", image_key_bytes(model) + macs)


def _told(house: UpdateHarness) -> list[ReportedUpdateState]:
    return [each for each in house.update_states(GATEWAY, "8125") if each.state]


def _ended(house: UpdateHarness) -> ReportedUpdateState:
    house.advance_until(lambda: _told(house)[-1].state in (State.DONE, State.FAILED))
    return _told(house)[-1]


@pytest.mark.rule("firmware-9", "firmware-24")
def test_without_targets_all_devices_of_the_model_are_updated(house: UpdateHarness) -> None:
    assert house.read(GATEWAY, "8125") == bytes(13)
    assert _start(house) == 0
    house.deliver_image()
    end = _ended(house)
    assert end[:3] == (State.DONE, 100, Error.NONE)
    assert end.image == ImageKey(MOTION, NEWER)
    assert end.counts == (3, 4)  # one has an empty battery
    for device in (ONE, TWO, THREE):
        assert house.state(device) is State.DONE
        assert house.version(device) == NEWER
    assert house.update_states(EMPTY)[-1][:3:2] == (State.FAILED, Error.BATTERY)
    assert len(house.all_questions) == 1


@pytest.mark.rule("firmware-24")
def test_a_broadcast_tells_every_state_and_never_goes_back(house: UpdateHarness) -> None:
    _start(house)
    house.deliver_image()
    _ended(house)
    house.advance(120)
    told = _told(house)
    states = [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.APPLYING, State.DONE]
    assert list(dict.fromkeys(each.state for each in told)) == states
    assert told == sorted(told, key=lambda each: (each.state, each.percent, each.counts[0]))
    assert {each.counts[1] for each in told} == {4}


def test_only_the_named_targets_are_updated(house: UpdateHarness) -> None:
    assert _start(house, ONE, THREE) == 0
    house.deliver_image()
    assert _ended(house).counts == (2, 2)
    assert house.version(TWO) == Version(3, 0, 0)
    assert house.update_states(TWO) == [] or house.state(TWO) is State.IDLE


def test_targets_that_cannot_take_part_are_left_out(house: UpdateHarness) -> None:
    assert _start(house, STRANGER, BUTTON, GATEWAY, ONE, ONE) == 0
    house.deliver_image()
    assert _ended(house).counts == (1, 1)


@pytest.mark.parametrize("targets", [(STRANGER,), (BUTTON,), (GATEWAY,), (STRANGER, BUTTON)])
def test_a_broadcast_without_anybody_to_update_is_refused(
    house: UpdateHarness, targets: tuple[Mac, ...]
) -> None:
    assert _start(house, *targets) == Status.INVALID_VALUE
    assert house.all_questions == []
    assert house.read(GATEWAY, "8125") == bytes(13)


@pytest.mark.parametrize("model", [BUTTON_MODEL, GATEWAY_MODEL, ModelNumber("FFFF")])
def test_a_model_without_connected_devices_is_refused(house: UpdateHarness, model: ModelNumber) -> None:
    assert _start(house, model=model) == Status.INVALID_VALUE


def test_a_target_of_another_model_fails_while_the_others_go_on(house: UpdateHarness) -> None:
    assert _start(house, ONE, TRACKER) == 0
    house.deliver_image()
    assert _ended(house)[:3] == (State.DONE, 100, Error.NONE)
    assert _told(house)[-1].counts == (1, 2)
    assert house.update_states(TRACKER)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)


def test_a_broadcast_in_which_all_fail_fails(house: UpdateHarness) -> None:
    _start(house, TRACKER)
    house.deliver_image()
    assert _ended(house)[:3:2] == (State.FAILED, Error.WRONG_MODEL)
    assert _told(house)[-1].counts == (0, 1)


@pytest.mark.parametrize("found", [Error.NO_IMAGE, Error.BAD_HASH, image(TRACKER_MODEL)])
def test_a_broadcast_without_its_image_fails_for_all(house: UpdateHarness, found: Error | ImageInfo) -> None:
    wanted = found if isinstance(found, Error) else Error.WRONG_MODEL
    _start(house, ONE, THREE)
    house.deliver_image(found)
    assert _ended(house)[:3:2] == (State.FAILED, wanted)
    for device in (ONE, THREE):
        assert house.update_states(device)[-1][:3:2] == (State.FAILED, wanted)


@pytest.mark.rule("firmware-25")
def test_a_second_broadcast_is_refused_until_the_first_is_over(house: UpdateHarness) -> None:
    _start(house, ONE, stage=True)
    assert _start(house, THREE) == Status.BUSY
    house.deliver_image()
    for state in (State.TRANSFERRING, State.VERIFYING, State.STAGED):
        house.wait_for_state(state, GATEWAY, "8125")
        assert _start(house, THREE) == Status.BUSY
    house.write(GATEWAY, "8126", ABORT)
    assert _start(house, THREE) == 0


def test_a_device_that_is_being_updated_takes_no_part(house: UpdateHarness) -> None:
    house.start(ONE, version=Version(3, 2, 0), stage=True)
    assert _start(house, ONE) == Status.BUSY
    assert _start(house, ONE, TWO) == 0
    assert _told(house)[-1].counts == (0, 1)


def test_a_device_of_a_broadcast_takes_no_download(house: UpdateHarness) -> None:
    _start(house)
    assert house.start(ONE, version=Version(3, 2, 0)) == Status.BUSY


def test_devices_of_a_broadcast_work_as_usual(house: UpdateHarness) -> None:
    _start(house, ONE)
    house.deliver_image(image(MOTION, 60_000))
    house.advance(125)
    assert house.state(GATEWAY, "8125") is State.TRANSFERRING
    assert len(house.reports_of(ONE, "heartbeat")) >= 2
    assert house.version(ONE) == Version(3, 0, 0)


# Staged


@pytest.mark.rule("firmware-24")
def test_a_staged_broadcast_is_applied_on_the_word(house: UpdateHarness) -> None:
    _start(house, ONE, TWO, THREE, stage=True)
    house.deliver_image()
    house.wait_for_state(State.STAGED, GATEWAY, "8125")
    house.advance(600)
    assert {house.state(device) for device in (ONE, TWO, THREE)} == {State.STAGED}
    assert house.write(GATEWAY, "8126", APPLY) == 0
    assert _ended(house)[:3] == (State.DONE, 100, Error.NONE)
    assert _told(house)[-1].counts == (3, 3)
    assert house.version(TWO) == NEWER


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.STAGED])
def test_a_broadcast_can_be_aborted_until_it_applies(house: UpdateHarness, state: State) -> None:
    _start(house, ONE, THREE, stage=True)
    if state is not State.FETCHING:
        house.deliver_image()
    house.wait_for_state(state, GATEWAY, "8125")
    assert house.write(GATEWAY, "8126", ABORT) == 0
    if house.questions:
        house.deliver_image()
    house.advance(300)
    assert _told(house)[-1][:3:2] == (State.FAILED, Error.ABORTED)
    for device in (ONE, THREE):
        assert house.update_states(device)[-1][:3:2] == (State.FAILED, Error.ABORTED)
        assert house.version(device) == Version(3, 0, 0)


def test_an_image_for_another_model_does_not_change_why_a_broadcast_was_aborted(house: UpdateHarness) -> None:
    _start(house, ONE)
    house.write(GATEWAY, "8126", ABORT)
    house.deliver_image(image(TRACKER_MODEL))
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120"))[:3:2] == (State.FAILED, Error.ABORTED)


def test_a_broadcast_that_applies_can_be_neither_aborted_nor_applied_again(house: UpdateHarness) -> None:
    _start(house, ONE)
    house.deliver_image()
    house.wait_for_state(State.APPLYING, GATEWAY, "8125")
    assert house.write(GATEWAY, "8126", ABORT) == Status.BUSY
    assert house.write(GATEWAY, "8126", APPLY) == Status.BUSY
    assert _ended(house).state is State.DONE


@pytest.mark.parametrize("action", [APPLY, ABORT])
def test_without_a_broadcast_there_is_nothing_to_control(house: UpdateHarness, action: bytes) -> None:
    assert house.write(GATEWAY, "8126", action) == Status.FAILED


def test_what_is_not_staged_cannot_be_applied(house: UpdateHarness) -> None:
    _start(house, stage=True)
    assert house.write(GATEWAY, "8126", APPLY) == Status.BUSY
    house.deliver_image()
    house.wait_for_state(State.TRANSFERRING, GATEWAY, "8125")
    assert house.write(GATEWAY, "8126", APPLY) == Status.BUSY


def test_one_device_of_a_broadcast_can_be_aborted_by_itself(house: UpdateHarness) -> None:
    _start(house, ONE, TWO)
    house.deliver_image()
    assert house.write(ONE, "8122", ABORT) == 0
    assert _ended(house).counts == (1, 2)
    assert house.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.ABORTED)


# Restarts


def test_a_device_that_restarts_meanwhile_is_lost_and_the_others_go_on(house: UpdateHarness) -> None:
    _start(house, ONE, TWO)
    house.deliver_image(image(MOTION, 20_000))
    house.wait_for_state(State.TRANSFERRING, GATEWAY, "8125")
    house.write(ONE, "8300", b"")
    assert _ended(house)[:3] == (State.DONE, 100, Error.NONE)
    assert _told(house)[-1].counts == (1, 2)
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )


def test_a_broadcast_whose_devices_are_all_lost_has_failed_for_good(house: UpdateHarness) -> None:
    _start(house, ONE)
    house.deliver_image(image(MOTION, 20_000))
    house.wait_for_state(State.TRANSFERRING, GATEWAY, "8125")
    house.write(ONE, "8300", b"")
    house.wait_for_state(State.FAILED, GATEWAY, "8125")
    ended = len(_told(house))
    assert _start(house, THREE) == 0
    house.write(GATEWAY, "8126", ABORT)
    house.advance(300)
    after = {each[:3:2] for each in _told(house)[ended:]}
    assert after <= {(State.FETCHING, Error.NONE), (State.FAILED, Error.ABORTED)}


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING])
def test_a_restart_of_the_gateway_ends_a_broadcast(house: UpdateHarness, state: State) -> None:
    _start(house, ONE, TWO)
    if state is not State.FETCHING:
        house.deliver_image()
    house.wait_for_state(state, GATEWAY, "8125")
    house.write(GATEWAY, "8300", b"")
    house.advance(300)
    raw = ReportedUpdateState.from_bytes(house.read(GATEWAY, "8125"))
    assert raw[:3:2] == (State.FAILED, Error.TRANSFER_LOST)
    assert raw.counts == (0, 2)
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )
    assert _start(house, ONE) == 0
    house.deliver_image()
    assert _ended(house).state is State.DONE


def test_a_staged_broadcast_survives_a_restart_of_the_gateway(house: UpdateHarness) -> None:
    _start(house, ONE, stage=True)
    house.deliver_image()
    house.wait_for_state(State.STAGED, GATEWAY, "8125")
    house.write(GATEWAY, "8300", b"")
    house.advance(60)
    assert house.write(GATEWAY, "8126", APPLY) == 0
    house.advance(60)
    assert ReportedUpdateState.from_bytes(house.read(GATEWAY, "8125")).state is State.DONE


def test_a_device_that_is_restarting_when_its_broadcast_is_applied_comes_to_an_end(
    house: UpdateHarness,
) -> None:
    _start(house, ONE, stage=True)
    house.deliver_image()
    house.wait_for_state(State.STAGED, GATEWAY, "8125")
    house.write(ONE, "8300", b"")
    house.advance(1)
    house.write(GATEWAY, "8126", APPLY)
    house.advance(120)
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120")).state in (
        State.DONE,
        State.FAILED,
        State.STAGED,
    )
    if house.state(ONE) is not State.STAGED:
        assert _ended(house).state is not State.APPLYING


def test_a_broadcast_with_a_wrong_list_is_an_invalid_value(house: UpdateHarness) -> None:
    for tail in (b"\0\1", b"\0\2" + bytes.fromhex(ONE), b"\2\0", b"\0"):
        assert house.write(GATEWAY, "8124", image_key_bytes() + tail) == Status.INVALID_VALUE
    assert house.all_questions == []


def test_only_the_gateway_broadcasts(house: UpdateHarness) -> None:
    assert house.write(ONE, "8124", image_key_bytes() + b"\0\0") == Status.NOT_SUPPORTED
