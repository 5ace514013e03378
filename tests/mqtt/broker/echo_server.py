"""The server's side of a WebSocket in front of a connection that echoes, and clients that come to it."""

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
    """Gives back what it gets, and remembers what it was told."""

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
    """Where clients come in."""

    def __init__(self, echo: type[Echo], **settings: Any) -> None:
        self._echo = echo
        buffer = memoryview(bytearray(64 * 1024))
        self._settings = {"buffer": buffer, "max_frame_bytes": LARGEST, "timeout": TIMEOUT, **settings}
        self.port = 0
        self.echoes: list[Echo] = []
        self.sockets: list[ServerWebSocket] = []
        self.loop_errors: list[dict[str, Any]] = []
        """What the event loop had to say of exceptions that nobody caught."""

    def create_websocket(self) -> ServerWebSocket:
        self.echoes.append(self._echo())
        self.sockets.append(ServerWebSocket(self.echoes[-1], **self._settings))
        return self.sockets[-1]

    @property
    def echo(self) -> Echo:
        """What serves the only client."""
        [echo] = self.echoes
        return echo


@asynccontextmanager
async def running_echo_server(
    *, tls: ssl.SSLContext | None = None, echo: type[Echo] = Echo, **settings: Any
) -> AsyncIterator[EchoServer]:
    """Listen, and see that in the end no exception has reached the event loop."""
    here = EchoServer(echo, **settings)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: here.loop_errors.append(context))
    listening = narrow_socket()
    listening.bind(("127.0.0.1", 0))
    here.port = listening.getsockname()[1]
    server = await loop.create_server(here.create_websocket, sock=listening, ssl=tls)
    try:
        yield here
    finally:
        server.close()
        for each in here.sockets:
            if hasattr(each, "_outside"):  # one of TLS that was not agreed on never had anything below
                each.abort()
        await wait_until(lambda: all("lost" in each.events for each in here.echoes if each.events))
        await server.wait_closed()
    assert here.loop_errors == []


def connect_websocket(
    here: EchoServer,
    path: str = "/mqtt",
    *,
    offers: Sequence[str] = ("mqtt",),
    **options: Any,
) -> connect:
    """Come in with the client of the library."""
    return connect(
        f"{'wss' if 'ssl' in options else 'ws'}://127.0.0.1:{here.port}{path}",
        subprotocols=[Subprotocol(name) for name in offers] or None,
        proxy=None,
        **options,
    )


@asynccontextmanager
async def connect_websocket_in_time(here: EchoServer) -> AsyncIterator[ClientConnection]:
    """Come in with the client of the library; again if the machine stalled for longer than the door waits."""

    async def come() -> ClientConnection | None:
        try:
            return await connect_websocket(here)
        except (OSError, InvalidHandshake):
            return None

    client = await eventually_async(come, "an upgrade in time")
    async with client:
        yield client


def narrow_socket() -> socket.socket:
    """A socket with little room, so that who sends soon feels that the other does not read."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0x4000)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0x4000)
    return narrow


class RawSocket:
    """A client that says whatever a test likes."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.socket = narrow_socket()
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)  # noqa: FBT003 # a socket's own way
        self.sent = 0

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._loop.sock_sendall(self.socket, data)
        self.sent += len(data)

    async def flood(self, data: bytes, *, times: int) -> None:
        """Send the same again and again, however long it takes."""
        for _ in range(times):
            await self._loop.sock_sendall(self.socket, data)
            self.sent += len(data)

    async def read(self, count: int) -> bytes:
        """So many bytes, or less if there is an end before."""
        got = bytearray()
        async with asyncio.timeout(TIMEOUT):
            while len(got) < count and (data := await self._loop.sock_recv(self.socket, count - len(got))):
                got += data
        return bytes(got)

    async def read_all(self) -> bytes:
        """What there is until the end. A reset is an end, too."""
        got = bytearray()
        with suppress(ConnectionResetError):
            async with asyncio.timeout(TIMEOUT):
                while data := await self._loop.sock_recv(self.socket, 0x10000):
                    got += data
        return bytes(got)

    async def upgrade(self) -> None:
        await self.send(REQUEST + b"\r\n")
        assert (await self.read_head()).startswith(b"HTTP/1.1 101 ")

    async def read_head(self) -> bytes:
        got = b""
        while not got.endswith(b"\r\n\r\n"):
            byte = await self.read(1)
            assert byte, got
            got += byte
        return got


@asynccontextmanager
async def open_raw_socket(here: EchoServer) -> AsyncIterator[RawSocket]:
    """Come in with a bare socket."""
    client = RawSocket(here.port)
    try:
        yield client
    finally:
        client.socket.close()


@asynccontextmanager
async def open_upgraded_socket(here: EchoServer) -> AsyncIterator[RawSocket]:
    """Upgrade with a bare socket; again if the machine stalled for longer than the door waits."""

    async def come() -> RawSocket | None:
        client = RawSocket(here.port)
        with suppress(ConnectionError):
            await client.send(REQUEST + b"\r\n")
            if await client.read(1):
                assert b"101 Switching" in await client.read_head()
                return client
        client.socket.close()
        return None

    client = await eventually_async(come, "an upgrade in time")
    try:
        yield client
    finally:
        client.socket.close()


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True, masked: bool = True) -> bytes:
    """A frame of a client, the same every time: its mask is of zeros. Or of a server, which has none."""
    plain = Frame(opcode, data, fin).serialize(mask=False)
    if not masked:
        return plain
    head = plain[: len(plain) - len(data)]
    return bytes((head[0], head[1] | 0x80)) + head[2:] + bytes(4) + data


async def receive_echo(client: ClientConnection, data: bytes) -> bytes:
    """Send bytes, and wait for as many."""
    await client.send(data)
    got = b""
    async with asyncio.timeout(TIMEOUT):
        while len(got) < len(data):
            got += cast("bytes", await client.recv())
    return got
