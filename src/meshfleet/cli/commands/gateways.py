"""`meshfleet gateways`: list gateways, claim and release them, rotate their passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import DEVICE, gateway_argument
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_fields, print_json, print_list, print_result
from meshfleet.cli.service_access import call_service

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.gateways import GatewayClaim

_COLUMNS: Final = (
    Column("mac", lambda each: each.mac, no_wrap=True),
    Column("name", lambda each: each.friendly_name),
    Column("connected", lambda each: each.connected),
    Column("since", lambda each: each.since),
    Column("version", lambda each: each.api_version),
    Column("mode", lambda each: each.mode),
    Column("devices", lambda each: each.device_count),
    Column("reports/min", lambda each: each.reports_per_minute),
    Column("clock (s)", lambda each: each.clock_offset),
)


@click.group()
def gateways() -> None:
    """List, claim and release gateways."""


@gateways.command("list")
@json_option
def list_gateways(*, as_json: bool) -> None:
    """List all gateways of the fleet."""
    call_service(lambda fleet: print_list(fleet.gateways.list(), _COLUMNS, as_json=as_json))


@gateways.command()
@click.argument("mac", type=DEVICE)
@click.option("--name", type=TEXT, help="Friendly name of the gateway.")
@json_option
def add(mac: Mac, name: str | None, *, as_json: bool) -> None:
    """Claim a gateway, and show its broker URL, user name and password. The password is shown only once."""
    _print_claim(call_service(lambda fleet: fleet.gateways.claim(mac, name)), as_json=as_json)


@gateways.command()
@gateway_argument
@json_option
def rotate(gateway: Mac, *, as_json: bool) -> None:
    """Replace the password of a gateway. The old password stops working; the new one is shown only once."""
    _print_claim(call_service(lambda fleet: fleet.gateways.rotate(gateway)), as_json=as_json)


@gateways.command()
@gateway_argument
@json_option
def remove(gateway: Mac, *, as_json: bool) -> None:
    """Release a claimed gateway and disconnect it at once. The devices of the gateway stay in the fleet."""
    call_service(lambda fleet: fleet.gateways.release(gateway))
    print_result({"mac": gateway, "removed": True}, f"{gateway} is released.", as_json=as_json)


def _print_claim(claim: GatewayClaim, *, as_json: bool) -> None:
    if as_json:
        print_json(claim)
        return
    scheme = "mqtts" if claim.broker.tls else "mqtt"
    print_fields(
        [
            ("broker", f"{scheme}://{claim.broker.host}:{claim.broker.port}"),
            ("client id", claim.mac),
            ("user name", claim.username),
            ("password", f"{claim.password} (shown only once)"),
        ]
    )
