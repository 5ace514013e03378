"""Limits on connections and timeouts of the HTTP server."""

from __future__ import annotations

from typing import Final, NamedTuple


class HttpLimits(NamedTuple):
    """Limits that keep one HTTP client from using up the resources of the others."""

    connections: int = 2000
    """Maximum number of open connections; further ones get the status 503."""

    keep_alive_seconds: float = 30
    """Seconds to wait for the next request on an idle connection."""

    head_seconds: float = 20.0
    """Seconds to receive a request line and its headers."""

    body_seconds: float = 30.0
    """Seconds to receive a whole body; for a firmware upload, each chunk of the body."""

    read_seconds: float = 30.0
    """Seconds for a client to read a response before the connection is aborted."""

    pipelined: int = 16
    """Maximum number of pipelined requests that wait for the response to the previous one."""


HTTP_LIMITS: Final = HttpLimits()
"""Limits of the service. Only tests use others."""
