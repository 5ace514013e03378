"""`meshfleet asyncapi`: the messaging interface, described for programs."""

from __future__ import annotations

import click
import msgspec


@click.command()
@click.option("--json", is_flag=True, expose_value=False, help="As JSON, which it is anyway.")
def asyncapi() -> None:
    """Print the AsyncAPI document of the messaging interface."""
    from meshfleet.service.asyncapi import describe  # noqa: PLC0415 # heavy, and not needed for --help

    click.echo(msgspec.json.format(msgspec.json.encode(describe())))
