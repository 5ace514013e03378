"""The lasting connection to a broker.

What must survive a connection lives here: the subscriptions that were granted, the messages that were
published and not acknowledged, and the messages that were received and not fetched.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from meshfleet.errors import (
    ConnectionLost,
    LinkClosed,
    LinkError,
    MalformedPacket,
    SubscriptionRefused,
    Undelivered,
)
from meshfleet.link.bell import Bell
from meshfleet.link.dial import dial
from meshfleet.link.flight import Delivery, Flight
from meshfleet.link.inbox import Inbox
from meshfleet.link.keeper import Keeper
from meshfleet.link.options import Options
from meshfleet.wire.mqtt.packets import Connect, Publish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from meshfleet.link.address import Address
    from meshfleet.link.connection import Connection
    from meshfleet.link.inbox import Batch
    from meshfleet.wire.mqtt.packets import Will

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_DEFAULTS: Final = Options()

_HIGHEST_QOS: Final = 1
"""QoS 2 costs twice the packets, and who must not count twice has to recognise repetitions anyway."""

_STRETCH: Final = 8
"""How many times its limit the backlog may grow while an answer is expected: who waits for one does not
fetch messages, and would wait for ever if we did not read on."""


class Link:
    """A connection to a broker that comes back by itself.

    Use it as `async with Link(…) as link`. Entering connects, and raises what is in the way; later the link
    comes back for as long as it takes. Leaving waits until everything published is acknowledged.

    With a session that is not clean (the default) the broker keeps for us what arrives while we are away, and
    sends again what we did not acknowledge. The client id names that session: it must be our own, and stable.
    """

    __slots__ = (
        "_address",
        "_arrived",
        "_asking",
        "_connect",
        "_ended",
        "_flight",
        "_forgotten",
        "_granted",
        "_held",
        "_inbox",
        "_keeper",
        "_options",
        "_turn",
    )

    def __init__(  # noqa: PLR0913 # by name
        self,
        address: Address,
        client_id: str,
        *,
        clean: bool = False,
        will: Will | None = None,
        options: Options = _DEFAULTS,
        ended: Callable[[ConnectionLost], None] | None = None,
    ) -> None:
        """`ended` is told of every connection that breaks."""
        password = None if address.password is None else address.password.encode()
        self._address = address
        self._connect = Connect(client_id, clean, options.keep_alive, will, address.user, password)
        self._options = options
        self._keeper = Keeper(f"{client_id} to {address}", self._establish, options.delays, self._broken)
        self._granted: dict[str, int] = {}
        self._flight = Flight(options.window)
        self._inbox = Inbox(one_by_one=options.one_by_one)
        self._ended = ended
        self._turn = asyncio.Lock()
        self._arrived = Bell()
        self._held: Connection | None = None
        """The connection that waits until messages are fetched."""
        self._asking = 0
        self._forgotten = False
        """The broker has lost our subscriptions. It has a session again from the next CONNECT on, which says
        nothing of whether they are in it: only a SUBACK does."""

    async def __aenter__(self) -> Self:
        await self._keeper.begin(patient=self._options.patient)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Undelivered as undelivered:
            if problem is None:
                raise
            _log.warning("%s: %s", self._connect.client_id, undelivered)  # behind the error that ended it

    # What the owner does

    @property
    def trouble(self) -> LinkError | None:
        """Why there is no connection now, or None when there is one."""
        return self._keeper.trouble

    async def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Ask for the messages of these filters, and ask again whenever the broker has forgotten.

        Raises SubscriptionRefused for those that the broker does not grant with this QoS; the others hold.
        What it granted lower it sends all the same, until you unsubscribe.
        """
        if qos > _HIGHEST_QOS:
            raise MalformedPacket("SUBSCRIBE qos", f"a link takes QoS 0 and 1, not {qos}")
        wanted = [(each, qos) for each in filters]
        refused = await self._insist(lambda connection: connection.subscribe(wanted))
        self._granted.update((each, qos) for each in filters if each not in refused)
        if refused:
            raise SubscriptionRefused(refused)

    async def unsubscribe(self, *filters: str) -> None:
        """Take filters back. What is on its way still arrives."""
        for each in filters:
            self._granted.pop(each, None)
        await self._insist(lambda connection: connection.unsubscribe(filters))

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish one message: see `publish_all`, which costs less for many."""
        await self.publish_all((Publish(topic, payload, qos, retain),))

    async def publish_all(self, messages: Sequence[Publish]) -> None:
        """Publish messages in their order; at QoS 1, return when the broker has acknowledged them all.

        Waits while there is no connection or no room. What has left is sent again on the next connection
        until it is acknowledged, even if the caller has been cancelled, unless `Options.once` says otherwise.
        If a message is malformed, those in front of it may have left. Packet ids and dup marks are the link's
        own.
        """
        levels = [message.qos for message in messages]
        if max(levels, default=0) > _HIGHEST_QOS:
            raise MalformedPacket("PUBLISH qos", "a link takes QoS 0 and 1")
        delivery = Delivery(sum(levels), asyncio.get_running_loop().create_future())
        async with self._turn:
            sent = 0
            while sent < len(messages) and not (delivery.left and delivery.done.done()):  # given up meanwhile
                connection, room = await self._room()
                packets = self._flight.launch(messages[sent : sent + room], delivery)
                connection.send(b"".join(packets))
                self._balance(connection)
                sent += len(packets)
        if delivery.left:
            await delivery.done
        else:
            await asyncio.sleep(0)  # a loop around QoS 0 must not keep everybody else from their turn

    async def send(self, message: Publish) -> asyncio.Future[None]:
        """Let one message of QoS 1 leave as soon as it can, and return when it may have arrived.

        What comes back is done when the broker has acknowledged it; with `Options.once` it fails with
        ConnectionLost when the connection breaks before.
        """
        if message.qos != _HIGHEST_QOS:
            raise MalformedPacket("PUBLISH qos", "what is sent is acknowledged, so it is of QoS 1")
        delivery = Delivery(1, asyncio.get_running_loop().create_future())
        async with self._turn:
            connection, _ = await self._room()
            connection.send(b"".join(self._flight.launch((message,), delivery)))
            self._balance(connection)
        return delivery.done

    def post(self, messages: Sequence[Publish]) -> int:
        """Send as many of these messages, all of QoS 1, as may leave at this moment; gives how many that is.

        For those who publish a little on each of thousands of links: nobody waits, and nothing is told. What
        has left is treated like anything else that has. It may be none at all: then the
        network, the window, or somebody who publishes in order is in the way; `ready` waits for that.
        """
        connection, room = self._keeper.connection, self._flight.room
        if (
            not messages
            or connection is None
            or not room
            or not connection.writable
            or self._turn.locked()
            or self._keeper.closing
        ):
            return 0
        packets = self._flight.launch(messages[:room], None)
        connection.send(b"".join(packets))
        return len(packets)

    async def ready(self) -> None:
        """Wait until something can be posted."""
        async with self._turn:
            await self._room()

    async def receive(self) -> Batch:
        """Everything that has arrived since the last call, or the first that does. Acknowledge it.

        Raises LinkClosed once the link is closed and nothing is left to fetch.
        """
        while not self._inbox:
            self._keeper.check_open()
            await self._arrived.wait()
        batch = self._inbox.fetch()
        if self._held is not None:
            self._balance(self._held)
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        try:
            return await self.receive()
        except LinkClosed:
            if self._keeper.closing:
                raise StopAsyncIteration from None
            raise

    async def close(self) -> None:
        """Wait until all that has left is acknowledged, and take leave. Publishers who wait are refused.

        Raises Undelivered when the broker does not acknowledge in time. What was received and not
        acknowledged stays with the broker, which sends it again when the session goes on.
        """
        self._keeper.closing = True
        self._rouse()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.patience):
                    while self._flight and self._keeper.hopeful:
                        await self._keeper.changed.wait()
        finally:
            try:
                if connection := await self._keeper.let_go():
                    await connection.leave(self._options.patience)
            finally:
                left = len(self._flight)
                self._flight.give_up(Undelivered(left))
        if left:
            raise Undelivered(left)

    async def abandon(self) -> None:
        """Go without a word, as a program that crashes: what is not acknowledged is lost, or sent twice."""
        self._keeper.closing = True
        self._rouse()
        if connection := await self._keeper.let_go():
            connection.fail("the link was abandoned")
        self._flight.give_up(LinkClosed("the link was abandoned"))

    # What the connection tells

    def messages_came(self, connection: Connection, messages: list[Publish], size: int) -> None:
        """Keep them until they are fetched, and let the network wait when they are too many."""
        self._inbox.put(messages, size, connection.acks)
        self._arrived.ring()
        self._balance(connection)

    def publishes_landed(self, packet_ids: Sequence[int]) -> None:
        """Forget them, and wake whoever waits for room."""
        if self._flight.land(packet_ids):
            self._keeper.changed.ring()

    def room_came(self) -> None:
        """Wake whoever waits for it."""
        self._keeper.changed.ring()

    def connection_ended(self, connection: Connection, reason: ConnectionLost) -> None:
        """Come back."""
        if self._options.once:
            given_up, self._flight = self._flight, Flight(self._options.window)
            given_up.give_up(reason)
        self._keeper.lose(connection, reason)
        if self._ended is not None:
            self._ended(reason)

    # Inside

    def _broken(self, defect: LinkClosed) -> None:
        self._flight.give_up(defect)
        self._rouse()

    def _rouse(self) -> None:
        self._keeper.changed.ring()
        self._arrived.ring()

    async def _room(self) -> tuple[Connection, int]:
        """The connection and how many messages it may take, as soon as that is any."""
        while True:
            connection = await self._keeper.up()
            if connection.writable and (room := self._flight.room):
                return connection, room
            await self._keeper.changed.wait()

    def _balance(self, connection: Connection) -> None:
        """Let the network wait while too much waits to be fetched."""
        expecting = self._flight or self._asking
        if self._inbox.size > self._options.backlog * (_STRETCH if expecting else 1):
            if expecting and connection is not self._held:
                _log.warning("%s has too much to fetch: answers wait behind it", self._connect.client_id)
            connection.hold()
            self._held = connection
        else:
            connection.release()
            self._held = None

    async def _insist(self, question: Callable[[Connection], Awaitable[_Answer]]) -> _Answer:
        """Ask until there is an answer, on the next connection if need be."""
        while True:
            connection = await self._keeper.up()
            with suppress(ConnectionLost):
                return await self._ask(connection, question)

    async def _ask(
        self, connection: Connection, question: Callable[[Connection], Awaitable[_Answer]]
    ) -> _Answer:
        self._asking += 1
        self._balance(connection)
        try:
            async with asyncio.timeout(self._options.patience):
                return await question(connection)
        except TimeoutError:
            raise connection.fail("the broker does not answer a subscription") from None
        finally:
            self._asking -= 1

    async def _establish(self) -> Connection:
        """Connect, subscribe again if the broker has forgotten, and send again what is on its way."""
        connection, answer = await dial(self._address, self._connect, self, self._options)
        try:
            self._forgotten |= not answer.session_present
            if self._forgotten and self._granted:
                await self._subscribe_again(connection)
            self._forgotten = False
            connection.check()
        except BaseException:
            connection.abort()
            raise
        if self._flight:
            connection.send(b"".join(self._flight.again()))
        return connection

    async def _subscribe_again(self, connection: Connection) -> None:
        if not self._connect.clean:
            _log.warning("%s has forgotten the session of %s", self._address, self._connect.client_id)
        wanted = list(self._granted.items())
        refused = await self._ask(connection, lambda connection: connection.subscribe(wanted))
        if refused:
            raise SubscriptionRefused(refused)
