"""`meshfleet simulate`: a whole site of emulated gateways in one process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from meshfleet.cli.connections import allow_connections
from meshfleet.cli.figures import watch
from meshfleet.cli.options import Number, authorities_option, broker_option, seed_option, speed_option
from meshfleet.cli.running import run_fleet
from meshfleet.cli.stopping import log_to_terminal
from meshfleet.gateway import ByClock, ByRate, Clock, Gateway, Mode, Settings, generate
from meshfleet.gateway.online.claims import claim
from meshfleet.gateway.world.noise import key_of
from meshfleet.gateway.world.site import MAX_DEVICES
from meshfleet.link import Address, run
from meshfleet.wire.ids import Mac

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from meshfleet.gateway import Fleet

_MOST_GATEWAYS: Final = 50_000

_FIRST_MAC: Final = 0x02 << 40
"""Addresses that nobody owns begin so."""


class _Service(NamedTuple):
    """A service, and as whom gateways are claimed there."""

    url: str
    user: str
    password: str


_Where = Address | _Service


@click.command()
@broker_option
@click.option("--service", metavar="URL", help="A Meshfleet service, at which the gateways are claimed.")
@click.option("--user", help="Who claims them.")
@click.option("--password", envvar="MESHFLEET_PASSWORD", show_envvar=True, help="Asked for if it is missing.")
@click.option("--gateways", type=click.IntRange(1, _MOST_GATEWAYS), default=10, show_default=True)
@click.option(
    "--devices", type=click.IntRange(0, MAX_DEVICES), default=50, show_default=True, help="Of each gateway."
)
@click.option(
    "--mode",
    type=click.Choice([each.value for each in Mode]),
    default="raw",
    show_default=True,
    help="Of reports.",
)
@click.option(
    "--rate",
    type=Number(0.01, 1_000_000),
    help="Reports per second in all, instead of a speed: for load tests.",
)
@click.option("--seconds", type=Number(min=0), help="Stop after so long.")
@seed_option
@speed_option
@authorities_option
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON, one object per line.")
def simulate(  # noqa: PLR0913 # one for each option
    *,
    broker: Address | None,
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
    """Run many emulated gateways, each with devices of its own, on a broker or for a Meshfleet service."""
    where = _where(broker, service, user, password)
    allow_connections(gateways)
    log_to_terminal(logging.ERROR)  # the figures tell of trouble, once for thousands of gateways
    clock = Clock(0, speed)
    pace = ByClock(clock) if rate is None else ByRate(clock, rate)
    macs = [Mac(f"{_FIRST_MAC | (key_of(seed) & 0xFF) << 20 | n:012x}") for n in range(gateways)]
    made = [
        # With clean sessions, so that a simulation leaves nothing at the broker.
        Gateway(
            Settings(mac=mac, mode=Mode(mode), clean_session=True),
            generate(mac, devices=devices, seed=seed),
            clock,
        )
        for mac in macs
    ]
    fill = partial(_fill, macs, made, where)
    run(run_fleet(pace, tls_ca, fill, partial(watch, seconds=seconds, as_json=as_json)))


def _where(broker: Address | None, service: str | None, user: str | None, password: str | None) -> _Where:
    if service is None:
        if broker is None:
            raise click.UsageError("Give either --broker or --service.")
        if user is not None:
            raise click.UsageError("--user goes with --service; a broker's user stands in its URL.")
        return broker
    # A broker that the environment names is only a habit.
    source = click.get_current_context().get_parameter_source("broker")
    if broker is not None and source is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--broker and --service exclude each other.")
    if user is None:
        raise click.UsageError("--service needs --user.")
    secret = click.prompt("Password", hide_input=True) if password is None else password
    return _Service(service, user, secret)


async def _fill(
    macs: list[Mac], gateways: list[Gateway], where: _Where, fleet: Fleet, http: httpx.AsyncClient
) -> None:
    if isinstance(where, _Service):
        claims = await claim(where.url, user=where.user, password=where.password, gateways=macs, http=http)
        addresses = [address for _, address in claims]
    else:
        addresses = [where] * len(macs)
    for gateway, address in zip(gateways, addresses, strict=True):
        fleet.add(gateway, address)
