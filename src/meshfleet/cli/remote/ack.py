"""`meshfleet ack`: tell a device that a sample arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshfleet.cli.remote.arguments import TIME, device_argument, identifier_argument
from meshfleet.cli.remote.asking import Way, priority_option, read_priority, send, way_options
from meshfleet.cli.remote.printing import answer, json_option
from meshfleet.wire.codes import AckType

if TYPE_CHECKING:
    from datetime import datetime

    from meshfleet.wire.ids import Mac


@click.command()
@device_argument
@identifier_argument
@click.option("--time", type=TIME, required=True, help="Of the sample.")
@click.option(
    "--type",
    "number",
    type=click.IntRange(0, 2),
    default=0,
    show_default=True,
    help="0: this one; 1: and send what is older; 2: erase all that the device holds.",
)
@click.option("--yes", is_flag=True, help="Erase without asking back.")
@way_options
@priority_option
@json_option
def ack(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    *,
    time: datetime,
    number: int,
    yes: bool,
    gateway: Mac | None,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    priority: str | None,
    as_json: bool,
) -> None:
    """Acknowledge a sample of a device, so that it need not keep it; no answer comes to that."""
    if number == AckType.ERASE_ALL and not yes:
        question = f"Erase all samples of {identifier} that {device} holds?"
        click.confirm(question, abort=True, err=True)
    how: Any = {"time": time, "type": AckType(number), "priority": read_priority(priority)}
    sent = send(
        Way.chosen(gateway, broker, topic_prefix, tls_ca),
        lambda fleet: fleet.requests.ack(device, identifier, gateway=gateway, **how),
        lambda mesh, through: mesh.ack(through, device, identifier, **how),
    )
    told = {"gateway": gateway, "state": "SENT"} if sent is None else sent
    answer(told, f"the ack of {identifier} is on its way to {device}", as_json=as_json)
