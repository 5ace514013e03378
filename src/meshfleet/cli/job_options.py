"""Options of `meshfleet jobs create`: target devices, rollout and update."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import DEVICE, LABEL, TIME
from meshfleet.cli.completers import complete_devices, complete_labels
from meshfleet.cli.device_filters import DEVICE_FILTER, FILTER_NAMES, build_device_filters
from meshfleet.cli.options import NumberParamType, TextParamType, parse_text
from meshfleet.client import (
    Concurrency,
    Criterion,
    Gate,
    JobHealth,
    Rate,
    Retry,
    Timeouts,
    UpdateMethod,
    Wave,
)
from meshfleet.errors.protocol import MalformedInput

if TYPE_CHECKING:
    from meshfleet.client.rest.jobs import JobOptions

_WAVE = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<size>[0-9]+(?:\.[0-9]+)?)(?P<percent>%?)")
_NO_LIMIT: Final = "none"


def _parse_wave(text: str) -> Wave:
    found = _WAVE.fullmatch(parse_text(text, "wave"))
    if found is None or ("." in found["size"] and not found["percent"]):
        raise MalformedInput("wave", f"{text!r} is not a number or percentage such as canary=5 or 10%")
    if found["percent"]:
        return Wave(name=found["name"], percent=float(found["size"]))
    return Wave(name=found["name"], count=int(found["size"]))


def _parse_limit(text: str) -> int | str:
    """Parse a positive number or `none`. Return `none` as a string: click takes None for a missing value."""
    if text == _NO_LIMIT:
        return text
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise MalformedInput("limit", f"{text!r} is not a positive number or {_NO_LIMIT}")
    return int(text)


LIMIT: Final = TextParamType("limit", _parse_limit)

_default_option = partial(click.option, show_default=True)
"""Decorator that adds an option whose help text includes the default value."""

_TARGET_OPTIONS: Final = (
    click.option(
        "--device",
        "devices",
        type=DEVICE,
        multiple=True,
        shell_complete=complete_devices,
        help="Update this device; repeatable.",
    ),
    click.option(
        "--label",
        "labels",
        type=LABEL,
        multiple=True,
        shell_complete=complete_labels,
        help="Update all devices with this label; if repeated, all devices with any of the labels.",
    ),
    click.option(
        "--filter",
        "filters",
        type=DEVICE_FILTER,
        multiple=True,
        help=f"Update the devices that match NAME=VALUE; if repeated, those that match all filters."
        f" Names: {FILTER_NAMES}.",
    ),
    click.option("--all", "everything", is_flag=True, help="Update all devices."),
)

_ROLLOUT_OPTIONS: Final = (
    click.option(
        "--wave",
        "waves",
        type=TextParamType("wave", _parse_wave),
        multiple=True,
        help="Add a wave of devices: [NAME=]COUNT or [NAME=]PERCENT%, such as canary=5 or 10%; repeatable."
        " Percentages are counted cumulatively: 10% and 50% are two waves with 10% and 40% of the devices.",
    ),
    _default_option(
        "--gate",
        "success_percent",
        type=NumberParamType(0, 100),
        default=0,
        help="Percentage of updates in a wave that must succeed before the next wave starts.",
    ),
    _default_option(
        "--soak",
        "soak_minutes",
        type=NumberParamType(0),
        default=0,
        help="Minutes to wait after a wave before the next wave starts.",
    ),
    click.option("--gate-pause", is_flag=True, help="Pause the job after each wave, until `jobs resume`."),
    _default_option(
        "--per-job", type=LIMIT, default=_NO_LIMIT, help="Maximum concurrent updates of the job, or none."
    ),
    _default_option(
        "--per-gateway",
        type=LIMIT,
        default="1",
        help="Maximum concurrent updates of the job per gateway, or none.",
    ),
    click.option(
        "--rate", type=click.IntRange(1), help="Maximum number of updates that the job starts per minute."
    ),
    click.option(
        "--abort",
        "abort_percent",
        type=NumberParamType(0, 100),
        help="Pause the job when this percentage of its updates has failed (default: never).",
    ),
    _default_option(
        "--abort-after",
        type=click.IntRange(1),
        default=1,
        help="With --abort: minimum number of started updates before the percentage is checked.",
    ),
    click.option(
        "--abort-cancel",
        is_flag=True,
        help="With --abort: cancel the job, instead of pausing it, when that percentage of updates has"
        " failed.",
    ),
    _default_option(
        "--on-newer-job",
        type=click.Choice(["queue", "supersede", "reject"]),
        default="queue",
        help="What happens to a device of this job that a newer job includes. queue: both jobs update it, one"
        " after the other. supersede: the newer job takes it over if its update has not started. reject: the"
        " newer job skips it.",
    ),
)

_UPDATE_OPTIONS: Final = (
    click.option(
        "--method",
        type=click.Choice([each.value for each in UpdateMethod]),
        help="Method of updating the devices (default: chosen per device).",
    ),
    click.option(
        "--stage",
        is_flag=True,
        help="Transfer the image to the devices, but install it only after `jobs apply`.",
    ),
    click.option(
        "--allow-downgrade", is_flag=True, help="Also update devices on which a newer version is installed."
    ),
    click.option("--no-apply", is_flag=True, help="Create the job, but start it only after `jobs apply`."),
    click.option(
        "--start",
        "start_at",
        type=TIME,
        help="Time when the job starts, such as 2026-11-20T22:00:00Z or 2026-11-20T22:00+01:00.",
    ),
    click.option(
        "--deadline",
        type=TIME,
        help="Time when the job is canceled if it has not finished, such as 2026-11-21T06:00:00Z.",
    ),
    _default_option(
        "--retries",
        type=click.IntRange(0, 10),
        default=Retry().max,
        help="Maximum automatic retries per device.",
    ),
    _default_option(
        "--backoff",
        type=NumberParamType(0),
        default=Retry().backoff_seconds,
        help="Seconds before the first retry of a failed update; doubled for each further retry.",
    ),
    _default_option(
        "--queue-minutes",
        type=NumberParamType(0),
        default=Timeouts().queue_minutes,
        help="Minutes that an update may wait in the queue before it times out.",
    ),
    _default_option(
        "--step-minutes",
        type=NumberParamType(0),
        default=Timeouts().step_minutes,
        help="Minutes without progress before an update times out.",
    ),
    click.option(
        "--total-minutes",
        type=NumberParamType(1),
        help="Minutes after which the update of a device times out. Default: by the size of the image.",
    ),
    _default_option(
        "--heartbeats",
        type=click.IntRange(0, 100),
        default=3,
        help="Good heartbeats (status 0, or the same status as before the update) required to confirm an"
        " update; 0: check only the version.",
    ),
)


def job_options(command: Any) -> Any:
    """Add to a command the options that `build_job_options` converts to job options of the SDK."""
    for option in reversed((*_TARGET_OPTIONS, *_ROLLOUT_OPTIONS, *_UPDATE_OPTIONS)):
        command = option(command)
    return command


def build_job_options(options: dict[str, Any]) -> JobOptions:
    """Convert the option values to job options of the SDK. Raise `UsageError` if no devices are selected."""
    found: JobOptions = {
        "devices": options["devices"],
        "labels": options["labels"],
        "filter": build_device_filters(options["filters"]),
        "everything": options["everything"],
        "stage": options["stage"],
        "allow_downgrade": options["allow_downgrade"],
        "method": options["method"],
        "auto_apply": not options["no_apply"],
        "start_at": options["start_at"],
        "deadline": options["deadline"],
        "waves": options["waves"],
        "gate": Gate(
            success_percent=options["success_percent"],
            soak_minutes=options["soak_minutes"],
            pause=options["gate_pause"],
        ),
        "concurrency": Concurrency(
            per_job=_to_limit(options["per_job"]), per_gateway=_to_limit(options["per_gateway"])
        ),
        "rate": None if options["rate"] is None else Rate(per_minute=options["rate"]),
        "abort": _build_abort_criteria(options),
        "retry": Retry(max=options["retries"], backoff_seconds=options["backoff"]),
        "timeouts": _build_timeouts(options),
        "health": JobHealth(heartbeats=options["heartbeats"]),
        "on_newer_job": options["on_newer_job"],
    }
    if not (found["devices"] or found["labels"] or found["filter"] or found["everything"]):
        raise click.UsageError("Select devices with --device, --label, --filter or --all.")
    return found


def _to_limit(limit: int | str) -> int | None:
    return None if isinstance(limit, str) else limit


def _build_abort_criteria(options: dict[str, Any]) -> tuple[Criterion, ...]:
    if options["abort_percent"] is None:
        if options["abort_cancel"]:
            raise click.UsageError("--abort-cancel needs --abort.")
        return ()
    return (
        Criterion(
            percent=options["abort_percent"],
            min_executed=options["abort_after"],
            action="CANCEL" if options["abort_cancel"] else "PAUSE",
        ),
    )


def _build_timeouts(options: dict[str, Any]) -> Timeouts:
    names = ("queue_minutes", "step_minutes", "total_minutes")
    return Timeouts(**{name: options[name] for name in names if options[name] is not None})
