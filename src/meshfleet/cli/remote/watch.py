"""`meshfleet watch`: live reports."""

from __future__ import annotations

import asyncio
from asyncio import wait_for
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.options import Number
from meshfleet.cli.remote.arguments import DEVICE, IDENTIFIER
from meshfleet.cli.remote.asking import Way, broker_options, open_mesh
from meshfleet.cli.remote.completing import complete_devices, complete_gateways, complete_identifiers
from meshfleet.cli.remote.heard import heard
from meshfleet.cli.remote.printing import json_option
from meshfleet.cli.remote.reaching import reach
from meshfleet.cli.remote.values import name_of
from meshfleet.cli.remote.watching import Wanted, notice, print_report, tell_connections
from meshfleet.wire.codes import Kind
from meshfleet.wire.ids import device_id
from meshfleet.wire.rest import LiveHeartbeat, LiveLink, LiveSample, Resync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from meshfleet.cli.remote.heard import Live
    from meshfleet.wire.ids import Mac

    _Reports = AsyncGenerator[Live, None]

_KINDS: Final = sorted({each.raw.value for each in Kind})


@click.command()
@click.option("--device", "devices", type=DEVICE, multiple=True, shell_complete=complete_devices)
@click.option("--gateway", "gateways", type=DEVICE, multiple=True, shell_complete=complete_gateways)
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True)
@click.option(
    "--identifier",
    "identifiers",
    type=IDENTIFIER,
    multiple=True,
    shell_complete=complete_identifiers,
    help="By name, or its id in hex. All filters can be repeated.",
)
@click.option("--seconds", type=Number(0, min_open=True), help="Stop after so long.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many reports.")
@broker_options
@json_option
def watch(  # noqa: PLR0913 # one for each option
    *,
    devices: tuple[Mac, ...],
    gateways: tuple[Mac, ...],
    kinds: tuple[str, ...],
    identifiers: tuple[str, ...],
    seconds: float | None,
    count: int | None,
    broker: str | None,
    topic_prefix: str,
    tls_ca: Path | None,
    as_json: bool,
) -> None:
    """Show reports as they come, one line each, until Ctrl-C; with --broker without any service."""
    wanted = Wanted(
        devices=frozenset(map(device_id, devices)),
        gateways=frozenset(gateways),
        kinds=frozenset(kinds),
        names=frozenset(map(name_of, identifiers)),
    )
    way, inside = Way.chosen(None, broker, topic_prefix, tls_ca), asyncio.Event()
    reports = (
        _of_service(devices, gateways, inside)
        if broker is None
        else _of_broker(way, devices, gateways, inside)
    )
    tell_connections()
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(wait_for(_show(reports, wanted, count=count, as_json=as_json), seconds))
    except TimeoutError:
        if seconds is None:
            raise
        if not inside.is_set():
            raise click.ClickException(f"nobody answered within {seconds:g} s") from None


async def _show(reports: _Reports, wanted: Wanted, *, count: int | None, as_json: bool) -> None:
    """Print what is wanted, until there is enough."""
    left = count
    async with aclosing(reports):
        async for report in reports:
            if wanted.has(report):
                print_report(report, as_json=as_json)
                left = None if left is None else left - 1
            if left == 0:
                return


async def _of_service(devices: tuple[Mac, ...], gateways: tuple[Mac, ...], inside: asyncio.Event) -> _Reports:
    """Reports of a service; `inside` is set as soon as it lets us in."""
    async with reach() as fleet, aclosing(fleet.live("report", devices, gateways)) as events:
        await fleet.me()
        inside.set()
        async for event in events:
            match event.data:
                case LiveSample() | LiveHeartbeat() | LiveLink() as report:
                    yield report
                case Resync(reason=reason):
                    notice(f"some reports were missed: {reason}")


async def _of_broker(
    way: Way, devices: tuple[Mac, ...], gateways: tuple[Mac, ...], inside: asyncio.Event
) -> _Reports:
    """Reports at a broker; `inside` is set as soon as it lets us in."""
    device = devices[0] if len(devices) == 1 else None
    gateway = gateways[0] if len(gateways) == 1 else None
    async with open_mesh(way) as mesh, aclosing(mesh.reports(gateway=gateway, device=device)) as reports:
        inside.set()
        async for report in reports:
            yield heard(report)
