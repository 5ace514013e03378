"""Connection limits and timeouts of the HTTP server."""

from __future__ import annotations

from typing import Final, NamedTuple


class HttpLimits(NamedTuple):
    """Limits that keep one HTTP client from using up the resources of other clients."""

    connections: int = 2000
    """Maximum number of open HTTP connections; requests on further connections get the status 503."""

    keep_alive_seconds: float = 30
    """Maximum seconds that an idle HTTP connection waits for the next request."""

    head_seconds: float = 20.0
    """Maximum seconds to receive the request line and headers of a request."""

    body_seconds: float = 30.0
    """Maximum seconds to receive a request body; for a firmware upload, each chunk of the body."""

    read_seconds: float = 30.0
    """Maximum seconds that a client may leave response data unread before the connection is aborted."""

    pipelined: int = 16
    """Maximum number of pipelined requests that wait on one HTTP connection for an earlier response."""


HTTP_LIMITS: Final = HttpLimits()
"""HTTP limits of the service. Only tests use other limits."""
