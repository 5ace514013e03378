"""Server side of a WebSocket with an echo protocol inside, and clients for it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from meshfleet.mqtt.broker.websocket import ServerWebSocket
from tests.eventually import eventually_async
from tests.mqtt.client.scripted_broker import TIMEOUT, wait_until

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Sequence

LARGEST = 1000

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\n"
    b"Host: here\r\n"
    b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n"
)


class Echo(asyncio.Protocol):
    """Protocol that sends received bytes back, and records its callbacks."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received: list[bytes] = []
        self.events: list[str] = []
        self.lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        assert self.transport is not None
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.events.append("full")

    def resume_writing(self) -> None:
        self.events.append("room")

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.events.append("lost")

    @property
    def wire(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport


class EchoServer:
    """Listener that wraps each connection in a WebSocket."""

    def __init__(self, echo: type[Echo], **settings: Any) -> None:
        self._echo = echo
        buffer = memoryview(bytearray(64 * 1024))
        self._settings = {"buffer": buffer, "max_frame_bytes": LARGEST, "timeout": TIMEOUT, **settings}
        self.port = 0
        self.echoes: list[Echo] = []
        self.sockets: list[ServerWebSocket] = []
        self.loop_errors: list[dict[str, Any]] = []
        """Uncaught exceptions that the event loop reported."""

    def create_websocket(self) -> ServerWebSocket:
        self.echoes.append(self._echo())
        self.sockets.append(ServerWebSocket(self.echoes[-1], **self._settings))
        return self.sockets[-1]

    @property
    def echo(self) -> Echo:
        """Protocol of the only client."""
        [echo] = self.echoes
        return echo


@asynccontextmanager
async def running_echo_server(
    *, tls: ssl.SSLContext | None = None, echo: type[Echo] = Echo, **settings: Any
) -> AsyncIterator[EchoServer]:
    """Listen, and check in the end that no exception has reached the event loop."""
    server = EchoServer(echo, **settings)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: server.loop_errors.append(context))
    listening_socket = narrow_socket()
    listening_socket.bind(("127.0.0.1", 0))
    server.port = listening_socket.getsockname()[1]
    listener = await loop.create_server(server.create_websocket, sock=listening_socket, ssl=tls)
    try:
        yield server
    finally:
        listener.close()
        for each in server.sockets:
            if hasattr(each, "_outside"):  # a failed TLS handshake never had a transport
                each.abort()
        await wait_until(lambda: all("lost" in each.events for each in server.echoes if each.events))
        await listener.wait_closed()
    assert server.loop_errors == []


def connect_websocket(
    server: EchoServer,
    path: str = "/mqtt",
    *,
    offers: Sequence[str] = ("mqtt",),
    **options: Any,
) -> connect:
    """Connect with the client of the websockets library."""
    return connect(
        f"{'wss' if 'ssl' in options else 'ws'}://127.0.0.1:{server.port}{path}",
        subprotocols=[Subprotocol(name) for name in offers] or None,
        proxy=None,
        **options,
    )


@asynccontextmanager
async def connect_websocket_in_time(server: EchoServer) -> AsyncIterator[ClientConnection]:
    """Connect with the client of the library; retry if the machine stalled beyond the upgrade timeout."""

    async def try_connect() -> ClientConnection | None:
        try:
            return await connect_websocket(server)
        except (OSError, InvalidHandshake):
            return None

    client = await eventually_async(try_connect, "an upgrade in time")
    async with client:
        yield client


def narrow_socket() -> socket.socket:
    """Return a socket with small buffers, so that a sender soon notices that the other side does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0x4000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0x4000)
    return sock


class RawSocket:
    """Client that sends arbitrary bytes."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = narrow_socket()
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)  # noqa: FBT003 # the signature of socket
        self.sent = 0

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._loop.sock_sendall(self.socket, data)
        self.sent += len(data)

    async def flood(self, data: bytes, *, times: int) -> None:
        """Send the same bytes repeatedly, however long it takes."""
        for _ in range(times):
            await self._loop.sock_sendall(self.socket, data)
            self.sent += len(data)

    async def read(self, count: int) -> bytes:
        """Read this many bytes, or fewer if the connection ends before."""
        received = bytearray()
        async with asyncio.timeout(TIMEOUT):
            while len(received) < count and (
                data := await self._loop.sock_recv(self.socket, count - len(received))
            ):
                received += data
        return bytes(received)

    async def read_all(self) -> bytes:
        """Read until the end of the connection. A reset is an end, too."""
        received = bytearray()
        with suppress(ConnectionResetError):
            async with asyncio.timeout(TIMEOUT):
                while data := await self._loop.sock_recv(self.socket, 0x10000):
                    received += data
        return bytes(received)

    async def upgrade(self) -> None:
        await self.send(REQUEST + b"\r\n")
        assert (await self.read_head()).startswith(b"HTTP/1.1 101 ")

    async def read_head(self) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = await self.read(1)
            assert byte, head
            head += byte
        return head


@asynccontextmanager
async def open_raw_socket(server: EchoServer) -> AsyncIterator[RawSocket]:
    """Connect with a raw socket."""
    client = RawSocket(server.port)
    try:
        yield client
    finally:
        client.socket.close()


@asynccontextmanager
async def open_upgraded_socket(server: EchoServer) -> AsyncIterator[RawSocket]:
    """Upgrade with a raw socket; retry if the machine stalled beyond the upgrade timeout."""

    async def try_connect() -> RawSocket | None:
        client = RawSocket(server.port)
        with suppress(ConnectionError):
            await client.send(REQUEST + b"\r\n")
            if await client.read(1):
                assert b"101 Switching" in await client.read_head()
                return client
        client.socket.close()
        return None

    client = await eventually_async(try_connect, "an upgrade in time")
    try:
        yield client
    finally:
        client.socket.close()


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True, masked: bool = True) -> bytes:
    """Return a frame of a client, masked with zeros so that it is always the same, or of a server."""
    unmasked = Frame(opcode, data, fin).serialize(mask=False)
    if not masked:
        return unmasked
    head = unmasked[: len(unmasked) - len(data)]
    return bytes((head[0], head[1] | 0x80)) + head[2:] + bytes(4) + data


async def receive_echo(client: ClientConnection, data: bytes) -> bytes:
    """Send bytes, and wait for as many."""
    await client.send(data)
    received = b""
    async with asyncio.timeout(TIMEOUT):
        while len(received) < len(data):
            received += cast("bytes", await client.recv())
    return received
