"""What can be set about a link."""

from __future__ import annotations

from random import uniform
from ssl import SSLContext
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator


# How long to wait before the next try to reach a broker.


class ExponentialBackoff(Struct, frozen=True, kw_only=True):
    """Seconds between tries to connect.

    They grow, so that a broker in trouble is left in peace, and are jittered, so that a thousand gateways do
    not come back in the same moment.
    """

    initial: float = 0.5
    maximum: float = 60.0
    reset_after: float = 30.0
    """A connection that held this long was a good one: after it the delays begin anew."""

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.maximum:
            raise ValueError("the pauses must satisfy 0 < initial <= maximum")

    def __iter__(self) -> Iterator[float]:
        """The delays after one failure and the next: anything up to a limit that doubles."""
        limit = self.initial
        while True:
            yield uniform(limit / 2, limit)  # noqa: S311 # spreads load, guards nothing
            limit = min(2 * limit, self.maximum)


class MqttOptions(Struct, frozen=True, kw_only=True):
    """Settings that many links may share; each has a value that suits most."""

    keep_alive: int = 60
    """Seconds: the broker takes us for dead after one and a half times as long without a word."""
    ping_interval: float | None = None
    """Seconds between two checks whether a quiet connection still works. None: a third of `keep_alive`."""
    tls: SSLContext | None = None
    """Whom to trust and who we are, for mqtts and wss; without it the authorities that the system trusts."""
    timeout: float = 10.0
    """Seconds for the broker to answer: to connect, to accept, to grant, to let go."""
    retry_first_connect: bool = False
    """Whether a broker that is not there, or refuses us, is waited for from the start too."""
    backoff: ExponentialBackoff = ExponentialBackoff()
    """Between tries to come back."""
    window: int = 1000
    """Messages that may be on their way without an acknowledgement; publishers wait for room."""
    backlog: int = 8 * 1024 * 1024
    """Bytes of messages that may wait to be received; the network waits beyond. They are counted as they
    came: small messages take several times as much in memory."""
    discard_on_disconnect: bool = False
    """Whether what is on its way when a connection ends is given up, instead of sent again on the next one:
    for what must not arrive twice, such as a request that writes. Its publishers get ConnectionLost."""
    single_message_batches: bool = False
    """Whether every message is a batch of its own, acknowledged by itself."""
    max_packet_bytes: int = 1024 * 1024
    """Bytes of the largest packet that is accepted. A longer message arrives as `OversizedPublish`."""

    def __post_init__(self) -> None:
        if min(self.window, self.backlog, self.max_packet_bytes, self.timeout) <= 0:
            raise ValueError("window, backlog, max_packet_bytes and timeout must be greater than 0")
        if self.ping_interval is not None and self.ping_interval <= 0:
            raise ValueError("ping_interval must be greater than 0")
