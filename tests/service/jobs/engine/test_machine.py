"""Every error, every clock, every way to begin again: what becomes of an execution."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.events import Beat, Gone
from meshfleet.service.jobs.update.model import Step
from meshfleet.wire.codes import Status
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S
from tests.service.jobs.engine.stand import OTHER, OURS, Stand, brought_to, state

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
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("retries", [0, 1])
def test_an_error_of_a_device_ends_the_attempt(error: int, retries: int) -> None:
    code, end, is_again = ERRORS[error]
    stand = brought_to(S.TRANSFERRING, retries=retries)
    stand.told("failed", 37, error)
    assert stand.x.code == code
    if is_again and retries:
        assert (stand.x.state, stand.x.attempt) == (S.QUEUED, 2)
        assert stand.x.waiting == ("battery" if code == "BATTERY" else "back-off")
    else:
        assert (stand.x.state, stand.x.attempt) == (end, 1)
        assert stand.x.reason


@pytest.mark.parametrize("error", [2, 4])
def test_who_restarts_already_can_only_fail(error: int) -> None:
    stand = brought_to(S.APPLYING)
    stand.told("failed", 100, error)
    assert stand.is_in(S.FAILED)


START_ANSWERS = {
    Status.OK: (S.TRANSFERRING, None),
    Status.FAILED: (S.DISPATCHED, None),
    Status.UNREACHABLE: (S.DISPATCHED, None),
    Status.BUSY: (S.DISPATCHED, Step.STATE),
    Status.TIMEOUT: (S.DISPATCHED, Step.STATE),
    Status.INVALID_REQUEST: (S.REJECTED, None),
    Status.UNKNOWN_OPERATION: (S.REJECTED, None),
    Status.UNKNOWN_IDENTIFIER: (S.REJECTED, None),
    Status.NOT_SUPPORTED: (S.REJECTED, None),
    Status.INVALID_VALUE: (S.REJECTED, None),
    Status.ACCESS_NOT_ALLOWED: (S.REJECTED, None),
    Status.ACCESS_DENIED: (S.REJECTED, None),
}


@pytest.mark.parametrize("status", START_ANSWERS)
def test_an_answer_to_the_first_command_tells_whether_it_begins(status: Status) -> None:
    after, step = START_ANSWERS[status]
    stand = brought_to(S.DISPATCHED)
    ask = stand.answer(status)
    assert stand.is_in(after)
    assert (None if ask is None else ask.step) is step


@pytest.mark.parametrize("status", [*START_ANSWERS][5:])
def test_a_device_that_does_not_go_into_dfu_mode_refuses(status: Status) -> None:
    stand = brought_to(S.DISPATCHED, Way.NORDIC_DFU)
    stand.answer(status)
    assert (stand.x.state, stand.x.code) == (S.REJECTED, "REFUSED")


# --- Beginning again ---


def test_an_unclear_command_is_sent_again_only_to_a_device_that_is_idle_and_runs_another_version() -> None:
    stand = brought_to(S.DISPATCHED)
    ask = stand.unclear()
    assert ask is not None
    assert ask.step is Step.STATE
    ask = stand.told("idle")
    assert ask is not None
    assert ask.step is Step.LOOK
    ask = stand.answer(0, OTHER)
    assert ask is not None
    assert ask.step is Step.START


@pytest.mark.parametrize("way", list(Way))
def test_a_device_that_is_idle_may_have_done_it_and_restarted(way: Way) -> None:
    stand = brought_to(S.DISPATCHED, way)
    if way is Way.NORDIC_DFU:
        stand.answer()
        stand.in_dfu()
    stand.unclear()
    ask = stand.answer(0, state("idle", modelNumber=0, version="0.0.0"))
    assert ask is not None
    assert ask.step is Step.LOOK
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)


def test_who_does_not_say_that_it_goes_into_dfu_mode_is_waited_for_all_the_same() -> None:
    stand = brought_to(S.DISPATCHED, Way.NORDIC_DFU)
    assert stand.unclear() is None
    assert (stand.x.due - stand.now, stand.x.tries) == (clocks.DFU, 1)
    ask = stand.in_dfu()
    assert ask is not None
    assert ask.step is Step.START


def test_a_bad_status_of_the_version_before_another_attempt_is_no_excuse() -> None:
    stand = brought_to(S.TRANSFERRING, retries=1)
    stand.told("failed", 37, 7)
    assert (stand.x.state, stand.x.attempt) == (S.QUEUED, 2)
    stand.scene = replace(stand.scene, status=7)
    stand.dispatch(is_there=True)
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)
    stand.beat(7)
    assert stand.x.beats == 0


@pytest.mark.parametrize("heartbeats", [2, 20, 100])
def test_there_is_time_for_as_many_heartbeats_as_are_wanted(heartbeats: int) -> None:
    stand = brought_to(S.CONFIRMING, heartbeats=heartbeats)
    stand.confirm()
    assert stand.is_in(S.SUCCEEDED)


def test_every_heartbeat_that_counts_is_evidence() -> None:
    stand = brought_to(S.CONFIRMING)
    kept = []
    for status in (7, 0, 0, 0, 0):  # two good ones are wanted
        stand.beat(status)
        kept.append(stand.move.is_evidence)
    assert kept == [True, True, True, False, False]


@pytest.mark.parametrize(
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
    stand = brought_to(S.DISPATCHED, stage=True)
    stand.unclear()
    stand.told(word, 20)
    assert stand.is_in(after)


def test_a_device_that_says_it_is_done_is_asked_for_its_version_before_anything_else() -> None:
    stand = brought_to(S.DISPATCHED)
    stand.unclear()
    ask = stand.told("done", 100)
    assert ask is not None
    assert ask.step is Step.LOOK
    stand.answer(Status.TIMEOUT)
    assert stand.is_in(S.DISPATCHED)
    ask = stand.due()
    assert ask is not None
    assert ask.step is Step.LOOK, "it is not updated again for want of an answer"
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)


def test_an_update_is_begun_three_times_at_most() -> None:
    stand = brought_to(S.DISPATCHED)
    begun = 1
    for _ in range(20):
        if not stand.is_in(S.DISPATCHED):
            break
        stand.unclear()
        if stand.x.ask is not None:
            stand.told("idle")
            ask = stand.answer(0, OTHER)
            begun += ask is not None and ask.step is Step.START
    assert (stand.x.state, stand.x.code, begun) == (S.TIMED_OUT, "NOT_STARTED", clocks.TRIES)


def test_what_did_not_leave_was_not_tried() -> None:
    """A gateway that is away for a minute costs nobody an attempt."""
    stand = brought_to(S.DISPATCHED)
    for _ in range(10):
        stand.unsent()
        assert stand.due() is not None
        assert stand.is_in(S.DISPATCHED)
    stand.answer(0, {"state": "idle", "percent": 0, "error": 0, "modelNumber": 0, "version": "0.0.0"})
    ask = stand.answer(0, OTHER)
    assert ask is not None
    assert ask.step is Step.START
    stand.answer()
    assert stand.is_in(S.TRANSFERRING)


def test_another_attempt_looks_first_whether_the_version_is_there() -> None:
    stand = Stand(retries=1)
    stand.x = replace(stand.x, attempt=2)
    ask = stand.dispatch(is_there=True)
    assert ask is not None
    assert ask.step is Step.LOOK
    ask = stand.answer(0, OTHER)
    assert ask is not None
    assert ask.step is Step.START


def test_attempts_are_tried_later_each_time_and_no_more_than_allowed() -> None:
    stand = brought_to(S.TRANSFERRING, retries=3)
    pauses = []
    for attempt in range(2, 5):
        stand.told("failed", 10, 7)
        assert (stand.x.state, stand.x.attempt) == (S.QUEUED, attempt)
        pauses.append(stand.x.due - stand.now)
        stand.dispatch()
        stand.answer()
    stand.told("failed", 10, 7)
    assert (stand.x.state, stand.x.attempt) == (S.FAILED, 4)
    for expected, pause in zip((1, 2, 4), pauses, strict=True):
        assert 0.8 * expected * 60_000 <= pause <= 1.2 * expected * 60_000


def test_who_is_canceled_is_not_tried_again() -> None:
    stand = brought_to(S.TRANSFERRING, retries=3)
    stand.due()
    stand.wish(is_canceling=True)
    stand.answer(0, {"state": "failed", "percent": 3, "error": 7, "modelNumber": 0x18, "version": "1.1.0"})
    assert stand.is_in(S.CANCELED)


# --- Clocks ---

CLOCKS = {
    S.DISPATCHED: (S.TIMED_OUT, "NOT_STARTED", clocks.STARTING),
    S.TRANSFERRING: (S.TIMED_OUT, "STALLED", 10 * 60_000),
    S.VERIFYING: (S.TIMED_OUT, "STALLED", 10 * 60_000),
    S.STAGED: (S.TIMED_OUT, "NOT_STAGED", 60 * 60_000),
    S.APPLYING: (S.TIMED_OUT, "NOT_APPLIED", clocks.APPLY),
    S.CONFIRMING: (S.FAILED, "NOT_CONFIRMED", 15 * 60_000),
}


@pytest.mark.parametrize("where", CLOCKS)
def test_every_state_has_a_clock(where: S) -> None:
    end, code, after = CLOCKS[where]
    stand = brought_to(where, stage=where is S.STAGED)
    stand.x = replace(stand.lost(), total_until=None if where is S.STAGED else 2**62)
    assert stand.x.expires == stand.now + after
    stand.now += after - 2
    stand.happen_due_in(1)
    assert stand.is_in(where)
    stand.x = stand.lost()
    stand.happen_due_in(1)
    assert (stand.x.state, stand.x.code) == (end, code)


@pytest.mark.parametrize("where", [each for each in CLOCKS if each is not S.STAGED])
def test_all_states_together_have_a_clock(where: S) -> None:
    stand = brought_to(where, total=60_000_000)
    stand.x = replace(stand.lost(), expires=2**62)
    assert stand.x.total_until is not None
    stand.now = stand.x.total_until - 1
    stand.happen_due_in(1)
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "TOO_LONG")


@pytest.mark.parametrize("where", [S.DISPATCHED, S.TRANSFERRING, S.VERIFYING, S.STAGED])
def test_who_is_given_up_is_told_to_stop(where: S) -> None:
    stand = brought_to(where, stage=where is S.STAGED)
    stand.x = replace(stand.lost(), expires=stand.now)
    stand.happen_due()
    assert stand.move.parting is not None
    assert stand.move.parting.step is Step.PARTING


def test_progress_winds_the_clock() -> None:
    stand = brought_to(S.TRANSFERRING)
    for percent in range(5, 100, 5):
        stand.now += 9 * 60_000
        stand.x = replace(stand.x, total_until=2**62)
        stand.told("transferring", percent)
        assert stand.is_in(S.TRANSFERRING)


# --- Confirming ---


def test_a_wrong_version_is_a_failure_and_not_tried_again() -> None:
    stand = brought_to(S.CONFIRMING, retries=3)
    stand.beat()
    stand.answer(0, OTHER)
    assert (stand.x.state, stand.x.code) == (S.FAILED, "WRONG_VERSION")


@pytest.mark.rule("rest-144")
def test_good_heartbeats_alone_are_no_success() -> None:
    stand = brought_to(S.CONFIRMING)
    for _ in range(5):
        if stand.beat() is not None:
            stand.answer(Status.TIMEOUT)
        assert stand.is_in(S.CONFIRMING)


@pytest.mark.rule("rest-144")
def test_a_right_version_alone_is_no_success_if_heartbeats_are_wanted() -> None:
    stand = brought_to(S.CONFIRMING)
    stand.beat(status=4)
    stand.answer(0, OURS)
    assert (stand.x.state, stand.x.is_read, stand.x.beats) == (S.CONFIRMING, True, 0)
    stand.beat(status=0)
    stand.beat(status=4)
    assert stand.x.beats == 0


def test_a_device_may_be_as_bad_as_it_was_before() -> None:
    stand = Stand()
    stand.scene = replace(stand.scene, status=4)
    stand.dispatch()
    stand.answer()
    stand.told("done", 100)
    stand.beat(status=4)
    assert stand.x.beats == 1


def test_a_heartbeat_counts_once_whoever_hears_of_it() -> None:
    stand = brought_to(S.CONFIRMING)
    stand.beat()
    assert stand.x.beat_at is not None
    stand.happen(Beat(0, stand.x.beat_at))
    assert stand.x.beats == 1


@pytest.mark.rule("rest-130")
def test_without_heartbeats_the_version_alone_decides() -> None:
    stand = brought_to(S.APPLYING, heartbeats=0)
    ask = stand.told("done", 100)
    assert ask is not None
    assert ask.step is Step.VERSION
    stand.answer(0, OURS)
    assert stand.is_in(S.SUCCEEDED)


@pytest.mark.parametrize("where", CLOCKS)
def test_a_device_that_is_forgotten_is_removed(where: S) -> None:
    stand = brought_to(where, stage=where is S.STAGED)
    stand.happen(Gone())
    assert stand.is_in(S.REMOVED)


def test_a_device_that_does_not_start_what_it_has_is_told_so_for_a_while_and_no_longer() -> None:
    stand = brought_to(S.STAGED, stage=True)
    stand.wish(is_applied=True)
    told: list[Step] = []
    ask = stand.happen_due()
    while stand.is_in(S.STAGED):
        if ask is None:
            ask = stand.due()
        elif ask.step is Step.APPLY:
            told.append(ask.step)
            ask = stand.answer(Status.ACCESS_DENIED)
        else:
            ask = stand.told("staged", 100)
        assert len(told) < 50, "it is told for ever"
    assert len(told) > 1
    assert (stand.x.state, stand.x.code) == (S.TIMED_OUT, "NOT_APPLIED")


def test_what_is_asked_in_turn_is_interrupted_by_a_cancel() -> None:
    stand = brought_to(S.STAGED, stage=True)
    stand.wish(is_applied=True)
    assert stand.happen_due() is not None
    stand.wish(is_canceling=True)
    ask = stand.answer(Status.BUSY)
    assert ask is not None
    assert ask.step is Step.ABORT


def test_a_staged_device_is_not_told_to_start_when_the_job_is_canceled() -> None:
    stand = brought_to(S.TRANSFERRING, stage=True, is_applied=True)
    stand.due()
    stand.wish(is_canceling=True)
    ask = stand.answer(0, state("staged", 100))
    assert ask is None or ask.step is not Step.APPLY


@pytest.mark.parametrize("canceling", [False, True])
def test_an_update_of_somebody_else_is_not_aborted(*, canceling: bool) -> None:
    stand = Stand()
    stand.dispatch()
    stand.answer(Status.BUSY)
    while stand.is_in(S.DISPATCHED):
        stand.answer(0, state("transferring", 10, version="7.7.7"))
        stand.wish(is_canceling=canceling)
        ask = stand.due()
        assert ask is None or ask.step is Step.STATE
        assert stand.move.parting is None
    assert stand.x.state is (S.CANCELED if canceling else S.TIMED_OUT)


def test_a_device_that_restarted_unseen_may_have_done_it() -> None:
    stand = brought_to(S.TRANSFERRING)
    ask = stand.told("idle")
    assert ask is not None
    assert ask.step is Step.LOOK
    stand.answer(0, OURS)
    assert stand.is_in(S.CONFIRMING)
