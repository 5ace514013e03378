"""The command line: parse, call, print."""

from __future__ import annotations

import click

from meshfleet.cli.explain import explain
from meshfleet.cli.gateway import gateway
from meshfleet.cli.identifiers import identifiers
from meshfleet.cli.simulate import simulate
from meshfleet.errors import FleetError


class _Commands(click.Group):
    """Commands whose errors are sentences, not tracebacks."""

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


for _command in (gateway, simulate, explain, identifiers):
    main.add_command(_command)
