"""What the service, or the SDK, says of a wrong value, in the words of the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.terminal import printable
from meshfleet.errors import Fault, InvalidRequest, WireError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PLACE: Final = re.compile(r"\[\d+\]")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_OPTIONS: Final[Mapping[str, str]] = {
    "abort.minExecuted": "abort_after",
    "abort.percent": "abort_percent",
    "retry.backoffSeconds": "backoff",
    "retry.max": "retries",
    "targets.deviceIds": "devices",
    "FirmwareId": "firmware",
    "From": "since",
    "To": "until",
    "friendlyName": "name",
    "username": "name",
}
"""Fields whose option is not called like them."""


def wrong_usage(error: InvalidRequest | WireError) -> click.UsageError | None:
    """Return an error with exit code 2 that names the options with wrong values.

    None: the error is about nothing that was given on the command line.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    faults = error.faults if isinstance(error, InvalidRequest) else (Fault(error.field, error.reason),)
    hints = [_hint(each.field, context) for each in faults]
    if not any(hints):
        return None
    said = [f"{hint or fault.field}: {fault.message}" for hint, fault in zip(hints, faults, strict=True)]
    return click.UsageError(printable(f"Invalid value for {'; '.join(said)}"), context)


def _hint(field: str, context: click.Context) -> str | None:
    """Return how people call the option of a field. An argument is what the command is about, not how."""
    options = {each.name: each for each in context.command.params if isinstance(each, click.Option)}
    found = next((options[name] for name in _names(field) if name in options), None)
    return None if found is None else found.get_error_hint(context)


def _names(field: str) -> Iterator[str]:
    """Give names that the option of a field can have, the most likely first."""
    path = _PLACE.sub("", field)
    if path.startswith("targets.filter."):
        yield "filters"
    if path in _OPTIONS:
        yield _OPTIONS[path]
    for part in (path.rpartition(".")[2], path.partition(".")[0]):
        name = _HUMP.sub("_", part).lower()
        yield from (name, f"{name}s")
