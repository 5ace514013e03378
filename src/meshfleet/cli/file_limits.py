"""Raises the process limit of open files, as far as a command needs it for network connections."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

if TYPE_CHECKING:
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_SPARE_FILES: Final = 200
"""Number of open files that a process needs besides its network connections."""


def require_connections(number: int) -> None:
    """Raise the limit of open files so that this number of connections is possible.

    Raise `ClickException` if the system does not allow so many.
    """
    possible = raise_open_file_limit(number + _SPARE_FILES) - _SPARE_FILES
    if possible < number:
        raise click.ClickException(
            f"{number} connections need {number + _SPARE_FILES} open files; "
            f"the system allows {possible + _SPARE_FILES} (ulimit -Hn)."
        )


def reduce_connection_limit(settings: Settings, other_connections: int) -> Settings:
    """Raise the limit of open files for all MQTT connections and `other_connections`.

    Return the settings, with a lower limit of MQTT connections if the system allows too few open files.
    """
    required = settings.limits.connections
    possible = max(
        1,
        raise_open_file_limit(required + other_connections + _SPARE_FILES) - other_connections - _SPARE_FILES,
    )
    if possible >= required:
        return settings
    _log.warning(
        "the limit of open files (ulimit -Hn) allows %d MQTT connections, not %d",
        possible,
        required,
    )
    return replace(settings, limits=replace(settings.limits, connections=possible))


def raise_open_file_limit(required: int) -> int:
    """Raise the limit of open files to `required`, or as far as the system allows. Return the new limit."""
    try:
        import resource  # noqa: PLC0415 # missing on Windows, which has no such limit
    except ImportError:
        return required
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= required or soft == resource.RLIM_INFINITY:
        return required
    allowed = required if hard == resource.RLIM_INFINITY else min(required, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
