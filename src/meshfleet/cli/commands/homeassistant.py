"""`meshfleet homeassistant`: show devices in Home Assistant, and remove them from it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click
from msgspec.structs import replace

from meshfleet.cli.options import ADDRESS, TEXT, parse_text
from meshfleet.cli.output import json_option, print_json, print_result
from meshfleet.cli.settings_file import set_in_table
from meshfleet.cli.settings_options import load_command_settings, settings_options
from meshfleet.db import open_read_only
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.service.homeassistant import fleet
from meshfleet.service.homeassistant.removal import check_login, remove_published
from meshfleet.settings.model import EMBEDDED

if TYPE_CHECKING:
    from meshfleet.settings import Settings

_DEFAULT_FILE: Final = Path("meshfleet.toml")
_PASSWORD_VARIABLE: Final = "MESHFLEET_HOMEASSISTANT_PASSWORD"  # noqa: S105 # the name of a variable

_broker_help = "URL of the broker that Home Assistant uses: mqtt[s]://[user[:password]@]host[:port]."


@click.group
def homeassistant() -> None:
    """Show devices in Home Assistant, and remove them from it."""


@homeassistant.command
@settings_options("data", "database")
@click.option("--broker", type=ADDRESS, required=True, help=_broker_help)
@click.option(
    "--password",
    type=TEXT,
    envvar=_PASSWORD_VARIABLE,
    show_envvar=True,
    help="Password for the user in --broker; read from standard input or prompted for if not given.",
)
@click.option(
    "--broker-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the certificate authorities to trust for an mqtts:// broker.",
)
@json_option
def setup(  # options
    *,
    config: Path | None,
    broker: BrokerAddress,
    password: str | None,
    broker_ca: Path | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Log in to the broker of Home Assistant, and write the setting.

    The comments in the settings file are kept. Afterwards run `meshfleet reload`, or restart the service.
    """
    file = config or _DEFAULT_FILE
    settings = load_command_settings(file if file.exists() else None, flags)
    if broker.user and broker.password is None:
        broker = replace(broker, password=password or _read_password())
    authorities = broker_ca or settings.homeassistant.broker_ca if broker.tls else None
    asyncio.run(check_login(broker, authorities))
    values = {"broker": _format_url(broker)}
    if broker_ca is not None:
        values["broker-ca"] = str(broker_ca.absolute())
    set_in_table(file, "homeassistant", values)
    count = _count_devices(settings)
    devices = "your devices" if count is None else f"{count} device{'' if count == 1 else 's'}"
    if as_json:
        print_json({"file": str(file.absolute()), "broker": str(broker), "devices": count})
        return
    click.echo(f"Logged in to {broker}, and wrote it to {file}.")
    click.echo("Next: meshfleet reload (or restart the service).")
    click.echo(f"Then, in Home Assistant: Open Settings > Devices: {devices} within a minute")


@homeassistant.command
@settings_options("homeassistant.broker", "homeassistant.topic", "homeassistant.discovery-prefix")
@json_option
def remove(*, config: Path | None, as_json: bool, **flags: str | None) -> None:
    """Remove all devices that the service has published in Home Assistant.

    First set homeassistant.broker to off and run `meshfleet reload`, or stop the service: otherwise it
    publishes its devices again. With the embedded broker, these steps alone remove the devices.
    """
    settings = load_command_settings(config, flags).homeassistant
    if settings.broker == EMBEDDED:
        raise click.ClickException(
            "Home Assistant uses the embedded broker: set homeassistant.broker to off and run meshfleet"
            " reload, which removes the devices"
        )
    if not isinstance(settings.broker, BrokerAddress):
        raise click.UsageError(
            "homeassistant.broker is not set: give the broker with --homeassistant-broker, or in the variable"
            " MESHFLEET_HOMEASSISTANT_BROKER"
        )
    count = asyncio.run(remove_published(settings, settings.broker))
    devices = f"{count} device{'' if count == 1 else 's'}"
    print_result({"removed": count}, f"Removed {devices} from {settings.broker}.", as_json=as_json)


def _format_url(address: BrokerAddress) -> str:
    """Return the URL of a broker with its user and password."""
    parts = [quote(part, safe="") for part in (address.user, address.password) if part is not None]
    login = f"{':'.join(parts)}@" if parts else ""
    return str(address).replace("://", f"://{login}", 1)


def _read_password() -> str:
    """Prompt for the password. If standard input is not a terminal, read its first line as the password."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", type=TEXT, hide_input=True, err=True)
        return typed
    if line := sys.stdin.readline().rstrip("\r\n"):
        return parse_text(line, "password")
    raise click.UsageError(f"No password given, and no terminal to prompt for it: set {_PASSWORD_VARIABLE}.")


def _count_devices(settings: Settings) -> int | None:
    """Return the number of devices that will be shown; None if there is no database yet."""
    if settings.database == "sqlite" and not (settings.data / "meshfleet.sqlite").exists():
        return None
    with open_read_only(settings.database, settings.data) as connection:
        wanted = settings.homeassistant
        return len(fleet.load_fleet(connection, fleet.build_filter(wanted), wanted).devices)
