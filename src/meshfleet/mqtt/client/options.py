"""Options of an MQTT client."""

from __future__ import annotations

from random import uniform
from ssl import SSLContext
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExponentialBackoff(Struct, frozen=True, kw_only=True):
    """Delays between attempts to connect to a broker.

    The delays grow, so that a broker with problems is not overloaded. The delays are random, so that a
    thousand gateways do not reconnect at the same time.
    """

    initial: float = 0.5
    """Upper limit of the first delay, in seconds."""
    maximum: float = 60.0
    """Upper limit of all delays, in seconds."""
    reset_after: float = 30.0
    """Seconds after which a connection is stable: when it breaks, the delays start at `initial` again."""

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.maximum:
            raise ValueError("backoff must satisfy 0 < initial <= maximum")

    def __iter__(self) -> Iterator[float]:
        """Yield the delay in seconds after each failed attempt: random, up to a limit that doubles."""
        limit = self.initial
        while True:
            yield uniform(limit / 2, limit)  # noqa: S311 # jitter, not cryptography
            limit = min(2 * limit, self.maximum)


class MqttOptions(Struct, frozen=True, kw_only=True):
    """Options of an MQTT client. Several clients may share one instance."""

    keep_alive: int = 60
    """Keep alive interval in seconds. The broker closes a connection without packets from the client for 1.5
    times as long."""
    ping_interval: float | None = None
    """Seconds between two checks whether an idle connection still works. None: a third of `keep_alive`."""
    tls: SSLContext | None = None
    """TLS context for mqtts and wss. None: trust the certificate authorities of the system."""
    timeout: float = 10.0
    """Maximum seconds to wait for the broker: to connect, to subscribe or unsubscribe, and to close."""
    retry_first_connect: bool = False
    """Whether to retry if the first connection attempt fails, instead of raising its error."""
    backoff: ExponentialBackoff = ExponentialBackoff()
    """Delays between attempts to reconnect."""
    window: int = 1000
    """Maximum published messages without acknowledgement (in-flight window); further publishers wait."""
    backlog: int = 8 * 1024 * 1024
    """Maximum bytes of received messages that the application has not fetched; beyond it the client stops
    reading. Bytes are counted as received: small messages take several times as much memory."""
    discard_on_disconnect: bool = False
    """Whether unacknowledged messages are discarded when a connection ends, instead of resent on the next
    connection: for messages that must not arrive twice, such as write requests. Their publishers get
    ConnectionLost."""
    single_message_batches: bool = False
    """Whether every received message is a batch of its own, acknowledged by itself."""
    max_packet_bytes: int = 1024 * 1024
    """Maximum size of a received packet in bytes. The payload of a longer message is skipped: the message
    arrives as `OversizedPublish`."""

    def __post_init__(self) -> None:
        if min(self.window, self.backlog, self.max_packet_bytes, self.timeout) <= 0:
            raise ValueError("window, backlog, max_packet_bytes and timeout must be greater than 0")
        if self.ping_interval is not None and self.ping_interval <= 0:
            raise ValueError("ping_interval must be greater than 0")
