"""Jobs as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from msgspec import NODEFAULT
from msgspec.structs import fields

from meshfleet.cli.output import Column, flatten_fields, format_cell, print_fields, print_table
from meshfleet.cli.terminal import to_printable
from meshfleet.cli.value_format import format_status, format_value
from meshfleet.protocol.ids import format_model_number
from meshfleet.rest import ExecutionState, NewJob, PauseReason, StopCause, Targets
from meshfleet.rest.percent import format_percent, format_progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.client import Criterion, DryRun, Evidence, Execution, ExecutionDetail, Job, Transition


# The part of a device in a job as people read it: where it is, and its story with what proves it.

_VERSION_IDENTIFIER: Final = "8001"
"""The only property that jobs read raw."""

_UNKNOWN: Final = "unknown"


class _TimelineRow(NamedTuple):
    """Of a story."""

    time: str
    step: str
    why: str


_TIMELINE_COLUMNS: Final = (
    Column("time", lambda each: each.time, no_wrap=True),
    Column("step", lambda each: each.step, no_wrap=True),
    Column("why", lambda each: each.why),
)


def format_execution_reason(execution: Execution) -> str:
    """What it waits for, or why it ended as it did; empty: it went well."""
    return execution.waiting_for or _format_reason(execution)


def print_execution(execution: ExecutionDetail, job: str) -> None:
    """Print where it is and why, and then all that happened, line by line."""
    why = format_execution_reason(execution)
    where = f"{execution.device_id} is {execution.state} in {job}, {execution.progress} %"
    click.echo(to_printable(f"{where}: {why}" if why else f"{where}."))
    click.echo()
    print_fields((name, value) for name, value in _list_execution_fields(execution) if value)
    click.echo()
    print_table(_TIMELINE_COLUMNS, _build_timeline(execution))


def format_evidence(evidence: Evidence) -> str:
    """A report, or a response to a step of the update."""
    match evidence.kind, evidence.content:
        case "response", {"step": step, "status": 0, "value": value}:
            return f"response to {step}: {_format_response_value(value)}"
        case "response", {"step": step, "status": int(status)}:
            return f"response to {step}: {format_status(status)}"
        case "no-response", {"step": step, **more}:
            return f"no response to {step}" + (f": {more['reason']}" if more.get("reason") else "")
        case "heartbeat", {"status": status, "time": str(at)}:
            return f"heartbeat of {at}: {'fine' if status == 0 else f'status {status}'}"
        case "dfu", {"gateway": gateway, "parent": parent, "rssi": rssi}:
            return (
                f"in DFU mode: heard by {parent or _UNKNOWN} with {rssi} dBm, gateway {gateway or _UNKNOWN}"
            )
    return f"{evidence.kind}: {msgspec.json.encode(evidence.content).decode()}"


def _list_execution_fields(execution: Execution) -> Iterable[tuple[str, object]]:
    yield "version", f"{execution.from_version or 'unknown'} -> {execution.to_version}"
    yield "way", execution.method
    yield "gateway", execution.gateway
    yield "wave", execution.wave
    yield "attempt", execution.attempt
    if execution.state is ExecutionState.QUEUED and execution.attempt > 1:
        yield "last attempt", _format_reason(execution)
    yield "begun", execution.started_at
    yield "changed", execution.updated_at


def _format_reason(execution: Execution) -> str:
    code = f" ({execution.reason_code})" if execution.reason_code else ""
    return f"{execution.reason}{code}" if execution.reason else ""


def _build_timeline(execution: ExecutionDetail) -> list[_TimelineRow]:
    """All steps, each with its proof behind it, and what was seen between them."""
    told = [(step.time, [*_transition_rows(step)]) for step in execution.transitions]
    told += [(seen.time, [_TimelineRow(seen.time, "", format_evidence(seen))]) for seen in execution.evidence]
    told += [
        (seen.time, [_TimelineRow(seen.time, "(over)", format_evidence(seen))]) for seen in execution.later
    ]
    return [line for _, lines in sorted(told, key=lambda each: each[0]) for line in lines]


def _transition_rows(step: Transition) -> Iterable[_TimelineRow]:
    words = f"{step.from_} -> {step.to}" if step.from_ else f"-> {step.to}"
    yield _TimelineRow(step.time, words, step.cause)
    if step.evidence is not None:
        yield _TimelineRow("", "", format_evidence(step.evidence))


def _format_response_value(value: Any) -> str:
    match value:
        case None:
            return "fine"
        case str():
            return format_value(_VERSION_IDENTIFIER, value)
        case {"modelNumber": int(number)}:
            return _format_pairs(value | {"modelNumber": format_model_number(number)})
        case dict():
            return _format_pairs(value)
    return msgspec.json.encode(value).decode()


def _format_pairs(value: dict[str, object]) -> str:
    return ", ".join(f"{name} {each}" for name, each in value.items())


MAX_FAILED_LISTED: Final = 10
"""Devices with which a job is shown that failed."""

_FAILED_STATES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED)

_UNFINISHED_STATES: Final = frozenset(
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

_REFUSAL_COLUMNS: Final = (
    Column("devices", lambda each: each.count),
    Column("why not", lambda each: each.reason),
    Column("such as", lambda each: each.device_ids[0] if each.device_ids else "", no_wrap=True),
)
_PLANNED_WAVE_COLUMNS: Final = (Column("wave", lambda each: each[0]), Column("devices", lambda each: each[1]))

_WAVE_COLUMNS: Final = (
    Column("wave", lambda each: each[0]),
    Column("state", lambda each: each[1].state),
    Column("devices", lambda each: each[1].size),
    Column("succeeded", lambda each: each[1].succeeded),
)

_REASON_TEXTS: Final[Mapping[str, str]] = {
    PauseReason.USER: "somebody asked for it",
    PauseReason.ABORT_CRITERIA: "too many updates failed",
    PauseReason.GATE: "a wave has passed, and somebody is to look before the next",
    PauseReason.GATE_FAILED: "too few devices of a wave succeeded",
    StopCause.RELEASE_WITHDRAWN: "its firmware was withdrawn",
    StopCause.DEADLINE: "its deadline has passed",
}
"""Why a job is paused, or was stopped."""

_SHOWN_ELSEWHERE: Final = frozenset({"name", "firmwareId", "waves", "abort"})
"""What an order holds and is shown elsewhere."""

_MAX_LISTED: Final = 5

_HOUR_MINUTES: Final = 60
"""Minutes."""


def count_job_devices(job: Job) -> int:
    """How many devices it is about."""
    return sum(job.counts.values())


def format_job_progress(job: Job) -> str:
    """Say how far a job is."""
    ended = sum(count for state, count in job.counts.items() if state not in _UNFINISHED_STATES)
    return format_progress(job.progress, ended - sum(job.left_out.values()))


def format_state_counts(job: Job) -> str:
    """How many devices are in which state."""
    return ", ".join(f"{count} {state}" for state, count in job.counts.items() if count)


def format_job_state(job: Job) -> str:
    """Where a job is, and how it went or why it rests, in two words."""
    return ", ".join(filter(None, (job.state, job.outcome or job.pause_reason or job.stop_cause)))


def format_job_line(job: Job) -> str:
    """A job on one line, which is another one when something has changed."""
    return "  ".join((job.id, format_job_state(job), format_job_progress(job), format_state_counts(job)))


def format_job_sentence(job: Job) -> str:
    """Where a job is, and why."""
    outcome = "" if job.outcome is None else f", outcome {job.outcome}"
    why = job.pause_reason or job.stop_cause
    return f"{job.id} is {job.state}{outcome}{f': {_REASON_TEXTS[why]} ({why})' if why else ''}."


def print_job(job: Job) -> None:
    """Print how a job goes, what it is, and what it was told beyond what holds anyway."""
    click.echo(to_printable(format_job_sentence(job)))
    click.echo(
        f"{count_job_devices(job)} devices, {format_job_progress(job)} done: {format_state_counts(job)}\n"
    )
    print_fields((name, value) for name, value in _list_job_fields(job) if value is not None)
    if len(job.wave_states) > 1:
        click.echo()
        print_table(
            _WAVE_COLUMNS, [(wave.name or place, wave) for place, wave in enumerate(job.wave_states, start=1)]
        )


def list_failed_states(job: Job) -> list[ExecutionState]:
    """The states of devices that it tried in vain to update."""
    return [state for state in _FAILED_STATES if job.counts.get(state)]


def format_more_failed(job: Job) -> str:
    """Where those of them are found that are not shown with the job; empty: all are."""
    failed = list_failed_states(job)
    more = sum(job.counts[state] for state in failed) - MAX_FAILED_LISTED
    flags = " ".join(f"--state {state}" for state in failed)
    return f"and {more} more: meshfleet jobs executions {job.id} {flags}" if more > 0 else ""


def _list_job_fields(job: Job) -> Iterable[tuple[str, object]]:
    yield "name", job.name
    yield "firmware", f"{job.version} for model {job.model_number}, {job.firmware_id}"
    yield "made", f"{job.created_at} by {job.created_by}"
    yield "begun", job.started_at
    yield "over", job.finished_at
    yield "likely over", job.eta
    yield "retry of", job.parent_job_id
    yield from _list_changed_options(job)
    if job.abort:
        yield "abort", "; ".join(map(_format_criterion, job.abort))


def _list_changed_options(job: Job) -> Iterable[tuple[str, object]]:
    """What it was told that does not hold anyway, by the names of the REST interface."""
    known = [each for each in fields(NewJob) if each.encode_name not in _SHOWN_ELSEWHERE]
    usual = {each.encode_name: each.default for each in known if each.default is not NODEFAULT}
    holds = dict(flatten_fields({**usual, "targets": Targets()}))
    told = flatten_fields({each.encode_name: getattr(job, each.name) for each in known})
    return ((name, _shorten(value)) for name, value in told if value != holds.get(name))


def _shorten(value: object) -> object:
    """What stands for itself; no limit is said, and of many devices or labels only the first are."""
    if value is None:
        return "none"
    if not isinstance(value, list) or len(value) <= _MAX_LISTED:
        return value
    return [*value[:_MAX_LISTED], f"and {len(value) - _MAX_LISTED} more"]


def _format_criterion(criterion: Criterion) -> str:
    what = "fail" if criterion.type == "ALL" else f"are {criterion.type}"
    of = f"of {criterion.min_executed} or more that began"
    return f"{criterion.action} if {format_percent(criterion.percent)} {what}, {of}"


def print_dry_run(dry_run: DryRun) -> None:
    """Print what a job would do."""
    ways = ", ".join(f"{count} by {way}" for way, count in dry_run.methods.items())
    click.echo(
        f"{dry_run.eligible} of {dry_run.targets} devices would be updated{f', {ways}' if ways else ''}."
        + (
            f" It is likely to take {_format_duration(dry_run.estimated_minutes)}."
            if dry_run.eligible
            else ""
        )
    )
    if dry_run.offline:
        click.echo(f"{dry_run.offline} of these are offline now, and would wait until they are back.")
    if dry_run.busy:
        click.echo(f"{dry_run.busy} of these are in another job that is not over with them.")
    if len(dry_run.waves) > 1:
        print_table(
            _PLANNED_WAVE_COLUMNS,
            [(wave.name or place, wave.size) for place, wave in enumerate(dry_run.waves, start=1)],
        )
    if dry_run.refusals:
        print_table(_REFUSAL_COLUMNS, dry_run.refusals)
    if dry_run.device_ids:
        click.echo(f"Among those that would: {to_printable(format_cell(dry_run.device_ids))}")


def _format_duration(minutes: float) -> str:
    """Write a duration; less than half a minute is not said to be none."""
    if minutes >= 2 * _HOUR_MINUTES:
        return f"{minutes / _HOUR_MINUTES:.1f} hours"
    whole = round(minutes)
    return "less than a minute" if whole == 0 else f"{whole} minute{'s' if whole > 1 else ''}"
