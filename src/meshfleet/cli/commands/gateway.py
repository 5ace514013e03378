"""`meshfleet gateway`: run one emulated gateway."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from meshfleet.cli.emulated_fleet import mode_option, run_emulated_fleet
from meshfleet.cli.emulated_site import SiteOptions, load_site, site_options
from meshfleet.cli.log_output import log_to_terminal
from meshfleet.cli.movement_output import MovementOutput
from meshfleet.cli.options import (
    MAC,
    PREFIX,
    VERSION,
    broker_option,
    seed_option,
    speed_option,
    tls_ca_option,
)
from meshfleet.emulator import (
    EmulatorSettings,
    Faults,
    GatewayEmulator,
    RealTimePace,
    ReportMode,
    SimulatedClock,
    SimulatedMesh,
    describe_site,
)
from meshfleet.emulator.settings import OLDEST_API_VERSION
from meshfleet.errors.emulator import UnreadableMemory
from meshfleet.errors.protocol import MalformedInput
from meshfleet.mqtt.client import run_program
from meshfleet.protocol.api_versions import LATEST_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from meshfleet.cli.shutdown import AsyncWork
    from meshfleet.emulator import EmulatedFleet, Site
    from meshfleet.mqtt.client import BrokerAddress
    from meshfleet.protocol.ids import Mac, Version


_log = logging.getLogger(__name__)


def _parse_faults(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Faults:
    try:
        return Faults.parse(*texts)
    except MalformedInput as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command()
@broker_option
@click.option(
    "--mac", type=MAC, required=True, help="MAC of the gateway: its MQTT client id and its name in topics."
)
@site_options
@mode_option
@click.option(
    "--api-version",
    type=VERSION,
    default=str(LATEST_VERSION),
    show_default=True,
    help=f"API version that the gateway emulates, {OLDEST_API_VERSION} to {LATEST_VERSION}.",
)
@seed_option
@speed_option
@click.option("--topic-prefix", type=PREFIX, default="", help="Prefix in front of mt/ in every MQTT topic.")
@click.option(
    "--disable-subscribe", is_flag=True, help="Do not subscribe to requests: the gateway only sends reports."
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_faults,
    help="Inject a fault, such as loss=0.1; repeatable. Names and values are described above.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File in which the state of the simulated devices is saved and from which it is restored.",
)
@click.option(
    "--truth",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to which the true positions of moving devices are appended, as JSON, one object per line.",
)
@tls_ca_option
@click.option(
    "--describe",
    "describes",
    is_flag=True,
    help="Print the simulated devices and the mesh as JSON, and exit.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON objects, instead of sentences: when the gateway is connected, and survey points.",
)
def gateway(  # noqa: PLR0913 # one for each option
    *,
    broker: BrokerAddress | None,
    mac: Mac,
    mode: str,
    api_version: Version,
    seed: int,
    speed: float,
    topic_prefix: str,
    disable_subscribe: bool,
    faults: Faults,
    state: Path | None,
    truth: Path | None,
    tls_ca: Path | None,
    describes: bool,
    as_json: bool,
    **site_values: Any,
) -> None:
    """Run an emulated gateway with a simulated mesh, on any MQTT broker.

    Faults: loss, duplicate, reorder, quoted-seq and broken-json are fractions (0 to 1) of all messages,
    silent is a fraction of the devices, update-fail a fraction of the updates; delay is the delay of a
    message in seconds, crash the time between two crashes in seconds.
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
    except MalformedInput as exc:
        raise click.BadParameter(exc.reason, param_hint=f"--{exc.field}") from exc
    site = load_site(mac, seed, SiteOptions(**site_values))
    if describes:
        click.echo(msgspec.json.format(msgspec.json.encode(describe_site(site, SimulatedMesh(site)))))
        return
    if broker is None:
        raise click.UsageError("Missing option '--broker'.")
    clock = SimulatedClock(0, speed)
    log_to_terminal(logging.WARNING)
    movement = MovementOutput(truth, as_json=as_json)
    emulator = _build_gateway(settings, site, clock, state, movement)
    monitor = partial(
        _monitor_gateway,
        _format_connected(settings, broker, as_json=as_json),
        (movement.run, partial(_save_states, emulator, state)),
    )
    try:
        run_program(
            run_emulated_fleet(RealTimePace(clock), tls_ca, partial(_add_gateway, emulator, broker), monitor)
        )
    finally:
        _save_state(emulator, state)


def _build_gateway(
    settings: EmulatorSettings,
    site: Site,
    clock: SimulatedClock,
    state: Path | None,
    movement: MovementOutput,
) -> GatewayEmulator:
    """Create the emulated gateway with the saved state of its devices.

    The state is saved again at once, so that the command fails early if the file cannot be written.
    """
    try:
        memory = state.read_bytes() if state is not None and state.exists() else None
        emulator = GatewayEmulator(settings, site, clock, memory=memory, on_movement=movement.add)
        _save_state(emulator, state)
    except UnreadableMemory as exc:
        raise click.ClickException(f"the state file {state} cannot be used: {exc}") from exc
    except OSError as exc:
        raise click.ClickException(f"{state} cannot be used: {exc.strerror}") from exc
    return emulator


async def _add_gateway(
    emulator: GatewayEmulator, broker: BrokerAddress, fleet: EmulatedFleet, _http: httpx.AsyncClient
) -> None:
    fleet.add(emulator, broker)


async def _monitor_gateway(message: str, work: Sequence[AsyncWork], fleet: EmulatedFleet) -> None:
    """Print a message once the gateway is connected, and then run `work` until canceled."""
    await fleet.all_connected.wait()
    click.echo(message)
    async with asyncio.TaskGroup() as tasks:
        for run in work:
            tasks.create_task(run())


def _format_connected(settings: EmulatorSettings, broker: BrokerAddress, *, as_json: bool) -> str:
    """Return the message that the gateway is connected."""
    if as_json:
        return msgspec.json.encode(
            {"event": "connected", "gateway": settings.mac, "broker": str(broker)}
        ).decode()
    return (
        f"Gateway {settings.mac} is connected to {broker}: {settings.mode} reports, "
        f"API version {settings.api_version}. Ctrl-C stops it."
    )


async def _save_states(emulator: GatewayEmulator, state: Path | None) -> None:
    """Save the state of the devices periodically."""
    save_seconds = 0.0
    while True:
        await asyncio.sleep(max(_SAVE_SECONDS, _SAVE_PAUSE_FACTOR * save_seconds))
        started = time.monotonic()
        try:
            _save_state(emulator, state)
        except OSError as exc:
            _log.warning("%s cannot be written: %s", state, exc.strerror)  # the gateway goes on
        save_seconds = time.monotonic() - started


_SAVE_SECONDS = 5.0
"""Minimum seconds between two saves of the device state. A killed process loses the changes since a save."""

_SAVE_PAUSE_FACTOR = 50
"""Minimum pause between two saves of the device state, as a multiple of the last save's duration.

The state of many devices is therefore saved less often.
"""


def _save_state(emulator: GatewayEmulator, state_file: Path | None) -> None:
    """Save the state of the devices, and replace the file atomically. Do nothing if `state_file` is None."""
    if state_file is not None:
        temporary = state_file.with_name(f"{state_file.name}.new")
        temporary.write_bytes(emulator.save_memory())
        temporary.replace(state_file)
