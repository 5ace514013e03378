"""Asks gateways over a broker, and waits for what they answer.

A read that may be lost with a connection is asked again on the next one. A write is sent once: if the
connection breaks before the broker has it, nobody can know, and `ConnectionLost` says so; if it breaks later,
the answer may still come on the next connection, and is waited for.
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
from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionLost, LinkClosed, Undelivered
from meshfleet.errors.protocol import PayloadTooLarge, WireError
from meshfleet.mqtt.client import MqttClient, OversizedPublish, Publish
from meshfleet.protocol import payload, requests, responses
from meshfleet.protocol.ids import EVERY_GATEWAY
from meshfleet.protocol.payload import MAX_PAYLOAD_BYTES
from meshfleet.protocol.request_tracker import MAX_OPEN_REQUESTS, RequestTracker, ResponseMatch
from meshfleet.protocol.topics import ResponseTopic

if TYPE_CHECKING:
    from meshfleet.errors import FleetError
    from meshfleet.mqtt.client import BrokerAddress, MqttOptions
    from meshfleet.protocol.ids import Mac, RequestId
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import Response
    from meshfleet.protocol.topics import RequestTopic, TopicCodec


# One request between its sending and its answer, and what a broken connection means to it.

_MAX_LOST_CONNECTIONS: Final = 2
"""Connections that may break at one message before the message counts as the reason."""


class PendingRequest:
    """A request for which somebody waits."""

    __slots__ = (
        "_changed",
        "_delivered",
        "_is_repeatable",
        "_outcome",
        "_unacknowledged",
        "got_unreadable_response",
        "lost_connections",
        "may_have_been_sent",
        "topic",
    )

    def __init__(self, topic: RequestTopic, *, is_repeatable: bool) -> None:
        """What is safe may be carried out twice."""
        self.topic = topic
        self.may_have_been_sent = False
        self.got_unreadable_response = False
        """Whether something came from there that nobody can read."""
        self.lost_connections = 0
        """Connections that broke since it was sent."""
        self._is_repeatable = is_repeatable
        self._unacknowledged = 0
        self._delivered: asyncio.Future[None] | None = None
        self._outcome: Response | FleetError | None = None
        self._changed = _create_future()

    def mark_sent(self, delivered: asyncio.Future[None]) -> None:
        """It has left; the future tells when the broker has it."""
        self.may_have_been_sent = True
        self._delivered = delivered

    async def wait_for_change(self) -> Response | FleetError | None:
        """What became of it; None: it may be lost, and is to be sent again."""
        await self._changed
        self._changed = _create_future()
        return self._outcome

    def resolve(self, outcome: Response | FleetError) -> None:
        """This became of it. An answer counts too when it is read after its connection broke."""
        self._outcome = self._outcome or outcome
        self._wake()

    def on_connection_lost(self, lost: ConnectionLost) -> None:
        """The connection broke: decide whether to send it again, to wait on, or to give up."""
        delivered, self._delivered = self._delivered, None
        if delivered is None:
            return  # it was not on this connection
        self.lost_connections += 1
        is_acknowledged = delivered.done() and not delivered.cancelled() and delivered.exception() is None
        self._unacknowledged += not is_acknowledged
        if not is_acknowledged and (not self._is_repeatable or self._unacknowledged >= _MAX_LOST_CONNECTIONS):
            self.resolve(_describe_loss(self.topic, lost))
        elif self._is_repeatable:
            self._wake()

    def _wake(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


def _create_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _describe_loss(topic: RequestTopic, lost: ConnectionLost) -> ConnectionLost:
    return ConnectionLost(
        f"{lost}, before it acknowledged {topic.operation} to gateway {topic.gateway}, which may have been "
        "carried out; some brokers end the connection of those who may not send requests"
    )


_log = logging.getLogger(__name__)

_MAX_RESPONSE_FILTERS: Final = 50
"""Gateways whose responses are subscribed to one by one. A broker grants a client only so many filters: who
asks more gateways hears all of them."""


class MeshRpcClient:
    """Requests of one program, on a connection of their own. What they hold is never logged (request-32)."""

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        topics: TopicCodec,
        options: MqttOptions,
        *,
        max_pending: int = MAX_OPEN_REQUESTS,
    ) -> None:
        """`max_pending` requests may wait for their answers; one more raises `TooManyRequests`."""
        self._address = address
        self._topics = topics
        # Not sent again when a connection breaks, as reports are: a write must not be carried out twice,
        # minutes later. Whoever sent it is told, and decides.
        self._mqtt = MqttClient(
            address,
            client_id,
            clean=True,
            options=replace(options, discard_on_disconnect=True),
            on_connection_lost=self._on_connection_lost,
        )
        self._exchange = RequestTracker(secrets.token_hex(8), max_open=max_pending)
        self._pending: dict[RequestId, PendingRequest] = {}
        self._subscribed: set[Mac] = set()
        self._subscribed_to_all = False
        self._subscribe_lock = asyncio.Lock()
        self._receiver: asyncio.Task[None] | None = None
        self.response_counts: Counter[ResponseMatch] = Counter()
        """The responses that came, by what they were to us."""

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return len(self._exchange)

    async def start(self) -> None:
        """Connect, or raise what is in the way."""
        await self._mqtt.__aenter__()
        self._receiver = asyncio.create_task(self._receive(), name="responses")

    async def close(self) -> None:
        """Take leave. Who still waits gets `LinkClosed`."""
        self._fail_pending()
        try:
            await self._mqtt.close()
        except Undelivered as undelivered:
            _log.warning("requests: %s", undelivered)
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
        timeout: float,  # noqa: ASYNC109 # who asks does not have to know how it is told
    ) -> Response:
        """Ask, and wait at most so many seconds for the answer. Its status is for the caller to judge.

        What is safe may be sent again after a connection broke. Who cancels it does not call it back.
        """
        self._check_call(timeout)
        if topic.gateway == EVERY_GATEWAY:
            raise WireError("gateway", "is all of them, each of which would answer: ask one")
        request_id = self._exchange.open(topic.to_response_topic())
        waiting = self._pending[request_id] = PendingRequest(topic, is_repeatable=is_repeatable)
        try:
            message = self._build_message(topic, replace(request, id=request_id))
            async with asyncio.timeout(timeout):
                await self._subscribe_to(topic.gateway)
                told = await self._send_until_answered(waiting, message)
        except TimeoutError:
            raise self._build_timeout_error(waiting, timeout) from None
        finally:
            del self._pending[request_id]
            self._exchange.abandon(request_id)
        if isinstance(told, Exception):
            raise told
        return told

    async def send(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        is_repeatable: bool,
        timeout: float,  # noqa: ASYNC109 # as above
    ) -> None:
        """Send a request that nobody answers; it returns when the broker has it."""
        self._check_call(timeout)
        waiting = PendingRequest(topic, is_repeatable=is_repeatable)
        message = self._build_message(topic, request)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    waiting.mark_sent(delivered := await self._mqtt.start_publish(message))
                    try:
                        return await delivered
                    except ConnectionLost as lost:
                        waiting.on_connection_lost(lost)
                    if isinstance(problem := await waiting.wait_for_change(), Exception):
                        raise problem
        except TimeoutError:
            if not waiting.may_have_been_sent:
                raise self._build_unsent_error(topic) from None
            raise ConnectionLost(
                f"{self._address} did not acknowledge {topic.operation} to gateway {topic.gateway} within "
                f"{timeout:g} s; it may have been carried out"
            ) from None

    # The way out

    async def _send_until_answered(self, pending: PendingRequest, message: Publish) -> Response | FleetError:
        """Send it, and again whenever it may be lost and that does no harm, until there is an answer."""
        while True:
            pending.mark_sent(await self._mqtt.start_publish(message))
            if (told := await pending.wait_for_change()) is not None:
                return told

    def _build_message(self, topic: RequestTopic, request: Request) -> Publish:
        body = requests.encode_request(request)
        if len(body) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge("payload", f"has {len(body)} bytes; {MAX_PAYLOAD_BYTES} are allowed")
        return Publish(self._topics.format_topic(topic), body, qos=1)

    async def _subscribe_to(self, gateway: Mac) -> None:
        """Hear the responses of a gateway, before it is asked for the first time."""
        if self._is_subscribed(gateway):
            return
        async with self._subscribe_lock:
            if self._is_subscribed(gateway):  # somebody else has seen to it
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

    # The way back

    async def _receive(self) -> None:
        try:
            async for batch in self._mqtt:
                for message in batch.messages:
                    self._on_message(message)
                batch.acknowledge()
        except LinkClosed as closed:
            _log.error("no answers are heard any more: %s", closed)
        finally:
            self._fail_pending()

    def _on_message(self, message: Publish) -> None:
        """A response came, to us or to somebody else (request-29)."""
        try:
            topic = self._topics.parse_uncached(message.topic)
        except WireError:
            return
        if not isinstance(topic, ResponseTopic):
            return
        request_id = requests.decode_request_id(message.payload)
        if request_id is None and _is_unreadable(message):
            self._mark_unreadable(topic)
        fate = self._exchange.match_response(topic, request_id)
        self.response_counts[fate] += 1
        if fate is ResponseMatch.ANSWER and request_id is not None:
            self._pending[request_id].resolve(_decode_response(topic, message.payload))

    def _mark_unreadable(self, topic: ResponseTopic) -> None:
        """Nobody can tell to whom this was said. If no answer comes, it was the answer."""
        for waiting in self._pending.values():
            if waiting.topic.to_response_topic() == topic:
                waiting.got_unreadable_response = True

    # When something goes wrong

    def check_open(self) -> None:
        """Raise `LinkClosed` where there is no connection, nor will be."""
        if self._receiver is None or self._receiver.done():
            raise LinkClosed("there is no connection: use it as `async with`")

    def _check_call(self, timeout: float) -> None:
        self.check_open()
        check_timeout(timeout)

    def _on_connection_lost(self, lost: ConnectionLost) -> None:
        for waiting in self._pending.values():
            waiting.on_connection_lost(lost)

    def _fail_pending(self) -> None:
        for waiting in self._pending.values():
            waiting.resolve(LinkClosed("closed before an answer came; the request may have been carried out"))

    def _build_timeout_error(self, pending: PendingRequest, timeout: float) -> FleetError:
        if not pending.may_have_been_sent:
            return self._build_unsent_error(pending.topic)
        meanwhile = "; meanwhile the connection to the broker broke" if pending.lost_connections else ""
        gateway = pending.topic.gateway
        if pending.got_unreadable_response:
            return MalformedResponse(f"gateway {gateway} answered what cannot be read as JSON of 64 KiB")
        return GatewayTimeout(f"gateway {gateway} did not answer within {timeout:g} s{meanwhile}")

    def _build_unsent_error(self, topic: RequestTopic) -> BrokerUnreachable:
        why = self._mqtt.connection_error or f"{self._address} does not take requests now"
        return BrokerUnreachable(f"{why}; nothing was sent to gateway {topic.gateway}")


def _is_unreadable(message: Publish) -> bool:
    """Whether not even its id can be read."""
    if isinstance(message, OversizedPublish):
        return True
    try:
        payload.decode_object(message.payload)
    except WireError:
        return True
    return False


def _decode_response(topic: ResponseTopic, payload: bytes) -> Response | MalformedResponse:
    try:
        return responses.decode_response(topic.operation, payload)
    except WireError as exc:
        problem = MalformedResponse(f"gateway {topic.gateway} answered what cannot be read: {exc}")
        problem.__cause__ = exc
        return problem
