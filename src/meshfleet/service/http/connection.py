"""An HTTP connection with limits that uvicorn does not have: on the size of the head, and the time it takes.

Who sends a byte a minute, or headers without end, must not hold connections and memory that others need.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

_HEAD_SECONDS: Final = 20.0
_LARGEST_HEAD: Final = 64 * 1024


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: TimerHandle | None = None
        self._head = 0
        self.access_log = False  # uvicorn looks whether somebody listens, whatever it was told

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """The first head is awaited."""
        super().connection_made(transport)
        # The loop does this for sockets that it makes itself; without it answers wait for 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The next head of a connection that is kept."""
        super().on_message_begin()
        if self._deadline is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there; how long the body may take is up to the request."""
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Read on, and end what has grown too long."""
        super().data_received(data)
        if self._deadline is not None:
            self._head += len(data)
            if self._head > _LARGEST_HEAD:
                self.transport.close()

    def _await_head(self) -> None:
        self._head = 0
        self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
