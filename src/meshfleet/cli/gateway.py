"""`meshfleet gateway`: one emulated gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from meshfleet.cli.options import (
    MAC,
    PREFIX,
    VERSION,
    authorities_option,
    broker_option,
    seed_option,
    speed_option,
)
from meshfleet.cli.running import run_fleet
from meshfleet.cli.stopping import log_to_terminal
from meshfleet.errors import UnreadableMemory, WireError
from meshfleet.gateway import ByClock, Clock, Faults, Gateway, Mesh, Mode, Settings, describe, generate, parse
from meshfleet.gateway.settings import OLDEST
from meshfleet.gateway.world.site import MAX_DEVICES
from meshfleet.link import run
from meshfleet.wire.gating import NEWEST

if TYPE_CHECKING:
    import httpx

    from meshfleet.gateway import Fleet, Site
    from meshfleet.link import Address
    from meshfleet.wire.ids import Mac, Version


_log = logging.getLogger(__name__)


def _faults(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Faults:
    try:
        return Faults.parse(*texts)
    except WireError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command()
@broker_option
@click.option(
    "--mac", type=MAC, required=True, help="The gateway's MAC: its client id and its name in topics."
)
@click.option(
    "--devices", type=click.IntRange(0, MAX_DEVICES), help="How many devices it has.  [default: 10]"
)
@click.option(
    "--mode",
    type=click.Choice([each.value for each in Mode]),
    default="raw",
    show_default=True,
    help="Of reports.",
)
@click.option(
    "--api-version", type=VERSION, default=str(NEWEST), show_default=True, help=f"{OLDEST} to {NEWEST}."
)
@seed_option
@speed_option
@click.option(
    "--site",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A site of your own, in the form that --describe prints.",
)
@click.option("--topic-prefix", type=PREFIX, default="", help="What stands in front of mt/ in every topic.")
@click.option("--disable-subscribe", is_flag=True, help="Subscribe to nothing, and serve no requests.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_faults,
    help="Make trouble; repeatable.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what the devices remember in this file: samples, properties, versions.",
)
@authorities_option
@click.option("--describe", "describes", is_flag=True, help="Print the site as JSON, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON that it runs.")
def gateway(  # noqa: PLR0913 # one for each option
    *,
    broker: Address | None,
    mac: Mac,
    devices: int | None,
    mode: str,
    api_version: Version,
    seed: int,
    speed: float,
    site: Path | None,
    topic_prefix: str,
    disable_subscribe: bool,
    faults: Faults,
    state: Path | None,
    tls_ca: Path | None,
    describes: bool,
    as_json: bool,
) -> None:
    """Run an emulated gateway over a simulated mesh, with any MQTT broker.

    Faults: loss, duplicate, reorder, quoted-seq and broken-json are fractions of the messages, silent of the
    devices, update-fail of the updates; delay is in seconds, crash in seconds between crashes.
    """
    try:
        settings = Settings(
            mac=mac,
            mode=Mode(mode),
            api_version=api_version,
            topic_prefix=topic_prefix,
            disable_subscribe=disable_subscribe,
            faults=faults,
        )
    except WireError as exc:
        raise click.BadParameter(exc.reason, param_hint=f"--{exc.field}") from exc
    place = _site(mac, devices, seed, site)
    if describes:
        click.echo(msgspec.json.format(msgspec.json.encode(describe(place, Mesh(place)))))
        return
    if broker is None:
        raise click.UsageError("Missing option '--broker'.")
    clock = Clock(0, speed)
    log_to_terminal(logging.WARNING)
    one = _gateway(settings, place, clock, state)
    watch = partial(_watch, one, broker, as_json=as_json, state=state)
    try:
        run(run_fleet(ByClock(clock), tls_ca, partial(_fill, one, broker), watch))
    finally:
        _keep(one, state)


def _gateway(settings: Settings, site: Site, clock: Clock, state: Path | None) -> Gateway:
    """Make the gateway, with what its devices remember; a state that cannot be kept is found out now."""
    try:
        memory = state.read_bytes() if state is not None and state.exists() else None
        one = Gateway(settings, site, clock, memory=memory)
        _keep(one, state)
    except UnreadableMemory as exc:
        raise click.ClickException(f"{state} cannot be used: {exc}") from exc
    except OSError as exc:
        raise click.ClickException(f"{state} cannot be used: {exc.strerror}") from exc
    return one


def _site(mac: Mac, devices: int | None, seed: int, file: Path | None) -> Site:
    if file is None:
        return generate(mac, devices=_DEVICES if devices is None else devices, seed=seed)
    if devices is not None:
        raise click.UsageError("--devices and --site exclude each other: the site has its devices.")
    return parse(file.read_bytes(), source=str(file), gateway=mac, seed=seed)


_DEVICES = 10


async def _fill(one: Gateway, broker: Address, fleet: Fleet, _http: httpx.AsyncClient) -> None:
    fleet.add(one, broker)


async def _watch(one: Gateway, broker: Address, fleet: Fleet, *, as_json: bool, state: Path | None) -> None:
    """Say that it runs, and keep its state from time to time."""
    await fleet.is_complete.wait()
    settings = one.settings
    if as_json:
        said = {"event": "connected", "gateway": settings.mac, "broker": str(broker)}
        click.echo(msgspec.json.encode(said))
    else:
        click.echo(
            f"Gateway {settings.mac} is connected to {broker}: {settings.mode} reports, "
            f"API version {settings.api_version}. Ctrl-C stops it."
        )
    took = 0.0
    while True:
        await asyncio.sleep(max(_KEPT_EVERY, _SPARE * took))
        began = time.monotonic()
        try:
            _keep(one, state)
        except OSError as exc:
            _log.warning("%s cannot be written: %s", state, exc.strerror)  # the gateway is worth more
        took = time.monotonic() - began


_KEPT_EVERY = 5.0
"""Seconds: what a killed process may lose."""

_SPARE = 50
"""Times as long as keeping the state takes, nothing is kept: large sites have better things to do."""


def _keep(one: Gateway, state: Path | None) -> None:
    """Write the state whole or not at all."""
    if state is not None:
        fresh = state.with_name(f"{state.name}.new")
        fresh.write_bytes(one.memory())
        fresh.replace(state)
