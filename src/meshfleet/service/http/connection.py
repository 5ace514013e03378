"""HTTP connection with limits that uvicorn lacks: size of request heads, timeouts, number of connections.

A client that sends one byte a minute, or endless headers, must not use up connections and memory.
The connection becomes a WebSocket only for a valid handshake at the one path that has a WebSocket. Any other
`Upgrade` header is ignored (RFC 9110, 7.8). Because of the header, the parser would skip the request body, so
the parser gets the request head again without the header.
"""

from __future__ import annotations

import re
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.exceptions import InvalidHandshake
from websockets.server import ServerProtocol

from meshfleet.rest.live import LIVE_PATH
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE
from meshfleet.service.http.limits import HTTP_LIMITS
from meshfleet.service.http.middleware import SECURITY_HEADERS, STRICT_TRANSPORT_SECURITY
from meshfleet.service.http.problems import encode_problem

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from websockets.http11 import Request

_MAX_HEAD_BYTES: Final = 64 * 1024
"""Maximum size in bytes of the request line and headers of a request."""
_REQUEST_LINE_OVERHEAD: Final = len(b"  HTTP/1.1\r\n")
"""Number of bytes of a request line besides method and target."""
_HEADER_OVERHEAD: Final = len(b": \r\n")
"""Number of bytes of a header line besides name and value."""
_LINGER_SECONDS: Final = 2.0
"""Seconds before a rejected connection is closed, so that the client can read the error response.

Closing at once would reset the connection of a client that still sends, and lose the response.
"""

_WEBSOCKET_PATH: Final = LIVE_PATH.encode("ascii")
_READ_METHODS: Final = ("GET", "HEAD")

_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|\[v[0-9A-Fa-f]+\.[\w\-.~!$&'()*+,;=:]+\]|(?:[\w\-.~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)"
    rb"(?::[0-9]*)?",
    re.ASCII,
)
"""Valid value of a Host header: RFC 9110, 7.2 and RFC 3986, 3.2.2."""


class _RequestRejected(Exception):
    """A request head (request line and headers) is rejected. Raised in a callback to stop the parser."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = status, code, detail


class HttpConnection(HttpToolsProtocol):
    """HTTP connection of one client, with the limits of `HttpLimits`."""

    limits: ClassVar = HTTP_LIMITS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # uvicorn checks the logger's handlers and ignores its own setting
        # Enforced here: uvicorn's own check would also reject requests of established connections.
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None
        self._head_deadline: TimerHandle | None = None
        self._is_reading_head = False
        self._head_has_begun = False
        self._has_body = False
        self._head_read = 0
        self._head_parsed = 0
        self._is_rejected = False
        self._rejection: bytes | None = None
        """Error response that ends the connection, to send after the responses to earlier requests."""
        self._write_deadline: TimerHandle | None = None
        self._asgi_app = self.app
        self._running_cycle: RequestResponseCycle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Start the timeout of the first request head, or reject the connection if too many are open."""
        super().connection_made(transport)
        # The event loop sets this only for sockets it creates; without it, responses are delayed by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            self._reject(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too-many-connections",
                "too many open connections; try again later",
            )
            self.transport.close()
        else:
            self._start_head_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timeouts of the lost HTTP connection and end its running requests."""
        self._cancel_head_deadline()
        self._cancel_write_deadline()
        # uvicorn ends only the last of several pipelined requests; a stream would continue forever.
        self._disconnect_cycles()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start counting the size of the next request head, and start its timeout."""
        super().on_message_begin()
        # For endless responses: a client that does not read must not keep the service from stopping.
        self.scope["state"]["abort"] = self.transport.abort
        self._is_reading_head = self._head_has_begun = True
        self._head_read = self._head_parsed = 0
        if self._head_deadline is None:
            self._start_head_deadline()

    def on_url(self, url: bytes) -> None:
        """Store a part of the request target and add its size to that of the request head."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header without trailing white space, and add its size to that of the request head."""
        super().on_header(name, value.rstrip(b" \t"))
        self._count_head(len(name) + len(value) + _HEADER_OVERHEAD)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the request body to the application."""
        self._has_body = True
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Check the complete request head, cancel its timeout and start the request."""
        self._is_reading_head = False
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = self.parser.get_http_version()
        self._count_head(len(self.scope["method"]) + _REQUEST_LINE_OVERHEAD)
        self._check_host()
        if self.scope["method"] == "CONNECT":
            raise _RequestRejected(
                HTTPStatus.BAD_REQUEST,
                "invalid-request",
                "CONNECT is not supported: this server is not a proxy",
            )
        if self.parser.should_upgrade():
            return  # `_feed_parser` handles the upgrade
        self._cancel_head_deadline()
        self.app = _answer_upgrade_required if self._is_websocket_path() else self._asgi_app
        super().on_headers_complete()
        if len(self.pipeline) > self.limits.pipelined:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """Complete the request, unless it asks for a protocol upgrade."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Parse received data; reject request heads that are invalid or too large."""
        if self._is_rejected:
            return
        self._unset_keepalive_if_required()
        self._head_has_begun = self._has_body = False
        try:
            self._feed_parser(data)
            if self._is_reading_head:
                self._count_unfinished(data)
        except _RequestRejected as exc:
            self._reject(*exc.problem)
            return
        except httptools.HttpParserError as exc:
            if isinstance(exc.__context__, _RequestRejected):
                self._reject(*exc.__context__.problem)
                return
            self.logger.warning("received invalid HTTP from %s, closing the connection", self.client)
            self.send_400_response("")
            return
        if self.transport.get_protocol() is not self:
            return  # switched to a WebSocket
        if not getattr(self.cycle, "response_complete", True):
            return  # the data may be a body that the application reads
        if self._head_deadline is None:
            # The rest of an unread body, or empty lines: uvicorn would now wait forever.
            self._start_head_deadline()

    def _count_head(self, size: int) -> None:
        """Count a parsed part of the request head. Raise `_RequestRejected` if the head is too large."""
        self._head_parsed += size
        self._check_head_size(self._head_parsed)

    def _count_unfinished(self, data: bytes) -> None:
        """Count received bytes of an incomplete request head. Raise `_RequestRejected` if it is too large.

        The parser reports a header only when it is complete, so an endless header would not be noticed.
        """
        if not self._head_has_begun:
            self._head_read += len(data)
        elif not self._has_body:  # after a body the start of the head is unknown
            previous_end = data.rfind(b"\r\n\r\n")
            self._head_read = len(data) - (0 if previous_end < 0 else previous_end + 4)
        self._check_head_size(self._head_read)

    def _check_head_size(self, size: int) -> None:
        if size > _MAX_HEAD_BYTES:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            detail = f"the request line and headers are larger than {_MAX_HEAD_BYTES // 1024} KiB"
            raise _RequestRejected(status, "head-too-large", detail)

    def _check_host(self) -> None:
        """Raise `_RequestRejected` if the Host header is missing, repeated or malformed (RFC 9112, 3.2)."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1:
            detail = "the request has more than one Host header"
        elif not hosts and self.scope["http_version"] == "1.1":
            detail = "the request has no Host header, which HTTP/1.1 requires"
        elif hosts and not _HOST.fullmatch(hosts[0]):
            detail = "the Host header is not a host with an optional port"
        else:
            return
        raise _RequestRejected(HTTPStatus.BAD_REQUEST, "invalid-request", detail)

    def _feed_parser(self, data: bytes) -> None:
        """Pass received data to the HTTP parser. Follow an upgrade to WebSocket, or ignore it."""
        while not self.transport.is_closing():
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as exc:
                data = data[exc.args[0] :]
                if self._should_upgrade():
                    self._switch_to_websocket(data)
                    return
                head = self._rebuild_head(without=b"upgrade")
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
                self.parser.feed_data(head)
            else:
                return

    def _should_upgrade(self) -> bool:
        """Return whether the request is a valid WebSocket handshake and no earlier request is running."""
        return (
            self._is_websocket_path()
            and self.scope["http_version"] == "1.1"
            and getattr(self.cycle, "response_complete", True)
            and super()._should_upgrade()
            and _is_handshake(self._rebuild_head())
        )

    def _is_websocket_path(self) -> bool:
        return self.url.partition(b"?")[0] == _WEBSOCKET_PATH

    def _rebuild_head(self, without: bytes | None = None) -> bytes:
        """Return the bytes of the parsed request head, without the header of the name `without`."""
        line = f"{self.scope['method']} {self.url.decode('latin-1')} HTTP/{self.scope['http_version']}"
        lines = [name + b": " + value for name, value in self.headers if name != without]
        return b"\r\n".join([line.encode("latin-1"), *lines, b"", b""])

    def _switch_to_websocket(self, rest: bytes) -> None:
        """Hand the connection over to the WebSocket protocol, with data received after the handshake."""
        self._cancel_head_deadline()
        self._cancel_write_deadline()
        self.handle_websocket_upgrade()
        successor: Any = self.transport.get_protocol()
        if self.flow.write_paused:  # by the response to an earlier request
            successor.pause_writing()
        if rest:
            successor.data_received(rest)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """Start the write timeout, because the client does not read its response."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the write timeout, because the client reads again."""
        super().resume_writing()
        self._cancel_write_deadline()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 # uvicorn's own text for its log
        """Answer invalid HTTP with a problem response (rest-9)."""
        self._reject(HTTPStatus.BAD_REQUEST, "invalid-request", "the request is not valid HTTP")

    def _reject(self, status: HTTPStatus, code: str, detail: str) -> None:
        """Send a problem response, and close the connection after the client had time to read the response.

        Earlier complete requests are answered first (RFC 9112, 9.3.2). If another response is being sent,
        close the connection without a problem response, because the other response may be endless.
        """
        running = self._running_cycle
        if running is not None and running.response_complete:
            running = None
        if running is not None and running.response_started:
            self.transport.close()
            return
        body = encode_problem(status, code, detail)
        headers = {**_build_headers(body), "connection": "close"}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._rejection = "\r\n".join([*lines, "", ""]).encode("ascii") + body
        self._is_rejected = True
        self._cancel_head_deadline()
        if running is None or (running is self.cycle and running.more_body):
            self._write_rejection(self._rejection)
        elif self.cycle.more_body:
            self.pipeline.popleft()  # the rejected data is the body of this request

    def on_response_complete(self) -> None:
        """Start the next pipelined request, or after the last request write the pending error response."""
        super().on_response_complete()
        is_idle = self._running_cycle is not None and self._running_cycle.response_complete
        if self._rejection is not None and is_idle and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._write_rejection(self._rejection)

    def _write_rejection(self, response: bytes) -> None:
        """Write the error response, end the running requests, and close the connection after a while."""
        self.transport.write(response)
        self._rejection = None
        self._disconnect_cycles()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_deadline = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _disconnect_cycles(self) -> None:
        """Mark running requests as disconnected, so that they send nothing more."""
        self.pipeline.clear()
        for cycle in (self._running_cycle, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _start_head_deadline(self) -> None:
        # Abort, because a close would wait until the client has read all written data.
        self._head_deadline = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _cancel_head_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


def _is_handshake(head: bytes) -> bool:
    """Return whether a request head is a valid WebSocket handshake.

    Call this before switching to the WebSocket protocol, which does not answer an invalid handshake.
    """
    trial = ServerProtocol()
    trial.receive_data(head)
    requests = cast("list[Request]", trial.events_received())
    try:
        for request in requests:
            trial.process_request(request)
    except (InvalidHandshake, ValueError):  # ValueError: not ASCII
        return False
    return bool(requests)


async def _answer_upgrade_required(scope: Any, _receive: Any, send: Any) -> None:
    """Answer an HTTP request to the WebSocket path that is not a valid WebSocket handshake."""
    if scope["method"] in _READ_METHODS:
        status, code = HTTPStatus.UPGRADE_REQUIRED, "upgrade-required"
        detail = "this path is a WebSocket (version 13); send a valid WebSocket handshake"
        extra = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    else:
        status, code = HTTPStatus.METHOD_NOT_ALLOWED, "method-not-allowed"
        detail = "this method is not allowed here"
        extra = {"allow": ", ".join(_READ_METHODS)}
    if scope["scheme"] == "https":
        extra["strict-transport-security"] = STRICT_TRANSPORT_SECURITY
    body = encode_problem(status, code, detail, scope["raw_path"].decode("ascii"))
    headers = [(name.encode(), value.encode()) for name, value in {**_build_headers(body), **extra}.items()]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _build_headers(body: bytes) -> dict[str, str]:
    return {**SECURITY_HEADERS, "content-type": PROBLEM_MEDIA_TYPE, "content-length": str(len(body))}
