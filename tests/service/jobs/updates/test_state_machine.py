"""Tests of the update state machine: errors, timeouts, retries, confirmation and outages."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from tests.row_tables import each_row
from tests.service.jobs.updates.harness import (
    OTHER,
    OURS,
    UpdateHarness,
    build_state_value,
    find_step,
    harness_in_state,
)

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.model import (
    DeviceRemoved,
    GatewayDisconnected,
    GatewayReconnected,
    HeartbeatReceived,
    RequestUnanswered,
    TimerDue,
    UpdateStep,
)

ERRORS = {
    1: ("NO_IMAGE", ExecutionState.FAILED, True),
    2: ("WRONG_MODEL", ExecutionState.REJECTED, False),
    3: ("BAD_HASH", ExecutionState.FAILED, True),
    4: ("DOWNGRADE", ExecutionState.REJECTED, False),
    5: ("BATTERY", ExecutionState.FAILED, True),
    6: ("ABORTED", ExecutionState.FAILED, True),
    7: ("TRANSFER_LOST", ExecutionState.FAILED, True),
    8: ("ROLLED_BACK", ExecutionState.FAILED, False),
    99: ("TRANSFER_LOST", ExecutionState.FAILED, True),
}
"""Error numbers of devices with their reason code, final state, and whether the update is retried."""


@pytest.mark.rule("firmware-6")
@each_row("error", ERRORS)
@each_row("retries", [0, 1])
def test_an_error_of_the_device_ends_the_attempt(error: int, retries: int) -> None:
    code, final_state, is_retried = ERRORS[error]
    harness = harness_in_state(ExecutionState.TRANSFERRING, retries=retries)
    harness.respond_state("failed", 37, error)
    assert harness.execution.code == code
    if is_retried and retries:
        assert (harness.execution.state, harness.execution.attempt) == (ExecutionState.QUEUED, 2)
        assert harness.execution.waiting == ("battery" if code == "BATTERY" else "back-off")
    else:
        assert (harness.execution.state, harness.execution.attempt) == (final_state, 1)
        assert harness.execution.reason


@each_row("error", [2, 4])
def test_a_device_that_is_already_restarting_fails_and_is_not_rejected(error: int) -> None:
    harness = harness_in_state(ExecutionState.APPLYING)
    harness.respond_state("failed", 100, error)
    assert harness.is_in(ExecutionState.FAILED)


START_RESPONSES = {
    Status.OK: (ExecutionState.TRANSFERRING, None),
    Status.FAILED: (ExecutionState.DISPATCHED, None),
    Status.UNREACHABLE: (ExecutionState.DISPATCHED, None),
    Status.BUSY: (ExecutionState.DISPATCHED, None),
    Status.TIMEOUT: (ExecutionState.DISPATCHED, None),
    Status.INVALID_REQUEST: (ExecutionState.REJECTED, None),
    Status.UNKNOWN_OPERATION: (ExecutionState.REJECTED, None),
    Status.UNKNOWN_IDENTIFIER: (ExecutionState.REJECTED, None),
    Status.NOT_SUPPORTED: (ExecutionState.REJECTED, None),
    Status.INVALID_VALUE: (ExecutionState.REJECTED, None),
    Status.ACCESS_NOT_ALLOWED: (ExecutionState.REJECTED, None),
    Status.ACCESS_DENIED: (ExecutionState.REJECTED, None),
}


@each_row("status", START_RESPONSES)
def test_the_response_to_the_start_command_decides_the_state(status: Status) -> None:
    after, step = START_RESPONSES[status]
    harness = harness_in_state(ExecutionState.DISPATCHED)
    request = harness.respond(status)
    assert harness.is_in(after)
    assert (None if request is None else request.step) is step


@each_row("status", [*START_RESPONSES][5:])
def test_a_device_that_rejects_dfu_mode_is_rejected(status: Status) -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED, UpdateMethod.NORDIC_DFU)
    harness.respond(status)
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.REJECTED, "REFUSED")


# --- Retries ---


def test_an_unanswered_start_is_repeated_only_if_the_device_is_idle_and_runs_another_version() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    assert find_step(harness.miss_response()) is UpdateStep.STATE
    assert find_step(harness.respond_state("idle")) is UpdateStep.RECHECK_VERSION
    assert find_step(harness.respond(0, OTHER)) is UpdateStep.START


@each_row("method", list(UpdateMethod))
def test_an_idle_device_may_have_finished_and_restarted(method: UpdateMethod) -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED, method)
    if method is UpdateMethod.NORDIC_DFU:
        harness.respond()
        harness.enter_dfu_mode()
    harness.miss_response()
    assert (
        find_step(harness.respond(0, build_state_value("idle", modelNumber=0, version="0.0.0")))
        is UpdateStep.RECHECK_VERSION
    )
    harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.CONFIRMING)


def test_a_device_that_does_not_answer_the_switch_to_dfu_mode_is_awaited_there() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED, UpdateMethod.NORDIC_DFU)
    assert harness.miss_response() is None
    assert (harness.execution.due - harness.now, harness.execution.tries) == (timeouts.DFU_MODE_TIMEOUT, 1)
    assert find_step(harness.enter_dfu_mode()) is UpdateStep.START


def test_a_heartbeat_status_after_the_first_attempt_is_no_baseline() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, retries=1)
    harness.respond_state("failed", 37, 7)
    assert (harness.execution.state, harness.execution.attempt) == (ExecutionState.QUEUED, 2)
    harness.context = replace(harness.context, status=7)
    harness.dispatch(may_run_target=True)
    harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.CONFIRMING)
    harness.send_heartbeat(7)
    assert harness.execution.beats == 0


@each_row("heartbeats", [2, 20, 100])
def test_the_confirmation_timeout_allows_all_required_heartbeats(heartbeats: int) -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING, heartbeats=heartbeats)
    harness.confirm()
    assert harness.is_in(ExecutionState.SUCCEEDED)


def test_bad_heartbeats_and_required_good_ones_are_evidence() -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING)
    is_evidence = []
    for status in (7, 0, 0, 0, 0):  # two good ones are required
        harness.send_heartbeat(status)
        is_evidence.append(harness.decision.is_evidence)
    assert is_evidence == [True, True, True, False, False]


@each_row(
    ("keyword", "after"),
    [
        ("fetching", ExecutionState.TRANSFERRING),
        ("transferring", ExecutionState.TRANSFERRING),
        ("verifying", ExecutionState.VERIFYING),
        ("staged", ExecutionState.STAGED),
        ("applying", ExecutionState.APPLYING),
    ],
)
def test_an_unanswered_start_that_was_carried_out_is_followed(keyword: str, after: ExecutionState) -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED, stage=True)
    harness.miss_response()
    harness.respond_state(keyword, 20)
    assert harness.is_in(after)


def test_a_device_that_reports_done_is_asked_for_its_version_first() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    harness.miss_response()
    assert find_step(harness.respond_state("done", 100)) is UpdateStep.RECHECK_VERSION
    harness.respond(Status.TIMEOUT)
    assert harness.is_in(ExecutionState.DISPATCHED)
    request = harness.advance_to_due()
    assert request is not None
    assert request.step is UpdateStep.RECHECK_VERSION, "it is not updated again without a response"
    harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.CONFIRMING)


TRANSIENT_STATUSES = {
    Status.FAILED: "the request failed",
    Status.BUSY: "the device or gateway is busy",
    Status.TIMEOUT: "the device did not respond to its gateway",
    Status.UNREACHABLE: "the gateway has no route to the device",
}


@pytest.mark.rule("firmware-42")
@each_row("status", TRANSIENT_STATUSES)
@each_row("method", [UpdateMethod.DOWNLOAD, UpdateMethod.NORDIC_DFU])
def test_transient_errors_are_retried_for_minutes_with_growing_delays(
    status: Status, method: UpdateMethod
) -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED, method)
    started_at, sent_at = harness.now, [harness.now]
    while harness.is_in(ExecutionState.DISPATCHED):
        request = harness.respond(status) or (
            harness.advance_to_due() if harness.is_in(ExecutionState.DISPATCHED) else None
        )
        while request is not None and request.step in (UpdateStep.STATE, UpdateStep.RECHECK_VERSION):
            request = (
                harness.respond_state("idle")
                if request.step is UpdateStep.STATE
                else harness.respond(0, OTHER)
            )
        if request is not None:
            sent_at.append(harness.now)
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "NOT_STARTED")
    assert harness.execution.reason == f"the update could not be started: {TRANSIENT_STATUSES[status]}"
    delays = [after - before for before, after in pairwise(sent_at)]
    assert delays[0] < delays[1] < delays[2] < delays[3]
    assert 4_000 <= delays[0] <= 12_000, "not immediately"
    assert max(delays) <= 80_000
    assert (
        timeouts.START_TIMEOUT
        <= harness.now - started_at
        <= timeouts.START_TIMEOUT + timeouts.LAST_QUERY_TIMEOUT + 30_000
    )


def test_an_unanswered_start_is_repeated_until_its_timeout() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    started_at, start_count = harness.now, 1
    while harness.is_in(ExecutionState.DISPATCHED):
        harness.miss_response()
        if harness.execution.pending_request is not None:
            harness.respond_state("idle")
            request = harness.respond(0, OTHER)
            start_count += request is not None and request.step is UpdateStep.START
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "NOT_STARTED")
    assert start_count <= (harness.now - started_at) // timeouts.RESPONSE_TIMEOUT


def test_an_unsent_request_does_not_count_as_a_try() -> None:
    """Disconnect a gateway for a minute: that costs no attempt."""
    harness = harness_in_state(ExecutionState.DISPATCHED)
    for _ in range(10):
        harness.fail_sending()
        assert harness.advance_to_due() is not None
        assert harness.is_in(ExecutionState.DISPATCHED)
    harness.respond(0, {"state": "idle", "percent": 0, "error": 0, "modelNumber": 0, "version": "0.0.0"})
    assert find_step(harness.respond(0, OTHER)) is UpdateStep.START
    harness.respond()
    assert harness.is_in(ExecutionState.TRANSFERRING)


def test_another_attempt_reads_the_version_first() -> None:
    harness = UpdateHarness(retries=1)
    harness.execution = replace(harness.execution, attempt=2)
    assert find_step(harness.dispatch(may_run_target=True)) is UpdateStep.RECHECK_VERSION
    assert find_step(harness.respond(0, OTHER)) is UpdateStep.START


def test_attempts_have_growing_delays_and_a_limit() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, retries=3)
    delays = []
    for attempt in range(2, 5):
        harness.respond_state("failed", 10, 7)
        assert (harness.execution.state, harness.execution.attempt) == (ExecutionState.QUEUED, attempt)
        delays.append(harness.execution.due - harness.now)
        harness.dispatch()
        harness.respond()
    harness.respond_state("failed", 10, 7)
    assert (harness.execution.state, harness.execution.attempt) == (ExecutionState.FAILED, 4)
    for expected, delay in zip((1, 2, 4), delays, strict=True):
        assert 0.8 * expected * 60_000 <= delay <= 1.2 * expected * 60_000


def test_a_canceled_execution_is_not_retried() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, retries=3)
    harness.advance_to_due()
    harness.change_spec(is_canceling=True)
    harness.respond(0, {"state": "failed", "percent": 3, "error": 7, "modelNumber": 0x18, "version": "1.1.0"})
    assert harness.is_in(ExecutionState.CANCELED)


# --- Timeouts ---

TIMEOUTS = {
    ExecutionState.DISPATCHED: (ExecutionState.TIMED_OUT, "NOT_STARTED", timeouts.START_TIMEOUT),
    ExecutionState.TRANSFERRING: (ExecutionState.TIMED_OUT, "STALLED", 10 * 60_000),
    ExecutionState.VERIFYING: (ExecutionState.TIMED_OUT, "STALLED", 10 * 60_000),
    ExecutionState.STAGED: (ExecutionState.TIMED_OUT, "NOT_STAGED", 60 * 60_000),
    ExecutionState.APPLYING: (ExecutionState.TIMED_OUT, "NOT_APPLIED", timeouts.APPLY_TIMEOUT),
    ExecutionState.CONFIRMING: (ExecutionState.FAILED, "NOT_CONFIRMED", 15 * 60_000),
}


@each_row("state_before", TIMEOUTS)
def test_every_state_has_a_timeout(state_before: ExecutionState) -> None:
    final_state, code, after = TIMEOUTS[state_before]
    harness = harness_in_state(state_before, stage=state_before is ExecutionState.STAGED)
    harness.execution = replace(
        harness.without_request(), total_until=None if state_before is ExecutionState.STAGED else 2**62
    )
    assert harness.execution.expires == harness.now + after
    started_at = harness.now
    harness.now += after - 2
    harness.apply_timer_after(1)
    assert harness.is_in(state_before)
    harness.execution = harness.without_request()
    request = harness.apply_timer_after(1)
    if state_before is not ExecutionState.STAGED:  # it waits for a user, so nothing is queried
        assert harness.is_in(state_before), "it is queried before it is given up"
        assert request is not None
        assert request.step in (UpdateStep.STATE, UpdateStep.CONFIRM_VERSION)
        assert harness.decision.abort_request is None
    harness.run_unanswered()
    assert (harness.execution.state, harness.execution.code) == (final_state, code)
    assert harness.now <= started_at + after + timeouts.LAST_QUERY_TIMEOUT + timeouts.RESPONSE_TIMEOUT


@pytest.mark.rule("firmware-40")
@each_row("keyword", ["idle", "done"])
@each_row(
    ("method", "state_before"),
    [
        (UpdateMethod.DOWNLOAD, ExecutionState.DISPATCHED),
        (UpdateMethod.DOWNLOAD, ExecutionState.TRANSFERRING),
        (UpdateMethod.DOWNLOAD, ExecutionState.VERIFYING),
        (UpdateMethod.DOWNLOAD, ExecutionState.APPLYING),
        (UpdateMethod.BROADCAST, ExecutionState.DISPATCHED),
        (UpdateMethod.BROADCAST, ExecutionState.TRANSFERRING),
    ],
)
def test_a_device_that_turns_out_to_run_the_version_is_not_given_up(
    state_before: ExecutionState, keyword: str, method: UpdateMethod
) -> None:
    harness = harness_in_state(state_before, method)
    harness.execution = replace(harness.without_request(), expires=harness.now, total_until=harness.now)
    request = harness.apply_timer()
    assert request is not None
    assert not request.targets_gateway, "each device is queried itself"
    request = harness.respond_state(keyword, 100 if keyword == "done" else 0)
    if request is not None and request.step is UpdateStep.RECHECK_VERSION:
        harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.CONFIRMING)
    assert harness.execution.final_until is None


@pytest.mark.rule("firmware-40")
def test_an_unanswered_last_query_is_repeated_even_after_many_failed_queries() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    harness.execution = replace(harness.without_request(), expires=harness.now, tries=10)
    requests = [harness.apply_timer()]
    for _ in range(2):
        harness.miss_response()
        requests.append(harness.advance_to_due())
    assert [find_step(request) for request in requests] == [UpdateStep.STATE] * 3
    harness.run_unanswered()
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "NOT_STARTED")


@pytest.mark.rule("firmware-40")
def test_a_response_to_the_last_query_without_progress_ends_the_execution() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    harness.respond_state("transferring", 40)
    harness.execution = replace(harness.without_request(), expires=harness.now)
    assert harness.apply_timer() is not None
    harness.respond_state("transferring", 40)
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "STALLED")
    assert harness.decision.abort_request is not None


def test_progress_in_the_response_to_the_last_query_resets_the_timeout() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    harness.execution = replace(harness.without_request(), expires=harness.now)
    harness.apply_timer()
    harness.respond_state("transferring", 40)
    assert (harness.execution.state, harness.execution.final_until) == (ExecutionState.TRANSFERRING, None)
    assert harness.execution.expires == harness.now + harness.context.spec.step_timeout


@pytest.mark.rule("firmware-40")
def test_a_missing_response_after_a_lost_connection_does_not_end_the_execution() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    harness.execution = replace(harness.without_request(), expires=harness.now)
    harness.apply_timer()
    harness.apply_event(
        RequestUnanswered(
            UpdateStep.STATE, "the service stopped before a response arrived", is_connection_lost=True
        )
    )
    assert harness.advance_to_due() is not None
    harness.fail_sending()
    harness.now += 20 * 60_000  # nothing can be sent, and the timers are suspended
    assert harness.apply_timer() is not None
    harness.respond_state("done", 100)
    assert harness.is_in(ExecutionState.CONFIRMING)


@each_row("state_before", [each for each in TIMEOUTS if each is not ExecutionState.STAGED])
def test_the_whole_update_has_a_timeout(state_before: ExecutionState) -> None:
    harness = harness_in_state(state_before, total_timeout=60_000_000)
    harness.execution = replace(harness.without_request(), expires=2**62)
    assert harness.execution.total_until is not None
    harness.now = harness.execution.total_until - 1
    assert harness.apply_timer_after(1) is not None
    harness.run_unanswered()
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "TOO_LONG")


@each_row(
    "state_before",
    [ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING, ExecutionState.VERIFYING, ExecutionState.STAGED],
)
def test_a_device_that_is_given_up_gets_an_abort_request(state_before: ExecutionState) -> None:
    harness = harness_in_state(state_before, stage=state_before is ExecutionState.STAGED)
    harness.execution = replace(harness.without_request(), expires=harness.now)
    harness.apply_timer()
    harness.run_unanswered()
    assert harness.decision.abort_request is not None
    assert harness.decision.abort_request.step is UpdateStep.FINAL_ABORT


def test_progress_resets_the_timeout() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    for percent in range(5, 100, 5):
        harness.now += 9 * 60_000
        harness.execution = replace(harness.execution, total_until=2**62)
        harness.respond_state("transferring", percent)
        assert harness.is_in(ExecutionState.TRANSFERRING)


# --- Confirmation ---


def test_a_wrong_version_is_a_failure_and_not_retried() -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING, retries=3)
    harness.send_heartbeat()
    harness.respond(0, OTHER)
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.FAILED, "WRONG_VERSION")


@pytest.mark.rule("rest-144")
def test_good_heartbeats_without_the_version_are_no_success() -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING)
    for _ in range(5):
        if harness.send_heartbeat() is not None:
            harness.respond(Status.TIMEOUT)
        assert harness.is_in(ExecutionState.CONFIRMING)


@pytest.mark.rule("rest-144")
def test_the_version_without_required_heartbeats_is_no_success() -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING)
    harness.send_heartbeat(status=4)
    harness.respond(0, OURS)
    assert (harness.execution.state, harness.execution.is_read, harness.execution.beats) == (
        ExecutionState.CONFIRMING,
        True,
        0,
    )
    harness.send_heartbeat(status=0)
    harness.send_heartbeat(status=4)
    assert harness.execution.beats == 0


def test_a_heartbeat_with_the_status_from_before_the_update_counts_as_good() -> None:
    harness = UpdateHarness()
    harness.context = replace(harness.context, status=4)
    harness.dispatch()
    harness.respond()
    harness.respond_state("done", 100)
    harness.send_heartbeat(status=4)
    assert harness.execution.beats == 1


def test_a_heartbeat_that_is_received_twice_counts_once() -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING)
    harness.send_heartbeat()
    assert harness.execution.beat_at is not None
    harness.apply_event(HeartbeatReceived(0, harness.execution.beat_at))
    assert harness.execution.beats == 1


@pytest.mark.rule("rest-130")
def test_without_required_heartbeats_the_version_decides() -> None:
    harness = harness_in_state(ExecutionState.APPLYING, heartbeats=0)
    assert find_step(harness.respond_state("done", 100)) is UpdateStep.CONFIRM_VERSION
    harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.SUCCEEDED)


@each_row("state_before", TIMEOUTS)
def test_the_execution_of_a_removed_device_ends_as_removed(state_before: ExecutionState) -> None:
    harness = harness_in_state(state_before, stage=state_before is ExecutionState.STAGED)
    harness.apply_event(DeviceRemoved())
    assert harness.is_in(ExecutionState.REMOVED)


def test_the_apply_request_is_repeated_until_its_timeout() -> None:
    harness = harness_in_state(ExecutionState.STAGED, stage=True)
    harness.change_spec(is_applied=True)
    apply_steps: list[UpdateStep] = []
    request = harness.apply_timer()
    while harness.is_in(ExecutionState.STAGED):
        if request is None:
            request = harness.advance_to_due()
        elif request.step is UpdateStep.APPLY:
            apply_steps.append(request.step)
            request = harness.respond(Status.ACCESS_DENIED)
        else:
            request = harness.respond_state("staged", 100)
        assert len(apply_steps) < 50, "it is repeated forever"
    assert len(apply_steps) > 1
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "NOT_APPLIED")


def test_a_cancel_interrupts_a_sequence_of_requests() -> None:
    harness = harness_in_state(ExecutionState.STAGED, stage=True)
    harness.change_spec(is_applied=True)
    assert harness.apply_timer() is not None
    harness.change_spec(is_canceling=True)
    assert find_step(harness.respond(Status.BUSY)) is UpdateStep.ABORT


def test_a_staged_image_is_not_applied_when_the_job_is_canceled() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, stage=True, is_applied=True)
    harness.advance_to_due()
    harness.change_spec(is_canceling=True)
    request = harness.respond(0, build_state_value("staged", 100))
    assert request is None or request.step is not UpdateStep.APPLY


@each_row("canceling", [False, True])
def test_an_update_of_another_origin_is_not_aborted(*, canceling: bool) -> None:
    harness = UpdateHarness()
    harness.dispatch()
    harness.respond(Status.BUSY)
    request = harness.advance_to_due()
    while harness.is_in(ExecutionState.DISPATCHED):
        harness.respond(0, build_state_value("transferring", 10, version="7.7.7"))
        harness.change_spec(is_canceling=canceling)
        request = harness.advance_to_due() if harness.is_in(ExecutionState.DISPATCHED) else None
        assert request is None or request.step is UpdateStep.STATE
        assert harness.decision.abort_request is None
    assert harness.execution.state is (ExecutionState.CANCELED if canceling else ExecutionState.TIMED_OUT)


def test_a_device_that_restarted_unnoticed_may_have_finished() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    harness.respond_state("transferring", 1)
    assert find_step(harness.respond_state("idle")) is UpdateStep.RECHECK_VERSION
    harness.respond(0, OURS)
    assert harness.is_in(ExecutionState.CONFIRMING)


@pytest.mark.rule("firmware-41")
@each_row(
    "report",
    [{"keyword": "idle"}, {"keyword": "done", "version": "1.0.0"}, {"keyword": "failed", "version": "1.0.0"}],
)
def test_a_device_may_be_idle_for_a_while_after_an_accepted_start(report: dict[str, Any]) -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    accepted = harness.now
    while harness.now < accepted + 110_000:
        harness.respond_state(**report)
        assert harness.is_in(ExecutionState.TRANSFERRING)
    harness.respond_state("transferring", 3)
    assert (harness.execution.state, harness.execution.progress) == (ExecutionState.TRANSFERRING, 3)


@pytest.mark.rule("firmware-41")
def test_a_device_that_stays_idle_after_an_accepted_start_is_given_up() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING)
    accepted = harness.now
    while harness.respond_state("idle") is None:
        assert harness.is_in(ExecutionState.TRANSFERRING)
    assert harness.now >= accepted + 120_000
    harness.respond(0, OTHER)
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "NOT_STARTED")
    assert harness.decision.abort_request is not None


# --- Outages ---


@pytest.mark.rule("firmware-39")
@each_row("state_before", [each for each in TIMEOUTS if each is not ExecutionState.STAGED])
def test_timers_are_suspended_while_the_gateway_is_disconnected(state_before: ExecutionState) -> None:
    harness = harness_in_state(state_before)
    harness.execution = harness.without_request()
    before = harness.execution
    harness.apply_event(GatewayDisconnected())
    assert (harness.execution.suspended_at, harness.execution.waiting) == (harness.now, "gateway-offline")
    harness.now += 30 * 60_000
    assert harness.apply_timer() is None, "nothing is sent while it is disconnected"
    assert harness.is_in(state_before)
    outage = harness.now + 1000 - (harness.execution.suspended_at or 0)
    harness.apply_event(GatewayReconnected())
    assert (harness.execution.suspended_at, harness.execution.waiting) == (None, None)
    assert harness.execution.expires == (before.expires or 0) + outage
    assert harness.execution.total_until == (before.total_until or 0) + outage
    assert harness.is_in(state_before)
    assert (
        state_before in (ExecutionState.DISPATCHED, ExecutionState.CONFIRMING)
        or harness.decision.request is not None
    ), "it is queried first"


@pytest.mark.rule("firmware-39")
def test_timers_are_suspended_for_at_most_the_queue_timeout() -> None:
    harness = harness_in_state(ExecutionState.TRANSFERRING, queue_timeout=60 * 60_000)
    harness.execution, started_at = harness.without_request(), harness.now
    for _ in range(3):
        harness.apply_event(GatewayDisconnected())
        harness.now += 25 * 60_000
        harness.apply_event(
            GatewayReconnected() if harness.execution.suspended_at is not None else TimerDue()
        )
    assert harness.execution.outage_left == 0
    harness.apply_event(GatewayDisconnected())
    assert harness.execution.suspended_at is None
    while not harness.is_in(ExecutionState.TIMED_OUT):
        if harness.execution.pending_request is None:
            harness.advance_to_due()
        else:
            harness.fail_sending()
    assert harness.now <= started_at + (60 + 25 + 10 + 2) * 60_000


@pytest.mark.rule("firmware-39")
def test_a_gateway_that_is_updated_itself_may_disconnect_for_the_time_of_a_restart() -> None:
    harness = harness_in_state(ExecutionState.APPLYING)
    harness.context = replace(harness.context, gateway=harness.execution.device)
    harness.execution, started_at = harness.without_request(), harness.now
    harness.apply_event(GatewayDisconnected())
    while harness.is_in(ExecutionState.APPLYING):
        if harness.execution.pending_request is None:
            harness.advance_to_due()
        else:
            harness.fail_sending()
    assert (harness.execution.state, harness.execution.code) == (ExecutionState.TIMED_OUT, "NOT_APPLIED")
    assert (
        harness.now
        <= started_at + 2 * timeouts.APPLY_TIMEOUT + timeouts.LAST_QUERY_TIMEOUT + timeouts.RESPONSE_TIMEOUT
    )


@pytest.mark.rule("firmware-43")
@each_row("method", list(UpdateMethod))
def test_an_unsent_start_is_canceled_at_once(method: UpdateMethod) -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED, method)
    assert "sent" not in harness.decision.cause.replace("to be sent", "")
    harness.fail_sending()
    assert harness.execution.step is UpdateStep.UNSENT
    harness.change_spec(is_canceling=True)
    assert harness.apply_timer() is None
    assert (harness.execution.state, harness.execution.reason) == (
        ExecutionState.CANCELED,
        "canceled before the start command was sent",
    )
    assert harness.decision.abort_request is None


@pytest.mark.rule("firmware-43")
def test_a_cancel_takes_effect_when_a_pending_start_cannot_be_sent() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    harness.change_spec(is_canceling=True)
    harness.fail_sending()
    assert harness.is_in(ExecutionState.CANCELED)


@pytest.mark.rule("firmware-43")
def test_a_start_that_may_have_been_sent_is_aborted_on_a_cancel() -> None:
    harness = harness_in_state(ExecutionState.DISPATCHED)
    harness.miss_response()
    harness.fail_sending()
    harness.change_spec(is_canceling=True)
    assert find_step(harness.apply_timer()) is UpdateStep.ABORT


# --- Reasons ---


def test_the_reason_names_the_status_of_a_bad_heartbeat() -> None:
    harness = harness_in_state(ExecutionState.CONFIRMING)
    harness.context = replace(harness.context, status=3)
    harness.send_heartbeat(status=3)
    harness.respond(0, OURS)
    assert harness.execution.reason == "a heartbeat reported status 3"
    while harness.is_in(ExecutionState.CONFIRMING):
        harness.advance_to_due()
    assert (
        harness.execution.reason
        == "only 0 of 2 good heartbeats were received in time: a heartbeat reported status 3"
    )


@each_row(("total", "until"), [(None, 100 * 60_000), (45 * 60_000, 45 * 60_000)])
def test_without_a_known_heartbeat_interval_the_total_timeout_limits_the_confirmation(
    total: int | None, until: int
) -> None:
    harness = UpdateHarness(total_timeout=total)
    harness.context = replace(harness.context, heartbeat_interval=None)
    harness.dispatch()
    started_at = harness.now
    harness.respond()
    harness.respond_state("done", 100)
    entered = harness.now
    harness.run_unanswered()
    assert harness.execution.reason is not None
    assert "did not confirm the new version" in harness.execution.reason
    since = entered if total is None else started_at
    assert until <= harness.now - since <= until + timeouts.LAST_QUERY_TIMEOUT + timeouts.RESPONSE_TIMEOUT
