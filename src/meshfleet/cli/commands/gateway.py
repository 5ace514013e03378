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

from meshfleet.cli.emulated_fleet import run_emulated_fleet
from meshfleet.cli.options import (
    MAC,
    PREFIX,
    VERSION,
    broker_option,
    seed_option,
    speed_option,
    tls_ca_option,
)
from meshfleet.cli.shutdown import log_to_terminal
from meshfleet.emulator import (
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    RealTimePace,
    ReportMode,
    SimulatedClock,
    SimulatedMesh,
    describe_site,
    generate_site,
    parse_site,
)
from meshfleet.emulator.settings import OLDEST_API_VERSION
from meshfleet.emulator.simulation.site import MAX_DEVICES
from meshfleet.errors.emulator import UnreadableMemory
from meshfleet.errors.protocol import WireError
from meshfleet.mqtt.client import run_program
from meshfleet.protocol.api_versions import LATEST_VERSION

if TYPE_CHECKING:
    import httpx

    from meshfleet.emulator import EmulatedFleet, Site
    from meshfleet.mqtt.client import BrokerAddress
    from meshfleet.protocol.ids import Mac, Version


_log = logging.getLogger(__name__)


def _parse_faults(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Faults:
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
    type=click.Choice([each.value for each in ReportMode]),
    default="raw",
    show_default=True,
    help="Of reports.",
)
@click.option(
    "--api-version",
    type=VERSION,
    default=str(LATEST_VERSION),
    show_default=True,
    help=f"{OLDEST_API_VERSION} to {LATEST_VERSION}.",
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
    callback=_parse_faults,
    help="Make trouble; repeatable.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what the devices remember in this file: samples, properties, versions.",
)
@tls_ca_option
@click.option("--describe", "describes", is_flag=True, help="Print the site as JSON, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON that it runs.")
def gateway(  # noqa: PLR0913 # one for each option
    *,
    broker: BrokerAddress | None,
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
        settings = EmulatorSettings(
            mac=mac,
            mode=ReportMode(mode),
            api_version=api_version,
            topic_prefix=topic_prefix,
            disable_subscribe=disable_subscribe,
            faults=faults,
        )
    except WireError as exc:
        raise click.BadParameter(exc.reason, param_hint=f"--{exc.field}") from exc
    place = _load_site(mac, devices, seed, site)
    if describes:
        click.echo(msgspec.json.format(msgspec.json.encode(describe_site(place, SimulatedMesh(place)))))
        return
    if broker is None:
        raise click.UsageError("Missing option '--broker'.")
    clock = SimulatedClock(0, speed)
    log_to_terminal(logging.WARNING)
    one = _build_gateway(settings, place, clock, state)
    watch = partial(_monitor, one, broker, as_json=as_json, state=state)
    try:
        run_program(
            run_emulated_fleet(RealTimePace(clock), tls_ca, partial(_add_gateway, one, broker), watch)
        )
    finally:
        _save_state(one, state)


def _build_gateway(
    settings: EmulatorSettings, site: Site, clock: SimulatedClock, state: Path | None
) -> GatewayEmulator:
    """Make the gateway, with what its devices remember; a state that cannot be kept is found out now."""
    try:
        memory = state.read_bytes() if state is not None and state.exists() else None
        one = GatewayEmulator(settings, site, clock, memory=memory)
        _save_state(one, state)
    except UnreadableMemory as exc:
        raise click.ClickException(f"{state} cannot be used: {exc}") from exc
    except OSError as exc:
        raise click.ClickException(f"{state} cannot be used: {exc.strerror}") from exc
    return one


def _load_site(mac: Mac, devices: int | None, seed: int, file: Path | None) -> Site:
    if file is None:
        return generate_site(mac, devices=_DEFAULT_DEVICES if devices is None else devices, seed=seed)
    if devices is not None:
        raise click.UsageError("--devices and --site exclude each other: the site has its devices.")
    return parse_site(file.read_bytes(), source=str(file), gateway=mac, seed=seed)


_DEFAULT_DEVICES = 10


async def _add_gateway(
    one: GatewayEmulator, broker: BrokerAddress, fleet: EmulatedFleet, _http: httpx.AsyncClient
) -> None:
    fleet.add(one, broker)


async def _monitor(
    one: GatewayEmulator, broker: BrokerAddress, fleet: EmulatedFleet, *, as_json: bool, state: Path | None
) -> None:
    """Say that it runs, and keep its state from time to time."""
    await fleet.all_connected.wait()
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
        await asyncio.sleep(max(_SAVE_SECONDS, _SAVE_PAUSE_FACTOR * took))
        began = time.monotonic()
        try:
            _save_state(one, state)
        except OSError as exc:
            _log.warning("%s cannot be written: %s", state, exc.strerror)  # the gateway is worth more
        took = time.monotonic() - began


_SAVE_SECONDS = 5.0
"""Seconds: what a killed process may lose."""

_SAVE_PAUSE_FACTOR = 50
"""Times as long as keeping the state takes, nothing is kept: large sites have better things to do."""


def _save_state(one: GatewayEmulator, state: Path | None) -> None:
    """Write the state whole or not at all."""
    if state is not None:
        fresh = state.with_name(f"{state.name}.new")
        fresh.write_bytes(one.save_memory())
        fresh.replace(state)
