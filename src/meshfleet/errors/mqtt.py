"""Errors of connections to MQTT brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import FleetError, quote_input

if TYPE_CHECKING:
    from collections.abc import Sequence


class MqttError(FleetError):
    """Base class of errors of a connection to an MQTT broker. A retry may help."""

    code, http = "link-error", 503


class BrokerUnreachable(MqttError):
    """Raised when there is no response from the broker's address, or not the response of an MQTT broker."""

    code = "broker-unreachable"


class UntrustedBroker(MqttError):
    """Raised when the TLS certificate of the broker cannot be verified. Check `tls_ca` and the host name."""

    code = "untrusted-broker"


class ConnectionRefused(MqttError):
    """Raised when the broker refuses CONNECT. `return_code` is the return code in CONNACK."""

    code = "connection-refused"

    def __init__(self, broker: str, return_code: int, message: str) -> None:
        super().__init__(broker, return_code, message)
        self.broker = broker
        self.return_code = return_code
        self.message = message

    def __str__(self) -> str:
        return f"{self.broker} refuses the connection: {self.message} (return code {self.return_code})"


class ConnectionLost(MqttError):
    """Raised when the connection to the MQTT broker breaks."""

    code = "connection-lost"


class SubscriptionRefused(MqttError):
    """Raised when the broker refuses an MQTT subscription, or grants a lower QoS than requested."""

    code = "subscription-refused"

    def __init__(self, filters: Sequence[str]) -> None:
        super().__init__(filters)
        self.filters = tuple(filters)

    def __str__(self) -> str:
        filters = ", ".join(map(quote_input, self.filters))
        return f"the broker refused the subscription, or granted a lower QoS: {filters}"


class ConnectionClosed(MqttError):
    """Raised when an MQTT connection is used before it is open or after it was closed."""

    code = "link-closed"


class Undelivered(MqttError):
    """Raised when an MQTT connection is closed before the broker acknowledged all published messages."""

    code = "undelivered"

    def __init__(self, messages: int) -> None:
        super().__init__(messages)
        self.messages = messages

    def __str__(self) -> str:
        count = "one message" if self.messages == 1 else f"{self.messages} messages"
        return f"closed before the broker acknowledged {count}, which it may have received"


class UnusableCertificate(FleetError):
    """Raised when a file with a TLS certificate, CA or key cannot be read, or key and certificate differ."""

    code = "unusable-certificate"

    def __init__(self, files: str, reason: str) -> None:
        super().__init__(files, reason)
        self.files = files
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.files}: {self.reason}"
