"""`meshfleet apiversion`: which version of the interface a gateway speaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshfleet.cli.remote.answers import spelt, tell_answer
from meshfleet.cli.remote.arguments import gateway_argument
from meshfleet.cli.remote.asking import (
    Way,
    broker_options,
    priority_option,
    read_priority,
    send,
    timeout_option,
)
from meshfleet.cli.remote.printing import json_option

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac


@click.command()
@gateway_argument
@broker_options
@priority_option
@timeout_option
@json_option
def apiversion(  # noqa: PLR0913 # one for each option
    gateway: Mac,
    *,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    priority: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Ask a gateway which version of the interface it speaks."""
    how: Any = {"priority": read_priority(priority), "timeout": timeout}
    found = send(
        Way.chosen(gateway, broker, topic_prefix, tls_ca),
        lambda fleet: fleet.requests.apiversion(gateway, **how),
        lambda mesh, through: mesh.apiversion(through, **how),
    )
    answer = spelt(found, gateway)
    tell_answer(answer, gateway, f"{gateway} speaks version {answer.get('version')}", as_json=as_json)
