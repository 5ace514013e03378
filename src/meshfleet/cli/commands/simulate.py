"""`meshfleet simulate`: run many emulated gateways in one process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from meshfleet.cli.emulated_fleet import mode_option, print_fleet_stats, run_emulated_fleet
from meshfleet.cli.file_limits import require_connections
from meshfleet.cli.log_output import log_to_terminal
from meshfleet.cli.options import NumberParamType, broker_option, seed_option, speed_option, tls_ca_option
from meshfleet.emulator import (
    EmulatorSettings,
    GatewayEmulator,
    RealTimePace,
    ReportMode,
    ReportRatePace,
    SimulatedClock,
    generate_site,
)
from meshfleet.emulator.runtime.claims import claim_gateways
from meshfleet.emulator.simulation.noise import derive_noise_key
from meshfleet.emulator.simulation.site import MAX_DEVICES
from meshfleet.mqtt.client import BrokerAddress, run_program
from meshfleet.protocol.ids import Mac

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from meshfleet.emulator import EmulatedFleet

_MAX_GATEWAYS: Final = 50_000

_FIRST_MAC: Final = 0x02 << 40
"""First locally administered MAC, as an integer; no vendor assigns such MACs to gateways."""


class _ServiceLogin(NamedTuple):
    """Service that the emulated gateways are claimed at, and the user account that claims them."""

    url: str
    user: str
    password: str


_Destination = BrokerAddress | _ServiceLogin


@click.command()
@broker_option
@click.option(
    "--service", metavar="URL", help="URL of the Meshfleet service at which the gateways are claimed."
)
@click.option("--user", help="With --service: name of the user account that claims the gateways.")
@click.option(
    "--password",
    envvar="MESHFLEET_PASSWORD",
    show_envvar=True,
    help="With --service: password of the user account; prompted for if not given.",
)
@click.option(
    "--gateways",
    type=click.IntRange(1, _MAX_GATEWAYS),
    default=10,
    show_default=True,
    help="Number of emulated gateways.",
)
@click.option(
    "--devices",
    type=click.IntRange(0, MAX_DEVICES),
    default=50,
    show_default=True,
    help="Number of simulated devices per gateway.",
)
@mode_option
@click.option(
    "--rate",
    type=NumberParamType(0.01, 1_000_000),
    help="Total reports per second of all gateways, instead of --speed; for load tests.",
)
@click.option(
    "--seconds", type=NumberParamType(min=0), help="Stop the simulation after this many seconds of real time."
)
@seed_option
@speed_option
@tls_ca_option
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as JSON, one object per line.")
def simulate(  # noqa: PLR0913 # one for each option
    *,
    broker: BrokerAddress | None,
    service: str | None,
    user: str | None,
    password: str | None,
    gateways: int,
    devices: int,
    mode: str,
    rate: float | None,
    seconds: float | None,
    seed: int,
    speed: float,
    tls_ca: Path | None,
    as_json: bool,
) -> None:
    """Run many emulated gateways, each with its own devices, on an MQTT broker or a Meshfleet service."""
    destination = _select_destination(broker, service, user, password)
    require_connections(gateways)
    log_to_terminal(logging.ERROR)  # the statistics show problems in one line for thousands of gateways
    clock = SimulatedClock(0, speed)
    pace = RealTimePace(clock) if rate is None else ReportRatePace(clock, rate)
    macs = [Mac(f"{_FIRST_MAC | (derive_noise_key(seed) & 0xFF) << 20 | n:012x}") for n in range(gateways)]
    emulators = [
        # Clean sessions, so that no session remains at the broker after the simulation.
        GatewayEmulator(
            EmulatorSettings(mac=mac, mode=ReportMode(mode), clean_session=True),
            generate_site(mac, devices=devices, seed=seed),
            clock,
        )
        for mac in macs
    ]
    add_gateways = partial(_add_gateways, macs, emulators, destination)
    run_program(
        run_emulated_fleet(
            pace, tls_ca, add_gateways, partial(print_fleet_stats, seconds=seconds, as_json=as_json)
        )
    )


def _select_destination(
    broker: BrokerAddress | None, service: str | None, user: str | None, password: str | None
) -> _Destination:
    """Return the broker, or the service with its login, that the options name."""
    if service is None:
        if broker is None:
            raise click.UsageError("Give either --broker or --service.")
        if user is not None:
            raise click.UsageError("--user needs --service; the user of a broker is part of its URL.")
        return broker
    # --service overrides a broker from the environment; only both flags together are an error.
    source = click.get_current_context().get_parameter_source("broker")
    if broker is not None and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--broker and --service exclude each other.")
    if user is None:
        raise click.UsageError("--service needs --user.")
    secret = click.prompt("Password", hide_input=True) if password is None else password
    return _ServiceLogin(service, user, secret)


async def _add_gateways(
    macs: list[Mac],
    gateways: list[GatewayEmulator],
    destination: _Destination,
    fleet: EmulatedFleet,
    http: httpx.AsyncClient,
) -> None:
    """Add the gateways to the fleet with the address of their broker. With a service, claim them first."""
    if isinstance(destination, _ServiceLogin):
        claims = await claim_gateways(
            destination.url, user=destination.user, password=destination.password, gateways=macs, http=http
        )
        addresses = [each.address for each in claims]
    else:
        addresses = [destination] * len(macs)
    for gateway, address in zip(gateways, addresses, strict=True):
        fleet.add(gateway, address)
