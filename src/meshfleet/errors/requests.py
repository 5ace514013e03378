"""Errors of requests to gateways and devices."""

from __future__ import annotations

from typing import ClassVar

from meshfleet.errors.root import FleetError
from meshfleet.errors.service import Conflict


class Unanswered(FleetError):
    """A request to a gateway that brought no response, and why. The text is for everybody."""

    code, http = "unanswered", 503
    sent: ClassVar[bool] = False
    """Whether the gateway may have got it, and may have carried it out."""


class NoGateway(Unanswered):
    """No gateway is known that hears the device, so nothing was sent."""

    code = "no-gateway"


class GatewayOffline(Unanswered):
    """The gateway is not connected, so nothing was sent."""

    code = "gateway-offline"


class GatewayBusy(Unanswered):
    """Others were before us at this gateway until the time was over, so nothing was sent."""

    code, http = "gateway-busy", 504


class Unrecorded(Unanswered):
    """It could not be written down, and is not sent without a trace."""

    code = "unrecorded"


class TooManyRequests(Unanswered):
    """More requests wait for their answers than we keep in mind; nothing was sent."""

    code = "too-many-requests"


class BrokerUnavailable(Unanswered):
    """The service carries no requests now: it starts or ends, or has no broker. Nothing was sent."""

    code = "broker-unavailable"


class GatewayTimeout(Unanswered):
    """The gateway did not answer in time. It may still carry the request out."""

    code, http = "gateway-timeout", 504
    sent = True


class GatewayLost(Unanswered):
    """The gateway went away before it answered. It may still carry the request out."""

    code, http = "gateway-lost", 504
    sent = True


class MalformedResponse(Unanswered):
    """The gateway answered, and nobody can read it. It may have carried the request out."""

    code, http = "malformed-response", 502
    sent = True


class Interrupted(Unanswered):
    """Something in the service came between before an answer did. The request may have been carried out."""

    code, http = "interrupted", 504
    sent = True


class Declined(FleetError):
    """A response came, and its status says that what was asked for was not done."""

    code, http = "declined", 409

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status, words)
        self.status = status
        self.words = words

    def __str__(self) -> str:
        return f"{self.words} (status {self.status})"


class KeyReused(Conflict):
    """The same idempotency key came before with another request (rest-26)."""

    code = "idempotency-key-reused"
