"""`meshfleet labels`: list, add and remove device labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import DEVICE, LABEL, label_argument
from meshfleet.cli.completers import complete_devices
from meshfleet.cli.output import Column, json_option, print_list, print_result
from meshfleet.cli.service_access import call_service

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

_COLUMNS: Final = (
    Column("label", lambda each: each.label, no_wrap=True),
    Column("devices", lambda each: each.device_count),
)


@click.group()
def labels() -> None:
    """List, add and remove device labels."""


@labels.command("list")
@json_option
def list_labels(*, as_json: bool) -> None:
    """List all device labels, and how many devices have each label."""
    call_service(lambda fleet: print_list(fleet.labels.list(), _COLUMNS, as_json=as_json))


@labels.command()
@click.argument("label", type=LABEL)
@click.argument("devices", metavar="[DEVICE]...", type=DEVICE, nargs=-1, shell_complete=complete_devices)
@json_option
def add(label: str, devices: tuple[Mac, ...], *, as_json: bool) -> None:
    """Create a device label, and attach the label to each given DEVICE."""
    added = call_service(lambda fleet: fleet.labels.add(label, devices))
    print_result(added, f"{added.label} is on {added.device_count} devices.", as_json=as_json)


@labels.command()
@label_argument
@json_option
def remove(label: str, *, as_json: bool) -> None:
    """Delete a label, which is thereby detached from all devices."""
    call_service(lambda fleet: fleet.labels.remove(label))
    print_result({"label": label, "removed": True}, f"{label} is deleted.", as_json=as_json)
