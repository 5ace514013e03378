"""The lasting connection to a broker.

What must survive a connection lives here: the subscriptions that were granted, the messages that were
published and not acknowledged, and the messages that were received and not fetched.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from meshfleet.errors.mqtt import ConnectionLost, LinkClosed, LinkError, SubscriptionRefused, Undelivered
from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.change_signal import ChangeSignal
from meshfleet.mqtt.client.connector import connect_to_broker
from meshfleet.mqtt.client.inbox import Inbox
from meshfleet.mqtt.client.inflight import Delivery, InFlightWindow
from meshfleet.mqtt.client.options import MqttOptions
from meshfleet.mqtt.client.reconnect import Reconnector
from meshfleet.mqtt.codec.packets import Connect, Publish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from meshfleet.mqtt.client.address import BrokerAddress
    from meshfleet.mqtt.client.connection import ClientConnection
    from meshfleet.mqtt.client.inbox import MessageBatch
    from meshfleet.mqtt.codec.packets import Will

_log = logging.getLogger(__name__)

_Response = TypeVar("_Response")

_DEFAULTS: Final = MqttOptions()

_HIGHEST_QOS: Final = 1
"""QoS 2 costs twice the packets, and who must not count twice has to recognise repetitions anyway."""

_AWAITING_BACKLOG_FACTOR: Final = 8
"""How many times its limit the backlog may grow while an answer is expected: who waits for one does not
fetch messages, and would wait for ever if we did not read on."""


class MqttClient:
    """A connection to a broker that comes back by itself.

    Use it as `async with Link(…) as link`. Entering connects, and raises what is in the way; later the link
    comes back for as long as it takes. Leaving waits until everything published is acknowledged.

    With a session that is not clean (the default) the broker keeps for us what arrives while we are away, and
    sends again what we did not acknowledge. The client id names that session: it must be our own, and stable.
    """

    __slots__ = (
        "_address",
        "_connect_packet",
        "_connection_lost_callback",
        "_held_connection",
        "_in_flight",
        "_inbox",
        "_is_session_lost",
        "_message_arrived",
        "_open_requests",
        "_options",
        "_publish_lock",
        "_reconnector",
        "_subscriptions",
    )

    def __init__(  # noqa: PLR0913 # by name
        self,
        address: BrokerAddress,
        client_id: str,
        *,
        clean: bool = False,
        will: Will | None = None,
        options: MqttOptions = _DEFAULTS,
        on_connection_lost: Callable[[ConnectionLost], None] | None = None,
    ) -> None:
        """`ended` is told of every connection that breaks."""
        password = None if address.password is None else address.password.encode()
        self._address = address
        self._connect_packet = Connect(client_id, clean, options.keep_alive, will, address.user, password)
        self._options = options
        self._reconnector = Reconnector(
            f"{client_id} to {address}", self._establish, options.backoff, self._on_reconnect_failed
        )
        self._subscriptions: dict[str, int] = {}
        self._in_flight = InFlightWindow(options.window)
        self._inbox = Inbox(single_message_batches=options.single_message_batches)
        self._connection_lost_callback = on_connection_lost
        self._publish_lock = asyncio.Lock()
        self._message_arrived = ChangeSignal()
        self._held_connection: ClientConnection | None = None
        """The connection that waits until messages are fetched."""
        self._open_requests = 0
        self._is_session_lost = False
        """The broker has lost our subscriptions. It has a session again from the next CONNECT on, which says
        nothing of whether they are in it: only a SUBACK does."""

    async def __aenter__(self) -> Self:
        await self._reconnector.start(retry_first_connect=self._options.retry_first_connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Undelivered as undelivered:
            if problem is None:
                raise
            _log.warning(
                "%s: %s", self._connect_packet.client_id, undelivered
            )  # behind the error that ended it

    # What the owner does

    @property
    def connection_error(self) -> LinkError | None:
        """Why there is no connection now, or None when there is one."""
        return self._reconnector.connection_error

    async def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Ask for the messages of these filters, and ask again whenever the broker has forgotten.

        Raises SubscriptionRefused for those that the broker does not grant with this QoS; the others hold.
        What it granted lower it sends all the same, until you unsubscribe.
        """
        if qos > _HIGHEST_QOS:
            raise MalformedPacket("SUBSCRIBE qos", f"a link takes QoS 0 and 1, not {qos}")
        wanted = [(each, qos) for each in filters]
        refused = await self._request_until_answered(lambda connection: connection.subscribe(wanted))
        self._subscriptions.update((each, qos) for each in filters if each not in refused)
        if refused:
            raise SubscriptionRefused(refused)

    async def unsubscribe(self, *filters: str) -> None:
        """Take filters back. What is on its way still arrives."""
        for each in filters:
            self._subscriptions.pop(each, None)
        await self._request_until_answered(lambda connection: connection.unsubscribe(filters))

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
        async with self._publish_lock:
            sent = 0
            while sent < len(messages) and not (
                delivery.remaining and delivery.done.done()
            ):  # given up meanwhile
                connection, room = await self._wait_for_slots()
                packets = self._in_flight.prepare(messages[sent : sent + room], delivery)
                connection.send(b"".join(packets))
                self._apply_back_pressure(connection)
                sent += len(packets)
        if delivery.remaining:
            await delivery.done
        else:
            await asyncio.sleep(0)  # a loop around QoS 0 must not keep everybody else from their turn

    async def start_publish(self, message: Publish) -> asyncio.Future[None]:
        """Let one message of QoS 1 leave as soon as it can, and return when it may have arrived.

        What comes back is done when the broker has acknowledged it; with `Options.once` it fails with
        ConnectionLost when the connection breaks before.
        """
        if message.qos != _HIGHEST_QOS:
            raise MalformedPacket("PUBLISH qos", "what is sent is acknowledged, so it is of QoS 1")
        delivery = Delivery(1, asyncio.get_running_loop().create_future())
        async with self._publish_lock:
            connection, _ = await self._wait_for_slots()
            connection.send(b"".join(self._in_flight.prepare((message,), delivery)))
            self._apply_back_pressure(connection)
        return delivery.done

    def try_publish(self, messages: Sequence[Publish]) -> int:
        """Send as many of these messages, all of QoS 1, as may leave at this moment; gives how many that is.

        For those who publish a little on each of thousands of links: nobody waits, and nothing is told. What
        has left is treated like anything else that has. It may be none at all: then the
        network, the window, or somebody who publishes in order is in the way; `ready` waits for that.
        """
        connection, room = self._reconnector.connection, self._in_flight.free_slots
        if (
            not messages
            or connection is None
            or not room
            or not connection.is_writable
            or self._publish_lock.locked()
            or self._reconnector.is_closing
        ):
            return 0
        packets = self._in_flight.prepare(messages[:room], None)
        connection.send(b"".join(packets))
        return len(packets)

    async def wait_writable(self) -> None:
        """Wait until something can be posted."""
        async with self._publish_lock:
            await self._wait_for_slots()

    async def receive(self) -> MessageBatch:
        """Everything that has arrived since the last call, or the first that does. Acknowledge it.

        Raises LinkClosed once the link is closed and nothing is left to fetch.
        """
        while not self._inbox:
            self._reconnector.check_open()
            await self._message_arrived.wait()
        batch = self._inbox.pop()
        if self._held_connection is not None:
            self._apply_back_pressure(self._held_connection)
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageBatch:
        try:
            return await self.receive()
        except LinkClosed:
            if self._reconnector.is_closing:
                raise StopAsyncIteration from None
            raise

    async def close(self) -> None:
        """Wait until all that has left is acknowledged, and take leave. Publishers who wait are refused.

        Raises Undelivered when the broker does not acknowledge in time. What was received and not
        acknowledged stays with the broker, which sends it again when the session goes on.
        """
        self._reconnector.is_closing = True
        self._wake_waiters()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.timeout):
                    while self._in_flight and self._reconnector.can_reconnect:
                        await self._reconnector.changed.wait()
        finally:
            try:
                if connection := await self._reconnector.stop():
                    await connection.disconnect(self._options.timeout)
            finally:
                left = len(self._in_flight)
                self._in_flight.fail_all(Undelivered(left))
        if left:
            raise Undelivered(left)

    async def abort(self) -> None:
        """Go without a word, as a program that crashes: what is not acknowledged is lost, or sent twice."""
        self._reconnector.is_closing = True
        self._wake_waiters()
        if connection := await self._reconnector.stop():
            connection.fail("the link was abandoned")
        self._in_flight.fail_all(LinkClosed("the link was abandoned"))

    # What the connection tells

    def on_messages(self, connection: ClientConnection, messages: list[Publish], size: int) -> None:
        """Keep them until they are fetched, and let the network wait when they are too many."""
        self._inbox.put(messages, size, connection.ack_queue)
        self._message_arrived.notify()
        self._apply_back_pressure(connection)

    def on_pubacks(self, packet_ids: Sequence[int]) -> None:
        """Forget them, and wake whoever waits for room."""
        if self._in_flight.acknowledge(packet_ids):
            self._reconnector.changed.notify()

    def on_writable(self) -> None:
        """Wake whoever waits for it."""
        self._reconnector.changed.notify()

    def on_connection_lost(self, connection: ClientConnection, reason: ConnectionLost) -> None:
        """Come back."""
        if self._options.discard_on_disconnect:
            given_up, self._in_flight = self._in_flight, InFlightWindow(self._options.window)
            given_up.fail_all(reason)
        self._reconnector.on_connection_lost(connection, reason)
        if self._connection_lost_callback is not None:
            self._connection_lost_callback(reason)

    # Inside

    def _on_reconnect_failed(self, defect: LinkClosed) -> None:
        self._in_flight.fail_all(defect)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._reconnector.changed.notify()
        self._message_arrived.notify()

    async def _wait_for_slots(self) -> tuple[ClientConnection, int]:
        """The connection and how many messages it may take, as soon as that is any."""
        while True:
            connection = await self._reconnector.wait_connected()
            if connection.is_writable and (room := self._in_flight.free_slots):
                return connection, room
            await self._reconnector.changed.wait()

    def _apply_back_pressure(self, connection: ClientConnection) -> None:
        """Let the network wait while too much waits to be fetched."""
        expecting = self._in_flight or self._open_requests
        if self._inbox.size > self._options.backlog * (_AWAITING_BACKLOG_FACTOR if expecting else 1):
            if expecting and connection is not self._held_connection:
                _log.warning(
                    "%s has too much to fetch: answers wait behind it", self._connect_packet.client_id
                )
            connection.hold_reading()
            self._held_connection = connection
        else:
            connection.release_reading()
            self._held_connection = None

    async def _request_until_answered(
        self, request: Callable[[ClientConnection], Awaitable[_Response]]
    ) -> _Response:
        """Ask until there is an answer, on the next connection if need be."""
        while True:
            connection = await self._reconnector.wait_connected()
            with suppress(ConnectionLost):
                return await self._request(connection, request)

    async def _request(
        self, connection: ClientConnection, request: Callable[[ClientConnection], Awaitable[_Response]]
    ) -> _Response:
        self._open_requests += 1
        self._apply_back_pressure(connection)
        try:
            async with asyncio.timeout(self._options.timeout):
                return await request(connection)
        except TimeoutError:
            raise connection.fail("the broker does not answer a subscription") from None
        finally:
            self._open_requests -= 1

    async def _establish(self) -> ClientConnection:
        """Connect, subscribe again if the broker has forgotten, and send again what is on its way."""
        connection, answer = await connect_to_broker(self._address, self._connect_packet, self, self._options)
        try:
            self._is_session_lost |= not answer.session_present
            if self._is_session_lost and self._subscriptions:
                await self._resubscribe(connection)
            self._is_session_lost = False
            connection.check_open()
        except BaseException:
            connection.abort()
            raise
        if self._in_flight:
            connection.send(b"".join(self._in_flight.resend_packets()))
        return connection

    async def _resubscribe(self, connection: ClientConnection) -> None:
        if not self._connect_packet.clean:
            _log.warning("%s has forgotten the session of %s", self._address, self._connect_packet.client_id)
        wanted = list(self._subscriptions.items())
        refused = await self._request(connection, lambda connection: connection.subscribe(wanted))
        if refused:
            raise SubscriptionRefused(refused)
