"""What can be set about a link."""

from __future__ import annotations

from ssl import SSLContext

from msgspec import Struct

from meshfleet.link.delays import Delays


class Options(Struct, frozen=True, kw_only=True):
    """Settings that many links may share; each has a value that suits most."""

    keep_alive: int = 60
    """Seconds: the broker takes us for dead after one and a half times as long without a word."""
    ping_interval: float | None = None
    """Seconds between two checks whether a quiet connection still works. None: a third of `keep_alive`."""
    tls: SSLContext | None = None
    """Whom to trust and who we are, for mqtts and wss; without it the authorities that the system trusts."""
    patience: float = 10.0
    """Seconds for the broker to answer: to connect, to accept, to grant, to let go."""
    patient: bool = False
    """Whether a broker that is not there, or refuses us, is waited for from the start too."""
    delays: Delays = Delays()
    """Between tries to come back."""
    window: int = 1000
    """Messages that may be on their way without an acknowledgement; publishers wait for room."""
    backlog: int = 8 * 1024 * 1024
    """Bytes of messages that may wait to be received; the network waits beyond. They are counted as they
    came: small messages take several times as much in memory."""
    once: bool = False
    """Whether what is on its way when a connection ends is given up, instead of sent again on the next one:
    for what must not arrive twice, such as a request that writes. Its publishers get ConnectionLost."""
    one_by_one: bool = False
    """Whether every message is a batch of its own, acknowledged by itself."""
    largest: int = 1024 * 1024
    """Bytes of the largest packet that is taken. A longer message arrives as `Oversized`, without payload."""

    def __post_init__(self) -> None:
        if min(self.window, self.backlog, self.largest, self.patience) <= 0:
            raise ValueError("window, backlog, largest and patience must be more than nothing")
        if self.ping_interval is not None and self.ping_interval <= 0:
            raise ValueError("ping_interval must be more than nothing")
