"""The way between a link and a broker, on the loopback interface: it can be cut and stalled, and remembers.

Tests that look only at the ends of the way find here how to wait for what comes out of it.
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
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS
from meshfleet.mqtt.codec.parser import PacketParser
from tests.eventually import RETRY_TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from meshfleet.mqtt.client import Publish
    from meshfleet.mqtt.codec.packets import Packet
    from tests.servers import ServerAddress as Place

    _Kind = TypeVar("_Kind", bound=Packet)

TIMEOUT: Final = 40.0
"""Seconds until what a test waits for must have happened; reached only when something is broken."""

FAST_RECONNECT: Final = MqttOptions(backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
"""A link that comes back as soon as it can."""

_PIECE: Final = 0x1_0000


class Cut(NamedTuple):
    """Where a connection ends: behind so many bytes of the link, or so many of the broker."""

    up: int | None = None
    down: int | None = None


class ProxiedConnection:
    """One connection on its way through the proxy."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.up = bytearray()
        """What the link said and the broker got."""
        self.down = bytearray()
        """What the broker said and the link got."""
        self.over = False

    def client_packets(self, kind: type[_Kind]) -> list[_Kind]:
        """The packets of a kind that the broker got."""
        return [
            packet for packet in PacketParser(FROM_CLIENTS).feed(bytes(self.up)) if isinstance(packet, kind)
        ]

    def broker_packets(self, kind: type[_Kind]) -> list[_Kind]:
        """The packets of a kind that the link got."""
        return [
            packet for packet in PacketParser(FROM_SERVERS).feed(bytes(self.down)) if isinstance(packet, kind)
        ]


class Proxy:
    """Passes bytes on in both directions. Use it as `async with`, and give its address to the link."""

    def __init__(self, broker: Place) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0)
        host, port = self._listener.getsockname()
        self.address = BrokerAddress(host=host, port=port)
        """Where the broker seems to be."""
        self._cuts: deque[Cut] = deque()
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._changed = ChangeSignal()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: list[ProxiedConnection] = []
        self.resume()

    async def __aenter__(self) -> Self:
        self._own(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        await self._end(self._tasks)

    def plan(self, *cuts: Cut) -> None:
        """Cut the connections that come next, the first of them here, the second there."""
        self._cuts.extend(cuts)

    @property
    def planned(self) -> int:
        """How many cuts are still to come."""
        return len(self._cuts)

    async def cut(self) -> None:
        """End all connections now, between two packets or not. What was held up is lost."""
        await self._end({task for task in self._tasks if task.get_name() == "passage"})

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Hold up what is said from now on; connections stay, and new ones are accepted."""
        for gate, stalled in ((self._up, up), (self._down, down)):
            if stalled:
                gate.clear()

    def resume(self) -> None:
        """Let pass what was held up."""
        self._up.set()
        self._down.set()

    async def until(self, happened: Callable[[], object]) -> None:
        """Wait for something that bytes on their way, or the end of a passage, bring about."""
        async with asyncio.timeout(TIMEOUT):
            while not happened():
                await self._changed.wait()

    def _own(self, work: Coroutine[None, None, None], name: str | None = None) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        self._tasks -= tasks
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listener)
            passage = ProxiedConnection(self._cuts.popleft() if self._cuts else Cut())
            self.connections.append(passage)
            self._changed.notify()
            self._own(self._pass(passage, near), "passage")

    async def _pass(self, passage: ProxiedConnection, near: socket.socket) -> None:
        with near, socket.socket() as far:
            near.settimeout(0)
            far.settimeout(0)
            try:
                await asyncio.get_running_loop().sock_connect(far, self._broker)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(near, far, self._up, passage.up, passage.cut.up))
                    both.create_task(self._answer(far, near, passage))
            except* OSError:
                pass  # One end is gone, or never was there: no reason to keep the other.
            finally:
                # A cancelled sock_recv gives up its file number one turn later: not while another has it.
                await asyncio.sleep(0)
                passage.over = True
                self._changed.notify()

    async def _answer(self, far: socket.socket, near: socket.socket, passage: ProxiedConnection) -> None:
        await self._pump(far, near, self._down, passage.down, passage.cut.down)
        raise ConnectionAbortedError  # The link may fall silent and listen on; the broker ends what it ends.

    async def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        gate: asyncio.Event,
        record: bytearray,
        cut: int | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, _PIECE):
            await gate.wait()
            passed = data if cut is None else data[: cut - len(record)]
            await loop.sock_sendall(target, passed)
            record += passed
            self._changed.notify()
            if len(record) == cut:
                raise ConnectionAbortedError
        await gate.wait()
        target.shutdown(socket.SHUT_WR)


def to_address(broker: Place) -> BrokerAddress:
    """A broker's place as the address of a link."""
    return BrokerAddress(host=broker.host, port=broker.port)


async def impatient_link(there: BrokerAddress, options: MqttOptions = FAST_RECONNECT) -> MqttClient:
    """Connect a link that soon gives up waiting for its broker; its connection is the proxy's latest.

    The same limit holds for connecting, and a machine may stall until it is over: then the next one is tried.
    """
    for limit in RETRY_TIMEOUTS:
        try:
            return await MqttClient(
                there, unique_name("c"), options=replace(options, timeout=limit)
            ).__aenter__()
        except BrokerUnreachable:
            continue
    raise AssertionError(f"no link was connected within {RETRY_TIMEOUTS[-1]:g} s")


def unique_name(name: str) -> str:
    """A client id or topic that nobody used before."""
    return f"{name}-{uuid4()}"


async def receive_messages(link: MqttClient, count: int) -> list[Publish]:
    """The next messages, acknowledged. More than expected would be repetitions, or strangers."""
    messages: list[Publish] = []
    async with asyncio.timeout(TIMEOUT):
        while len(messages) < count:
            batch = await link.receive()
            batch.acknowledge()
            messages += batch.messages
    assert len(messages) == count
    return messages


async def receive_messages_until(link: MqttClient, last: bytes) -> list[Publish]:
    """What comes before the message with this payload, acknowledged; nothing has come behind it."""
    messages: list[Publish] = []
    async with asyncio.timeout(TIMEOUT):
        while not messages or messages[-1].payload != last:
            batch = await link.receive()
            batch.acknowledge()
            messages += batch.messages
    return messages[:-1]
