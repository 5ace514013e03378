"""`meshfleet devices`: the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import click

from meshfleet.cli.options import TEXT
from meshfleet.cli.remote.arguments import DEVICE, LABEL, device_argument
from meshfleet.cli.remote.completing import complete_devices, complete_gateways, complete_labels
from meshfleet.cli.remote.labelling import each_device, put_on, take_off
from meshfleet.cli.remote.printing import (
    Column,
    answer,
    facts_of,
    json_option,
    limit_option,
    print_all,
    print_facts,
    print_json,
    print_table,
)
from meshfleet.cli.remote.reaching import talk
from meshfleet.client.rest.devices import Sort

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.rest import Device

_COLUMNS: Final = (
    Column("id", lambda each: each.id, is_whole=True),
    Column("name", lambda each: each.friendly_name),
    Column("model", lambda each: each.model_number),
    Column("firmware", lambda each: each.firmware_version),
    Column("connected", lambda each: each.connectivity.connected),
    Column("since", lambda each: each.connectivity.timestamp),
    Column("labels", lambda each: each.labels),
)

_LINKS: Final = (
    Column("parent", lambda each: each.parent, is_whole=True),
    Column("rssi", lambda each: each.rssi),
    Column("seen", lambda each: each.seen_at),
    Column("mean", lambda each: round(each.mean)),
    Column("unreachable", lambda each: each.unreachable),
    Column("gateway", lambda each: each.gateway, is_whole=True),
)

labels_argument = click.argument(
    "labels", metavar="LABEL...", type=LABEL, nargs=-1, required=True, shell_complete=complete_labels
)


@click.group()
def devices() -> None:
    """List devices, and name and label them."""


@devices.command("list")
@click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    shell_complete=complete_labels,
    help="With this label; repeat it for devices that have all of them.",
)
@click.option("--connected/--disconnected", default=None, help="Only those that are, or are not.")
@click.option("--model", "model_number", type=TEXT, help="The model number, such as 2011.")
@click.option("--firmware", "firmware_version", type=TEXT, help="The firmware version, such as 2.4.0.")
@click.option("--hardware", "hardware_version", type=TEXT, help="The hardware version, such as 1.2.0.")
@click.option("--name", "friendly_name", type=TEXT, help="A part of the name, in any case.")
@click.option("--gateway", type=DEVICE, shell_complete=complete_gateways, help="Behind this gateway.")
@click.option(
    "--id", "ids", type=DEVICE, multiple=True, shell_complete=complete_devices, help="This one; repeatable."
)
@click.option("--sort", type=click.Choice(get_args(Sort)), help="A hyphen in front reverses it.")
@limit_option
@json_option
def list_devices(*, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List the devices that fit all that is asked for."""
    talk(lambda fleet: print_all(fleet.devices.list(**filters), _COLUMNS, as_json=as_json, limit=limit))


@devices.command()
@device_argument
@json_option
def show(device: Mac, *, as_json: bool) -> None:
    """Tell all about a device."""
    found = talk(lambda fleet: fleet.devices.show(device))
    if as_json:
        print_json(found)
    else:
        print_facts(facts_of(found))


@devices.command()
@device_argument
@json_option
def links(device: Mac, *, as_json: bool) -> None:
    """List the parents that heard a device during the last day, the newest and strongest first."""
    found = talk(lambda fleet: fleet.samples.links(device)).items
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_table(_LINKS, found)


@devices.command()
@device_argument
@click.argument("name", type=TEXT)
@json_option
def rename(device: Mac, name: str, *, as_json: bool) -> None:
    """Give a device the friendly name NAME."""
    renamed = talk(lambda fleet: fleet.devices.rename(device, name))
    answer(renamed, f"{renamed.id} is called {renamed.friendly_name} from now on.", as_json=as_json)


@devices.command()
@click.argument("device", shell_complete=complete_devices)
@labels_argument
@json_option
def label(device: str, labels: tuple[str, ...], *, as_json: bool) -> None:
    """Put labels on a device; with - for DEVICE, on all whose ids come on standard input, one per line."""
    each_device(device, labels, put_on, lambda done: _tell_labels(done, as_json=as_json))


@devices.command()
@click.argument("device", shell_complete=complete_devices)
@labels_argument
@json_option
def unlabel(device: str, labels: tuple[str, ...], *, as_json: bool) -> None:
    """Take labels off a device; with - for DEVICE, off all whose ids come on standard input, one per line."""
    each_device(device, labels, take_off, lambda done: _tell_labels(done, as_json=as_json))


def _tell_labels(device: Device, *, as_json: bool) -> None:
    has = ", ".join(device.labels) or "no label"
    answer(device, f"{device.id} has {has} now.", as_json=as_json)
