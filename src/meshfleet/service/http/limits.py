"""What one client of the HTTP server may take from the others."""

from __future__ import annotations

from typing import Final, NamedTuple


class HttpLimits(NamedTuple):
    """Limits of connections and of waiting."""

    connections: int = 2000
    """At once; who comes then is told to come back."""

    keep_alive_seconds: float = 30
    """For the next request on an idle connection."""

    head_seconds: float = 20.0
    """For a request line and its headers."""

    body_seconds: float = 30.0
    """For a whole body, which is small; of an upload, for each piece of it."""

    read_seconds: float = 30.0
    """For a client to take what it asked for."""

    pipelined: int = 16
    """Requests that wait for the one before: enough for anybody, and few enough to remember."""


HTTP_LIMITS: Final = HttpLimits()
"""What holds in service. Only tests have other limits."""
