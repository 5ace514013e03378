"""`meshfleet broker-config`: write configuration files for an external MQTT broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from meshfleet.cli.database import open_existing_database
from meshfleet.cli.file_replacement import replace_file
from meshfleet.cli.settings_options import load_command_settings, settings_options
from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.service.external_broker.mosquitto import (
    SERVICE_USER,
    build_acl_file,
    build_config_file,
    build_password_file,
    load_service_password,
)
from meshfleet.service.gateways import store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Mac
    from meshfleet.settings import Settings

_DEFAULT_BROKER: Final = BrokerAddress(host="127.0.0.1", port=1883)
"""Broker address written to `meshfleet.env` if the settings name no external broker."""

_NON_OWNER_MODE: Final = 0o077
"""Permission bits with which users other than the owner can access a directory."""


@click.group("broker-config")
def broker_config() -> None:
    """Write configuration files for an external MQTT broker."""


@broker_config.command()
@settings_options("data", "broker", "topic-prefix", "database")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default="meshfleet-mosquitto",
    show_default=True,
    help="Directory for the configuration files; other users must not have access to it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary of the written files as JSON.")
def mosquitto(*, config: Path | None, out: Path, as_json: bool, **flags: str | None) -> None:
    """Write configuration files for mosquitto 2, to use it instead of the embedded broker.

    With these files, only the service and claimed gateways can log in, each to its own topics. After
    gateways are claimed, rotated or released, run the command again and send mosquitto a SIGHUP. The
    service may keep running.
    """
    settings = load_command_settings(config, flags)
    folder = out.absolute()
    with open_existing_database(settings) as database:
        password = database.write_now(load_service_password)
        hashes = database.read_now(store.load_broker_hashes)
    with_password = {mac: hashed for mac, hashed in hashes.items() if hashed is not None}
    broker = settings.external_broker or _DEFAULT_BROKER
    _write_files(folder, _build_files(settings, folder, broker, password, with_password))
    print_summary = _print_summary_json if as_json else _print_summary
    print_summary(folder, broker, list(with_password), [mac for mac in hashes if mac not in with_password])


def _build_files(
    settings: Settings, folder: Path, broker: BrokerAddress, password: str, gateways: Mapping[Mac, str]
) -> dict[str, str]:
    """Return the contents of the configuration files to write, by file name."""
    login = str(broker).replace("://", f"://{SERVICE_USER}:{password}@", 1)
    return {
        "passwords": build_password_file(password, gateways),
        "acl": build_acl_file(settings.topic_prefix, settings.homeassistant),
        "mosquitto.conf": build_config_file(passwords=folder / "passwords", acl=folder / "acl"),
        "meshfleet.env": f"MESHFLEET_BROKER={login}\n",
    }


# --- Files ---


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files (contents by file name) that only the owner can read. Replace each file atomically."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if os.name != "nt" and folder.stat().st_mode & _NON_OWNER_MODE:  # Windows has no such permission bits
            raise UnusableDataFolder(
                f"other users can access {folder}; "
                f"choose another directory with --out, or run: chmod 700 {folder}"
            )
        for name, text in files.items():
            # mosquitto, which does not run as root, must be able to read a file that root writes.
            replace_file(folder / name, text.encode(), owner=folder.stat())
    except OSError as exc:
        raise UnusableDataFolder(f"{folder} cannot be written: {exc.strerror}") from exc


# --- Summary ---


def _print_summary(
    folder: Path, broker: BrokerAddress, with_password: list[Mac], without_password: list[Mac]
) -> None:
    click.echo(f"Wrote the files for the service and {_format_gateway_count(with_password)} to {folder}")
    click.echo(f"In mosquitto.conf, configure a listener and add the line: include_dir {folder}")
    click.echo(f"Start the service with the environment variable in {folder / 'meshfleet.env'}, which sets")
    click.echo(f"  --broker {broker} with user {SERVICE_USER} and its password (not shown here)")
    if without_password:
        click.echo(
            f"{_format_gateway_count(without_password)} cannot log in until their credentials are rotated:"
        )
        click.echo("".join(f"  {mac}\n" for mac in without_password), nl=False)
    click.echo("When gateways are claimed, rotated or released, run this again and send mosquitto a SIGHUP")


def _format_gateway_count(macs: list[Mac]) -> str:
    return f"{len(macs)} gateway{'' if len(macs) == 1 else 's'}"


def _print_summary_json(
    folder: Path, broker: BrokerAddress, with_password: list[Mac], without_password: list[Mac]
) -> None:
    summary = {
        "folder": str(folder),
        "environment": str(folder / "meshfleet.env"),
        "broker": str(broker),
        "username": SERVICE_USER,
        "gateways": with_password,
        "gatewaysWithoutPassword": without_password,
    }
    click.echo(msgspec.json.encode(summary))
