"""`meshfleet devices`: list, show, rename and label devices."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import click
from rich.console import Console
from rich.progress import Progress

from meshfleet.cli.arguments import DEVICE, LABEL, PAST_TIME, device_argument
from meshfleet.cli.completers import complete_devices, complete_gateways, complete_labels
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import (
    Column,
    flatten_fields,
    json_option,
    limit_option,
    print_fields,
    print_json,
    print_list,
    print_result,
    print_table,
)
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable
from meshfleet.cli.topology_output import print_path
from meshfleet.client.rest.devices import Sort
from meshfleet.errors import NotFound
from meshfleet.rest.position_csv import encode_history_header, encode_history_rows

if TYPE_CHECKING:
    from meshfleet.client import Fleet
    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.devices import Device


# --- Labels of one or many devices ---

_MAX_CONCURRENT: Final = 8
"""Maximum number of devices whose labels are changed concurrently."""

LabelChange = Callable[["Fleet", "Mac", Sequence[str]], Coroutine[Any, Any, "Device"]]


async def add_labels(fleet: Fleet, device: Mac, labels: Sequence[str]) -> Device:
    """Attach one or more labels to a device."""
    *others, last = labels
    for label in others:
        await fleet.devices.label(device, label)
    return await fleet.devices.label(device, last)


async def remove_labels(fleet: Fleet, device: Mac, labels: Sequence[str]) -> Device:
    """Detach one or more labels from a device.

    If the device lacks a label, the other labels are still detached, and `NotFound` is raised at the end.
    """
    changed: list[Device] = []
    missing: list[NotFound] = []
    for label in labels:
        try:
            changed.append(await fleet.devices.unlabel(device, label))
        except NotFound as exc:
            missing.append(exc)
    if missing:
        raise missing[0]
    return changed[-1]


def change_labels(
    device_or_dash: str, labels: Sequence[str], change: LabelChange, on_changed: Callable[[Device], None]
) -> None:
    """Change the labels of a device, or of all devices listed on standard input if the device is `-`.

    `on_changed` is called for each changed device. With standard input, a progress bar is shown.
    """
    if device_or_dash != "-":
        device: Mac = DEVICE.convert(device_or_dash, None, None)
        on_changed(call_service(lambda fleet: change(fleet, device, labels)))
        return
    devices = [DEVICE.convert(line.strip(), None, None) for line in sys.stdin if line.strip()]
    if not devices:
        click.echo("No devices on standard input.", err=True)
        return
    # If standard output is a terminal, the lines printed for the devices already show the progress.
    hidden = sys.stdout.isatty() or not sys.stderr.isatty()
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("labels", total=len(devices))

        def report_changed(device: Device) -> None:
            on_changed(device)
            progress.advance(task)

        call_service(partial(_change_labels_of_all, devices, labels, change, report_changed))


async def _change_labels_of_all(
    devices: Sequence[Mac],
    labels: Sequence[str],
    change: LabelChange,
    on_changed: Callable[[Device], None],
    fleet: Fleet,
) -> None:
    """Change the labels of all devices concurrently.

    Print an error for each unknown device or missing label, and raise `ClickException` at the end if any
    error was printed.
    """
    remaining, failed = iter(devices), []

    async def change_remaining() -> None:
        for device in remaining:
            try:
                on_changed(await change(fleet, device, labels))
            except NotFound as exc:
                failed.append(device)
                click.echo(to_printable(f"{device}: {exc}"), err=True)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_MAX_CONCURRENT):
                tasks.create_task(change_remaining())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # all have the same cause
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(devices)} devices could not be changed.")


_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.friendly_name),
    Column("model", lambda each: each.model_number),
    Column("firmware", lambda each: each.firmware_version),
    Column("connected", lambda each: each.connectivity.connected),
    Column("since", lambda each: each.connectivity.timestamp),
    Column("labels", lambda each: each.labels),
)

_LINK_COLUMNS: Final = (
    Column("parent", lambda each: each.parent, no_wrap=True),
    Column("rssi", lambda each: each.rssi),
    Column("seen", lambda each: each.seen_at),
    Column("mean", lambda each: round(each.mean)),
    Column("unreachable", lambda each: each.unreachable),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
)

_PARENT_COLUMNS: Final = (
    Column("time", lambda each: each.time, no_wrap=True),
    Column("parent", lambda each: each.parent, no_wrap=True),
    Column("previous", lambda each: each.previous, no_wrap=True),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
)

_POSITION_COLUMNS: Final = (
    Column("time", lambda each: each.time, no_wrap=True),
    Column("site", lambda each: each.site, no_wrap=True),
    Column("floor", lambda each: each.floor),
    Column("x", lambda each: f"{each.x:.1f}"),
    Column("y", lambda each: f"{each.y:.1f}"),
    Column("radius (m)", lambda each: f"{each.radius:.1f}"),
)

labels_argument = click.argument(
    "labels", metavar="LABEL...", type=LABEL, nargs=-1, required=True, shell_complete=complete_labels
)


@click.group()
def devices() -> None:
    """List, rename and label devices."""


@devices.command("list")
@click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    shell_complete=complete_labels,
    help="Show only devices with this label; if repeated, only devices with all of the labels.",
)
@click.option(
    "--connected/--disconnected",
    default=None,
    help="Show only connected devices, or only disconnected devices.",
)
@click.option(
    "--model", "model_number", type=TEXT, help="Show only devices with this model number, such as 0018."
)
@click.option(
    "--firmware",
    "firmware_version",
    type=TEXT,
    help="Show only devices with this firmware version, such as 2.4.0.",
)
@click.option(
    "--hardware",
    "hardware_version",
    type=TEXT,
    help="Show only devices with this hardware version, such as 1.2.0.",
)
@click.option(
    "--name",
    "friendly_name",
    type=TEXT,
    help="Show only devices whose friendly name contains this text (case-insensitive).",
)
@click.option(
    "--gateway", type=DEVICE, shell_complete=complete_gateways, help="Show only devices behind this gateway."
)
@click.option(
    "--id",
    "ids",
    type=DEVICE,
    multiple=True,
    shell_complete=complete_devices,
    help="Show only the device with this id; repeatable.",
)
@click.option(
    "--sort",
    type=click.Choice(get_args(Sort)),
    help="Field by which to sort the devices; a leading hyphen reverses the order.",
)
@limit_option
@json_option
def list_devices(*, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List the devices that match all given options."""
    call_service(
        lambda fleet: print_list(fleet.devices.list(**filters), _COLUMNS, as_json=as_json, limit=limit)
    )


@devices.command()
@device_argument
@json_option
def show(device: Mac, *, as_json: bool) -> None:
    """Show all fields of a device."""
    found = call_service(lambda fleet: fleet.devices.show(device))
    if as_json:
        print_json(found)
    else:
        print_fields(flatten_fields(found))


@devices.command()
@device_argument
@json_option
def links(device: Mac, *, as_json: bool) -> None:
    """List the parents that received a device's radio signal in the last day, latest and strongest first."""
    found = call_service(lambda fleet: fleet.samples.links(device)).items
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_table(_LINK_COLUMNS, found)


@devices.command()
@device_argument
@json_option
def path(device: Mac, *, as_json: bool) -> None:
    """Show the hops from a device to its gateway with their signal, and other parents it could have."""
    found = call_service(lambda fleet: fleet.devices.path(device))
    if as_json:
        print_json(found)
    else:
        print_path(found)


@devices.command()
@device_argument
@limit_option
@json_option
def parents(device: Mac, *, limit: int | None, as_json: bool) -> None:
    """List when a device changed its parent in the mesh, the newest change first."""
    call_service(
        lambda fleet: print_list(fleet.devices.parents(device), _PARENT_COLUMNS, as_json=as_json, limit=limit)
    )


@devices.command()
@device_argument
@click.option(
    "--from",
    "since",
    type=PAST_TIME,
    help="Show only positions from this time on: ISO 8601, or an age such as 15m or 7d.  [default: 1h]",
)
@click.option(
    "--to", "until", type=PAST_TIME, help="Show only positions before this time: ISO 8601, or an age."
)
@limit_option
@click.option("--csv", "as_csv", is_flag=True, help="Print all positions as CSV.")
@json_option
def positions(device: Mac, *, limit: int | None, as_csv: bool, as_json: bool, **times: Any) -> None:
    """List where a device was over time, the oldest position first; `meshfleet where` shows where it is."""
    if as_csv and (as_json or limit):
        raise click.UsageError("--csv cannot be combined with --json or --limit.")
    if as_csv:
        call_service(lambda fleet: _print_positions_csv(fleet, device, times))
        return
    call_service(
        lambda fleet: print_list(
            fleet.devices.positions(device, **times), _POSITION_COLUMNS, as_json=as_json, limit=limit
        )
    )


async def _print_positions_csv(fleet: Fleet, device: Mac, times: dict[str, Any]) -> None:
    click.echo(encode_history_header(), nl=False)
    async for each in fleet.devices.positions(device, **times):
        click.echo(encode_history_rows([each]), nl=False)


@devices.command()
@device_argument
@click.argument("name", type=TEXT)
@json_option
def rename(device: Mac, name: str, *, as_json: bool) -> None:
    """Change the friendly name of a device to NAME."""
    renamed = call_service(lambda fleet: fleet.devices.rename(device, name))
    print_result(renamed, f"{renamed.id} is now called {renamed.friendly_name}.", as_json=as_json)


@devices.command()
@click.argument("device", shell_complete=complete_devices)
@labels_argument
@json_option
def label(device: str, labels: tuple[str, ...], *, as_json: bool) -> None:
    """Attach labels to a device. With - for DEVICE, read device ids from standard input, one per line."""
    change_labels(device, labels, add_labels, lambda changed: _print_labels(changed, as_json=as_json))


@devices.command()
@click.argument("device", shell_complete=complete_devices)
@labels_argument
@json_option
def unlabel(device: str, labels: tuple[str, ...], *, as_json: bool) -> None:
    """Detach labels from a device. With - for DEVICE, read device ids from standard input, one per line."""
    change_labels(device, labels, remove_labels, lambda changed: _print_labels(changed, as_json=as_json))


def _print_labels(device: Device, *, as_json: bool) -> None:
    labels = ", ".join(device.labels) or "none"
    print_result(device, f"Labels of {device.id}: {labels}", as_json=as_json)
