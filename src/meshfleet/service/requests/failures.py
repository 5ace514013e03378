"""What can keep a request from being answered."""

from __future__ import annotations

from meshfleet.errors import FleetError, Unavailable


class GatewayOffline(Unavailable):
    """The gateway is not connected, so nothing was sent."""

    code = "gateway-offline"


class TooManyRequests(Unavailable):
    """More requests wait for their answers than we keep in mind; nothing was sent."""

    code = "too-many-requests"


class GatewayTimeout(FleetError):
    """The gateway did not answer in time. It may still carry the request out."""

    code, http = "gateway-timeout", 504


class MalformedResponse(FleetError):
    """The gateway answered, and nobody can read it. It may have carried the request out."""

    code, http = "malformed-response", 502
