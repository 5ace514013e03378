"""As many connections as a program needs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import click
from msgspec.structs import replace

if TYPE_CHECKING:
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_SPARE_FILES: Final = 200
"""Files that a process opens besides its connections."""


def require_connections(number: int) -> None:
    """See to it that the system lets us open so many, or say what to do."""
    possible = raise_open_file_limit(number + _SPARE_FILES) - _SPARE_FILES
    if possible < number:
        raise click.ClickException(
            f"{number} connections need {number + _SPARE_FILES} open files; "
            f"the system allows {possible + _SPARE_FILES} (ulimit -Hn)."
        )


def reduce_connection_limit(settings: Settings, other_connections: int) -> Settings:
    """The same settings, or with fewer connections to the broker, if the system does not let us open more."""
    wanted = settings.limits.connections
    possible = max(
        1, raise_open_file_limit(wanted + other_connections + _SPARE_FILES) - other_connections - _SPARE_FILES
    )
    if possible >= wanted:
        return settings
    _log.warning("the system allows %d MQTT connections (ulimit -Hn), not %d", possible, wanted)
    return replace(settings, limits=replace(settings.limits, connections=possible))


def raise_open_file_limit(wanted: int) -> int:
    """Let this process open so many files, or as many as the system allows; tells how many."""
    try:
        import resource  # noqa: PLC0415 # not there on Windows, which has no such limit
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
