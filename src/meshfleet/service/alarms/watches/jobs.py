"""Watches of firmware update jobs: stopped by themselves, ended badly, or stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.rest.alarms import AlarmAction
from meshfleet.rest.jobs import Outcome, PauseReason, StopCause
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch
from meshfleet.service.alarms.wording import count, format_duration
from meshfleet.service.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_MINUTE_MS: Final = 60_000
_STUCK_MINUTES: Final = RuleThreshold("minutes", 60, 5, 10_080)
"""Time without progress, after the last deadline of an update, from which on a job is stuck."""
_FORGOTTEN_MS: Final = 7 * DAY_MS
"""Time after the end of a job for which its failed updates need attention."""

_SELECT_PAUSED: Final = """
    SELECT id, pause_reason FROM job
    WHERE finished_at IS NULL AND state = 'PAUSED'
        AND pause_reason IN ('ABORT_CRITERIA', 'GATE_FAILED', 'GATE')
"""
_SELECT_ENDED: Final = """
    SELECT job.id, job.finished_at, job.outcome, job.stop_cause,
        (SELECT coalesce(sum(tally.count), 0) FROM tally
            WHERE tally.job = job.id AND tally.state IN ('FAILED', 'TIMED_OUT', 'REJECTED'))
    FROM job
    WHERE job.finished_at > ? AND (job.outcome IN ('PARTIAL', 'FAILED')
            OR job.stop_cause IN ('ABORT_CRITERIA', 'DEADLINE'))
        AND NOT EXISTS (SELECT 1 FROM job AS repetition WHERE repetition.parent = job.id)
"""
# A staged update waits for a user. `updated_at` changes only with the state, but a transfer, or the wait for
# heartbeats, may take hours: their deadline `expires` moves with them, and the job ends them when it passes.
# While the gateway is away, deadlines do not pass: then nothing has moved since `suspended_at`.
_SELECT_STUCK: Final = f"""
    SELECT job.id, max(active.updated_at), count(*),
        max(CASE WHEN active.suspended_at IS NULL THEN active.expires ELSE active.suspended_at END)
    FROM job JOIN (SELECT job, updated_at, expires, suspended_at FROM execution
            WHERE {active_condition()} AND state <> 'STAGED') AS active
        ON active.job = job.id
    WHERE job.finished_at IS NULL AND job.state = 'IN_PROGRESS'
    GROUP BY job.id HAVING max(active.updated_at) < ?
"""  # noqa: S608 # constants only

_ENDED_BY_ITSELF: Final = frozenset({StopCause.ABORT_CRITERIA, StopCause.DEADLINE})
_PAUSES: Final[Mapping[str, str]] = {
    PauseReason.ABORT_CRITERIA: "has paused itself because too many updates failed",
    PauseReason.GATE_FAILED: "has paused itself because too few updates of a wave succeeded",
    PauseReason.GATE: "waits for the next wave to be started",
}


def _find_stopped(sight: Sight) -> Iterator[Fault]:
    for number, reason in bulk.query_rows(sight.connection, _SELECT_PAUSED, ()):
        is_waiting = reason == PauseReason.GATE
        yield Fault(
            number,
            since=sight.now,
            cause=str(reason).lower().replace("_", "-"),
            scope=f"job:{number}",
            severity=Severity.WARNING if is_waiting else Severity.CRITICAL,
            facts={"job": number, "reason": reason},
        )


def _find_ended(sight: Sight) -> Iterator[Fault]:
    oldest = sight.now - _FORGOTTEN_MS
    for number, ended_at, outcome, stop_cause, failed in bulk.query_rows(
        sight.connection, _SELECT_ENDED, (oldest,)
    ):
        if not failed and stop_cause not in _ENDED_BY_ITSELF:
            continue  # a user has canceled it, or devices were removed or are updated by another job
        yield Fault(
            number,
            since=ended_at,
            cause="deadline" if stop_cause == StopCause.DEADLINE else "failed-updates",
            scope=f"job:{number}",
            severity=Severity.CRITICAL if outcome == Outcome.FAILED else Severity.WARNING,
            facts={"job": number, "failed": int(failed), "deadline": stop_cause == StopCause.DEADLINE},
        )


def _find_stuck(sight: Sight) -> Iterator[Fault]:
    stuck_before = sight.now - int(sight.thresholds[_STUCK_MINUTES.name] * _MINUTE_MS)
    for number, updated_at, active, deadline in bulk.query_rows(
        sight.connection, _SELECT_STUCK, (stuck_before,)
    ):
        moved_at = updated_at if deadline is None else max(updated_at, monotonic.to_wall_time(deadline))
        if moved_at >= stuck_before:
            continue
        yield Fault(
            number,
            since=moved_at,
            cause="no-progress",
            scope=f"job:{number}",
            severity=Severity.WARNING,
            facts={"job": number, "active": active, "still": sight.now - moved_at},
        )


def _describe_stopped(alarm: WatchedAlarm) -> str:
    name = f"Update job-{alarm.facts['job']}"
    if alarm.is_over:
        return f"{name} goes on, or was canceled, after {alarm.length}."
    return f"{name} {_PAUSES.get(alarm.facts['reason'], 'has paused itself')}."


def _describe_ended(alarm: WatchedAlarm) -> str:
    name, failed = f"Update job-{alarm.facts['job']}", alarm.facts["failed"]
    if alarm.is_over:
        return f"{name} was repeated for what had failed, or is a week old."
    if alarm.facts["deadline"]:
        devices = f"; {count(failed, 'device')} failed" if failed else ""
        return f"{name} was not finished at its deadline{devices}."
    return f"{name} has ended, but failed on {count(failed, 'device')}."


def _describe_stuck(alarm: WatchedAlarm) -> str:
    name = f"Update job-{alarm.facts['job']}"
    if alarm.is_over:
        return f"{name} moves again after {alarm.length}."
    active, still = count(alarm.facts["active"], "update"), format_duration(alarm.facts["still"])
    return f"{name} has made no progress for {still}, with {active} under way."


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(code="review-job", text="Review the job.", href=f"/jobs/job-{facts['job']}")


def _choose_retry(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(code="retry-job", text="Repeat it for what failed.", href=f"/jobs/job-{facts['job']}")


STOPPED_JOBS: Final = Watch(
    Rule.JOB_STOPPED,
    interval=20_000,
    wait=0,
    back=0,
    find=_find_stopped,
    describe=_describe_stopped,
    choose_action=_choose_action,
)
ENDED_JOBS: Final = Watch(
    Rule.JOB_ENDED_BADLY,
    interval=20_000,
    wait=0,
    back=0,
    find=_find_ended,
    describe=_describe_ended,
    choose_action=_choose_retry,
)
STUCK_JOBS: Final = Watch(
    Rule.JOB_STUCK,
    interval=60_000,
    wait=0,
    back=0,
    find=_find_stuck,
    describe=_describe_stuck,
    choose_action=_choose_action,
    thresholds=(_STUCK_MINUTES,),
)
