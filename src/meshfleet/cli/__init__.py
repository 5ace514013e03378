"""The command line: parse, call, print."""

from __future__ import annotations

from errno import EDQUOT, EFBIG, EIO, ENOSPC
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

from meshfleet.cli import shell_completion  # noqa: F401 # click finds the shells by their names
from meshfleet.cli.terminal import to_printable
from meshfleet.errors import FleetError

_COMMANDS: Final = {
    "ack": "Tell a device that a sample arrived.",
    "apiversion": "Ask a gateway which version of the interface it speaks.",
    "asyncapi": "Print the AsyncAPI document of the messaging interface.",
    "broker-config": "Configure another broker for the service.",
    "completion": "Print a script for the tab key in a shell.",
    "devices": "List devices, and name and label them.",
    "explain": "Explain messages of gateways and clients.",
    "firmware": "Upload firmware, and release it for jobs.",
    "gateway": "Run an emulated gateway.",
    "gateways": "List gateways, and take them into the fleet.",
    "identifiers": "List the identifiers, or tell all about some.",
    "jobs": "Update devices, many at a time.",
    "keys": "Let programs in, by API keys.",
    "labels": "List labels, add and remove them.",
    "login": "Log in at a service, for all commands that follow.",
    "logout": "End the login.",
    "openapi": "Print the OpenAPI document of the REST interface.",
    "read": "Read a property of a device.",
    "requests": "Tell which requests were sent to a device.",
    "samples": "List the samples of a device.",
    "serve": "Run the service.",
    "simulate": "Run thousands of emulated gateways.",
    "users": "Let people in, and help those who cannot log in.",
    "watch": "Show reports as they come.",
    "write": "Write a property of a device.",
}
"""Help texts of all commands. A command is a function of the same name, with underscores for hyphens."""

_MODULES: Final = {
    "ack": "requests",
    "apiversion": "requests",
    "asyncapi": "api_documents",
    "logout": "login",
    "openapi": "api_documents",
    "read": "requests",
    "write": "requests",
}
"""Modules of commands that share one; every other command has a module of its own name."""


_DISK_FULL_ERRNOS: Final = {EDQUOT, EFBIG, EIO, ENOSPC}
"""What a disk says on which nothing more can be written."""


class _LazyGroup(click.Group):
    """Commands that are loaded when they are used, and whose errors are sentences, not tracebacks."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """All there are."""
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Load one of them."""
        if name not in _COMMANDS:
            return None
        function = name.replace("-", "_")
        module = import_module(f"meshfleet.cli.commands.{_MODULES.get(name, function)}")
        command: click.Command = getattr(module, function)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Offer them without loading any."""
        offered = [
            CompletionItem(name, help=_COMMANDS[name]) for name in _COMMANDS if name.startswith(incomplete)
        ]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an error of ours ends it with exit code 1."""
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
    """Fleets of BLE-mesh devices behind MQTT gateways."""
