"""Updates of a device by download, with all their outcomes."""

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
    SMALL_IMAGE,
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
BIG_IMAGE = image(MOTION, 60_000)


@pytest.fixture
def harness() -> UpdateHarness:
    return UpdateHarness()


def _start_download(harness: UpdateHarness, *, stage: bool = False) -> None:
    assert harness.start(ONE, stage=stage) == 0
    harness.deliver_image(BIG_IMAGE)
    harness.advance_until(lambda: harness.update_states(ONE)[-1].percent >= 10)


# Successful updates


@pytest.mark.rule("firmware-22", "firmware-30")
def test_a_download_reports_every_state_and_sets_the_new_version(harness: UpdateHarness) -> None:
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120")).state is State.IDLE
    assert harness.start(ONE) == 0
    harness.deliver_image()
    harness.wait_for_state(State.DONE, ONE)
    reported_states = harness.update_states(ONE)
    distinct_states = list(dict.fromkeys(each.state for each in reported_states))
    expected_states = [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.APPLYING, State.DONE]
    assert [state for state in distinct_states if state is not State.IDLE] == expected_states
    assert {each.error for each in reported_states} == {Error.NONE}
    assert {each.image for each in reported_states if each.state} == {ImageKey(MOTION, NEWER)}
    assert harness.version(ONE) == NEWER
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120")) == reported_states[-1]


@pytest.mark.rule("firmware-21")
def test_the_gateway_requests_the_given_image(harness: UpdateHarness) -> None:
    harness.start(ONE, version=Version(3, 1, 0, 7))
    (image_request,) = harness.image_requests
    assert image_request.model_number == MOTION
    assert str(image_request.version) == "3.1.0-beta.7"
    assert image_request.firmware_type is FirmwareType.NORDIC_PACKAGE


@pytest.mark.parametrize("version", ["3.0.0-beta.1", "2.9.9", "3.0.0", "255.255.255-beta.255"])
def test_a_download_may_install_any_version(harness: UpdateHarness, version: str) -> None:
    expected = Version.parse(version)
    harness.start(ONE, version=expected)
    harness.deliver_image()
    harness.wait_for_state(State.DONE, ONE)
    raw = harness.read(ONE, "8001")
    assert raw == bytes((*expected[:3], expected.beta))[: 4 if expected.beta else 3]
    assert harness.request(ONE, "read-decoded", "firmware-version")["value"] == version


def test_progress_and_states_never_go_back(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.deliver_image(image(MOTION, 37_123))
    harness.wait_for_state(State.DONE, ONE)
    reported_states = [each for each in harness.update_states(ONE) if each.state]
    assert reported_states == sorted(reported_states, key=lambda each: (each.state, each.percent))
    assert {each.percent for each in reported_states if each.state is State.TRANSFERRING} >= {0}
    assert len({each.percent for each in reported_states}) > 10


@pytest.mark.rule("firmware-22")
def test_a_device_works_as_usual_while_it_downloads(harness: UpdateHarness) -> None:
    _start_download(harness)
    before = len(harness.reports_of(ONE, "heartbeat"))
    harness.advance(125)
    assert harness.state(ONE) is State.TRANSFERRING
    assert len(harness.reports_of(ONE, "heartbeat")) >= before + 2
    assert harness.read(ONE, "8001") == bytes((3, 0, 0))


def test_a_device_is_offline_while_it_applies_and_then_reports_a_heartbeat(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.deliver_image()
    harness.wait_for_state(State.APPLYING, ONE)
    harness.advance(1)
    started = harness.now
    assert harness.request(ONE, "read", "8001")["status"] in (Status.TIMEOUT, Status.UNREACHABLE)
    harness.wait_for_state(State.DONE, ONE)
    harness.advance(0.5)
    end = next(each.t for each in harness.reports_of(ONE, "8120") if each.content["value"].startswith("06"))
    reports_meanwhile = [each for each in harness.reports if each.device == ONE and started < each.t < end]
    assert [each for each in reports_meanwhile if each.kind != "rssi"] == []
    heartbeats_after = [each for each in harness.reports_of(ONE, "heartbeat") if each.t >= end]
    assert heartbeats_after
    versions = [each.content["value"] for each in harness.reports_of(ONE, "8001") if each.t >= end]
    assert set(versions) == {"030100"}
    assert harness.read(ONE, "8102") == bytes((ResetCause.SOFTWARE,))
    assert int.from_bytes(harness.read(ONE, "8101"), "big") < 10


@pytest.mark.rule("gateway-37", "firmware-30")
def test_an_unconnected_device_can_download(harness: UpdateHarness) -> None:
    assert harness.start(BUTTON, BUTTON_MODEL, Version(1, 1, 0)) == 0
    harness.deliver_image(image(BUTTON_MODEL))
    harness.wait_for_state(State.DONE, BUTTON)
    assert harness.version(BUTTON) == Version(1, 1, 0)


def test_the_gateway_updates_itself_with_a_rauc_bundle(harness: UpdateHarness) -> None:
    assert harness.start(GATEWAY, GATEWAY_MODEL, Version(2, 7, 0)) == 0
    assert harness.image_requests[0].firmware_type is FirmwareType.RAUC_BUNDLE
    harness.deliver_image(image(None, 5_000_000))
    harness.advance_until(lambda: harness.is_restarting)
    report_count = len(harness.reports)
    harness.advance(10)
    assert len(harness.reports) == report_count
    harness.wait_for_state(State.DONE, GATEWAY)
    assert not harness.is_restarting
    assert harness.version(GATEWAY) == Version(2, 7, 0)


# Staged


@pytest.mark.rule("firmware-23")
def test_a_staged_update_waits_for_the_apply_command(harness: UpdateHarness) -> None:
    harness.start(ONE, stage=True)
    harness.deliver_image()
    harness.wait_for_state(State.STAGED, ONE)
    harness.advance(4000)
    assert harness.state(ONE) is State.STAGED
    assert harness.version(ONE) == OLD
    assert harness.write(ONE, "8122", APPLY) == 0
    harness.wait_for_state(State.DONE, ONE)
    assert harness.version(ONE) == NEWER


@pytest.mark.rule("firmware-23")
def test_the_gateway_responds_before_it_applies_its_own_staged_update(harness: UpdateHarness) -> None:
    harness.start(GATEWAY, GATEWAY_MODEL, Version(2, 7, 0), stage=True)
    harness.deliver_image(image(None))
    harness.wait_for_state(State.STAGED, GATEWAY)
    assert harness.write(GATEWAY, "8122", APPLY) == 0
    harness.wait_for_state(State.DONE, GATEWAY)


def test_a_staged_update_survives_a_restart_of_its_device(harness: UpdateHarness) -> None:
    harness.start(ONE, stage=True)
    harness.deliver_image()
    harness.wait_for_state(State.STAGED, ONE)
    harness.write(ONE, "8300", b"")
    harness.advance(30)
    assert harness.write(ONE, "8122", APPLY) == 0
    harness.wait_for_state(State.DONE, ONE)


@pytest.mark.parametrize("action", [APPLY, ABORT])
def test_control_fails_without_an_update(harness: UpdateHarness, action: bytes) -> None:
    assert harness.write(ONE, "8122", action) == Status.FAILED
    harness.start(ONE)
    harness.deliver_image(Error.NO_IMAGE)
    assert harness.write(ONE, "8122", action) == Status.FAILED


def test_only_a_staged_update_can_be_applied(harness: UpdateHarness) -> None:
    harness.start(ONE, stage=True)
    assert harness.write(ONE, "8122", APPLY) == Status.BUSY
    harness.deliver_image()
    harness.wait_for_state(State.TRANSFERRING, ONE)
    assert harness.write(ONE, "8122", APPLY) == Status.BUSY
    harness.wait_for_state(State.VERIFYING, ONE)
    assert harness.write(ONE, "8122", APPLY) == Status.BUSY
    harness.wait_for_state(State.STAGED, ONE)
    assert harness.write(ONE, "8122", APPLY) == Status.OK


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING, State.STAGED])
def test_an_update_can_be_aborted_until_it_applies(harness: UpdateHarness, state: State) -> None:
    harness.start(ONE, stage=True)
    if state is not State.FETCHING:
        harness.deliver_image()
    harness.wait_for_state(state, ONE)
    assert harness.write(ONE, "8122", ABORT) == 0
    assert harness.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.ABORTED)
    harness.advance(300)
    assert harness.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.ABORTED)
    assert harness.version(ONE) == OLD
    assert harness.write(ONE, "8122", APPLY) == Status.FAILED


@pytest.mark.parametrize("image_or_error", [SMALL_IMAGE, Error.NO_IMAGE, Error.BAD_HASH])
def test_an_image_for_an_aborted_update_changes_nothing(
    harness: UpdateHarness, image_or_error: Error | ImageInfo
) -> None:
    harness.start(ONE)
    harness.write(ONE, "8122", ABORT)
    state_count = len(harness.update_states(ONE))
    harness.deliver_image(image_or_error)
    harness.advance(60)
    assert {each[:3:2] for each in harness.update_states(ONE)[state_count - 1 :]} == {
        (State.FAILED, Error.ABORTED)
    }


def test_a_late_failure_of_an_aborted_update_does_not_affect_the_next(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.write(ONE, "8122", ABORT)
    harness.start(ONE, version=Version(3, 2, 0))
    harness.deliver_image(Error.NO_IMAGE)
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120"))[:4] == (
        State.FETCHING,
        0,
        Error.NONE,
        ImageKey(MOTION, Version(3, 2, 0)),
    )
    harness.deliver_image()
    harness.wait_for_state(State.DONE, ONE)
    assert harness.version(ONE) == Version(3, 2, 0)


# Failures


def test_an_update_for_another_model_fails_without_requesting_an_image(harness: UpdateHarness) -> None:
    assert harness.start(ONE, TRACKER_MODEL) == 0
    assert harness.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)
    assert harness.all_image_requests == []


def test_a_package_for_another_model_fails(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.deliver_image(image(TRACKER_MODEL))
    assert harness.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.WRONG_MODEL)


def test_an_image_without_a_model_number_is_accepted(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.deliver_image(image(None))
    harness.wait_for_state(State.DONE, ONE)


@pytest.mark.parametrize("error", [Error.NO_IMAGE, Error.BAD_HASH])
def test_an_update_fails_without_its_image(harness: UpdateHarness, error: Error) -> None:
    harness.start(ONE)
    harness.deliver_image(error)
    assert harness.update_states(ONE)[-1][:3] == (State.FAILED, 0, error)
    assert harness.version(ONE) == OLD


def test_an_update_of_a_device_with_a_low_battery_fails(harness: UpdateHarness) -> None:
    assert harness.start(EMPTY) == 0
    assert harness.update_states(EMPTY)[-1][:3:2] == (State.FAILED, Error.BATTERY)


def test_a_restart_of_the_device_ends_the_transfer(harness: UpdateHarness) -> None:
    _start_download(harness)
    harness.write(ONE, "8300", b"")
    harness.advance_until(lambda: harness.state(ONE) is State.FAILED, within=30)
    assert harness.update_states(ONE)[-1].error is Error.TRANSFER_LOST
    assert 10 <= harness.update_states(ONE)[-1].percent < 100
    harness.advance(300)
    assert harness.state(ONE) is State.FAILED
    assert harness.version(ONE) == OLD


def test_a_long_absence_of_the_device_ends_the_transfer(harness: UpdateHarness) -> None:
    _start_download(harness)
    harness.write(ONE, "8110", b"\3")
    harness.advance(300)
    assert harness.update_states(ONE)[-1][:3:2] == (State.FAILED, Error.TRANSFER_LOST)


def test_a_transfer_survives_a_restart_of_its_extender(harness: UpdateHarness) -> None:
    _start_download(harness)
    harness.write(EAST, "8300", b"")
    harness.wait_for_state(State.DONE, ONE)


@pytest.mark.parametrize("state", [State.FETCHING, State.TRANSFERRING, State.VERIFYING])
def test_a_restart_of_the_gateway_ends_the_transfer(harness: UpdateHarness, state: State) -> None:
    harness.start(ONE)
    if state is not State.FETCHING:
        harness.deliver_image()
    harness.wait_for_state(state, ONE)
    harness.write(GATEWAY, "8300", b"")
    harness.advance(60)
    assert ReportedUpdateState.from_bytes(harness.read(ONE, "8120"))[:3:2] == (
        State.FAILED,
        Error.TRANSFER_LOST,
    )
    assert harness.start(ONE) == 0
    assert len(harness.all_image_requests) == 2
    harness.deliver_image()
    harness.wait_for_state(State.DONE, ONE)


def test_every_other_update_ends_when_the_gateway_updates_itself(harness: UpdateHarness) -> None:
    harness.start(GATEWAY, GATEWAY_MODEL, Version(2, 7, 0), stage=True)
    harness.deliver_image(image(None))
    harness.wait_for_state(State.STAGED, GATEWAY)
    harness.start(ONE)
    harness.send(GATEWAY, "write", "8122", value=APPLY.hex())
    harness.wait_for_state(State.DONE, GATEWAY)
    harness.advance(60)
    if harness.image_requests:
        harness.deliver_image()
    harness.advance_until(
        lambda: ReportedUpdateState.from_bytes(harness.read(ONE, "8120")).state in (State.DONE, State.FAILED)
    )


def test_a_second_update_of_a_busy_device_is_rejected(harness: UpdateHarness) -> None:
    harness.start(ONE, stage=True)
    assert harness.start(ONE) == Status.BUSY
    harness.deliver_image()
    for state in (State.TRANSFERRING, State.VERIFYING, State.STAGED):
        harness.wait_for_state(state, ONE)
        assert harness.start(ONE, version=Version(9, 9, 9)) == Status.BUSY
    assert harness.update_states(ONE)[-1].image == ImageKey(MOTION, NEWER)


def test_a_device_can_be_updated_repeatedly(harness: UpdateHarness) -> None:
    for minor in range(1, 4):
        assert harness.start(ONE, version=Version(4, minor, 0)) == 0
        harness.deliver_image()
        harness.wait_for_state(State.DONE, ONE)
        assert harness.version(ONE) == Version(4, minor, 0)
    assert len(harness.all_image_requests) == 3


@pytest.mark.parametrize(
    "value", ["", "0018030100", "00180301000000ff", "0018030100 00 02", "00180301000000 00"]
)
def test_a_malformed_start_command_is_an_invalid_value(harness: UpdateHarness, value: str) -> None:
    response = harness.request(ONE, "write", "8121", value=value.replace(" ", ""))
    assert response["status"] == Status.INVALID_VALUE
    assert harness.read(ONE, "8120") == bytes(9)


def test_an_update_can_be_started_and_observed_with_decoded_values(harness: UpdateHarness) -> None:
    value = {"modelNumber": 0x18, "version": "3.1.0-beta.2", "type": 0}
    assert harness.request(ONE, "write-decoded", "start-firmware-update", value=value)["status"] == 0
    assert harness.request(ONE, "read-decoded", "firmware-update-state")["value"] == {
        "state": "fetching",
        "percent": 0,
        "error": 0,
        "modelNumber": 0x18,
        "version": "3.1.0-beta.2",
    }


# Concurrent updates


def test_two_updates_with_the_same_image_request_it_once(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.start(THREE)
    assert len(harness.all_image_requests) == 1
    harness.deliver_image()
    harness.wait_for_state(State.DONE, ONE)
    harness.wait_for_state(State.DONE, THREE)


def test_each_version_and_model_is_requested_separately(harness: UpdateHarness) -> None:
    harness.start(ONE)
    harness.start(TWO, version=Version(3, 2, 0))
    harness.start(TRACKER, TRACKER_MODEL, NEWER)
    assert len(set(harness.all_image_requests)) == 3


def _measure_download(*devices: Mac) -> float:
    """Return the seconds until the first of several devices, updated together, has received its image."""
    harness = UpdateHarness()
    for device in devices:
        harness.start(device)
    started = harness.now
    harness.deliver_image(BIG_IMAGE)
    harness.wait_for_state(State.VERIFYING, devices[0])
    return harness.now - started


def test_downloads_share_the_rate_of_a_branch() -> None:
    alone_seconds = _measure_download(ONE)
    assert _measure_download(ONE, THREE) == pytest.approx(alone_seconds, rel=0.1)
    assert _measure_download(ONE, TWO) == pytest.approx(2 * alone_seconds, rel=0.1)


def test_a_staged_update_does_not_slow_other_downloads(harness: UpdateHarness) -> None:
    harness.start(TWO, stage=True)
    harness.deliver_image()
    harness.wait_for_state(State.STAGED, TWO)
    harness.start(ONE, version=Version(3, 2, 0))
    started = harness.now
    harness.deliver_image(BIG_IMAGE)
    harness.wait_for_state(State.VERIFYING, ONE)
    assert harness.now - started == pytest.approx(_measure_download(ONE), rel=0.1)


def test_a_product_without_downloads_rejects_them(harness: UpdateHarness) -> None:
    assert harness.write(CLIP, "8121", bytes(7)) == Status.UNKNOWN_IDENTIFIER
