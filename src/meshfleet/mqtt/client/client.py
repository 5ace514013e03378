"""MQTT client that outlives its connections.

The client holds the state that must survive a lost connection: the granted subscriptions, the published
messages without acknowledgement, and the received messages that the application has not fetched.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from meshfleet.errors.mqtt import (
    ConnectionClosed,
    ConnectionLost,
    MqttError,
    SubscriptionRefused,
    Undelivered,
)
from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.change_signal import ChangeSignal
from meshfleet.mqtt.client.connector import connect_to_broker
from meshfleet.mqtt.client.inbox import Inbox, MessageBatch
from meshfleet.mqtt.client.inflight import Delivery, InFlightWindow
from meshfleet.mqtt.client.options import MqttOptions
from meshfleet.mqtt.client.reconnect import Reconnector
from meshfleet.mqtt.codec.packets import Connect, Publish, Will

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from meshfleet.mqtt.client.address import BrokerAddress
    from meshfleet.mqtt.client.connection import ClientConnection

_log = logging.getLogger(__name__)

_Response = TypeVar("_Response")

_DEFAULTS: Final = MqttOptions()

_HIGHEST_QOS: Final = 1
"""Highest QoS that the client supports. QoS 2 takes twice the packets, and applications must detect repeated
messages anyway."""

_AWAITING_BACKLOG_FACTOR: Final = 8
"""Factor by which unfetched messages may exceed `MqttOptions.backlog` while a response of the broker is
expected. A caller that waits for a response does not fetch messages, and would wait forever if reading
stopped."""


class MqttClient:
    """MQTT client that reconnects by itself.

    Use the client as `async with MqttClient(…) as client`. Entering connects, and raises the error if the
    connection fails; later the client reconnects for as long as it takes. Leaving waits until every published
    message is acknowledged.

    With a session that is not clean (the default) the broker queues messages while the client is
    disconnected, and resends those that were not acknowledged. The client id identifies that session: it must
    be unique and stable.
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

    def __init__(  # noqa: PLR0913 # keyword-only options
        self,
        address: BrokerAddress,
        client_id: str,
        *,
        clean: bool = False,
        will: Will | None = None,
        options: MqttOptions = _DEFAULTS,
        on_connection_lost: Callable[[ConnectionLost], None] | None = None,
    ) -> None:
        """`on_connection_lost` is called with the reason whenever a connection breaks."""
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
        """Connection that the client does not read from until the application fetches messages, or None."""
        self._open_requests = 0
        """Number of SUBSCRIBE and UNSUBSCRIBE packets without a response."""
        self._is_session_lost = False
        """Whether the broker has lost the subscriptions. Reset only after a SUBACK, because the next CONNACK
        may say "session present" for a session that still lacks the subscriptions."""

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
            # The error that ended the block must not be replaced.
            _log.warning("%s: %s", self._connect_packet.client_id, undelivered)

    # Called by the application

    @property
    def connection_error(self) -> MqttError | None:
        """Why the client is not connected at present, or None while it is connected."""
        return self._reconnector.connection_error

    async def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Subscribe to topic filters, and subscribe again whenever the broker has lost the session.

        Raises SubscriptionRefused for the filters that the broker does not grant at this QoS; the other
        filters are subscribed. For a filter granted at a lower QoS, the broker still sends messages until you
        unsubscribe.
        """
        if qos > _HIGHEST_QOS:
            raise MalformedPacket("SUBSCRIBE qos", f"must be 0 or 1, not {qos}")
        requested = [(each, qos) for each in filters]
        refused = await self._request_with_retry(lambda connection: connection.subscribe(requested))
        self._subscriptions.update((each, qos) for each in filters if each not in refused)
        if refused:
            raise SubscriptionRefused(refused)

    async def unsubscribe(self, *filters: str) -> None:
        """Remove the subscriptions to topic filters. Messages that the broker already sent still arrive."""
        for each in filters:
            self._subscriptions.pop(each, None)
        await self._request_with_retry(lambda connection: connection.unsubscribe(filters))

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish one message, as `publish_all` does. For many messages, `publish_all` costs less."""
        await self.publish_all((Publish(topic, payload, qos, retain),))

    async def publish_all(self, messages: Sequence[Publish]) -> None:
        """Publish messages in the given order. At QoS 1, return when the broker has acknowledged all of them.

        Wait while there is no connection or the in-flight window is full. Sent messages are resent on the
        next connection until they are acknowledged, even if the caller was canceled; with the option
        `discard_on_disconnect` they are not resent. If a message is malformed, the messages before it may
        have been sent. The client sets packet identifiers and dup flags itself.
        """
        qos_levels = [message.qos for message in messages]
        if max(qos_levels, default=0) > _HIGHEST_QOS:
            raise MalformedPacket("PUBLISH qos", "must be 0 or 1")
        delivery = Delivery(sum(qos_levels), asyncio.get_running_loop().create_future())
        async with self._publish_lock:
            sent = 0
            # A delivery that is done while messages remain has failed.
            while sent < len(messages) and not (delivery.remaining and delivery.done.done()):
                connection, free_slots = await self._wait_for_slots()
                packets = self._in_flight.add_and_encode_messages(
                    messages[sent : sent + free_slots], delivery
                )
                connection.send(b"".join(packets))
                self._apply_back_pressure(connection)
                sent += len(packets)
        if delivery.remaining:
            await delivery.done
        else:
            await asyncio.sleep(0)  # a loop that publishes at QoS 0 must not block the event loop

    async def start_publish(self, message: Publish) -> asyncio.Future[None]:
        """Send one QoS 1 message as soon as possible. Return a future that is done when the PUBACK arrives.

        With `MqttOptions.discard_on_disconnect` the future fails with ConnectionLost if the connection breaks
        before the acknowledgement.
        """
        if message.qos != _HIGHEST_QOS:
            raise MalformedPacket("PUBLISH qos", "must be 1, since the acknowledgement is awaited")
        delivery = Delivery(1, asyncio.get_running_loop().create_future())
        async with self._publish_lock:
            connection, _ = await self._wait_for_slots()
            connection.send(b"".join(self._in_flight.add_and_encode_messages((message,), delivery)))
            self._apply_back_pressure(connection)
        return delivery.done

    def try_publish(self, messages: Sequence[Publish]) -> int:
        """Send as many of these QoS 1 messages as possible without waiting. Return how many were sent.

        For applications that publish a little on each of thousands of clients: acknowledgements are not
        reported, and unacknowledged messages are resent after a reconnect. The number is 0 if there is no
        connection, the in-flight window or the write buffer is full, or another publish is in progress;
        `wait_writable` waits until messages can be sent.
        """
        connection, free_slots = self._reconnector.connection, self._in_flight.free_slots
        if (
            not messages
            or connection is None
            or not free_slots
            or not connection.is_writable
            or self._publish_lock.locked()
            or self._reconnector.is_closing
        ):
            return 0
        packets = self._in_flight.add_and_encode_messages(messages[:free_slots], None)
        connection.send(b"".join(packets))
        return len(packets)

    async def wait_writable(self) -> None:
        """Wait until `try_publish` can send at least one message."""
        async with self._publish_lock:
            await self._wait_for_slots()

    async def receive(self) -> MessageBatch:
        """Return the messages received since the last call; wait for a message if there are none.

        Acknowledge the batch when its messages are processed. Raises ConnectionClosed once the client is
        closed and no messages are left.
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
        except ConnectionClosed:
            if self._reconnector.is_closing:
                raise StopAsyncIteration from None
            raise

    async def close(self) -> None:
        """Wait until the broker has acknowledged all sent messages, and disconnect.

        Calls of `publish` and `publish_all` that have not sent their messages yet raise ConnectionClosed.
        Raises Undelivered if acknowledgements do not arrive in time.
        Received messages without acknowledgement stay at the broker, which resends them when the session is
        resumed.
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
                undelivered = len(self._in_flight)
                self._in_flight.fail_all(Undelivered(undelivered))
        if undelivered:
            raise Undelivered(undelivered)

    async def abort(self) -> None:
        """Close the connection without DISCONNECT. Unacknowledged messages may be lost or delivered twice."""
        self._reconnector.is_closing = True
        self._wake_waiters()
        if connection := await self._reconnector.stop():
            connection.fail("the MQTT client was aborted")
        self._in_flight.fail_all(ConnectionClosed("the MQTT client was aborted"))

    # Called by the connection

    def on_messages(self, connection: ClientConnection, messages: list[Publish], size: int) -> None:
        """Store received messages until the application fetches them; stop reading if there are too many."""
        self._inbox.put(messages, size, connection.ack_queue)
        self._message_arrived.notify()
        self._apply_back_pressure(connection)

    def on_pubacks(self, packet_ids: Sequence[int]) -> None:
        """Remove acknowledged messages from the in-flight window, and wake waiting callers."""
        if self._in_flight.acknowledge(packet_ids):
            self._reconnector.changed.notify()

    def on_writable(self) -> None:
        """Wake publishers that wait for the network."""
        self._reconnector.changed.notify()

    def on_connection_lost(self, connection: ClientConnection, reason: ConnectionLost) -> None:
        """Start to reconnect, and call the application's callback.

        If the option `discard_on_disconnect` is set, discard the messages in flight first.
        """
        if self._options.discard_on_disconnect:
            discarded, self._in_flight = self._in_flight, InFlightWindow(self._options.window)
            discarded.fail_all(reason)
        self._reconnector.on_connection_lost(connection, reason)
        if self._connection_lost_callback is not None:
            self._connection_lost_callback(reason)

    # Internal

    def _on_reconnect_failed(self, defect: ConnectionClosed) -> None:
        """Fail the messages in flight and wake all waiting callers: the client will never reconnect."""
        self._in_flight.fail_all(defect)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake all callers that wait for a connection, an acknowledgement or a message."""
        self._reconnector.changed.notify()
        self._message_arrived.notify()

    async def _wait_for_slots(self) -> tuple[ClientConnection, int]:
        """Wait until messages can be sent.

        Return the connection and how many messages fit into the in-flight window.
        """
        while True:
            connection = await self._reconnector.wait_connected()
            if connection.is_writable and (free_slots := self._in_flight.free_slots):
                return connection, free_slots
            await self._reconnector.changed.wait()

    def _apply_back_pressure(self, connection: ClientConnection) -> None:
        """Stop reading while too many received bytes wait to be fetched; otherwise resume reading."""
        awaits_response = self._in_flight or self._open_requests
        if self._inbox.size > self._options.backlog * (_AWAITING_BACKLOG_FACTOR if awaits_response else 1):
            if awaits_response and connection is not self._held_connection:
                _log.warning(
                    "%s does not fetch its messages: responses of the broker wait behind them",
                    self._connect_packet.client_id,
                )
            connection.hold_reading()
            self._held_connection = connection
        else:
            connection.release_reading()
            self._held_connection = None

    async def _request_with_retry(
        self, request: Callable[[ClientConnection], Awaitable[_Response]]
    ) -> _Response:
        """Send SUBSCRIBE or UNSUBSCRIBE, again on each new connection, until the broker responds."""
        while True:
            connection = await self._reconnector.wait_connected()
            with suppress(ConnectionLost):
                return await self._request(connection, request)

    async def _request(
        self, connection: ClientConnection, request: Callable[[ClientConnection], Awaitable[_Response]]
    ) -> _Response:
        """Send SUBSCRIBE or UNSUBSCRIBE, and return the response of the broker.

        End the connection and raise ConnectionLost if the broker does not respond in time.
        """
        self._open_requests += 1
        self._apply_back_pressure(connection)
        try:
            async with asyncio.timeout(self._options.timeout):
                return await request(connection)
        except TimeoutError:
            raise connection.fail("the broker did not respond to a subscription in time") from None
        finally:
            self._open_requests -= 1

    async def _establish(self) -> ClientConnection:
        """Connect to the broker, subscribe again if it lost the session, and resend messages in flight."""
        connection, connack = await connect_to_broker(
            self._address, self._connect_packet, self, self._options
        )
        try:
            self._is_session_lost |= not connack.session_present
            if self._is_session_lost and self._subscriptions:
                await self._resubscribe(connection)
            self._is_session_lost = False
            connection.check_open()
        except BaseException:
            connection.abort()
            raise
        if self._in_flight:
            connection.send(b"".join(self._in_flight.encode_for_resend()))
        return connection

    async def _resubscribe(self, connection: ClientConnection) -> None:
        """Subscribe to all topic filters again after the broker has lost the session."""
        if not self._connect_packet.clean:
            _log.warning("%s has lost the session of %s", self._address, self._connect_packet.client_id)
        requested = list(self._subscriptions.items())
        refused = await self._request(connection, lambda connection: connection.subscribe(requested))
        if refused:
            raise SubscriptionRefused(refused)
