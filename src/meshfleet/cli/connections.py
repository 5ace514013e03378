"""As many connections as a program needs."""

from __future__ import annotations

from typing import Final

import click

_SPARE_FILES: Final = 200
"""Files that a process opens besides its connections."""


def allow_connections(number: int) -> None:
    """See to it that the system lets us open so many, or say what to do."""
    try:
        import resource  # noqa: PLC0415 # not there on Windows, which has no such limit
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _SPARE_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise click.ClickException(
            f"{number} connections need {wanted} open files; the system allows {hard} (ulimit -Hn)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
