"""The option `--filter NAME=VALUE` of commands that select devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import click

from meshfleet.cli.options import TextParamType, parse_text
from meshfleet.errors.protocol import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.client.rest.devices import DeviceFilters

_FILTERS: Final = {
    "label": "labels",
    "connected": "connected",
    "model": "model_number",
    "firmware": "firmware_version",
    "hardware": "hardware_version",
    "name": "friendly_name",
    "gateway": "gateway",
}
"""Name of each device filter in the SDK, by its name in the option `--filter`."""

FILTER_NAMES: Final = ", ".join(_FILTERS)

_BOOLEANS: Final = {"yes": True, "no": False, "true": True, "false": False}


def _parse_filter(text: str) -> tuple[str, object]:
    """Parse NAME=VALUE. Return the name of the filter in the SDK, and the value."""
    name, equals, value = parse_text(text, "filter").partition("=")
    if not equals or name not in _FILTERS:
        raise MalformedInput("filter", f"{text!r} is not NAME=VALUE with one of {FILTER_NAMES}")
    if name != "connected":
        return _FILTERS[name], value
    if value not in _BOOLEANS:
        raise MalformedInput("filter", "connected must be yes or no")
    return _FILTERS[name], _BOOLEANS[value]


DEVICE_FILTER: Final = TextParamType("name=value", _parse_filter)
"""Parameter type for a device filter. Parses NAME=VALUE to the filter's name in the SDK and its value."""


def build_device_filters(filters: Iterable[tuple[str, object]]) -> DeviceFilters | None:
    """Build the device filters of the SDK from the values of all options `--filter`; None without options.

    Each value is the name of the filter in the SDK, and the filter's value. Raise `UsageError` if a filter
    other than `label` is repeated.
    """
    labels: list[object] = []
    found: dict[str, object] = {}
    for name, value in filters:
        if name == "labels":
            labels.append(value)
        elif name in found:
            raise click.UsageError("Only the filter label can be repeated.")
        else:
            found[name] = value
    return cast("DeviceFilters", found | ({"labels": labels} if labels else {})) or None
