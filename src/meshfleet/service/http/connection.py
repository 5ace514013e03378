"""An HTTP connection with limits that uvicorn does not have: on heads, on waiting, and on connections.

Who sends a byte a minute, or headers without end, must not hold connections and memory that others need.
"""

from __future__ import annotations

import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from meshfleet.service.http.headers import SAFE
from meshfleet.wire.rest import LIVE, Problem
from meshfleet.wire.rest.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

_HEAD_SECONDS: Final = 20.0
_LARGEST_HEAD: Final = 64 * 1024
_READ_SECONDS: Final = 30.0
"""For a client to take what it asked for."""

_SOCKET: Final = LIVE.encode("ascii")

_PIPELINED: Final = 16
"""Requests that wait for the one before: enough for anybody, and few enough to remember."""


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # uvicorn looks whether somebody listens, whatever it was told
        # Ours: when there are too many, uvicorn would refuse those that were there before, too.
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._deadline: TimerHandle | None = None
        self._is_head = False
        self._head = 0
        self._unread: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """The first head is awaited."""
        super().connection_made(transport)
        # The loop does this for sockets that it makes itself; without it answers wait for 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._most is not None and len(self.connections) > self._most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-connections", "all connections are taken")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_waiting()
        self._reads_again()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The next head of a connection that is kept."""
        super().on_message_begin()
        # For answers that have no end: who does not read one must not keep the service from stopping.
        self.scope["state"]["abort"] = self.transport.abort
        self._is_head = True
        self._head = 0
        if self._deadline is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there; how long the body may take is up to the request."""
        self._is_head = False
        self._stop_waiting()
        super().on_headers_complete()
        if len(self.pipeline) > _PIPELINED:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read on, and end what takes too long or has grown too long."""
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # it has become a WebSocket
        if not getattr(self.cycle, "response_complete", True):
            return  # it may be a body that somebody asked for
        if self._deadline is None:
            # The rest of a body that nobody read, or empty lines: uvicorn would now wait for ever.
            self._await_head()
        if self._is_head:
            self._head += len(data)
            if self._head > _LARGEST_HEAD:
                self.transport.close()

    def _should_upgrade(self) -> bool:
        """Become a WebSocket only where there is one; elsewhere who asks for that gets a plain answer."""
        return self.url.partition(b"?")[0] == _SOCKET and super()._should_upgrade()

    def pause_writing(self) -> None:
        """The client does not take its answer; it gets some time, and then the connection ends."""
        super().pause_writing()
        self._unread = self.loop.call_later(_READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._reads_again()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 # uvicorn's words, which are for its log
        """Answer what is no HTTP (rest-9)."""
        self._refuse(HTTPStatus.BAD_REQUEST, "invalid-request", "this is no HTTP")

    def _refuse(self, status: HTTPStatus, code: str, detail: str) -> None:
        problem = Problem(
            type="about:blank",
            title=status.phrase,
            status=status,
            detail=detail,
            instance="",
            code=code,
            errors=(),
        )
        body = msgspec.json.encode(problem)
        headers = {
            **SAFE,
            "content-type": MEDIA_TYPE,
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        self.transport.close()

    def _await_head(self) -> None:
        # Not by closing, which would wait until all that was written is read.
        self._deadline = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _reads_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
