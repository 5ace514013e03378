"""Tests of the requests of each update method and their order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.row_tables import each_row
from tests.service.jobs.updates.harness import DEVICE, IMAGE, LEGACY, OURS, UpdateHarness, harness_in_state

from meshfleet.protocol.codes import Operation, Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates.model import UpdateStep, build_device_request, build_gateway_request

READ, WRITE = Operation.READ_DECODED, Operation.WRITE_DECODED
OTHER = DEVICE + 2
VERSION = build_device_request(UpdateStep.CONFIRM_VERSION, Operation.READ, "8001")


def confirm_update(harness: UpdateHarness) -> None:
    """Confirm an update with two heartbeats; the version is read after the first and the last."""
    assert harness.is_in(ExecutionState.CONFIRMING)
    assert harness.send_heartbeat() == VERSION
    assert harness.respond(0, OURS) is None
    assert harness.send_heartbeat() == VERSION
    harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.SUCCEEDED)
    assert harness.decision.is_evidence


@pytest.mark.rule("firmware-22", "firmware-34")
def test_a_download_sends_all_requests_to_the_device() -> None:
    harness = UpdateHarness()
    assert harness.dispatch() == build_device_request(
        UpdateStep.START, WRITE, "start-firmware-update", {**IMAGE, "type": 0}
    )
    assert harness.respond() is None
    assert harness.is_in(ExecutionState.TRANSFERRING)
    assert harness.advance_to_due() == build_device_request(UpdateStep.STATE, READ, "firmware-update-state")
    harness.respond_state("transferring", 40)
    assert (harness.execution.state, harness.execution.progress) == (ExecutionState.TRANSFERRING, 40)
    for keyword, next_state in (
        ("verifying", ExecutionState.VERIFYING),
        ("applying", ExecutionState.APPLYING),
        ("done", ExecutionState.CONFIRMING),
    ):
        harness.respond_state(keyword, 100)
        assert harness.is_in(next_state)
    confirm_update(harness)


@pytest.mark.rule("firmware-23")
def test_a_staged_image_waits_until_the_job_is_applied() -> None:
    harness = UpdateHarness(stage=True)
    assert harness.dispatch() == build_device_request(
        UpdateStep.START, WRITE, "start-firmware-update", {**IMAGE, "type": 1}
    )
    harness.respond()
    assert harness.respond_state("staged", 100) is None
    assert harness.is_in(ExecutionState.STAGED)
    harness.change_spec(is_applied=True)
    assert harness.apply_timer() == build_device_request(
        UpdateStep.APPLY, WRITE, "firmware-update-control", {"action": 1}
    )
    harness.respond()
    assert harness.is_in(ExecutionState.APPLYING)
    harness.respond_state("done", 100)
    confirm_update(harness)


@pytest.mark.rule("firmware-24")
def test_a_broadcast_starts_at_the_gateway_and_then_queries_each_device() -> None:
    harness = UpdateHarness(UpdateMethod.BROADCAST, batch=(DEVICE, OTHER))
    value = {**IMAGE, "type": 0, "targets": ["c0ffee000010", "c0ffee000012"]}
    assert harness.dispatch() == build_gateway_request(
        UpdateStep.START, WRITE, "start-firmware-broadcast", value
    )
    harness.respond()
    assert harness.advance_to_due() == build_gateway_request(
        UpdateStep.STATE, READ, "firmware-broadcast-state"
    )
    harness.respond_state("transferring", 50, done=0, total=2)
    harness.respond_state("verifying", 100, done=0, total=2)
    assert harness.is_in(ExecutionState.TRANSFERRING)
    assert harness.advance_to_due() == build_device_request(
        UpdateStep.DEVICE_STATE, READ, "firmware-update-state"
    )
    harness.respond_state("applying", 100)
    assert harness.is_in(ExecutionState.APPLYING)
    harness.respond_state("done", 100)
    confirm_update(harness)


@pytest.mark.rule("firmware-26")
@pytest.mark.parametrize(
    ("model", "mode_switch", "mac"),
    [
        ("0018", build_device_request(UpdateStep.ENTER_DFU, WRITE, "device-mode", "dfu"), "c0ffee000011"),
        (
            LEGACY,
            build_gateway_request(
                UpdateStep.ENTER_DFU, WRITE, "legacy-device-mode-switch", {"mac": "c0ffee000010", "mode": 1}
            ),
            "c0ffee000010",
        ),
    ],
)
def test_a_nordic_dfu_starts_when_the_device_is_in_dfu_mode(
    model: str, mode_switch: object, mac: str
) -> None:
    harness = UpdateHarness(UpdateMethod.NORDIC_DFU, model=model)
    image: dict[str, Any] = {**IMAGE, "modelNumber": int(model, 16)}
    assert harness.dispatch() == mode_switch
    assert harness.respond() is None
    assert harness.enter_dfu_mode() == build_gateway_request(
        UpdateStep.START, WRITE, "start-nordic-dfu", {"mac": mac, **image}
    )
    harness.respond()
    assert harness.advance_to_due() == build_gateway_request(UpdateStep.STATE, READ, "nordic-dfu-state")
    harness.respond_state("transferring", 30, mac=mac, **image)
    assert harness.execution.progress == 30
    harness.respond_state("done", 100, mac=mac, **image)
    confirm_update(harness)


def test_a_progress_report_about_another_device_means_that_the_update_was_replaced() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, UpdateMethod.NORDIC_DFU)
    harness.respond_state("transferring", 30, mac="c0ffee999999")
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.FAILED, "OVERRIDDEN")


ABORTS = {
    UpdateMethod.DOWNLOAD: build_device_request(
        UpdateStep.ABORT, WRITE, "firmware-update-control", {"action": 0}
    ),
    UpdateMethod.BROADCAST: build_gateway_request(
        UpdateStep.ABORT, WRITE, "firmware-broadcast-control", {"action": 0}
    ),
}


@each_row(
    ("method", "state"),
    [
        (UpdateMethod.DOWNLOAD, ExecutionState.TRANSFERRING),
        (UpdateMethod.DOWNLOAD, ExecutionState.VERIFYING),
        (UpdateMethod.DOWNLOAD, ExecutionState.STAGED),
        (UpdateMethod.BROADCAST, ExecutionState.TRANSFERRING),
    ],
)
@each_row(
    ("status", "after"), [(Status.OK, ExecutionState.CANCELED), (Status.FAILED, None), (Status.TIMEOUT, None)]
)
def test_canceling_aborts_updates_that_can_be_aborted(
    method: UpdateMethod, state: ExecutionState, status: Status, after: ExecutionState | None
) -> None:
    harness = harness_in_state(state, method, stage=state is ExecutionState.STAGED)
    harness.change_spec(is_canceling=True)
    assert harness.apply_timer() == ABORTS[method]
    harness.respond(status)
    assert harness.is_in(after or state)


@pytest.mark.parametrize("state", [ExecutionState.APPLYING, ExecutionState.CONFIRMING])
def test_canceling_does_not_stop_a_device_that_is_past_aborting(state: ExecutionState) -> None:
    harness = harness_in_state(state)
    harness.change_spec(is_canceling=True)
    request = harness.apply_timer()
    assert request is None or request.step is UpdateStep.STATE
    assert harness.is_in(state)


@pytest.mark.rule("firmware-27")
def test_a_started_nordic_dfu_is_followed_to_its_end() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, UpdateMethod.NORDIC_DFU)
    harness.change_spec(is_canceling=True)
    assert harness.apply_timer() == build_gateway_request(UpdateStep.STATE, READ, "nordic-dfu-state")
    harness.respond(0, None)
    harness.respond_state("done", 100, mac="c0ffee000011")
    assert harness.is_in(ExecutionState.CONFIRMING)


def test_canceling_without_a_response_ends_after_a_timeout() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    harness.miss_response()
    harness.change_spec(is_canceling=True)
    harness.execution = harness.without_request()
    for _ in range(20):
        harness.apply_timer()
        if harness.is_in(ExecutionState.CANCELED):
            break
        harness.miss_response()
    assert harness.is_in(ExecutionState.CANCELED)
