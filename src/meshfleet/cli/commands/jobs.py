"""`meshfleet jobs`: create, inspect and control jobs that update devices."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import DEVICE, FIRMWARE, job_argument
from meshfleet.cli.completers import complete_devices, complete_firmware, complete_gateways
from meshfleet.cli.job_options import build_job_options, job_options
from meshfleet.cli.job_output import (
    MAX_FAILED_LISTED,
    count_job_devices,
    format_execution_reason,
    format_job_line,
    format_job_progress,
    format_job_sentence,
    format_job_state,
    format_more_failed,
    format_state_counts,
    list_failed_states,
    print_dry_run,
    print_execution,
    print_job,
)
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import (
    Column,
    json_option,
    limit_option,
    print_json,
    print_list,
    print_result,
    truncate_to_seconds,
)
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable
from meshfleet.client import ExecutionState, JobState, Outcome
from meshfleet.client.rest.jobs import Jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from meshfleet.client import Fleet, Job
    from meshfleet.protocol.ids import Mac

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("version", lambda each: each.version),
    Column("state", format_job_state),
    Column("done", format_job_progress),
    Column("devices", count_job_devices),
    Column("since", lambda each: truncate_to_seconds(each.created_at), no_wrap=True),
)

_EXECUTION_COLUMNS: Final = (
    Column("device", lambda each: each.device_id, no_wrap=True),
    Column("state", lambda each: each.state, no_wrap=True),
    Column("try", lambda each: each.attempt),
    Column("done", lambda each: f"{each.progress} %", no_wrap=True),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
    Column("why", format_execution_reason),
)


def _states_option(states: type[JobState | ExecutionState], items: str) -> Callable[[Any], Any]:
    choice = click.Choice([each.value for each in states])
    return click.option(
        "--state", "states", type=choice, multiple=True, help=f"Show only {items} in this state; repeatable."
    )


@click.group()
def jobs() -> None:
    """Create and control jobs that update devices."""


@jobs.command()
@click.argument("name", type=TEXT)
@click.option(
    "--firmware",
    "firmware_id",
    type=FIRMWARE,
    required=True,
    shell_complete=complete_firmware,
    help="Id of the released firmware to install, such as fw-0123456789abcdef.",
)
@job_options
@click.option("--dry-run", is_flag=True, help="Show what the job would do, without creating the job.")
@json_option
def create(name: str, *, firmware_id: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Create a job called NAME that installs firmware on the selected devices."""
    parameters = build_job_options(options)
    if dry_run:
        plan = call_service(lambda fleet: fleet.jobs.dry_run(name, firmware_id, **parameters))
        if as_json:
            print_json(plan)
        else:
            print_dry_run(plan)
        return
    job = call_service(lambda fleet: fleet.jobs.create(name, firmware_id, **parameters))
    print_result(job, f"{format_job_sentence(job)} {format_state_counts(job)}", as_json=as_json)


@jobs.command("list")
@_states_option(JobState, "jobs")
@click.option(
    "--firmware",
    type=FIRMWARE,
    shell_complete=complete_firmware,
    help="Show only jobs that install the firmware with this id.",
)
@limit_option
@json_option
def list_jobs(*, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first."""
    call_service(lambda fleet: print_list(fleet.jobs.list(**filters), _COLUMNS, as_json=as_json, limit=limit))


@jobs.command()
@job_argument
@click.argument("device", type=DEVICE, required=False, shell_complete=complete_devices)
@json_option
def show(job: str, device: Mac | None, *, as_json: bool) -> None:
    """Show the progress and options of a job or, if DEVICE is given, the history of the device in the job."""
    if device is not None:
        execution = call_service(lambda fleet: fleet.jobs.execution(job, device))
        if as_json:
            print_json(execution)
        else:
            print_execution(execution, job)
        return
    call_service(lambda fleet: _print_job(fleet, job, as_json=as_json))


async def _print_job(fleet: Fleet, job: str, *, as_json: bool) -> None:
    found = await fleet.jobs.show(job)
    if as_json:
        print_json(found)
        return
    print_job(found)
    await _print_failed_executions(fleet, found)


async def _print_failed_executions(fleet: Fleet, job: Job) -> None:
    """Print the first failed executions of a job, and how many more failed."""
    failed = list_failed_states(job)
    if failed:
        click.echo()
        listed = fleet.jobs.executions(job, states=failed)
        await print_list(listed, _EXECUTION_COLUMNS, as_json=False, limit=MAX_FAILED_LISTED)
    if more := format_more_failed(job):
        click.echo(to_printable(more))


@jobs.command()
@job_argument
@json_option
def watch(job: str, *, as_json: bool) -> None:
    """Print every change of a job until the job finishes. The exit code is 0 if the outcome is SUCCEEDED."""
    ended = call_service(lambda fleet: _print_job_changes(fleet, job, as_json=as_json))
    if ended.outcome is not Outcome.SUCCEEDED:
        raise click.ClickException(format_job_sentence(ended))


async def _print_job_changes(fleet: Fleet, job: str, *, as_json: bool) -> Job:
    last = ""
    async with aclosing(fleet.jobs.watch(job)) as changes:
        async for found in changes:
            line = format_job_line(found)
            if as_json:
                print_json(found)
            elif line != last:  # otherwise only the estimated end changed, which is not in the line
                click.echo(line)
            last = line
    return found


@jobs.command()
@job_argument
@_states_option(ExecutionState, "executions")
@click.option(
    "--gateway",
    type=DEVICE,
    shell_complete=complete_gateways,
    help="Show only updates that run through this gateway.",
)
@limit_option
@json_option
def executions(job: str, *, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List the executions of a job (one per device), with what each one waits for or why it failed."""
    call_service(
        lambda fleet: print_list(
            fleet.jobs.executions(job, **filters), _EXECUTION_COLUMNS, as_json=as_json, limit=limit
        )
    )


def _add_job_command(action: Callable[[Jobs, str], Coroutine[Any, Any, Job]], help_text: str) -> None:
    """Add a subcommand of `jobs` that calls a method of `Jobs` and has the name of this method."""

    @jobs.command(action.__name__, help=help_text)
    @job_argument
    @json_option
    def run_action(job: str, *, as_json: bool) -> None:
        changed = call_service(lambda fleet: action(fleet.jobs, job))
        print_result(changed, format_job_sentence(changed), as_json=as_json)


_add_job_command(
    Jobs.apply, "Start a job created with --no-apply, or install the images transferred by --stage."
)
_add_job_command(Jobs.pause, "Pause a job: no more updates are started, but updates in progress continue.")
_add_job_command(Jobs.resume, "Resume a paused job.")
_add_job_command(Jobs.cancel, "Cancel a job. Updates in progress are aborted if the devices still allow it.")
_add_job_command(Jobs.retry, "Create a new job for the devices that a finished job did not update.")


@jobs.command()
@job_argument
@click.option("--yes", is_flag=True, help="Delete the job without asking for confirmation.")
@json_option
def delete(job: str, *, yes: bool, as_json: bool) -> None:
    """Delete a job that has finished or was never started, and all executions of the job."""
    if not yes:
        found = call_service(lambda fleet: fleet.jobs.show(job))
        question = (
            f"Delete {job}, {to_printable(found.name)}, with its {count_job_devices(found)} executions?"
        )
        click.confirm(question, abort=True, err=True)
    call_service(lambda fleet: fleet.jobs.delete(job))
    print_result({"id": job, "deleted": True}, f"{job} is deleted.", as_json=as_json)
