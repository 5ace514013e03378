"""`meshfleet gateways`: list gateways, claim and release them, rotate their passwords."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import DEVICE, PAST_TIME, gateway_argument
from meshfleet.cli.completers import complete_gateways
from meshfleet.cli.gateway_batches import claim_file, rotate_file
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_fields, print_json, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.cli.topology_output import print_topology

if TYPE_CHECKING:
    from datetime import datetime

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
@gateway_argument
@click.option(
    "--at", type=PAST_TIME, help="Show the mesh at this time: ISO 8601, or an age such as 90s, 15m, 2h or 7d."
)
@json_option
def topology(gateway: Mac, *, at: datetime | None, as_json: bool) -> None:
    """Show the mesh of a gateway as a tree, with the signal of each hop."""
    found = call_service(lambda fleet: fleet.gateways.topology(gateway, at=at))
    if as_json:
        print_json(found)
    else:
        print_topology(found)


def _file_options(command: Any) -> Any:
    """Add the options `--csv` and `--out` to a command."""
    path = click.Path(dir_okay=False, path_type=Path)
    source = click.option(
        "--csv",
        "source",
        type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
        help="CSV file with the gateways: a column mac, and optionally name and labels (separated by ;).",
    )
    out = click.option("--out", type=path, help="New file for the credentials, which only you can read.")
    return source(out(command))


@gateways.command()
@click.argument("mac", type=DEVICE, required=False)
@click.option("--name", type=TEXT, help="Friendly name of the gateway.")
@_file_options
@click.option("--skip-claimed", is_flag=True, help="Leave out gateways of the file that are already claimed.")
@json_option
def add(  # noqa: PLR0913 # the options
    *,
    mac: Mac | None,
    name: str | None,
    source: Path | None,
    out: Path | None,
    skip_claimed: bool,
    as_json: bool,
) -> None:
    """Claim a gateway, and show its broker URL, user name and password. The password is shown only once.

    With --csv, claim all gateways of a file, and write their credentials to the file --out. Nothing is
    claimed if a line of the file is wrong.
    """
    if source is None:
        one = _require_one(mac, out)
        if skip_claimed:
            raise click.UsageError("--skip-claimed needs --csv.")
        _print_claim(call_service(lambda fleet: fleet.gateways.claim(one, name)), as_json=as_json)
        return
    target = _require_file(mac, out)
    if name is not None:
        raise click.UsageError("--name is for a single gateway; a file has a column name.")
    result = call_service(lambda fleet: claim_file(fleet, source, target, skip_claimed=skip_claimed))
    skipped = f" {result['skipped']} were claimed before." if result["skipped"] else ""
    sentence = f"Claimed {result['claimed']} gateways; their credentials are in {target}.{skipped}"
    print_result(result, sentence if result["claimed"] else f"Claimed nothing.{skipped}", as_json=as_json)


@gateways.command()
@click.argument("gateway", type=DEVICE, required=False, shell_complete=complete_gateways)
@_file_options
@json_option
def rotate(gateway: Mac | None, source: Path | None, out: Path | None, *, as_json: bool) -> None:
    """Replace the password of a gateway. The old password stops working; the new one is shown only once.

    With --csv, replace the passwords of all gateways of a file, and write them to the file --out. The columns
    name and labels of the file are not used.
    """
    if source is None:
        one = _require_one(gateway, out)
        _print_claim(call_service(lambda fleet: fleet.gateways.rotate(one)), as_json=as_json)
        return
    target = _require_file(gateway, out)
    result = call_service(lambda fleet: rotate_file(fleet, source, target))
    sentence = f"{result['rotated']} gateways have new passwords; their credentials are in {target}."
    print_result(result, sentence, as_json=as_json)


def _require_one(mac: Mac | None, out: Path | None) -> Mac:
    """Return the MAC argument. Raise `UsageError` if it is missing, or if `--out` is given too."""
    if mac is None:
        raise click.UsageError("Give the MAC of a gateway, or a file with --csv.")
    if out is not None:
        raise click.UsageError("--out needs --csv.")
    return mac


def _require_file(mac: Mac | None, out: Path | None) -> Path:
    """Return the value of `--out`. Raise `UsageError` if it is missing, or if a MAC is given too."""
    if mac is not None:
        raise click.UsageError("Give either the MAC of a gateway or --csv, not both.")
    if out is None:
        raise click.UsageError("--csv needs --out: a new file for the credentials.")
    return out


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
