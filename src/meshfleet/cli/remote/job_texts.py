"""Jobs as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from msgspec import NODEFAULT
from msgspec.structs import fields

from meshfleet.cli.remote.printing import Column, cell_text, facts_of, print_facts, print_table
from meshfleet.cli.terminal import printable
from meshfleet.wire.percent import percent_text, progress_text
from meshfleet.wire.rest import ExecutionState, NewJob, PauseReason, StopCause, Targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.client import Criterion, DryRun, Job

MOST_FAILED: Final = 10
"""Devices with which a job is shown that failed."""

_FAILED: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED)

_OPEN: Final = frozenset(
    {
        ExecutionState.QUEUED,
        ExecutionState.DISPATCHED,
        ExecutionState.TRANSFERRING,
        ExecutionState.VERIFYING,
        ExecutionState.STAGED,
        ExecutionState.APPLYING,
        ExecutionState.CONFIRMING,
    }
)
"""States of executions that have not ended."""

_REFUSALS: Final = (
    Column("devices", lambda each: each.count),
    Column("why not", lambda each: each.reason),
    Column("such as", lambda each: each.device_ids[0] if each.device_ids else "", is_whole=True),
)
_WAVES: Final = (Column("wave", lambda each: each[0]), Column("devices", lambda each: each[1]))

_FALLEN: Final = (
    Column("wave", lambda each: each[0]),
    Column("state", lambda each: each[1].state),
    Column("devices", lambda each: each[1].size),
    Column("succeeded", lambda each: each[1].succeeded),
)

_WHY: Final[Mapping[str, str]] = {
    PauseReason.USER: "somebody asked for it",
    PauseReason.ABORT_CRITERIA: "too many updates failed",
    PauseReason.GATE: "a wave has passed, and somebody is to look before the next",
    PauseReason.GATE_FAILED: "too few devices of a wave succeeded",
    StopCause.RELEASE_WITHDRAWN: "its firmware was withdrawn",
    StopCause.DEADLINE: "its deadline has passed",
}
"""Why a job is paused, or was stopped."""

_TOLD_APART: Final = frozenset({"name", "firmwareId", "waves", "abort"})
"""What an order holds and is shown elsewhere."""

_SOME: Final = 5

_HOUR: Final = 60
"""Minutes."""


def count_of(job: Job) -> int:
    """How many devices it is about."""
    return sum(job.counts.values())


def progress_of(job: Job) -> str:
    """Say how far a job is."""
    ended = sum(count for state, count in job.counts.items() if state not in _OPEN)
    return progress_text(job.progress, ended - sum(job.left_out.values()))


def counts_text(job: Job) -> str:
    """How many devices are in which state."""
    return ", ".join(f"{count} {state}" for state, count in job.counts.items() if count)


def state_text(job: Job) -> str:
    """Where a job is, and how it went or why it rests, in two words."""
    return ", ".join(filter(None, (job.state, job.outcome or job.pause_reason or job.stop_cause)))


def line_of(job: Job) -> str:
    """A job on one line, which is another one when something has changed."""
    return "  ".join((job.id, state_text(job), progress_of(job), counts_text(job)))


def sentence_of(job: Job) -> str:
    """Where a job is, and why."""
    outcome = "" if job.outcome is None else f", outcome {job.outcome}"
    why = job.pause_reason or job.stop_cause
    return f"{job.id} is {job.state}{outcome}{f': {_WHY[why]} ({why})' if why else ''}."


def tell_job(job: Job) -> None:
    """Print how a job goes, what it is, and what it was told beyond what holds anyway."""
    click.echo(printable(sentence_of(job)))
    click.echo(f"{count_of(job)} devices, {progress_of(job)} done: {counts_text(job)}\n")
    print_facts((name, value) for name, value in _facts(job) if value is not None)
    if len(job.wave_states) > 1:
        click.echo()
        print_table(
            _FALLEN, [(wave.name or place, wave) for place, wave in enumerate(job.wave_states, start=1)]
        )


def failed_states(job: Job) -> list[ExecutionState]:
    """The states of devices that it tried in vain to update."""
    return [state for state in _FAILED if job.counts.get(state)]


def more_failed(job: Job) -> str:
    """Where those of them are found that are not shown with the job; empty: all are."""
    failed = failed_states(job)
    more = sum(job.counts[state] for state in failed) - MOST_FAILED
    flags = " ".join(f"--state {state}" for state in failed)
    return f"and {more} more: meshfleet jobs executions {job.id} {flags}" if more > 0 else ""


def _facts(job: Job) -> Iterable[tuple[str, object]]:
    yield "name", job.name
    yield "firmware", f"{job.version} for model {job.model_number}, {job.firmware_id}"
    yield "made", f"{job.created_at} by {job.created_by}"
    yield "begun", job.started_at
    yield "over", job.finished_at
    yield "likely over", job.eta
    yield "retry of", job.parent_job_id
    yield from _order(job)
    if job.abort:
        yield "abort", "; ".join(map(_criterion, job.abort))


def _order(job: Job) -> Iterable[tuple[str, object]]:
    """What it was told that does not hold anyway, by the names of the REST interface."""
    known = [each for each in fields(NewJob) if each.encode_name not in _TOLD_APART]
    usual = {each.encode_name: each.default for each in known if each.default is not NODEFAULT}
    holds = dict(facts_of({**usual, "targets": Targets()}))
    told = facts_of({each.encode_name: getattr(job, each.name) for each in known})
    return ((name, _few(value)) for name, value in told if value != holds.get(name))


def _few(value: object) -> object:
    """What stands for itself; no limit is said, and of many devices or labels only the first are."""
    if value is None:
        return "none"
    if not isinstance(value, list) or len(value) <= _SOME:
        return value
    return [*value[:_SOME], f"and {len(value) - _SOME} more"]


def _criterion(criterion: Criterion) -> str:
    what = "fail" if criterion.type == "ALL" else f"are {criterion.type}"
    of = f"of {criterion.min_executed} or more that began"
    return f"{criterion.action} if {percent_text(criterion.percent)} {what}, {of}"


def tell_dry_run(told: DryRun) -> None:
    """Print what a job would do."""
    ways = ", ".join(f"{count} by {way}" for way, count in told.methods.items())
    click.echo(
        f"{told.eligible} of {told.targets} devices would be updated{f', {ways}' if ways else ''}."
        + (f" It is likely to take {_duration(told.estimated_minutes)}." if told.eligible else "")
    )
    if told.offline:
        click.echo(f"{told.offline} of these are offline now, and would wait until they are back.")
    if told.busy:
        click.echo(f"{told.busy} of these are in another job that is not over with them.")
    if len(told.waves) > 1:
        print_table(
            _WAVES, [(wave.name or place, wave.size) for place, wave in enumerate(told.waves, start=1)]
        )
    if told.refusals:
        print_table(_REFUSALS, told.refusals)
    if told.device_ids:
        click.echo(f"Among those that would: {printable(cell_text(told.device_ids))}")


def _duration(minutes: float) -> str:
    """Write a duration; less than half a minute is not said to be none."""
    if minutes >= 2 * _HOUR:
        return f"{minutes / _HOUR:.1f} hours"
    whole = round(minutes)
    return "less than a minute" if whole == 0 else f"{whole} minute{'s' if whole > 1 else ''}"
