"""Prints jobs, their executions (one per device) and dry runs on the terminal."""

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
from meshfleet.rest.job_requests import NewJob, Targets
from meshfleet.rest.jobs import ExecutionState, PauseReason, StopCause
from meshfleet.rest.percent import format_percent, format_progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.client import Criterion, DryRun, Evidence, Execution, ExecutionDetail, Job, Transition


# --- Execution: the update of one device in a job, with its timeline and evidence ---

_VERSION_IDENTIFIER: Final = "8001"
"""Identifier of the firmware version, the only property that jobs read as a raw value."""

_UNKNOWN: Final = "unknown"


class _TimelineRow(NamedTuple):
    """Printed row of an execution's timeline: a state transition, or a report or response."""

    time: str
    step: str
    why: str


_TIMELINE_COLUMNS: Final = (
    Column("time", lambda each: each.time, no_wrap=True),
    Column("step", lambda each: each.step, no_wrap=True),
    Column("why", lambda each: each.why),
)


def format_execution_reason(execution: Execution) -> str:
    """Return what an execution waits for, or why it failed; empty if it neither waits nor has failed."""
    return execution.waiting_for or _format_reason(execution)


def print_execution(execution: ExecutionDetail, job: str) -> None:
    """Print the state of an execution, its fields and its timeline."""
    why = format_execution_reason(execution)
    state = f"{execution.device_id} is {execution.state} in {job}, {execution.progress} %"
    click.echo(to_printable(f"{state}: {why}" if why else f"{state}."))
    click.echo()
    print_fields((name, value) for name, value in _list_execution_fields(execution) if value)
    click.echo()
    print_table(_TIMELINE_COLUMNS, _build_timeline(execution))


def format_evidence(evidence: Evidence) -> str:
    """Format the report or response (or its absence) that proves a step of an update."""
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
            signal = f"{rssi} dBm at {parent or _UNKNOWN}"
            return f"in DFU mode: {signal}, gateway {gateway or _UNKNOWN}"
    return f"{evidence.kind}: {msgspec.json.encode(evidence.content).decode()}"


def _list_execution_fields(execution: Execution) -> Iterable[tuple[str, object]]:
    yield "version", f"{execution.from_version or 'unknown'} -> {execution.to_version}"
    yield "method", execution.method
    yield "gateway", execution.gateway
    yield "wave", execution.wave
    yield "attempt", execution.attempt
    if execution.state is ExecutionState.QUEUED and execution.attempt > 1:
        yield "last attempt", _format_reason(execution)
    yield "started", execution.started_at
    yield "changed", execution.updated_at


def _format_reason(execution: Execution) -> str:
    code = f" ({execution.reason_code})" if execution.reason_code else ""
    return f"{execution.reason}{code}" if execution.reason else ""


def _build_timeline(execution: ExecutionDetail) -> list[_TimelineRow]:
    """Return the timeline of an execution: state transitions and evidence, ordered by time.

    The evidence of a transition follows the transition.
    """
    rows = [(step.time, [*_transition_rows(step)]) for step in execution.transitions]
    rows += [(each.time, [_TimelineRow(each.time, "", format_evidence(each))]) for each in execution.evidence]
    rows += [
        (each.time, [_TimelineRow(each.time, "(ended)", format_evidence(each))]) for each in execution.later
    ]
    return [row for _, group in sorted(rows, key=lambda each: each[0]) for row in group]


def _transition_rows(step: Transition) -> Iterable[_TimelineRow]:
    """Yield the timeline rows of a transition: the transition, and its evidence if there is any."""
    transition = f"{step.from_} -> {step.to}" if step.from_ else f"-> {step.to}"
    yield _TimelineRow(step.time, transition, step.cause)
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
"""Maximum number of failed executions that `jobs show` prints."""

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
"""States of executions that have not finished."""

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
    PauseReason.USER: "requested by a user",
    PauseReason.ABORT_CRITERIA: "too many updates failed",
    PauseReason.GATE: "a wave has ended, and the next one waits for `jobs resume`",
    PauseReason.GATE_FAILED: "too few devices of a wave succeeded",
    StopCause.RELEASE_WITHDRAWN: "the firmware was withdrawn",
    StopCause.DEADLINE: "the deadline has passed",
}
"""Printed explanation of each reason why a job is paused or was stopped."""

_SHOWN_ELSEWHERE: Final = frozenset({"name", "firmwareId", "waves", "abort"})
"""JSON names of job options that are omitted from the list of options, because they are printed apart."""

_MAX_LISTED: Final = 5

_HOUR_MINUTES: Final = 60
"""Minutes of an hour."""


def count_job_devices(job: Job) -> int:
    """Return the number of devices of a job."""
    return sum(job.counts.values())


def format_job_progress(job: Job) -> str:
    """Format the progress of a job as a percentage."""
    ended = sum(count for state, count in job.counts.items() if state not in _UNFINISHED_STATES)
    return format_progress(job.progress, ended - sum(job.left_out.values()))


def format_state_counts(job: Job) -> str:
    """Format the number of a job's devices in each state, such as "3 QUEUED, 1 FAILED"."""
    return ", ".join(f"{count} {state}" for state, count in job.counts.items() if count)


def format_job_state(job: Job) -> str:
    """Return the state of a job, with its outcome or the reason why it is paused or stopped."""
    return ", ".join(filter(None, (job.state, job.outcome or job.pause_reason or job.stop_cause)))


def format_job_line(job: Job) -> str:
    """Format the id, state, progress and device counts of a job on one line."""
    return "  ".join((job.id, format_job_state(job), format_job_progress(job), format_state_counts(job)))


def format_job_sentence(job: Job) -> str:
    """Return a sentence with the state of a job, its outcome, and why the job is paused or was stopped."""
    outcome = "" if job.outcome is None else f", outcome {job.outcome}"
    why = job.pause_reason or job.stop_cause
    return f"{job.id} is {job.state}{outcome}{f': {_REASON_TEXTS[why]} ({why})' if why else ''}."


def print_job(job: Job) -> None:
    """Print the state and fields of a job, the options that differ from their defaults, and the waves."""
    click.echo(to_printable(format_job_sentence(job)))
    click.echo(
        f"{count_job_devices(job)} devices, {format_job_progress(job)} done: {format_state_counts(job)}\n"
    )
    print_fields((name, value) for name, value in _list_job_fields(job) if value is not None)
    if len(job.wave_states) > 1:
        click.echo()
        print_table(
            _WAVE_COLUMNS,
            [(wave.name or number, wave) for number, wave in enumerate(job.wave_states, start=1)],
        )


def list_failed_states(job: Job) -> list[ExecutionState]:
    """Return the failure states (failed, timed out, rejected) in which a job has executions."""
    return [state for state in _FAILED_STATES if job.counts.get(state)]


def format_more_failed(job: Job) -> str:
    """Return how many failed executions `jobs show` omits, and the command that lists them; empty if none."""
    failed = list_failed_states(job)
    more = sum(job.counts[state] for state in failed) - MAX_FAILED_LISTED
    flags = " ".join(f"--state {state}" for state in failed)
    return f"and {more} more: meshfleet jobs executions {job.id} {flags}" if more > 0 else ""


def _list_job_fields(job: Job) -> Iterable[tuple[str, object]]:
    yield "name", job.name
    yield "firmware", f"{job.version} for model {job.model_number}, {job.firmware_id}"
    yield "created", f"{job.created_at} by {job.created_by}"
    yield "started", job.started_at
    yield "finished", job.finished_at
    yield "estimated end", job.eta
    yield "retry of", job.parent_job_id
    yield from _list_changed_options(job)
    if job.abort:
        yield "abort", "; ".join(map(_format_criterion, job.abort))


def _list_changed_options(job: Job) -> Iterable[tuple[str, object]]:
    """Return the options of a job that differ from their defaults, with their names in the REST API."""
    options = [each for each in fields(NewJob) if each.encode_name not in _SHOWN_ELSEWHERE]
    defaults = {each.encode_name: each.default for each in options if each.default is not NODEFAULT}
    flat_defaults = dict(flatten_fields({**defaults, "targets": Targets()}))
    flat_options = flatten_fields({each.encode_name: getattr(job, each.name) for each in options})
    return (
        (name, _shorten_option_value(value))
        for name, value in flat_options
        if value != flat_defaults.get(name)
    )


def _shorten_option_value(value: object) -> object:
    """Replace None (no limit) by "none", and cut a long list of devices or labels."""
    if value is None:
        return "none"
    if not isinstance(value, list) or len(value) <= _MAX_LISTED:
        return value
    return [*value[:_MAX_LISTED], f"and {len(value) - _MAX_LISTED} more"]


def _format_criterion(criterion: Criterion) -> str:
    condition = "fail" if criterion.type == "ALL" else f"are {criterion.type}"
    sample = f"of {criterion.min_executed} or more that were started"
    return f"{criterion.action} if {format_percent(criterion.percent)} {condition}, {sample}"


def print_dry_run(dry_run: DryRun) -> None:
    """Print how many devices a job would update, in which waves, and why it would skip other devices."""
    methods = "".join(f", {count} by {method}" for method, count in dry_run.methods.items())
    click.echo(
        f"{dry_run.eligible} of {dry_run.targets} devices would be updated{methods}."
        + (f" Estimated duration: {_format_duration(dry_run.estimated_minutes)}." if dry_run.eligible else "")
    )
    if dry_run.offline:
        click.echo(f"{dry_run.offline} of these are offline now, and would wait until they reconnect.")
    if dry_run.busy:
        click.echo(f"{dry_run.busy} of these are still being updated by another job.")
    if len(dry_run.waves) > 1:
        print_table(
            _PLANNED_WAVE_COLUMNS,
            [(wave.name or number, wave.size) for number, wave in enumerate(dry_run.waves, start=1)],
        )
    if dry_run.refusals:
        print_table(_REFUSAL_COLUMNS, dry_run.refusals)
    if dry_run.device_ids:
        click.echo(f"Devices that would be updated: {to_printable(format_cell(dry_run.device_ids))}")


def _format_duration(minutes: float) -> str:
    """Format a duration in minutes or hours; less than half a minute is "less than a minute"."""
    if minutes >= 2 * _HOUR_MINUTES:
        return f"{minutes / _HOUR_MINUTES:.1f} hours"
    whole = round(minutes)
    return "less than a minute" if whole == 0 else f"{whole} minute{'s' if whole > 1 else ''}"
