"""Every error, every clock, every way to begin again: what becomes of an execution."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from tests.row_tables import each_row
from tests.service.jobs.updates.harness import OTHER, OURS, UpdateHarness, harness_in_state, state

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
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
    1: ("NO_IMAGE", S.FAILED, True),
    2: ("WRONG_MODEL", S.REJECTED, False),
    3: ("BAD_HASH", S.FAILED, True),
    4: ("DOWNGRADE", S.REJECTED, False),
    5: ("BATTERY", S.FAILED, True),
    6: ("ABORTED", S.FAILED, True),
    7: ("TRANSFER_LOST", S.FAILED, True),
    8: ("ROLLED_BACK", S.FAILED, False),
    99: ("TRANSFER_LOST", S.FAILED, True),
}
"""What a device tells: the code, how it ends, and whether it is tried again."""


@pytest.mark.rule("firmware-6")
@each_row("error", ERRORS)
@each_row("retries", [0, 1])
def test_an_error_of_a_device_ends_the_attempt(error: int, retries: int) -> None:
    code, end, is_again = ERRORS[error]
    stand = harness_in_state(S.TRANSFERRING, retries=retries)
    stand.answer_state("failed", 37, error)
    assert stand.x.code == code
    if is_again and retries:
        assert (stand.x.state, stand.x.attempt) == (S.QUEUED, 2)
        assert stand.x.waiting == ("battery" if code == "BATTERY" else "back-off")
    else:
        assert (stand.x.state, stand.x.attempt) == (end, 1)
        assert stand.x.reason


@each_row("error", [2, 4])
def test_who_restarts_already_can_only_fail(error: int) -> None:
    stand = harness_in_state(S.APPLYING)
    stand.answer_state("failed", 100, error)
    assert stand.is_in(S.FAILED)


START_ANSWERS = {
    Status.OK: (S.TRANSFERRING, None),
    Status.FAILED: (S.DISPATCHED, None),
    Status.UNREACHABLE: (S.DISPATCHED, None),
    Status.BUSY: (S.DISPATCHED, None),
    Status.TIMEOUT: (S.DISPATCHED, None),
    Status.INVALID_REQUEST: (S.REJECTED, None),
    Status.UNKNOWN_OPERATION: (S.REJECTED, None),
    Status.UNKNOWN_IDENTIFIER: (S.REJECTED, None),
    Status.NOT_SUPPORTED: (S.REJECTED, None),
    Status.INVALID_VALUE: (S.REJECTED, None),
    Status.ACCESS_NOT_ALLOWED: (S.REJECTED, None),
    Status.ACCESS_DENIED: (S.REJECTED, None),
}


@each_row("status", START_ANSWERS)
def test_an_answer_to_the_first_command_tells_whether_it_begins(status: Status) -> None:
    after, step = START_ANSWERS[status]
    stand = harness_in_state(S.DISPATCHED)
    ask = stand.answer(status)
    assert stand.is_in(after)
    assert (None if ask is None else ask.step) is step


@each_row("status", [*START_ANSWERS][5:])
def test_a_device_that_does_not_go_into_dfu_mode_refuses(status: Status) -> None:
    stand = harness_in_state(S.DISPATCHED, UpdateMethod.NORDIC_DFU)
    stand.answer(status)
    assert (stand.x.state, stand.x.code) == (S.REJECTED, "REFUSED")


# --- Beginning again ---


def test_an_unclear_command_is_sent_again_only_to_a_device_that_is_idle_and_runs_another_version() -> None:
    stand = harness_in_state(S.DISPATCHED)
    ask = stand.unclear()
    assert ask is not None
    assert ask.step is UpdateStep.STATE
    ask = stand.answer_state("idle")
    assert ask is not None
    assert ask.step is UpdateStep.RECHECK_VERSION
    ask = stand.answer(0, OTHER)
    assert ask is not None
    assert ask.step is UpdateStep.START


@each_row("way", list(UpdateMethod))
def test_a_device_that_is_idle_may_have_done_it_and_restarted(way: UpdateMethod) -> None:
    stand = harness_in_state(S.DISPATCHED, way)
    if way is UpdateMethod.NORDIC_DFU:
        stand.answer()
        stand.in_dfu()
    stand.unclear()
    ask = stand.answer(0, state("idle", modelNumber=0, version="0.0.0"))
    assert ask is not None
    assert ask.step is UpdateStep.RECHECK_VERSION
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)


def test_who_does_not_say_that_it_goes_into_dfu_mode_is_waited_for_all_the_same() -> None:
    stand = harness_in_state(S.DISPATCHED, UpdateMethod.NORDIC_DFU)
    assert stand.unclear() is None
    assert (stand.x.due - stand.now, stand.x.tries) == (timeouts.DFU_MODE_TIMEOUT, 1)
    ask = stand.in_dfu()
    assert ask is not None
    assert ask.step is UpdateStep.START


def test_a_bad_status_of_the_version_before_another_attempt_is_no_excuse() -> None:
    stand = harness_in_state(S.TRANSFERRING, retries=1)
    stand.answer_state("failed", 37, 7)
    assert (stand.x.state, stand.x.attempt) == (S.QUEUED, 2)
    stand.context = replace(stand.context, status=7)
    stand.dispatch(may_be_updated=True)
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)
    stand.beat(7)
    assert stand.x.beats == 0


@each_row("heartbeats", [2, 20, 100])
def test_there_is_time_for_as_many_heartbeats_as_are_wanted(heartbeats: int) -> None:
    stand = harness_in_state(S.CONFIRMING, heartbeats=heartbeats)
    stand.confirm()
    assert stand.is_in(S.SUCCEEDED)


def test_every_heartbeat_that_counts_is_evidence() -> None:
    stand = harness_in_state(S.CONFIRMING)
    kept = []
    for status in (7, 0, 0, 0, 0):  # two good ones are wanted
        stand.beat(status)
        kept.append(stand.move.is_evidence)
    assert kept == [True, True, True, False, False]


@each_row(
    ("word", "after"),
    [
        ("fetching", S.TRANSFERRING),
        ("transferring", S.TRANSFERRING),
        ("verifying", S.VERIFYING),
        ("staged", S.STAGED),
        ("applying", S.APPLYING),
    ],
)
def test_an_unclear_command_that_came_through_is_followed(word: str, after: S) -> None:
    stand = harness_in_state(S.DISPATCHED, stage=True)
    stand.unclear()
    stand.answer_state(word, 20)
    assert stand.is_in(after)


def test_a_device_that_says_it_is_done_is_asked_for_its_version_before_anything_else() -> None:
    stand = harness_in_state(S.DISPATCHED)
    stand.unclear()
    ask = stand.answer_state("done", 100)
    assert ask is not None
    assert ask.step is UpdateStep.RECHECK_VERSION
    stand.answer(Status.TIMEOUT)
    assert stand.is_in(S.DISPATCHED)
    ask = stand.due()
    assert ask is not None
    assert ask.step is UpdateStep.RECHECK_VERSION, "it is not updated again for want of an answer"
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)


PASSING = {
    Status.FAILED: "the request failed",
    Status.BUSY: "the device or gateway is busy",
    Status.TIMEOUT: "the device did not respond to its gateway",
    Status.UNREACHABLE: "the gateway has no route to the device",
}


@pytest.mark.rule("firmware-42")
@each_row("status", PASSING)
@each_row("way", [UpdateMethod.DOWNLOAD, UpdateMethod.NORDIC_DFU])
def test_what_may_pass_is_tried_again_for_minutes_with_growing_pauses(
    status: Status, way: UpdateMethod
) -> None:
    stand = harness_in_state(S.DISPATCHED, way)
    began, sent = stand.now, [stand.now]
    while stand.is_in(S.DISPATCHED):
        ask = stand.answer(status) or (stand.due() if stand.is_in(S.DISPATCHED) else None)
        while ask is not None and ask.step in (UpdateStep.STATE, UpdateStep.RECHECK_VERSION):
            ask = stand.answer_state("idle") if ask.step is UpdateStep.STATE else stand.answer(0, OTHER)
        if ask is not None:
            sent.append(stand.now)
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "NOT_STARTED")
    assert stand.x.reason == f"the update could not be started: {PASSING[status]}"
    pauses = [after - before for before, after in pairwise(sent)]
    assert pauses[0] < pauses[1] < pauses[2] < pauses[3]
    assert 4_000 <= pauses[0] <= 12_000, "not at once"
    assert max(pauses) <= 80_000
    assert (
        timeouts.START_TIMEOUT
        <= stand.now - began
        <= timeouts.START_TIMEOUT + timeouts.LAST_QUERY_TIMEOUT + 30_000
    )


def test_a_command_that_is_never_answered_is_sent_again_until_the_clock_is_over() -> None:
    stand = harness_in_state(S.DISPATCHED)
    began, begun = stand.now, 1
    while stand.is_in(S.DISPATCHED):
        stand.unclear()
        if stand.x.ask is not None:
            stand.answer_state("idle")
            ask = stand.answer(0, OTHER)
            begun += ask is not None and ask.step is UpdateStep.START
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "NOT_STARTED")
    assert begun <= (stand.now - began) // timeouts.RESPONSE_TIMEOUT


def test_what_did_not_leave_was_not_tried() -> None:
    """A gateway that is away for a minute costs nobody an attempt."""
    stand = harness_in_state(S.DISPATCHED)
    for _ in range(10):
        stand.unsent()
        assert stand.due() is not None
        assert stand.is_in(S.DISPATCHED)
    stand.answer(0, {"state": "idle", "percent": 0, "error": 0, "modelNumber": 0, "version": "0.0.0"})
    ask = stand.answer(0, OTHER)
    assert ask is not None
    assert ask.step is UpdateStep.START
    stand.answer()
    assert stand.is_in(S.TRANSFERRING)


def test_another_attempt_looks_first_whether_the_version_is_there() -> None:
    stand = UpdateHarness(retries=1)
    stand.x = replace(stand.x, attempt=2)
    ask = stand.dispatch(may_be_updated=True)
    assert ask is not None
    assert ask.step is UpdateStep.RECHECK_VERSION
    ask = stand.answer(0, OTHER)
    assert ask is not None
    assert ask.step is UpdateStep.START


def test_attempts_are_tried_later_each_time_and_no_more_than_allowed() -> None:
    stand = harness_in_state(S.TRANSFERRING, retries=3)
    pauses = []
    for attempt in range(2, 5):
        stand.answer_state("failed", 10, 7)
        assert (stand.x.state, stand.x.attempt) == (S.QUEUED, attempt)
        pauses.append(stand.x.due - stand.now)
        stand.dispatch()
        stand.answer()
    stand.answer_state("failed", 10, 7)
    assert (stand.x.state, stand.x.attempt) == (S.FAILED, 4)
    for expected, pause in zip((1, 2, 4), pauses, strict=True):
        assert 0.8 * expected * 60_000 <= pause <= 1.2 * expected * 60_000


def test_who_is_canceled_is_not_tried_again() -> None:
    stand = harness_in_state(S.TRANSFERRING, retries=3)
    stand.due()
    stand.change_spec(is_canceling=True)
    stand.answer(0, {"state": "failed", "percent": 3, "error": 7, "modelNumber": 0x18, "version": "1.1.0"})
    assert stand.is_in(S.CANCELED)


# --- Clocks ---

CLOCKS = {
    S.DISPATCHED: (S.TIMED_OUT, "NOT_STARTED", timeouts.START_TIMEOUT),
    S.TRANSFERRING: (S.TIMED_OUT, "STALLED", 10 * 60_000),
    S.VERIFYING: (S.TIMED_OUT, "STALLED", 10 * 60_000),
    S.STAGED: (S.TIMED_OUT, "NOT_STAGED", 60 * 60_000),
    S.APPLYING: (S.TIMED_OUT, "NOT_APPLIED", timeouts.APPLY_TIMEOUT),
    S.CONFIRMING: (S.FAILED, "NOT_CONFIRMED", 15 * 60_000),
}


@each_row("where", CLOCKS)
def test_every_state_has_a_clock(where: S) -> None:
    end, code, after = CLOCKS[where]
    stand = harness_in_state(where, stage=where is S.STAGED)
    stand.x = replace(stand.without_request(), total_until=None if where is S.STAGED else 2**62)
    assert stand.x.expires == stand.now + after
    began = stand.now
    stand.now += after - 2
    stand.happen_due_in(1)
    assert stand.is_in(where)
    stand.x = stand.without_request()
    ask = stand.happen_due_in(1)
    if where is not S.STAGED:  # which waits for people, who are not asked
        assert stand.is_in(where), "it is asked before it is given up"
        assert ask is not None
        assert ask.step in (UpdateStep.STATE, UpdateStep.CONFIRM_VERSION)
        assert stand.move.abort_request is None
    stand.run_unanswered()
    assert (stand.x.state, stand.x.code) == (end, code)
    assert stand.now <= began + after + timeouts.LAST_QUERY_TIMEOUT + timeouts.RESPONSE_TIMEOUT


@pytest.mark.rule("firmware-40")
@each_row("told", ["idle", "done"])
@each_row(
    ("way", "where"),
    [
        (UpdateMethod.DOWNLOAD, S.DISPATCHED),
        (UpdateMethod.DOWNLOAD, S.TRANSFERRING),
        (UpdateMethod.DOWNLOAD, S.VERIFYING),
        (UpdateMethod.DOWNLOAD, S.APPLYING),
        (UpdateMethod.BROADCAST, S.DISPATCHED),
        (UpdateMethod.BROADCAST, S.TRANSFERRING),
    ],
)
def test_who_turns_out_to_run_the_version_is_not_given_up(where: S, told: str, way: UpdateMethod) -> None:
    stand = harness_in_state(where, way)
    stand.x = replace(stand.without_request(), expires=stand.now, total_until=stand.now)
    ask = stand.happen_due()
    assert ask is not None
    assert not ask.targets_gateway, "each device is asked for itself"
    ask = stand.answer_state(told, 100 if told == "done" else 0)
    if ask is not None and ask.step is UpdateStep.RECHECK_VERSION:
        stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)
    assert stand.x.final_until is None


@pytest.mark.rule("firmware-40")
def test_an_answer_to_the_last_question_that_brings_nothing_new_decides() -> None:
    stand = harness_in_state(S.TRANSFERRING)
    stand.answer_state("transferring", 40)
    stand.x = replace(stand.without_request(), expires=stand.now)
    assert stand.happen_due() is not None
    stand.answer_state("transferring", 40)
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "STALLED")
    assert stand.move.abort_request is not None


def test_progress_in_the_answer_to_the_last_question_winds_the_clock() -> None:
    stand = harness_in_state(S.TRANSFERRING)
    stand.x = replace(stand.without_request(), expires=stand.now)
    stand.happen_due()
    stand.answer_state("transferring", 40)
    assert (stand.x.state, stand.x.final_until) == (S.TRANSFERRING, None)
    assert stand.x.expires == stand.now + stand.context.spec.step_timeout


@pytest.mark.rule("firmware-40")
def test_a_silence_that_was_ours_does_not_decide() -> None:
    stand = harness_in_state(S.TRANSFERRING)
    stand.x = replace(stand.without_request(), expires=stand.now)
    stand.happen_due()
    stand.happen(
        RequestUnanswered(
            UpdateStep.STATE, "the service stopped before a response arrived", is_connection_lost=True
        )
    )
    assert stand.due() is not None
    stand.unsent()
    stand.now += 20 * 60_000  # nothing can be sent, and the clock stands still
    assert stand.happen_due() is not None
    stand.answer_state("done", 100)
    assert stand.is_in(S.CONFIRMING)


@each_row("where", [each for each in CLOCKS if each is not S.STAGED])
def test_all_states_together_have_a_clock(where: S) -> None:
    stand = harness_in_state(where, total_timeout=60_000_000)
    stand.x = replace(stand.without_request(), expires=2**62)
    assert stand.x.total_until is not None
    stand.now = stand.x.total_until - 1
    assert stand.happen_due_in(1) is not None
    stand.run_unanswered()
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "TOO_LONG")


@each_row("where", [S.DISPATCHED, S.TRANSFERRING, S.VERIFYING, S.STAGED])
def test_who_is_given_up_is_told_to_stop(where: S) -> None:
    stand = harness_in_state(where, stage=where is S.STAGED)
    stand.x = replace(stand.without_request(), expires=stand.now)
    stand.happen_due()
    stand.run_unanswered()
    assert stand.move.abort_request is not None
    assert stand.move.abort_request.step is UpdateStep.FINAL_ABORT


def test_progress_winds_the_clock() -> None:
    stand = harness_in_state(S.TRANSFERRING)
    for percent in range(5, 100, 5):
        stand.now += 9 * 60_000
        stand.x = replace(stand.x, total_until=2**62)
        stand.answer_state("transferring", percent)
        assert stand.is_in(S.TRANSFERRING)


# --- Confirming ---


def test_a_wrong_version_is_a_failure_and_not_tried_again() -> None:
    stand = harness_in_state(S.CONFIRMING, retries=3)
    stand.beat()
    stand.answer(0, OTHER)
    assert (stand.x.state, stand.x.code) == (S.FAILED, "WRONG_VERSION")


@pytest.mark.rule("rest-144")
def test_good_heartbeats_alone_are_no_success() -> None:
    stand = harness_in_state(S.CONFIRMING)
    for _ in range(5):
        if stand.beat() is not None:
            stand.answer(Status.TIMEOUT)
        assert stand.is_in(S.CONFIRMING)


@pytest.mark.rule("rest-144")
def test_a_right_version_alone_is_no_success_if_heartbeats_are_wanted() -> None:
    stand = harness_in_state(S.CONFIRMING)
    stand.beat(status=4)
    stand.answer(0, OURS)
    assert (stand.x.state, stand.x.is_read, stand.x.beats) == (S.CONFIRMING, True, 0)
    stand.beat(status=0)
    stand.beat(status=4)
    assert stand.x.beats == 0


def test_a_device_may_be_as_bad_as_it_was_before() -> None:
    stand = UpdateHarness()
    stand.context = replace(stand.context, status=4)
    stand.dispatch()
    stand.answer()
    stand.answer_state("done", 100)
    stand.beat(status=4)
    assert stand.x.beats == 1


def test_a_heartbeat_counts_once_whoever_hears_of_it() -> None:
    stand = harness_in_state(S.CONFIRMING)
    stand.beat()
    assert stand.x.beat_at is not None
    stand.happen(HeartbeatReceived(0, stand.x.beat_at))
    assert stand.x.beats == 1


@pytest.mark.rule("rest-130")
def test_without_heartbeats_the_version_alone_decides() -> None:
    stand = harness_in_state(S.APPLYING, heartbeats=0)
    ask = stand.answer_state("done", 100)
    assert ask is not None
    assert ask.step is UpdateStep.CONFIRM_VERSION
    stand.answer(0, OURS)
    assert stand.is_in(S.SUCCEEDED)


@each_row("where", CLOCKS)
def test_a_device_that_is_forgotten_is_removed(where: S) -> None:
    stand = harness_in_state(where, stage=where is S.STAGED)
    stand.happen(DeviceRemoved())
    assert stand.is_in(S.REMOVED)


def test_a_device_that_does_not_start_what_it_has_is_told_so_for_a_while_and_no_longer() -> None:
    stand = harness_in_state(S.STAGED, stage=True)
    stand.change_spec(is_applied=True)
    told: list[UpdateStep] = []
    ask = stand.happen_due()
    while stand.is_in(S.STAGED):
        if ask is None:
            ask = stand.due()
        elif ask.step is UpdateStep.APPLY:
            told.append(ask.step)
            ask = stand.answer(Status.ACCESS_DENIED)
        else:
            ask = stand.answer_state("staged", 100)
        assert len(told) < 50, "it is told for ever"
    assert len(told) > 1
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "NOT_APPLIED")


def test_what_is_asked_in_turn_is_interrupted_by_a_cancel() -> None:
    stand = harness_in_state(S.STAGED, stage=True)
    stand.change_spec(is_applied=True)
    assert stand.happen_due() is not None
    stand.change_spec(is_canceling=True)
    ask = stand.answer(Status.BUSY)
    assert ask is not None
    assert ask.step is UpdateStep.ABORT


def test_a_staged_device_is_not_told_to_start_when_the_job_is_canceled() -> None:
    stand = harness_in_state(S.TRANSFERRING, stage=True, is_applied=True)
    stand.due()
    stand.change_spec(is_canceling=True)
    ask = stand.answer(0, state("staged", 100))
    assert ask is None or ask.step is not UpdateStep.APPLY


@each_row("canceling", [False, True])
def test_an_update_of_somebody_else_is_not_aborted(*, canceling: bool) -> None:
    stand = UpdateHarness()
    stand.dispatch()
    stand.answer(Status.BUSY)
    ask = stand.due()
    while stand.is_in(S.DISPATCHED):
        stand.answer(0, state("transferring", 10, version="7.7.7"))
        stand.change_spec(is_canceling=canceling)
        ask = stand.due() if stand.is_in(S.DISPATCHED) else None
        assert ask is None or ask.step is UpdateStep.STATE
        assert stand.move.abort_request is None
    assert stand.x.state is (S.CANCELED if canceling else S.TIMED_OUT)


def test_a_device_that_restarted_unseen_may_have_done_it() -> None:
    stand = harness_in_state(S.TRANSFERRING)
    stand.answer_state("transferring", 1)
    ask = stand.answer_state("idle")
    assert ask is not None
    assert ask.step is UpdateStep.RECHECK_VERSION
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)


@pytest.mark.rule("firmware-41")
@each_row(
    "resting",
    [{"word": "idle"}, {"word": "done", "version": "1.0.0"}, {"word": "failed", "version": "1.0.0"}],
)
def test_the_start_has_its_own_clock(resting: dict[str, Any]) -> None:
    stand = harness_in_state(S.TRANSFERRING)
    accepted = stand.now
    while stand.now < accepted + 110_000:
        stand.answer_state(**resting)
        assert stand.is_in(S.TRANSFERRING)
    stand.answer_state("transferring", 3)
    assert (stand.x.state, stand.x.progress) == (S.TRANSFERRING, 3)


@pytest.mark.rule("firmware-41")
def test_a_device_that_never_begins_is_given_up_when_the_clock_of_the_start_is_over() -> None:
    stand = harness_in_state(S.TRANSFERRING)
    accepted = stand.now
    while stand.answer_state("idle") is None:
        assert stand.is_in(S.TRANSFERRING)
    assert stand.now >= accepted + 120_000
    stand.answer(0, OTHER)
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "NOT_STARTED")
    assert stand.move.abort_request is not None


# --- Outages ---


@pytest.mark.rule("firmware-39")
@each_row("where", [each for each in CLOCKS if each is not S.STAGED])
def test_clocks_stand_still_while_the_gateway_is_away(where: S) -> None:
    stand = harness_in_state(where)
    stand.x = stand.without_request()
    before = stand.x
    stand.happen(GatewayDisconnected())
    assert (stand.x.suspended_at, stand.x.waiting) == (stand.now, "gateway-offline")
    stand.now += 30 * 60_000
    assert stand.happen_due() is None, "nothing is asked while it is away"
    assert stand.is_in(where)
    gone = stand.now + 1000 - (stand.x.suspended_at or 0)
    stand.happen(GatewayReconnected())
    assert (stand.x.suspended_at, stand.x.waiting) == (None, None)
    assert stand.x.expires == (before.expires or 0) + gone
    assert stand.x.total_until == (before.total_until or 0) + gone
    assert stand.is_in(where)
    assert where in (S.DISPATCHED, S.CONFIRMING) or stand.move.request is not None, "it is asked first"


@pytest.mark.rule("firmware-39")
def test_an_outage_stops_clocks_for_as_long_as_executions_may_queue_and_no_longer() -> None:
    stand = harness_in_state(S.TRANSFERRING, queue_timeout=60 * 60_000)
    stand.x, began = stand.without_request(), stand.now
    for _ in range(3):
        stand.happen(GatewayDisconnected())
        stand.now += 25 * 60_000
        stand.happen(GatewayReconnected() if stand.x.suspended_at is not None else TimerDue())
    assert stand.x.outage_left == 0
    stand.happen(GatewayDisconnected())
    assert stand.x.suspended_at is None
    while not stand.is_in(S.TIMED_OUT):
        if stand.x.ask is None:
            stand.due()
        else:
            stand.unsent()
    assert stand.now <= began + (60 + 25 + 10 + 2) * 60_000


@pytest.mark.rule("firmware-39")
def test_a_gateway_that_is_updated_itself_may_be_away_for_as_long_as_a_restart_takes() -> None:
    stand = harness_in_state(S.APPLYING)
    stand.context = replace(stand.context, gateway=stand.x.device)
    stand.x, began = stand.without_request(), stand.now
    stand.happen(GatewayDisconnected())
    while stand.is_in(S.APPLYING):
        if stand.x.ask is None:
            stand.due()
        else:
            stand.unsent()
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "NOT_APPLIED")
    assert (
        stand.now
        <= began + 2 * timeouts.APPLY_TIMEOUT + timeouts.LAST_QUERY_TIMEOUT + timeouts.RESPONSE_TIMEOUT
    )


@pytest.mark.rule("firmware-43")
@each_row("way", list(UpdateMethod))
def test_a_command_that_never_left_is_canceled_at_once(way: UpdateMethod) -> None:
    stand = harness_in_state(S.DISPATCHED, way)
    assert "sent" not in stand.move.cause.replace("to be sent", "")
    stand.unsent()
    assert stand.x.step is UpdateStep.UNSENT
    stand.change_spec(is_canceling=True)
    assert stand.happen_due() is None
    assert (stand.x.state, stand.x.reason) == (S.CANCELED, "canceled before the first command was sent")
    assert stand.move.abort_request is None


@pytest.mark.rule("firmware-43")
def test_a_cancel_that_comes_while_the_first_command_waits_to_be_sent_takes_effect_with_its_failure() -> None:
    stand = harness_in_state(S.DISPATCHED)
    stand.change_spec(is_canceling=True)
    stand.unsent()
    assert stand.is_in(S.CANCELED)


@pytest.mark.rule("firmware-43")
def test_a_command_that_may_have_left_is_aborted_on_a_cancel() -> None:
    stand = harness_in_state(S.DISPATCHED)
    stand.unclear()
    stand.unsent()
    stand.change_spec(is_canceling=True)
    ask = stand.happen_due()
    assert ask is not None
    assert ask.step is UpdateStep.ABORT


# --- Proof ---


def test_a_bad_heartbeat_is_named_with_its_status() -> None:
    stand = harness_in_state(S.CONFIRMING)
    stand.context = replace(stand.context, status=3)
    stand.beat(status=3)
    stand.answer(0, OURS)
    assert stand.x.reason == "a heartbeat reported status 3"
    while stand.is_in(S.CONFIRMING):
        stand.due()
    assert (
        stand.x.reason == "only 0 of 2 good heartbeats were received in time: a heartbeat reported status 3"
    )


@each_row(("total", "until"), [(None, 100 * 60_000), (45 * 60_000, 45 * 60_000)])
def test_without_a_known_rhythm_the_clock_of_the_job_decides(total: int | None, until: int) -> None:
    stand = UpdateHarness(total_timeout=total)
    stand.context = replace(stand.context, heartbeat_interval=None)
    stand.dispatch()
    began = stand.now
    stand.answer()
    stand.answer_state("done", 100)
    entered = stand.now
    stand.run_unanswered()
    assert stand.x.reason is not None
    assert "did not confirm the new version" in stand.x.reason
    since = entered if total is None else began
    assert until <= stand.now - since <= until + timeouts.LAST_QUERY_TIMEOUT + timeouts.RESPONSE_TIMEOUT
