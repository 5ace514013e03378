"""`meshfleet read`: a property of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshfleet.cli.remote.answers import spelt, tell_answer
from meshfleet.cli.remote.arguments import device_argument, identifier_argument
from meshfleet.cli.remote.asking import Way, access, access_options, send, way_options
from meshfleet.cli.remote.printing import json_option
from meshfleet.cli.remote.values import any_text, ext_text

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac


@click.command()
@device_argument
@identifier_argument
@way_options
@access_options
@json_option
def read(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    *,
    gateway: Mac | None,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    as_json: bool,
    **given: Any,
) -> None:
    """Read the property IDENTIFIER of a device: decoded by its name, raw by its id in hex."""
    way, how = Way.chosen(gateway, broker, topic_prefix, tls_ca), access(**given)
    found = send(
        way,
        lambda fleet: fleet.requests.read(device, identifier, gateway=gateway, **how),
        lambda mesh, through: mesh.read(through, device, identifier, **how),
    )
    answer = spelt(found, gateway)
    text = ext_text(answer.get("ext"))
    subject = f"{identifier} = {any_text(identifier, answer.get('value'))}{text}"
    tell_answer(answer, device, subject, as_json=as_json)
