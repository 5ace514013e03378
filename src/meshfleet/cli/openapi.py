"""`meshfleet openapi`: the REST interface, described for programs."""

from __future__ import annotations

import click
import msgspec


@click.command()
@click.option("--json", is_flag=True, expose_value=False, help="As JSON, which it is anyway.")
def openapi() -> None:
    """Print the OpenAPI document of the REST interface."""
    from meshfleet.service.app import openapi_document  # noqa: PLC0415 # heavy, and not needed for --help

    click.echo(msgspec.json.format(msgspec.json.encode(openapi_document())))
