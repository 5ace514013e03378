"""Errors of connections to brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import FleetError, quote_input

if TYPE_CHECKING:
    from collections.abc import Sequence


class LinkError(FleetError):
    """The connection to a broker is not there, or not as it should be. Another try may help."""

    code, http = "link-error", 503


class BrokerUnreachable(LinkError):
    """Nobody answers at the broker's address, or not as a broker would."""

    code = "broker-unreachable"


class UntrustedBroker(LinkError):
    """The certificate at the broker's address does not hold."""

    code = "untrusted-broker"


class ConnectionRefused(LinkError):
    """The broker does not let us in. `reason` is its return code."""

    code = "connection-refused"

    def __init__(self, broker: str, return_code: int, message: str) -> None:
        super().__init__(broker, return_code, message)
        self.broker = broker
        self.return_code = return_code
        self.message = message

    def __str__(self) -> str:
        return f"{self.broker} refuses the connection: {self.message} (return code {self.return_code})"


class ConnectionLost(LinkError):
    """The connection ended, and not by our will."""

    code = "connection-lost"


class SubscriptionRefused(LinkError):
    """The broker grants less than was asked: nothing, or a lower QoS."""

    code = "subscription-refused"

    def __init__(self, filters: Sequence[str]) -> None:
        super().__init__(filters)
        self.filters = tuple(filters)

    def __str__(self) -> str:
        return f"the broker does not grant what was asked for {', '.join(map(quote_input, self.filters))}"


class LinkClosed(LinkError):
    """The link was closed by its owner."""

    code = "link-closed"


class Undelivered(LinkError):
    """The link was closed before the broker acknowledged everything that was published."""

    code = "undelivered"

    def __init__(self, messages: int) -> None:
        super().__init__(messages)
        self.messages = messages

    def __str__(self) -> str:
        count = "one message" if self.messages == 1 else f"{self.messages} messages"
        return f"closed before the broker acknowledged {count}, which it may have got"


class UnusableCertificate(FleetError):
    """A file with certificates or a key that cannot be read."""

    code = "unusable-certificate"

    def __init__(self, files: str, reason: str) -> None:
        super().__init__(files, reason)
        self.files = files
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.files}: {self.reason}"
