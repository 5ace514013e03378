"""An HTTP connection with limits that uvicorn does not have: on heads, on waiting, and on connections.

Who sends a byte a minute, or headers without end, must not hold connections and memory that others need.
It becomes a WebSocket only for a handshake that is right, at the one place where there is one. Any other wish
for another protocol is not heard (RFC 9110, 7.8): the parser, which skips the body of such a request, gets
its head again without that wish.
"""

from __future__ import annotations

import re
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.exceptions import InvalidHandshake
from websockets.server import ServerProtocol

from meshfleet.rest import LIVE_PATH, Problem
from meshfleet.rest.problems import PROBLEM_MEDIA_TYPE
from meshfleet.service.http.limits import HTTP_LIMITS
from meshfleet.service.http.middleware import SECURITY_HEADERS, STRICT_TRANSPORT_SECURITY

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from websockets.http11 import Request

_MAX_HEAD_BYTES: Final = 64 * 1024
"""Bytes of a request line and its headers."""
_REQUEST_LINE_OVERHEAD: Final = len(b"  HTTP/1.1\r\n")
_HEADER_OVERHEAD: Final = len(b": \r\n")
"""Bytes of a request line and of a header beside what they say."""
_LINGER_SECONDS: Final = 2.0
"""For a client to read why it is refused while it still sends: a close would reset the connection, and the
answer be lost."""

_WEBSOCKET_PATH: Final = LIVE_PATH.encode("ascii")
_READ_METHODS: Final = ("GET", "HEAD")

_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Fa-f:.]+\]|\[v[0-9A-Fa-f]+\.[\w\-.~!$&'()*+,;=:]+\]|(?:[\w\-.~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)"
    rb"(?::[0-9]*)?",
    re.ASCII,
)
"""The value of a Host header: RFC 9110, 7.2 and RFC 3986, 3.2.2."""


class _RequestRejected(Exception):
    """A head that is not taken. The parser fails with it, and what follows is not read."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.problem = status, code, detail


class HttpConnection(HttpToolsProtocol):
    """One client's connection."""

    limits: ClassVar = HTTP_LIMITS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # uvicorn looks whether somebody listens, whatever it was told
        # Ours: when there are too many, uvicorn would refuse those that were there before, too.
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None
        self._head_deadline: TimerHandle | None = None
        self._is_reading_head = False
        self._head_has_begun = False
        self._has_body = False
        self._head_read = 0
        self._head_parsed = 0
        self._is_rejected = False
        self._rejection: bytes | None = None
        """The last answer of the connection, which waits until all requests before it are answered."""
        self._write_deadline: TimerHandle | None = None
        self._asgi_app = self.app
        self._running_cycle: RequestResponseCycle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """The first head is awaited."""
        super().connection_made(transport)
        # The loop does this for sockets that it makes itself; without it answers wait for 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            self._reject(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-connections", "all connections are taken")
            self.transport.close()
        else:
            self._start_head_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._cancel_head_deadline()
        self._cancel_write_deadline()
        # uvicorn ends only the last of several requests; a stream would go on forever.
        self._disconnect_cycles()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The next head of a connection that is kept."""
        super().on_message_begin()
        # For answers that have no end: who does not read one must not keep the service from stopping.
        self.scope["state"]["abort"] = self.transport.abort
        self._is_reading_head = self._head_has_begun = True
        self._head_read = self._head_parsed = 0
        if self._head_deadline is None:
            self._start_head_deadline()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. The parser leaves white space behind its value, which is no part of it."""
        super().on_header(name, value.rstrip(b" \t"))
        self._count_head(len(name) + len(value) + _HEADER_OVERHEAD)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._has_body = True
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """The head is there; how long the body may take is up to the request."""
        self._is_reading_head = False
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = self.parser.get_http_version()
        self._count_head(len(self.scope["method"]) + _REQUEST_LINE_OVERHEAD)
        self._check_host()
        if self.scope["method"] == "CONNECT":
            raise _RequestRejected(HTTPStatus.BAD_REQUEST, "invalid-request", "this is no proxy")
        if self.parser.should_upgrade():
            return  # `_read` decides what becomes of it
        self._cancel_head_deadline()
        self.app = _answer_upgrade_required if self._is_websocket_path() else self._asgi_app
        super().on_headers_complete()
        if len(self.pipeline) > self.limits.pipelined:
            self.transport.abort()

    def on_message_complete(self) -> None:
        """The body is there, or the head of a request for another protocol."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        """Read on, and end what takes too long or has grown too long."""
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
            self.logger.warning("what came from %s is no HTTP", self.client)
            self.send_400_response("")
            return
        if self.transport.get_protocol() is not self:
            return  # it has become a WebSocket
        if not getattr(self.cycle, "response_complete", True):
            return  # it may be a body that somebody asked for
        if self._head_deadline is None:
            # The rest of a body that nobody read, or empty lines: uvicorn would now wait for ever.
            self._start_head_deadline()

    def _count_head(self, size: int) -> None:
        """Count what the parser has told of a head."""
        self._head_parsed += size
        self._check_head(self._head_parsed)

    def _count_unfinished(self, data: bytes) -> None:
        """Count the bytes of a head whose end has not come: the parser keeps a header until it is whole."""
        if not self._head_has_begun:
            self._head_read += len(data)
        elif not self._has_body:  # behind a body nobody knows where the head begins
            ended = data.rfind(b"\r\n\r\n")
            self._head_read = len(data) - (0 if ended < 0 else ended + 4)
        self._check_head(self._head_read)

    def _check_head(self, size: int) -> None:
        if size > _MAX_HEAD_BYTES:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            detail = f"the request line and headers have more than {_MAX_HEAD_BYTES // 1024} KiB"
            raise _RequestRejected(status, "head-too-large", detail)

    def _check_host(self) -> None:
        """Refuse a request of which it is not clear which host it is for (RFC 9112, 3.2)."""
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
        """Whether this is a handshake that is right, where there is a WebSocket, and nothing is under way."""
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
        line = f"{self.scope['method']} {self.url.decode('latin-1')} HTTP/{self.scope['http_version']}"
        lines = [name + b": " + value for name, value in self.headers if name != without]
        return b"\r\n".join([line.encode("latin-1"), *lines, b"", b""])

    def _switch_to_websocket(self, behind: bytes) -> None:
        """Hand all over to a WebSocket, also what came right behind the handshake."""
        self._cancel_head_deadline()
        self._cancel_write_deadline()
        self.handle_websocket_upgrade()
        successor: Any = self.transport.get_protocol()
        if self.flow.write_paused:  # by an answer that came before
            successor.pause_writing()
        if behind:
            successor.data_received(behind)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """The client does not take its answer; it gets some time, and then the connection ends."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.limits.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._cancel_write_deadline()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 # uvicorn's words, which are for its log
        """Answer what is no HTTP (rest-9)."""
        self._reject(HTTPStatus.BAD_REQUEST, "invalid-request", "this is no HTTP")

    def _reject(self, status: HTTPStatus, code: str, detail: str) -> None:
        """Answer that a request is not taken, and end the connection when the client has read that.

        Requests that came whole before it are answered first (RFC 9112, 9.3.2). An answer that has begun may
        have no end, such as a stream: the connection is closed then, without a refusal.
        """
        running = self._running_cycle
        if running is not None and running.response_complete:
            running = None
        if running is not None and running.response_started:
            self.transport.close()
            return
        body = _encode_problem(status, code, detail)
        headers = {**_build_headers(body), "connection": "close"}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._rejection = "\r\n".join([*lines, "", ""]).encode("ascii") + body
        self._is_rejected = True
        self._cancel_head_deadline()
        if running is None or (running is self.cycle and running.more_body):
            self._write_rejection(self._rejection)
        elif self.cycle.more_body:
            self.pipeline.popleft()  # it is the body of this request that is refused

    def on_response_complete(self) -> None:
        """Start the next request that waits, or write the refusal that comes behind all requests."""
        super().on_response_complete()
        is_idle = self._running_cycle is not None and self._running_cycle.response_complete
        if self._rejection is not None and is_idle and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._write_rejection(self._rejection)

    def _write_rejection(self, refusal: bytes) -> None:
        self.transport.write(refusal)
        self._rejection = None
        self._disconnect_cycles()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_deadline = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _disconnect_cycles(self) -> None:
        """Let requests that run write nothing more."""
        self.pipeline.clear()
        for cycle in (self._running_cycle, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _start_head_deadline(self) -> None:
        # Not by closing, which would wait until all that was written is read.
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
    """Try it: what fails in the WebSocket itself would stay without an answer."""
    trial = ServerProtocol()
    trial.receive_data(head)
    requests = cast("list[Request]", trial.events_received())
    try:
        for request in requests:
            trial.process_request(request)
    except (InvalidHandshake, ValueError):  # the other one where there should be ASCII
        return False
    return bool(requests)


async def _answer_upgrade_required(scope: Any, _receive: Any, send: Any) -> None:
    """Answer a plain request for the WebSocket."""
    if scope["method"] in _READ_METHODS:
        status, code = HTTPStatus.UPGRADE_REQUIRED, "upgrade-required"
        detail = "here is a WebSocket of version 13; come with its handshake"
        more = {"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"}
    else:
        status, code, detail = HTTPStatus.METHOD_NOT_ALLOWED, "method-not-allowed", "not by this method"
        more = {"allow": ", ".join(_READ_METHODS)}
    if scope["scheme"] == "https":
        more["strict-transport-security"] = STRICT_TRANSPORT_SECURITY
    body = _encode_problem(status, code, detail, scope["raw_path"].decode("ascii"))
    headers = [(name.encode(), value.encode()) for name, value in {**_build_headers(body), **more}.items()]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _encode_problem(status: HTTPStatus, code: str, detail: str, instance: str = "") -> bytes:
    problem = Problem(
        type="about:blank",
        title=status.phrase,
        status=status,
        detail=detail,
        instance=instance,
        code=code,
        errors=(),
    )
    return msgspec.json.encode(problem)


def _build_headers(body: bytes) -> dict[str, str]:
    return {**SECURITY_HEADERS, "content-type": PROBLEM_MEDIA_TYPE, "content-length": str(len(body))}
