"""`meshfleet jobs`: updating devices, many at a time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.options import TEXT
from meshfleet.cli.remote.arguments import DEVICE, FIRMWARE, job_argument
from meshfleet.cli.remote.completing import complete_devices, complete_firmware, complete_gateways
from meshfleet.cli.remote.execution_texts import tell_execution, why_of
from meshfleet.cli.remote.job_texts import (
    MOST_FAILED,
    count_of,
    counts_text,
    failed_states,
    line_of,
    more_failed,
    progress_of,
    sentence_of,
    state_text,
    tell_dry_run,
    tell_job,
)
from meshfleet.cli.remote.ordering import order, order_options
from meshfleet.cli.remote.printing import (
    Column,
    answer,
    json_option,
    limit_option,
    print_all,
    print_json,
    to_seconds,
)
from meshfleet.cli.remote.reaching import talk
from meshfleet.cli.terminal import printable
from meshfleet.client import ExecutionState, JobState, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.client import Fleet, Job
    from meshfleet.wire.ids import Mac

_COLUMNS: Final = (
    Column("id", lambda each: each.id, is_whole=True),
    Column("name", lambda each: each.name),
    Column("version", lambda each: each.version),
    Column("state", state_text),
    Column("done", progress_of),
    Column("devices", count_of),
    Column("since", lambda each: to_seconds(each.created_at), is_whole=True),
)

_PARTS: Final = (
    Column("device", lambda each: each.device_id, is_whole=True),
    Column("state", lambda each: each.state, is_whole=True),
    Column("try", lambda each: each.attempt),
    Column("done", lambda each: f"{each.progress} %", is_whole=True),
    Column("gateway", lambda each: each.gateway, is_whole=True),
    Column("why", why_of),
)


def _states_option(words: type[JobState | ExecutionState]) -> Callable[[Any], Any]:
    known = click.Choice([each.value for each in words])
    return click.option("--state", "states", type=known, multiple=True, help="In this state; repeatable.")


@click.group()
def jobs() -> None:
    """Update devices, many at a time."""


@jobs.command()
@click.argument("name", type=TEXT)
@click.option(
    "--firmware",
    "firmware_id",
    type=FIRMWARE,
    required=True,
    shell_complete=complete_firmware,
    help="The id of the firmware, which is released.",
)
@order_options
@click.option("--dry-run", is_flag=True, help="Make nothing; tell what the job would do.")
@json_option
def create(name: str, *, firmware_id: str, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Make the job NAME, which updates all devices that are named in any way."""
    asked = order(given)
    if dry_run:
        told = talk(lambda fleet: fleet.jobs.dry_run(name, firmware_id, **asked))
        if as_json:
            print_json(told)
        else:
            tell_dry_run(told)
        return
    made = talk(lambda fleet: fleet.jobs.create(name, firmware_id, **asked))
    answer(made, f"{sentence_of(made)} {counts_text(made)}", as_json=as_json)


@jobs.command("list")
@_states_option(JobState)
@click.option("--firmware", type=FIRMWARE, shell_complete=complete_firmware, help="With this firmware.")
@limit_option
@json_option
def list_jobs(*, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List jobs, the newest first."""
    talk(lambda fleet: print_all(fleet.jobs.list(**filters), _COLUMNS, as_json=as_json, limit=limit))


@jobs.command()
@job_argument
@click.argument("device", type=DEVICE, required=False, shell_complete=complete_devices)
@json_option
def show(job: str, device: Mac | None, *, as_json: bool) -> None:
    """Tell how a job goes and what it was told, or all that happened to one device in it."""
    if device is not None:
        execution = talk(lambda fleet: fleet.jobs.execution(job, device))
        if as_json:
            print_json(execution)
        else:
            tell_execution(execution, job)
        return
    talk(lambda fleet: _show(fleet, job, as_json=as_json))


async def _show(fleet: Fleet, job: str, *, as_json: bool) -> None:
    found = await fleet.jobs.show(job)
    if as_json:
        print_json(found)
        return
    tell_job(found)
    await _tell_failed(fleet, found)


async def _tell_failed(fleet: Fleet, job: Job) -> None:
    """What somebody who looks at a job wants to know next."""
    failed = failed_states(job)
    if failed:
        click.echo()
        listed = fleet.jobs.executions(job, states=failed)
        await print_all(listed, _PARTS, as_json=False, limit=MOST_FAILED)
    if more := more_failed(job):
        click.echo(printable(more))


@jobs.command()
@job_argument
@json_option
def watch(job: str, *, as_json: bool) -> None:
    """Show a job whenever it has changed, until it is over; exit code 0 if all went well."""
    ended = talk(lambda fleet: _watch(fleet, job, as_json=as_json))
    if ended.outcome is not Outcome.SUCCEEDED:
        raise click.ClickException(sentence_of(ended))


async def _watch(fleet: Fleet, job: str, *, as_json: bool) -> Job:
    last = ""
    async with aclosing(fleet.jobs.watch(job)) as changes:
        async for found in changes:
            line = line_of(found)
            if as_json:
                print_json(found)
            elif line != last:  # what it is likely to take changes all the time
                click.echo(line)
            last = line
    return found


@jobs.command()
@job_argument
@_states_option(ExecutionState)
@click.option("--gateway", type=DEVICE, shell_complete=complete_gateways, help="Through this gateway.")
@limit_option
@json_option
def executions(job: str, *, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List the parts of devices in a job, and what each waits for or why it failed."""
    talk(lambda fleet: print_all(fleet.jobs.executions(job, **filters), _PARTS, as_json=as_json, limit=limit))


@jobs.command()
@job_argument
@json_option
def apply(job: str, *, as_json: bool) -> None:
    """Let a job begin that waits for it, or devices start what they have staged."""
    _tell(talk(lambda fleet: fleet.jobs.apply(job)), as_json=as_json)


@jobs.command()
@job_argument
@json_option
def pause(job: str, *, as_json: bool) -> None:
    """Begin no more updates; those that are under way go on."""
    _tell(talk(lambda fleet: fleet.jobs.pause(job)), as_json=as_json)


@jobs.command()
@job_argument
@json_option
def resume(job: str, *, as_json: bool) -> None:
    """Go on with a paused job."""
    _tell(talk(lambda fleet: fleet.jobs.resume(job)), as_json=as_json)


@jobs.command()
@job_argument
@json_option
def cancel(job: str, *, as_json: bool) -> None:
    """End a job early; what has begun is taken back where that can be."""
    _tell(talk(lambda fleet: fleet.jobs.cancel(job)), as_json=as_json)


@jobs.command()
@job_argument
@json_option
def retry(job: str, *, as_json: bool) -> None:
    """Make a new job for the devices that a finished one did not update."""
    _tell(talk(lambda fleet: fleet.jobs.retry(job)), as_json=as_json)


@jobs.command()
@job_argument
@click.option("--yes", is_flag=True, help="Delete without asking back.")
@json_option
def delete(job: str, *, yes: bool, as_json: bool) -> None:
    """Delete a job that is over or was never started, with all that is known of its devices."""
    if not yes:
        found = talk(lambda fleet: fleet.jobs.show(job))
        question = f"Delete {job}, {printable(found.name)}, with its {count_of(found)} executions?"
        click.confirm(question, abort=True, err=True)
    talk(lambda fleet: fleet.jobs.delete(job))
    answer({"id": job, "deleted": True}, f"{job} is deleted.", as_json=as_json)


def _tell(job: Job, *, as_json: bool) -> None:
    answer(job, sentence_of(job), as_json=as_json)
