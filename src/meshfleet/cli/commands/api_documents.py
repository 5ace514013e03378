"""`meshfleet openapi` and `meshfleet asyncapi`: print the API documents of the service."""

from __future__ import annotations

import click
import msgspec


@click.command()
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the document is always JSON.")
def openapi() -> None:
    """Print the OpenAPI document of the REST interface."""
    from meshfleet.service.app import load_openapi_document  # noqa: PLC0415 # heavy, and not needed for --help

    click.echo(msgspec.json.format(msgspec.json.encode(load_openapi_document())))


@click.command()
@click.option("--json", is_flag=True, expose_value=False, help="No effect: the document is always JSON.")
def asyncapi() -> None:
    """Print the AsyncAPI document of the messaging interface: MQTT topics and live events."""
    from meshfleet.service.asyncapi import build_asyncapi_document  # noqa: PLC0415 # heavy, and not needed for --help

    click.echo(msgspec.json.format(msgspec.json.encode(build_asyncapi_document())))
