"""`meshfleet serve`: run the service."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from meshfleet.cli.file_limits import reduce_connection_limit
from meshfleet.cli.log_output import log_to_terminal, set_log_level
from meshfleet.cli.settings_options import (
    SettingsCommand,
    list_explicit_settings,
    load_command_settings,
    load_valid_settings,
    settings_options,
)
from meshfleet.cli.shutdown import run_until_stopped
from meshfleet.mqtt.client import run_program
from meshfleet.settings import find_settings_file

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from meshfleet.service.app import StartupInfo
    from meshfleet.settings import Settings


@click.command(cls=SettingsCommand)
@settings_options()
@click.option("--demo", is_flag=True, help="Also run a small fleet of emulated gateways and devices.")
@click.option(
    "--json", "as_json", is_flag=True, help="When the service has started, print its addresses as JSON."
)
def serve(*, config: Path | None, demo: bool, as_json: bool, **flags: str | None) -> None:
    """Run the service until it is stopped.

    Settings come from flags, then from environment variables, then from the settings file. On an empty
    database, the user admin is created with the password in MESHFLEET_ADMIN_PASSWORD, or else with a random
    password that is printed once. SIGHUP makes the service read its settings again.
    """
    config = find_settings_file(config)  # a reload must not take defaults because the file has vanished
    settings = loaded = load_command_settings(config, flags)
    log_to_terminal(_parse_level(settings), settings.log_format)
    if demo:
        from meshfleet.cli.demo_service import move_to_free_ports  # noqa: PLC0415 # only needed with --demo

        chosen = list_explicit_settings(config, flags)
        settings = move_to_free_ports(settings, chosen, announce=partial(click.echo, err=True))
    # Imported late: it is heavy, and not needed to report wrong settings.
    from meshfleet.service import app  # noqa: PLC0415
    from meshfleet.service.http.limits import HTTP_LIMITS  # noqa: PLC0415
    from meshfleet.service.reload import SettingsReloader  # noqa: PLC0415
    from meshfleet.service.systemd import SystemdNotifier  # noqa: PLC0415

    limit_connections = partial(reduce_connection_limit, other_connections=HTTP_LIMITS.connections)
    notifier = SystemdNotifier(os.environ)
    reloader = SettingsReloader(
        limit_connections(loaded), lambda: limit_connections(load_valid_settings(config, flags)), notifier
    )
    reloader.register("log-level", apply=lambda changed: set_log_level(_parse_level(changed)))
    started = _print_started_json if as_json else partial(_print_started, settings.data)
    work = partial(
        _import_serve_demo(as_json=as_json) if demo else app.serve,
        limit_connections(settings),
        started=started,
        reloader=reloader,
        notifier=notifier,
    )
    run_program(run_until_stopped(work, on_hangup=reloader.request))


def _parse_level(settings: Settings) -> int:
    return logging.getLevelNamesMapping()[settings.log_level.upper()]


def _import_serve_demo(*, as_json: bool) -> Callable[..., Coroutine[Any, Any, None]]:
    from meshfleet.cli.demo_service import serve_demo  # noqa: PLC0415 # only needed with --demo

    return partial(serve_demo, announce=None if as_json else click.echo)


def _print_started(data: Path, started: StartupInfo) -> None:
    click.echo(f"Meshfleet is listening at {started.url}")
    if started.mqtt:
        click.echo(f"Gateways and other MQTT clients connect to {', '.join(started.mqtt)}")
    click.echo(f"Data directory: {data.absolute()}")
    if started.admin_password is not None:
        click.echo(f"Log in as admin with the password {started.admin_password} (shown only once)")


def _print_started_json(started: StartupInfo) -> None:
    message = {"url": started.url, "mqtt": started.mqtt, "adminPassword": started.admin_password}
    click.echo(msgspec.json.encode(message))
