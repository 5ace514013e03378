"""TCP proxy between a client and a broker on the loopback interface: it can cut and stall, and records.

It also has helpers for tests that look only at received messages.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from meshfleet.errors.mqtt import BrokerUnreachable
from meshfleet.mqtt.change_signal import ChangeSignal
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions, Publish
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS
from meshfleet.mqtt.codec.parser import PacketParser
from tests.eventually import RETRY_TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from meshfleet.mqtt.codec.packets import Packet
    from tests.servers import ServerAddress

    _Kind = TypeVar("_Kind", bound=Packet)

TIMEOUT: Final = 40.0
"""Seconds within which an expected event must happen; reached only in a failing test."""

FAST_RECONNECT: Final = MqttOptions(backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
"""Options of a client that reconnects as soon as it can."""

_READ_BYTES: Final = 0x1_0000


class Cut(NamedTuple):
    """Position at which a connection ends: after this many bytes of the client, or of the broker."""

    up: int | None = None
    down: int | None = None


class ProxiedConnection:
    """One connection through the proxy."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.up = bytearray()
        """Bytes that the client sent and the broker received."""
        self.down = bytearray()
        """Bytes that the broker sent and the client received."""
        self.over = False

    def client_packets(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the packets of a type that the broker received."""
        return [
            packet for packet in PacketParser(FROM_CLIENTS).feed(bytes(self.up)) if isinstance(packet, kind)
        ]

    def broker_packets(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the packets of a type that the client received."""
        return [
            packet for packet in PacketParser(FROM_SERVERS).feed(bytes(self.down)) if isinstance(packet, kind)
        ]


class Proxy:
    """Proxy that forwards bytes in both directions. Use it with `async with`, and connect to its address."""

    def __init__(self, broker: ServerAddress) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0)
        host, port = self._listener.getsockname()
        self.address = BrokerAddress(host=host, port=port)
        """Address that stands for the broker."""
        self._cuts: deque[Cut] = deque()
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._changed = ChangeSignal()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: list[ProxiedConnection] = []
        self.resume()

    async def __aenter__(self) -> Self:
        self._start_task(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        await self._cancel_tasks(self._tasks)

    def plan(self, *cuts: Cut) -> None:
        """Cut the next connections, each at its position."""
        self._cuts.extend(cuts)

    @property
    def planned(self) -> int:
        """Number of cuts still to come."""
        return len(self._cuts)

    async def cut(self) -> None:
        """End all connections now, between two packets or not. Stalled bytes are lost."""
        await self._cancel_tasks({task for task in self._tasks if task.get_name() == "connection"})

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Hold bytes back from now on; connections stay open, and new ones are accepted."""
        for gate, stalled in ((self._up, up), (self._down, down)):
            if stalled:
                gate.clear()

    def resume(self) -> None:
        """Forward the bytes that were held back."""
        self._up.set()
        self._down.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition that forwarded bytes or the end of a connection bring about."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                await self._changed.wait()

    def _start_task(self, coroutine: Coroutine[None, None, None], name: str | None = None) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)

    async def _cancel_tasks(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        self._tasks -= tasks
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client_socket, _ = await loop.sock_accept(self._listener)
            connection = ProxiedConnection(self._cuts.popleft() if self._cuts else Cut())
            self.connections.append(connection)
            self._changed.notify()
            self._start_task(self._forward(connection, client_socket), "connection")

    async def _forward(self, connection: ProxiedConnection, client_socket: socket.socket) -> None:
        with client_socket, socket.socket() as broker_socket:
            client_socket.settimeout(0)
            broker_socket.settimeout(0)
            try:
                await asyncio.get_running_loop().sock_connect(broker_socket, self._broker)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(
                        self._pump(client_socket, broker_socket, self._up, connection.up, connection.cut.up)
                    )
                    tasks.create_task(self._forward_down(broker_socket, client_socket, connection))
            except* OSError:
                pass  # one side closed or never connected: close the other
            finally:
                # A canceled sock_recv releases its file descriptor one loop iteration later.
                await asyncio.sleep(0)
                connection.over = True
                self._changed.notify()

    async def _forward_down(
        self, broker_socket: socket.socket, client_socket: socket.socket, connection: ProxiedConnection
    ) -> None:
        await self._pump(broker_socket, client_socket, self._down, connection.down, connection.cut.down)
        raise ConnectionAbortedError  # a close of the broker ends both directions, unlike one of the client

    async def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        gate: asyncio.Event,
        record: bytearray,
        cut: int | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, _READ_BYTES):
            await gate.wait()
            forwarded = data if cut is None else data[: cut - len(record)]
            await loop.sock_sendall(target, forwarded)
            record += forwarded
            self._changed.notify()
            if len(record) == cut:
                raise ConnectionAbortedError
        await gate.wait()
        target.shutdown(socket.SHUT_WR)


def to_address(server: ServerAddress) -> BrokerAddress:
    """Convert the address of a server to the address of a broker."""
    return BrokerAddress(host=server.host, port=server.port)


async def connect_with_short_timeout(
    address: BrokerAddress, options: MqttOptions = FAST_RECONNECT
) -> MqttClient:
    """Connect a client with a short timeout; its connection is the last one of the proxy.

    The timeout applies to connecting as well, and a slow machine may exceed it: then the next one is tried.
    """
    for timeout in RETRY_TIMEOUTS:
        try:
            return await MqttClient(
                address, unique_name("c"), options=replace(options, timeout=timeout)
            ).__aenter__()
        except BrokerUnreachable:
            continue
    raise AssertionError(f"no client connected within {RETRY_TIMEOUTS[-1]:g} s")


def unique_name(name: str) -> str:
    """Return a client id or topic that was not used before."""
    return f"{name}-{uuid4()}"


async def receive_messages(client: MqttClient, count: int) -> list[Publish]:
    """Receive and acknowledge exactly this many messages."""
    messages: list[Publish] = []
    async with asyncio.timeout(TIMEOUT):
        while len(messages) < count:
            batch = await client.receive()
            batch.acknowledge()
            messages += batch.messages
    assert len(messages) == count
    return messages


async def receive_messages_until(client: MqttClient, last: bytes) -> list[Publish]:
    """Receive and acknowledge messages until this payload; return those before it. None may follow."""
    messages: list[Publish] = []
    async with asyncio.timeout(TIMEOUT):
        while not messages or messages[-1].payload != last:
            batch = await client.receive()
            batch.acknowledge()
            messages += batch.messages
    return messages[:-1]
