"""Labels on one device or on hundreds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import Progress

from meshfleet.cli.remote.arguments import DEVICE
from meshfleet.cli.remote.reaching import talk
from meshfleet.cli.terminal import printable
from meshfleet.errors import NotFound

if TYPE_CHECKING:
    from meshfleet.client import Fleet
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.rest import Device

_AT_ONCE: Final = 8
"""Devices that are changed at the same time."""

Deed = Callable[["Fleet", "Mac", Sequence[str]], Coroutine[Any, Any, "Device"]]


async def put_on(fleet: Fleet, device: Mac, labels: Sequence[str]) -> Device:
    """Put labels on a device, one or more."""
    *others, last = labels
    for label in others:
        await fleet.devices.label(device, label)
    return await fleet.devices.label(device, last)


async def take_off(fleet: Fleet, device: Mac, labels: Sequence[str]) -> Device:
    """Take labels off a device, one or more; one that it does not have keeps no other on it."""
    done: list[Device] = []
    missing: list[NotFound] = []
    for label in labels:
        try:
            done.append(await fleet.devices.unlabel(device, label))
        except NotFound as exc:
            missing.append(exc)
    if missing:
        raise missing[0]
    return done[-1]


def each_device(named: str, labels: Sequence[str], deed: Deed, tell: Callable[[Device], None]) -> None:
    """Do it to the device that is named; with - to all on standard input, and show how far it is."""
    if named != "-":
        device: Mac = DEVICE.convert(named, None, None)
        tell(talk(lambda fleet: deed(fleet, device, labels)))
        return
    devices = [DEVICE.convert(line.strip(), None, None) for line in sys.stdin if line.strip()]
    if not devices:
        click.echo("No devices on standard input.", err=True)
        return
    # What is told of each device shows on a terminal how far it is.
    hidden = sys.stdout.isatty() or not sys.stderr.isatty()
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=hidden, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("labels", total=len(devices))

        def went_on(done: Device) -> None:
            tell(done)
            progress.advance(task)

        talk(partial(_all, devices, labels, deed, went_on))


async def _all(
    devices: Sequence[Mac],
    labels: Sequence[str],
    deed: Deed,
    tell: Callable[[Device], None],
    fleet: Fleet,
) -> None:
    """Go through all of them; who is not there, or has no such label, does not keep the others from it."""
    waiting, missing = iter(devices), []

    async def some() -> None:
        for device in waiting:
            try:
                tell(await deed(fleet, device, labels))
            except NotFound as exc:
                missing.append(device)
                click.echo(printable(f"{device}: {exc}"), err=True)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the others have the same reason
    if missing:
        raise click.ClickException(f"{len(missing)} of {len(devices)} devices could not be changed as asked.")
