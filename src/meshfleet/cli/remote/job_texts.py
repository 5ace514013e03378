"""Jobs as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.remote.printing import Column, cell_text, print_table
from meshfleet.cli.terminal import printable

if TYPE_CHECKING:
    from meshfleet.client import DryRun, Job

_REFUSALS: Final = (
    Column("devices", lambda each: each.count),
    Column("why not", lambda each: each.reason),
    Column("such as", lambda each: each.device_ids[0] if each.device_ids else "", is_whole=True),
)
_WAVES: Final = (Column("wave", lambda each: each[0]), Column("devices", lambda each: each[1]))

_HOUR: Final = 60
"""Minutes."""


def count_of(job: Job) -> int:
    """How many devices it is about."""
    return sum(job.counts.values())


def counts_text(job: Job) -> str:
    """How many devices are in which state."""
    return ", ".join(f"{count} {state}" for state, count in job.counts.items() if count)


def line_of(job: Job) -> str:
    """A job on one line, which is another one when something has changed."""
    words = [job.id, job.state.value, f"{job.progress} %", counts_text(job)]
    if job.outcome is not None:
        words.insert(2, job.outcome.value)
    return "  ".join(words)


def sentence_of(job: Job) -> str:
    """Where a job is, and why."""
    outcome = "" if job.outcome is None else f", outcome {job.outcome}"
    why = job.pause_reason or job.stop_cause
    return f"{job.id} is {job.state}{outcome}{f' ({why})' if why else ''}."


def tell_dry_run(told: DryRun) -> None:
    """Print what a job would do."""
    ways = ", ".join(f"{count} by {way}" for way, count in told.methods.items())
    click.echo(
        f"{told.eligible} of {told.targets} devices would be updated{f', {ways}' if ways else ''}."
        + (f" It is likely to take {_duration(told.estimated_minutes)}." if told.eligible else "")
    )
    if len(told.waves) > 1:
        print_table(
            _WAVES, [(wave.name or place, wave.size) for place, wave in enumerate(told.waves, start=1)]
        )
    if told.refusals:
        print_table(_REFUSALS, told.refusals)
    if told.device_ids:
        click.echo(f"Among those that would: {printable(cell_text(told.device_ids))}")


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} minutes" if minutes < 2 * _HOUR else f"{minutes / _HOUR:.1f} hours"
