"""The command line: parse, call, print."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from meshfleet.errors import FleetError

_COMMANDS: Final = {
    "asyncapi": "Print the AsyncAPI document of the messaging interface.",
    "broker-config": "Configure another broker for the service.",
    "explain": "Explain messages of gateways and clients.",
    "gateway": "Run an emulated gateway.",
    "identifiers": "List the identifiers, or tell all about some.",
    "openapi": "Print the OpenAPI document of the REST interface.",
    "serve": "Run the service.",
    "simulate": "Run thousands of emulated gateways.",
    "users": "Help people who cannot sign in.",
}
"""Each is a module here, and a command of that name in it; for Python the hyphen is an underscore."""


class _Commands(click.Group):
    """Commands that are loaded when they are used, and whose errors are sentences, not tracebacks."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """All there are."""
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Load one of them."""
        if name not in _COMMANDS:
            return None
        module = name.replace("-", "_")
        command: click.Command = getattr(import_module(f"meshfleet.cli.{module}"), module)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an error of ours ends it with exit code 1."""
        try:
            return super().invoke(ctx)
        except FleetError as exc:
            raise click.ClickException(str(exc)) from exc


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="meshfleet")
def main() -> None:
    """Fleets of BLE-mesh devices behind MQTT gateways."""
