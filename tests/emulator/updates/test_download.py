"""Updating a device by download, through everything that can become of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator.simulation.device import ResetCause
from meshfleet.emulator.updates.update_state import Error, ImageKey, State
from meshfleet.protocol.codes import Status
from meshfleet.protocol.diagnostics import FirmwareType
from meshfleet.protocol.ids import Mac, Version
from tests.emulator.updates.harness import (
    BUTTON,
    BUTTON_MODEL,
    CLIP,
    EAST,
    EMPTY,
    GATEWAY,
    GATEWAY_MODEL,
    MOTION,
    NEWER,
    ONE,
    SMALL,
    THREE,
    TRACKER,
    TRACKER_MODEL,
    TWO,
    ReportedUpdateState,
    UpdateHarness,
    image,
)

if TYPE_CHECKING:
    from meshfleet.protocol.firmware_image import ImageInfo

APPLY, ABORT = b"\1", b"\0"
OLD = Version(3, 0, 0)
BIG = image(MOTION, 60_000)


@pytest.fixture
def house() -> UpdateHarness:
    return UpdateHarness()


def _downloading(house: UpdateHarness, *, stage: bool = False) -> None:
    assert house.start(ONE, stage=stage) == 0
    house.deliver_image(BIG)
    house.advance_until(lambda: house.update_states(ONE)[-1].percent >= 10)


# The way of an update that goes well


@pytest.mark.rule("firmware-22", "firmware-30")
def test_a_download_goes_through_every_state_to_the_new_version(house: UpdateHarness) -> None:
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120")).state is State.IDLE
    assert house.start(ONE) == 0
    house.deliver_image()
    house.wait_for_state(State.DONE, ONE)
    told = house.update_states(ONE)
    states = list(dict.fromkeys(each.state for each in told))
    ways = [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.APPLYING, State.DONE]
    assert [state for state in states if state is not State.IDLE] == ways
    assert {each.error for each in told} == {Error.NONE}
    assert {each.image for each in told if each.state} == {ImageKey(MOTION, NEWER)}
    assert house.version(ONE) == NEWER
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120")) == told[-1]


@pytest.mark.rule("firmware-21")
def test_the_gateway_asks_for_the_image_that_was_named(house: UpdateHarness) -> None:
    house.start(ONE, version=Version(3, 1, 0, 7))
    (question,) = house.questions
    assert question.model_number == MOTION
    assert str(question.version) == "3.1.0-beta.7"
    assert question.firmware_type is FirmwareType.NORDIC_PACKAGE


@pytest.mark.parametrize("version", ["3.0.0-beta.1", "2.9.9", "3.0.0", "255.255.255-beta.255"])
def test_a_download_may_lead_to_any_version(house: UpdateHarness, version: str) -> None:
    wanted = Version.parse(version)
    house.start(ONE, version=wanted)
    house.deliver_image()
    house.wait_for_state(State.DONE, ONE)
    raw = house.read(ONE, "8001")
    assert raw == bytes((*wanted[:3], wanted.beta))[: 4 if wanted.beta else 3]
    assert house.request(ONE, "read-decoded", "firmware-version")["value"] == version


def test_percents_and_states_never_go_back(house: UpdateHarness) -> None:
    house.start(ONE)
    house.deliver_image(image(MOTION, 37_123))
    house.wait_for_state(State.DONE, ONE)
    told = [each for each in house.update_states(ONE) if each.state]
    assert told == sorted(told, key=lambda each: (each.state, each.percent))
    assert {each.percent for each in told if each.state is State.TRANSFERRING} >= {0}
    assert len({each.percent for each in told}) > 10


@pytest.mark.rule("firmware-22")
def test_a_device_works_as_usual_while_it_downloads(house: UpdateHarness) -> None:
    _downloading(house)
    before = len(house.reports_of(ONE, "heartbeat"))
    house.advance(125)
    assert house.state(ONE) is State.TRANSFERRING
    assert len(house.reports_of(ONE, "heartbeat")) >= before + 2
    assert house.read(ONE, "8001") == bytes((3, 0, 0))


def test_a_device_is_away_while_it_applies_and_comes_back_with_a_heartbeat(house: UpdateHarness) -> None:
    house.start(ONE)
    house.deliver_image()
    house.wait_for_state(State.APPLYING, ONE)
    house.advance(1)
    began = house.now
    assert house.request(ONE, "read", "8001")["status"] in (Status.TIMEOUT, Status.UNREACHABLE)
    house.wait_for_state(State.DONE, ONE)
    house.advance(0.5)
    end = next(each.t for each in house.reports_of(ONE, "8120") if each.content["value"].startswith("06"))
    away = [each for each in house.reports if each.device == ONE and began < each.t < end]
    assert [each for each in away if each.kind != "rssi"] == []
    back = [each for each in house.reports_of(ONE, "heartbeat") if each.t >= end]
    assert back
    versions = [each.content["value"] for each in house.reports_of(ONE, "8001") if each.t >= end]
    assert set(versions) == {"030100"}
    assert house.read(ONE, "8102") == bytes((ResetCause.SOFTWARE,))
    assert int.from_bytes(house.read(ONE, "8101"), "big") < 10


@pytest.mark.rule("gateway-37", "firmware-30")
def test_a_device_that_is_never_connected_downloads_too(house: UpdateHarness) -> None:
    assert house.start(BUTTON, BUTTON_MODEL, Version(1, 1, 0)) == 0
    house.deliver_image(image(BUTTON_MODEL))
    house.wait_for_state(State.DONE, BUTTON)
    assert house.version(BUTTON) == Version(1, 1, 0)


def test_the_gateway_updates_itself_with_a_bundle_of_its_own(house: UpdateHarness) -> None:
    assert house.start(GATEWAY, GATEWAY_MODEL, Version(2, 7, 0)) == 0
    assert house.questions[0].firmware_type is FirmwareType.RAUC_BUNDLE
    house.deliver_image(image(None, 5_000_000))
    house.advance_until(lambda: house.is_down)
    quiet = len(house.reports)
    house.advance(10)
    assert len(house.reports) == quiet
    house.wait_for_state(State.DONE, GATEWAY)
    assert not house.is_down
    assert house.version(GATEWAY) == Version(2, 7, 0)


# Staged


@pytest.mark.rule("firmware-23")
def test_a_staged_update_waits_for_the_word_and_takes_it(house: UpdateHarness) -> None:
    house.start(ONE, stage=True)
    house.deliver_image()
    house.wait_for_state(State.STAGED, ONE)
    house.advance(4000)
    assert house.state(ONE) is State.STAGED
    assert house.version(ONE) == OLD
    assert house.write(ONE, "8122", APPLY) == 0
    house.wait_for_state(State.DONE, ONE)
    assert house.version(ONE) == NEWER


@pytest.mark.rule("firmware-23")
def test_the_gateway_answers_before_it_applies_its_own_staged_update(house: UpdateHarness) -> None:
    house.start(GATEWAY, GATEWAY_MODEL, Version(2, 7, 0), stage=True)
    house.deliver_image(image(None))
    house.wait_for_state(State.STAGED, GATEWAY)
    assert house.write(GATEWAY, "8122", APPLY) == 0
    house.wait_for_state(State.DONE, GATEWAY)


def test_a_staged_update_survives_a_restart_of_its_device(house: UpdateHarness) -> None:
    house.start(ONE, stage=True)
    house.deliver_image()
    house.wait_for_state(State.STAGED, ONE)
    house.write(ONE, "8300", b"")
    house.advance(30)
    assert house.write(ONE, "8122", APPLY) == 0
    house.wait_for_state(State.DONE, ONE)


@pytest.mark.parametrize("action", [APPLY, ABORT])
def test_without_an_update_there_is_nothing_to_control(house: UpdateHarness, action: bytes) -> None:
    assert house.write(ONE, "8122", action) == Status.FAILED
    house.start(ONE)
    house.deliver_image(Error.NO_IMAGE)
    assert house.write(ONE, "8122", action) == Status.FAILED


def test_only_a_staged_update_can_be_applied(house: UpdateHarness) -> None:
    house.start(ONE, stage=True)
    assert house.write(ONE, "8122", APPLY) == Status.BUSY
    house.deliver_image()
    house.wait_for_state(State.TRANSFERRING, ONE)
    assert house.write(ONE, "8122", APPLY) == Status.BUSY
    house.wait_for_state(State.VERIFYING, ONE)
    assert house.write(ONE, "8122", APPLY) == Status.BUSY
    house.wait_for_state(State.STAGED, ONE)
    assert house.write(ONE, "8122", APPLY) == Status.OK


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.STAGED])
def test_an_update_can_be_aborted_until_it_applies(house: UpdateHarness, state: State) -> None:
    house.start(ONE, stage=True)
    if state is not State.FETCHING:
        house.deliver_image()
    house.wait_for_state(state, ONE)
    assert house.write(ONE, "8122", ABORT) == 0
    assert house.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.ABORTED)
    house.advance(300)
    assert house.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.ABORTED)
    assert house.version(ONE) == OLD
    assert house.write(ONE, "8122", APPLY) == Status.FAILED


@pytest.mark.parametrize("found", [SMALL, Error.NO_IMAGE, Error.BAD_HASH])
def test_an_image_that_comes_for_an_aborted_update_changes_nothing(
    house: UpdateHarness, found: Error | ImageInfo
) -> None:
    house.start(ONE)
    house.write(ONE, "8122", ABORT)
    told = len(house.update_states(ONE))
    house.deliver_image(found)
    house.advance(60)
    assert {each[:3:2] for each in house.update_states(ONE)[told - 1 :]} == {(State.FAILED, Error.ABORTED)}


def test_a_late_failure_of_an_aborted_update_does_not_touch_the_next(house: UpdateHarness) -> None:
    house.start(ONE)
    house.write(ONE, "8122", ABORT)
    house.start(ONE, version=Version(3, 2, 0))
    house.deliver_image(Error.NO_IMAGE)
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120"))[:4] == (
        State.FETCHING,
        0,
        Error.NONE,
        ImageKey(MOTION, Version(3, 2, 0)),
    )
    house.deliver_image()
    house.wait_for_state(State.DONE, ONE)
    assert house.version(ONE) == Version(3, 2, 0)


# What goes wrong


def test_a_request_for_another_model_fails_before_anybody_is_asked(house: UpdateHarness) -> None:
    assert house.start(ONE, TRACKER_MODEL) == 0
    assert house.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)
    assert house.all_questions == []


def test_a_package_for_another_model_fails(house: UpdateHarness) -> None:
    house.start(ONE)
    house.deliver_image(image(TRACKER_MODEL))
    assert house.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)


def test_an_image_that_does_not_say_what_it_is_for_is_taken(house: UpdateHarness) -> None:
    house.start(ONE)
    house.deliver_image(image(None))
    house.wait_for_state(State.DONE, ONE)


@pytest.mark.parametrize("error", [Error.NO_IMAGE, Error.BAD_HASH])
def test_an_image_that_cannot_be_had_fails_the_update(house: UpdateHarness, error: Error) -> None:
    house.start(ONE)
    house.deliver_image(error)
    assert house.update_states(ONE)[-1][:3] == (State.FAILED, 0, error)
    assert house.version(ONE) == OLD


def test_a_device_with_an_empty_battery_takes_no_update(house: UpdateHarness) -> None:
    assert house.start(EMPTY) == 0
    assert house.update_states(EMPTY)[-1][:3:2] == (State.FAILED, Error.BATTERY)


def test_a_device_that_loses_its_power_loses_the_transfer(house: UpdateHarness) -> None:
    _downloading(house)
    house.write(ONE, "8300", b"")
    house.advance_until(lambda: house.state(ONE) is State.FAILED, within=30)
    assert house.update_states(ONE)[-1].error is Error.TRANSFER_LOST
    assert 10 <= house.update_states(ONE)[-1].percent < 100
    house.advance(300)
    assert house.state(ONE) is State.FAILED
    assert house.version(ONE) == OLD


def test_a_device_that_leaves_for_long_loses_the_transfer(house: UpdateHarness) -> None:
    _downloading(house)
    house.write(ONE, "8110", b"\3")
    house.advance(300)
    assert house.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.TRANSFER_LOST)


def test_a_restart_of_an_extender_delays_what_passes_through_it(house: UpdateHarness) -> None:
    _downloading(house)
    house.write(EAST, "8300", b"")
    house.wait_for_state(State.DONE, ONE)


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING])
def test_a_restart_of_the_gateway_loses_what_is_on_its_way(house: UpdateHarness, state: State) -> None:
    house.start(ONE)
    if state is not State.FETCHING:
        house.deliver_image()
    house.wait_for_state(state, ONE)
    house.write(GATEWAY, "8300", b"")
    house.advance(60)
    assert ReportedUpdateState.from_bytes(house.read(ONE, "8120"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )
    assert house.start(ONE) == 0
    assert len(house.all_questions) == 2
    house.deliver_image()
    house.wait_for_state(State.DONE, ONE)


def test_a_gateway_that_updates_itself_leaves_no_other_update_without_an_end(house: UpdateHarness) -> None:
    house.start(GATEWAY, GATEWAY_MODEL, Version(2, 7, 0), stage=True)
    house.deliver_image(image(None))
    house.wait_for_state(State.STAGED, GATEWAY)
    house.start(ONE)
    house.send(GATEWAY, "write", "8122", value=APPLY.hex())
    house.wait_for_state(State.DONE, GATEWAY)
    house.advance(60)
    if house.questions:
        house.deliver_image()
    house.advance_until(
        lambda: ReportedUpdateState.from_bytes(house.read(ONE, "8120")).state in (State.DONE, State.FAILED)
    )


def test_a_second_update_of_a_busy_device_is_refused(house: UpdateHarness) -> None:
    house.start(ONE, stage=True)
    assert house.start(ONE) == Status.BUSY
    house.deliver_image()
    for state in (State.TRANSFERRING, State.VERIFYING, State.STAGED):
        house.wait_for_state(state, ONE)
        assert house.start(ONE, version=Version(9, 9, 9)) == Status.BUSY
    assert house.update_states(ONE)[-1].image == ImageKey(MOTION, NEWER)


def test_a_device_can_be_updated_again_and_again(house: UpdateHarness) -> None:
    for minor in range(1, 4):
        assert house.start(ONE, version=Version(4, minor, 0)) == 0
        house.deliver_image()
        house.wait_for_state(State.DONE, ONE)
        assert house.version(ONE) == Version(4, minor, 0)
    assert len(house.all_questions) == 3


@pytest.mark.parametrize(
    "value", ["", "0018030100", "00180301000000ff", "0018030100 00 02", "00180301000000 00"]
)
def test_a_start_that_is_no_start_is_an_invalid_value(house: UpdateHarness, value: str) -> None:
    response = house.request(ONE, "write", "8121", value=value.replace(" ", ""))
    assert response["status"] == Status.INVALID_VALUE
    assert house.read(ONE, "8120") == bytes(9)


def test_an_update_can_be_started_and_followed_in_words(house: UpdateHarness) -> None:
    wanted = {"modelNumber": 0x18, "version": "3.1.0-beta.2", "type": 0}
    assert house.request(ONE, "write-decoded", "start-firmware-update", value=wanted)["status"] == 0
    assert house.request(ONE, "read-decoded", "firmware-update-state")["value"] == {
        "state": "fetching",
        "percent": 0,
        "error": 0,
        "modelNumber": 0x18,
        "version": "3.1.0-beta.2",
    }


# Several at once


def test_two_updates_that_want_the_same_image_ask_once(house: UpdateHarness) -> None:
    house.start(ONE)
    house.start(THREE)
    assert len(house.all_questions) == 1
    house.deliver_image()
    house.wait_for_state(State.DONE, ONE)
    house.wait_for_state(State.DONE, THREE)


def test_another_version_or_model_is_asked_for_by_itself(house: UpdateHarness) -> None:
    house.start(ONE)
    house.start(TWO, version=Version(3, 2, 0))
    house.start(TRACKER, TRACKER_MODEL, NEWER)
    assert len(set(house.all_questions)) == 3


def _took(*devices: Mac) -> float:
    """Seconds until the first of some devices, updated together, has got its image."""
    house = UpdateHarness()
    for device in devices:
        house.start(device)
    began = house.now
    house.deliver_image(BIG)
    house.wait_for_state(State.VERIFYING, devices[0])
    return house.now - began


def test_downloads_slow_each_other_on_one_branch_and_not_on_two() -> None:
    alone = _took(ONE)
    assert _took(ONE, THREE) == pytest.approx(alone, rel=0.1)
    assert _took(ONE, TWO) == pytest.approx(2 * alone, rel=0.1)


def test_a_staged_image_takes_nothing_of_the_air_from_others(house: UpdateHarness) -> None:
    house.start(TWO, stage=True)
    house.deliver_image()
    house.wait_for_state(State.STAGED, TWO)
    house.start(ONE, version=Version(3, 2, 0))
    began = house.now
    house.deliver_image(BIG)
    house.wait_for_state(State.VERIFYING, ONE)
    assert house.now - began == pytest.approx(_took(ONE), rel=0.1)


def test_a_product_without_downloads_does_not_know_them(house: UpdateHarness) -> None:
    assert house.write(CLIP, "8121", bytes(7)) == Status.UNKNOWN_IDENTIFIER
