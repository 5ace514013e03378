"""Sends requests to gateways over an MQTT broker, and waits for the responses.

If the connection breaks, a pending read is sent again on the next connection. A write is sent only once. If
the connection breaks before the broker has acknowledged the write, it is unknown whether the broker received
the write, and the caller gets `ConnectionLost`. If the connection breaks later, the response may still arrive
on the next connection, so the caller keeps waiting.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.client.arguments import check_timeout
from meshfleet.errors import GatewayTimeout, MalformedResponse
from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionClosed, ConnectionLost, Undelivered
from meshfleet.errors.protocol import MalformedInput, PayloadTooLarge
from meshfleet.mqtt.client import MqttClient, Publish
from meshfleet.protocol import requests
from meshfleet.protocol.ids import EVERY_GATEWAY
from meshfleet.protocol.payload import MAX_PAYLOAD_BYTES
from meshfleet.protocol.request_tracker import MAX_OPEN_REQUESTS, RequestTracker, ResponseMatch

if TYPE_CHECKING:
    from meshfleet.errors import FleetError
    from meshfleet.mqtt.client import BrokerAddress, MqttOptions
    from meshfleet.protocol.ids import Mac, RequestId
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import Response
    from meshfleet.protocol.topics import RequestTopic, TopicCodec


# State of one request until its response arrives, and what to do after a lost connection.

_MAX_LOST_CONNECTIONS: Final = 2
"""Maximum number of times a request is sent if the connection breaks each time before the acknowledgement.

The request itself may be the reason why the broker disconnects.
"""


class PendingRequest:
    """Request to a gateway that waits for its response."""

    __slots__ = (
        "_changed",
        "_delivered",
        "_is_repeatable",
        "_outcome",
        "_unacknowledged",
        "lost_connections",
        "may_have_been_sent",
        "topic",
    )

    def __init__(self, topic: RequestTopic, *, is_repeatable: bool) -> None:
        """Create the state of a request. A repeatable request may be executed twice without harm."""
        self.topic = topic
        self.may_have_been_sent = False
        self.lost_connections = 0
        """Number of MQTT connections that broke after the request was sent on them."""
        self._is_repeatable = is_repeatable
        self._unacknowledged = 0
        self._delivered: asyncio.Future[None] | None = None
        self._outcome: Response | FleetError | None = None
        self._changed = _create_future()

    def mark_sent(self, delivered: asyncio.Future[None]) -> None:
        """Record that the request was sent. `delivered` is done when the broker acknowledges the request."""
        self.may_have_been_sent = True
        self._delivered = delivered

    async def wait_for_change(self) -> Response | FleetError | None:
        """Wait for the response, an error or a lost connection. Return the response or the error.

        Return None if the request may be lost and must be sent again.
        """
        await self._changed
        self._changed = _create_future()
        return self._outcome

    def resolve(self, outcome: Response | FleetError) -> None:
        """End the request with a response or an error. Later outcomes are ignored.

        A response counts even if the connection broke before the response was decoded.
        """
        self._outcome = self._outcome or outcome
        self._signal_change()

    def on_connection_lost(self, lost: ConnectionLost) -> None:
        """React to a lost connection on which the request was sent.

        A repeatable request is sent again, unless too many connections broke before the broker acknowledged
        it. Another request fails if the broker had not acknowledged it; else it keeps waiting.
        """
        delivered, self._delivered = self._delivered, None
        if delivered is None:
            return  # not sent on this connection
        self.lost_connections += 1
        is_acknowledged = delivered.done() and not delivered.cancelled() and delivered.exception() is None
        self._unacknowledged += not is_acknowledged
        if not is_acknowledged and (not self._is_repeatable or self._unacknowledged >= _MAX_LOST_CONNECTIONS):
            self.resolve(_build_loss_error(self.topic, lost))
        elif self._is_repeatable:
            self._signal_change()

    def _signal_change(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


def _create_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _build_loss_error(topic: RequestTopic, lost: ConnectionLost) -> ConnectionLost:
    return ConnectionLost(
        f"{lost}, before it acknowledged {topic.operation} to gateway {topic.gateway}, which may have been "
        "carried out; some brokers disconnect clients that are not allowed to send requests"
    )


_log = logging.getLogger(__name__)

_MAX_RESPONSE_FILTERS: Final = 50
"""Maximum number of gateways with an MQTT subscription for the responses of one gateway.

Brokers limit the subscriptions of an MQTT client. For more gateways, one subscription to the responses of
all gateways replaces the separate subscriptions.
"""


class MeshRpcClient:
    """Sends requests and receives responses on its own MQTT connection; logs no payloads (request-32)."""

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        topics: TopicCodec,
        options: MqttOptions,
        *,
        max_pending: int = MAX_OPEN_REQUESTS,
    ) -> None:
        """Create a client that is not yet connected.

        If `max_pending` requests wait for responses, further requests raise `TooManyRequests`.
        """
        self._address = address
        self._topics = topics
        # The MQTT client must not send requests again after a lost connection: a write must not be carried
        # out twice, minutes later. This class decides what to send again; otherwise the caller gets an error.
        self._mqtt = MqttClient(
            address,
            client_id,
            clean=True,
            options=replace(options, discard_on_disconnect=True),
            on_connection_lost=self._on_connection_lost,
        )
        self._tracker = RequestTracker(secrets.token_hex(8), max_open=max_pending)
        self._pending: dict[RequestId, PendingRequest] = {}
        self._subscribed: set[Mac] = set()
        self._subscribed_to_all = False
        self._subscribe_lock = asyncio.Lock()
        self._receiver: asyncio.Task[None] | None = None
        self.response_counts: Counter[ResponseMatch] = Counter()
        """Number of received responses, by whether and how they matched a request of this client."""

    @property
    def pending(self) -> int:
        """Number of sent requests that wait for responses of gateways."""
        return len(self._tracker)

    async def start(self) -> None:
        """Connect to the broker and start to receive responses. Raise a `MqttError` if connecting fails."""
        await self._mqtt.__aenter__()
        self._receiver = asyncio.create_task(self._receive_responses(), name="responses")

    async def close(self) -> None:
        """Disconnect from the broker. Requests that still wait for responses raise `ConnectionClosed`."""
        self._fail_pending()
        try:
            await self._mqtt.close()
        except Undelivered as undelivered:
            _log.warning("requests may be lost: %s", undelivered)
        finally:
            if self._receiver is not None:
                self._receiver.cancel()
                await asyncio.wait((self._receiver,))

    async def request(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        is_repeatable: bool,
        timeout: float,  # noqa: ASYNC109 # part of the public SDK
    ) -> Response:
        """Send a request and wait up to `timeout` seconds. Return the response, also with an error status.

        A repeatable request is sent again after a lost connection. A request that was sent may still be
        executed after the caller is canceled.
        """
        self._check_open_and_timeout(timeout)
        if topic.gateway == EVERY_GATEWAY:
            raise MalformedInput(
                "gateway", "must be one gateway: a request to all of them would get many responses"
            )
        request_id = self._tracker.open(topic.to_response_topic())
        pending = self._pending[request_id] = PendingRequest(topic, is_repeatable=is_repeatable)
        try:
            message = self._build_message(topic, replace(request, id=request_id))
            async with asyncio.timeout(timeout):
                await self._subscribe_to(topic.gateway)
                outcome = await self._send_until_answered(pending, message)
        except TimeoutError:
            raise self._build_timeout_error(request_id, pending, timeout) from None
        finally:
            del self._pending[request_id]
            self._tracker.abandon(request_id)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def send(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        is_repeatable: bool,
        timeout: float,  # noqa: ASYNC109 # as in request
    ) -> None:
        """Send a request that gets no response, and wait until the broker has acknowledged the request."""
        self._check_open_and_timeout(timeout)
        pending = PendingRequest(topic, is_repeatable=is_repeatable)
        message = self._build_message(topic, request)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    pending.mark_sent(delivered := await self._mqtt.start_publish(message))
                    try:
                        return await delivered
                    except ConnectionLost as lost:
                        pending.on_connection_lost(lost)
                    if isinstance(problem := await pending.wait_for_change(), Exception):
                        raise problem
        except TimeoutError:
            if not pending.may_have_been_sent:
                raise self._build_unsent_error(topic) from None
            raise ConnectionLost(
                f"{self._address} did not acknowledge {topic.operation} to gateway {topic.gateway} within "
                f"{timeout:g} s; it may have been carried out"
            ) from None

    # Sending

    async def _send_until_answered(self, pending: PendingRequest, message: Publish) -> Response | FleetError:
        """Send a request, and again after each lost connection, until there is a response or an error."""
        while True:
            pending.mark_sent(await self._mqtt.start_publish(message))
            if (outcome := await pending.wait_for_change()) is not None:
                return outcome

    def _build_message(self, topic: RequestTopic, request: Request) -> Publish:
        body = requests.encode_request(request)
        if len(body) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge("payload", f"has {len(body)} bytes; {MAX_PAYLOAD_BYTES} are allowed")
        return Publish(self._topics.format_topic(topic), body, qos=1)

    async def _subscribe_to(self, gateway: Mac) -> None:
        """Subscribe to the responses of a gateway, unless there is a subscription already."""
        if self._is_subscribed(gateway):
            return
        async with self._subscribe_lock:
            if self._is_subscribed(gateway):  # another task has subscribed meanwhile
                return
            if len(self._subscribed) < _MAX_RESPONSE_FILTERS:
                await self._mqtt.subscribe(self._topics.response_filter(gateway))
                self._subscribed.add(gateway)
                return
            await self._mqtt.subscribe(self._topics.response_filter())
            self._subscribed_to_all = True
            await self._mqtt.unsubscribe(*map(self._topics.response_filter, self._subscribed))
            self._subscribed.clear()

    def _is_subscribed(self, gateway: Mac) -> bool:
        return self._subscribed_to_all or gateway in self._subscribed

    # Receiving

    async def _receive_responses(self) -> None:
        try:
            async for batch in self._mqtt:
                for message in batch.messages:
                    self._on_response(message)
                batch.acknowledge()
        except ConnectionClosed as closed:
            _log.error("responses can no longer be received: %s", closed)
        finally:
            self._fail_pending()

    def _on_response(self, message: Publish) -> None:
        """Pass a response to the request that waits for it. Only count it if there is none (request-29)."""
        received = self._tracker.match_message(self._topics, message.topic, message.payload)
        if received is None:
            return
        self.response_counts[received.match] += 1
        if received.match is ResponseMatch.ANSWER and received.request_id is not None:
            self._pending[received.request_id].resolve(received.decode())

    # Errors

    def check_open(self) -> None:
        """Raise `ConnectionClosed` if the client was not started or is closed."""
        if self._receiver is None or self._receiver.done():
            raise ConnectionClosed("the Mesh is not open: use it inside its `async with` block")

    def _check_open_and_timeout(self, timeout: float) -> None:
        self.check_open()
        check_timeout(timeout)

    def _on_connection_lost(self, lost: ConnectionLost) -> None:
        for pending in self._pending.values():
            pending.on_connection_lost(lost)

    def _fail_pending(self) -> None:
        for pending in self._pending.values():
            pending.resolve(
                ConnectionClosed("closed before a response arrived; the request may have been carried out")
            )

    def _build_timeout_error(
        self, request_id: RequestId, pending: PendingRequest, timeout: float
    ) -> FleetError:
        if not pending.may_have_been_sent:
            return self._build_unsent_error(pending.topic)
        interruption = "; the connection to the broker broke in between" if pending.lost_connections else ""
        gateway = pending.topic.gateway
        if self._tracker.may_be_unreadable(request_id):
            return MalformedResponse(f"gateway {gateway} sent a response that is not JSON of at most 64 KiB")
        return GatewayTimeout(f"gateway {gateway} did not respond within {timeout:g} s{interruption}")

    def _build_unsent_error(self, topic: RequestTopic) -> BrokerUnreachable:
        reason = self._mqtt.connection_error or f"{self._address} does not accept requests now"
        return BrokerUnreachable(f"{reason}; nothing was sent to gateway {topic.gateway}")
