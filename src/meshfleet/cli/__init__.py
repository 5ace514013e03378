"""The `meshfleet` command line: the main group, which loads each command on first use."""

from __future__ import annotations

from errno import EDQUOT, EFBIG, EIO, ENOSPC
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from meshfleet.cli import shell_completion  # noqa: F401 # registers the shells with click
from meshfleet.cli.hangup import remember_hangups
from meshfleet.cli.terminal import to_printable
from meshfleet.errors import FleetError

_COMMANDS: Final = {
    "ack": "Acknowledge a sample to the device that sent it.",
    "apiversion": "Read the API version of a gateway.",
    "alarms": "Show what needs attention, acknowledge and silence alarms.",
    "asyncapi": "Print the AsyncAPI document of the messaging interface.",
    "backup": "Write a backup of all data to one file.",
    "broker-config": "Write configuration files for an external MQTT broker.",
    "channels": "Choose where messages about alarms are sent.",
    "completion": "Print a shell completion script.",
    "database": "Give SQL programs access to samples in PostgreSQL.",
    "devices": "List, rename and label devices.",
    "diagnose": "Say what is wrong with a device, and what to do.",
    "doctor": "Check an installation, and print what to do.",
    "explain": "Decode and explain MQTT messages.",
    "export": "Save the samples of all devices to files.",
    "firmware": "Upload firmware and release it for jobs.",
    "gateway": "Run an emulated gateway.",
    "gateways": "List, claim and release gateways.",
    "healthcheck": "Check whether the service on this machine is ready.",
    "homeassistant": "Show devices in Home Assistant, and remove them from it.",
    "identifiers": "List known properties, measurements and events.",
    "install": "Install the service on this machine.",
    "jobs": "Create and control jobs that update devices.",
    "keys": "List, create and revoke API keys for programs.",
    "labels": "List, add and remove device labels.",
    "login": "Log in to a service, which all later commands use.",
    "logout": "Log out and delete the stored login.",
    "openapi": "Print the OpenAPI document of the REST interface.",
    "place": "Set the place of a device on a site.",
    "places": "List, import and remove the places of devices.",
    "read": "Read a property of a device.",
    "reload": "Make the service read its settings again.",
    "requests": "List the requests sent to a device.",
    "restore": "Check a backup, or restore it.",
    "samples": "List the samples of a device.",
    "serve": "Run the service.",
    "simulate": "Run many emulated gateways in one process.",
    "sites": "List, create, export and import sites.",
    "survey": "List, export, import and remove survey points of a site.",
    "upgrade-check": "Check what a new version will change, before you start it.",
    "users": "Manage user accounts and reset passwords.",
    "watch": "Show reports of devices as they arrive.",
    "where": "Show where a device is on its site.",
    "write": "Write a property of a device.",
    "zones": "List, create and remove zones of a site, and list visits to them.",
}
"""Help text of each command, by name. The command's function has this name, with underscores for hyphens."""

_MODULES: Final = {
    "ack": "requests",
    "apiversion": "requests",
    "asyncapi": "api_documents",
    "logout": "login",
    "openapi": "api_documents",
    "place": "places",
    "read": "requests",
    "restore": "backup",
    "write": "requests",
}
"""Name of the module that defines a command, by command; only where it differs from the command's name."""


_DISK_FULL_ERRNOS: Final = {EDQUOT, EFBIG, EIO, ENOSPC}
"""Values of `OSError.errno` if a write failed because the disk is full or broken."""


class _LazyGroup(click.Group):
    """Command group that imports a command's module on first use, and prints errors without a traceback."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import a command's module and return the command, or None if the name is unknown."""
        if name not in _COMMANDS:
            return None
        function = name.replace("-", "_")
        module = import_module(f"meshfleet.cli.commands.{_MODULES.get(name, function)}")
        command: click.Command = getattr(module, function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command to run and its arguments."""
        if args[0] == "serve":
            remember_hangups()  # before the imports, which take most of a second
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Offer command names for completion, without importing any command."""
        offered = [
            CompletionItem(name, help=_COMMANDS[name]) for name in _COMMANDS if name.startswith(incomplete)
        ]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in the help text, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. A `FleetError` or a full disk becomes an error message and exit code 1."""
        try:
            return super().invoke(ctx)
        except FleetError as exc:
            raise click.ClickException("\n".join(map(to_printable, str(exc).splitlines()))) from exc
        except OSError as exc:
            if exc.errno not in _DISK_FULL_ERRNOS:
                raise
            raise click.ClickException(f"the output cannot be written: {exc.strerror}") from exc


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="meshfleet")
def main() -> None:
    """Manage fleets of BLE-mesh devices behind MQTT gateways."""
