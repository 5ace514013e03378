"""`meshfleet diagnose`: say what is wrong with a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meshfleet.cli.arguments import device_argument
from meshfleet.cli.output import json_option, print_json
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac


@click.command()
@device_argument
@json_option
def diagnose(device: Mac, *, as_json: bool) -> None:
    """Say what is wrong with a device, how sure that is, and what to do."""
    found = call_service(lambda fleet: fleet.devices.diagnose(device))
    if as_json:
        print_json(found)
        return
    lines = [found.sentence if found.certainty != "likely" else f"{found.sentence} (likely the reason)"]
    if found.action is not None:
        lines.append(f"What to do: {found.action.text}")
    lines += [f"  {each.time}  {each.text}" for each in found.evidence]
    for line in lines:
        click.echo(to_printable(line))
