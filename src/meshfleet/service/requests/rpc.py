"""Sends requests over MQTT to gateways and, through them, to devices, and waits for their responses.

All requests of the service use this client: those of REST clients, of jobs, and of the service itself. The
caller sets a timeout for the whole call, including the time in the queue of the gateway.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from meshfleet.errors import (
    BrokerUnavailable,
    GatewayBusy,
    GatewayLost,
    GatewayOffline,
    GatewayTimeout,
    MalformedResponse,
    Unanswered,
)
from meshfleet.errors.protocol import MalformedInput
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol import api_versions, payload, requests, responses
from meshfleet.protocol.codes import Status
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.request_tracker import RequestTracker, ResponseMatch
from meshfleet.protocol.times import to_millis
from meshfleet.protocol.topics import RequestTopic, ResponseTopic
from meshfleet.service.requests.gateway_queue import GatewayQueues
from meshfleet.service.requests.gateway_ranking import FailedAttempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.protocol.ids import Mac, RequestId, Version
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import Response
    from meshfleet.protocol.topics import TopicCodec
    from meshfleet.service.clock import Now
    from meshfleet.service.transport import Transport

    ClockSampleCallback: TypeAlias = Callable[[int, int, int, int], None]
    """Receives a gateway, the local times of its request and response, and the gateway's own time, in ms."""

MAX_CONCURRENT: Final = 16
"""Default for the maximum number of concurrent requests per gateway."""

_MAX_UNREADABLE_TOPICS: Final = 1000
"""Maximum number of response topics for which the time of an unreadable message is kept."""

_UNREACHABLE_STATUSES: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE})
"""Statuses with which a gateway reports that it did not reach the device."""

_MAX_LATE_CALLBACKS: Final = 2000
"""Maximum number of timed-out requests for which a late response is still passed to the caller."""

_WATCH_SECONDS: Final = 1.0
"""Seconds between two checks whether gateways with pending requests have disconnected."""


class RpcResponse(NamedTuple):
    """Response of a gateway, whatever its status."""

    response: Response
    sent_at: int
    """Time when the request was sent, in milliseconds; for a late response, the same as `received_at`."""
    received_at: int
    """Time when the response was received, in milliseconds."""


class SendProgress(Enum):
    """Phase of sending a request."""

    WAITING = 0
    """Waiting in the service's queue for the gateway."""
    SENDING = 1
    """Being published; the connection to the broker may be congested."""
    SENT = 2


class _PendingRequest:
    """Request that waits for its response."""

    __slots__ = ("connection_id", "gateway", "progress", "response", "started_at")

    def __init__(self, gateway: Mac, response: asyncio.Future[RpcResponse | Unanswered]) -> None:
        self.gateway = gateway
        self.response = response
        """Resolves to the response or an error.

        Errors are set as results, because asyncio logs exceptions that a canceled caller does not retrieve.
        """
        self.progress = SendProgress.WAITING
        self.started_at = 0.0
        """Time when publishing started, by the event loop's clock."""
        self.connection_id: int | None = None
        """Connection number of the gateway when the request was sent, to detect a reconnect.

        None: not sent yet, or unknown with an external broker.
        """


class RpcClient:
    """Sends all requests of the service and matches responses to them.

    Payloads are never logged, as they may contain keys (request-32).
    """

    def __init__(  # noqa: PLR0913 # mostly optional and keyword-only
        self,
        transport: Transport,
        topics: TopicCodec,
        now: Now,
        *,
        get_version: Callable[[Mac], Version] = lambda _: api_versions.LATEST_VERSION,
        max_concurrent: int = MAX_CONCURRENT,
        failures: FailedAttempts | None = None,
        on_clock_sample: ClockSampleCallback | None = None,
    ) -> None:
        """Create a client and subscribe to the responses of all gateways.

        `get_version` returns the API version of a gateway. `failures` records failed requests by device and
        gateway. `on_clock_sample` is called for every response, which contains the gateway's time.
        """
        self._transport = transport
        self._topics = topics
        self._now = now
        self._get_version = get_version
        self._failures = FailedAttempts() if failures is None else failures
        self._on_clock_sample = on_clock_sample
        self._tracker = RequestTracker(secrets.token_hex(8))
        self._queues: GatewayQueues[asyncio.Future[None]] = GatewayQueues(max_concurrent)
        self._pending: dict[RequestId, _PendingRequest] = {}
        self._late_callbacks: dict[RequestId, Callable[[RpcResponse], None]] = {}
        self._unreadable_at: dict[ResponseTopic, float] = {}
        """Time of the last message that is not a JSON object, by response topic."""
        self.response_counts: Counter[ResponseMatch] = Counter()
        """Number of received responses by how they matched a request."""
        transport.subscribe(topics.response_filter(), self._on_message)

    @property
    def pending(self) -> int:
        """Number of requests that wait for a response."""
        return len(self._tracker)

    @property
    def queued(self) -> int:
        """Number of pending requests that are queued and not sent yet."""
        return self._queues.queued

    def new_id(self) -> RequestId:
        """Return a new unique request id."""
        return self._tracker.new_id()

    def check_sendable(self, topic: RequestTopic, request: Request) -> None:
        """Raise an error if the request cannot be sent now.

        Raise `GatewayTooOld` if the gateway does not support it. Raise an `Unanswered` error if the broker or
        the gateway is not connected, or if too many requests are pending.
        """
        if topic.operation.is_answered:
            self._tracker.check_capacity()
        self._check_reachable(topic, request)

    def _check_reachable(self, topic: RequestTopic, request: Request) -> None:
        """Raise an error if broker or gateway is not connected, or the gateway is too old (version-12)."""
        if (reason := self._transport.unavailable_reason) is not None:
            raise BrokerUnavailable(f"the broker is unavailable: {reason}")
        if self._transport.connection_id(topic.gateway) == 0:
            raise GatewayOffline(f"gateway {topic.gateway} is not connected")
        requests.check_request_supported(topic.operation, request, self._get_version(topic.gateway))

    async def send(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 # see request()
        request_id: RequestId,
    ) -> None:
        """Send a request without a response. It does not wait in the gateway's queue.

        Raise the errors of `check_sendable`, and `BrokerUnavailable` after `timeout` seconds.
        """
        self.check_sendable(topic, request)
        _check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._send(topic, request, request_id)
        except TimeoutError:
            raise BrokerUnavailable("the broker did not accept the request in time") from None

    async def request(  # noqa: PLR0913 # mostly optional and keyword-only
        self,
        topic: RequestTopic,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 # each phase that times out raises its own error
        request_id: RequestId | None = None,
        on_late_response: Callable[[RpcResponse], None] | None = None,
        before_send: Callable[[], None] | None = None,
    ) -> RpcResponse:
        """Send a request and wait at most `timeout` seconds for its response, whatever its status.

        Raise `GatewayTooOld` or an `Unanswered` error, whose attribute `sent` says whether the gateway may
        have received the request. The result is recorded for the next selection of a gateway.

        `before_send` is called when the request leaves the queue, just before it is sent; if it raises
        `Unanswered`, nothing is sent. Canceling the call after that does not withdraw the request.
        `on_late_response` is called at most once, with a response that arrives after the call has ended.
        """
        try:
            reply = await self._request(topic, request, timeout, request_id, on_late_response, before_send)
        except Unanswered as exc:
            if exc.sent:
                self._failures.add(mac_to_int(topic.device), mac_to_int(topic.gateway))
            raise
        self._record_reachability(topic, reply.response)
        return reply

    async def _request(  # noqa: PLR0913, PLR0917 # the parameters of request()
        self,
        topic: RequestTopic,
        request: Request,
        timeout: float,  # noqa: ASYNC109 # see request()
        request_id: RequestId | None,
        on_late_response: Callable[[RpcResponse], None] | None,
        before_send: Callable[[], None] | None,
    ) -> RpcResponse:
        self._check_reachable(topic, request)
        _check_timeout(timeout)
        request_id, started_at = self._tracker.open(topic.to_response_topic(), request_id), _loop_time()
        pending = _PendingRequest(topic.gateway, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(timeout):
                await self._acquire_slot(topic, request)
                return await self._send_and_wait(topic, request, request_id, pending, before_send)
        except TimeoutError:
            raise self._timeout_error(topic, pending, timeout, started_at) from None
        finally:
            if (
                self._tracker.abandon(request_id)
                and on_late_response is not None
                and pending.progress is SendProgress.SENT
            ):
                self._add_late_callback(request_id, on_late_response)

    async def watch_connections(self, *, pause: float = _WATCH_SECONDS) -> None:
        """Fail requests whose gateway has disconnected since they were sent. Repeat until canceled."""
        while True:
            await asyncio.sleep(pause)
            self.fail_lost_requests()

    def fail_lost_requests(self) -> None:
        """Fail requests whose gateway has disconnected or reconnected since they were sent."""
        connections: dict[Mac, int | None] = {}
        for pending in self._pending.values():
            gateway = pending.gateway
            if gateway not in connections:
                connections[gateway] = self._transport.connection_id(gateway)
            if (
                pending.progress is SendProgress.SENT
                and connections[gateway] != pending.connection_id
                and not pending.response.done()
            ):
                pending.response.set_result(
                    GatewayLost(f"gateway {gateway} disconnected before it responded")
                )

    # Internals

    def _record_reachability(self, topic: RequestTopic | ResponseTopic, response: Response) -> None:
        """Record, for the next selection of a gateway, whether this one reached the device."""
        device, gateway = mac_to_int(topic.device), mac_to_int(topic.gateway)
        if response.status in _UNREACHABLE_STATUSES:
            self._failures.add(device, gateway)
        else:
            self._failures.clear(device, gateway)

    def _add_late_callback(
        self, request_id: RequestId, on_late_response: Callable[[RpcResponse], None]
    ) -> None:
        """Register a callback for a late response. If there are too many, discard the oldest one."""
        self._late_callbacks[request_id] = on_late_response
        if len(self._late_callbacks) > _MAX_LATE_CALLBACKS:
            del self._late_callbacks[next(iter(self._late_callbacks))]

    async def _acquire_slot(self, topic: RequestTopic, request: Request) -> None:
        """Wait until the gateway can take one more request. Call `_release_slot` after the request."""
        gateway, slot = topic.gateway, asyncio.get_running_loop().create_future()
        if self._queues.acquire_or_enqueue(gateway, request.priority, slot):
            return
        try:
            await slot
            self._check_reachable(topic, request)
        except BaseException:
            if slot.cancelled():
                self._queues.cancel(gateway, request.priority, slot)
            else:  # the slot was granted but is not needed any more
                self._release_slot(gateway)
            raise

    def _release_slot(self, gateway: Mac) -> None:
        """Pass a slot of the gateway to the next queued request that was not canceled, or free it."""
        while (slot := self._queues.release(gateway)) is not None:
            if not slot.done():
                slot.set_result(None)
                return

    async def _send_and_wait(
        self,
        topic: RequestTopic,
        request: Request,
        request_id: RequestId,
        pending: _PendingRequest,
        before_send: Callable[[], None] | None,
    ) -> RpcResponse:
        """Send a request, wait for the response, and release the slot."""
        self._pending[request_id] = pending
        pending.started_at = _loop_time()
        try:
            if before_send is not None:
                before_send()
            pending.progress = SendProgress.SENDING
            await self._send(topic, request, request_id)
            pending.connection_id, pending.progress = (
                self._transport.connection_id(topic.gateway),
                SendProgress.SENT,
            )
            outcome = await pending.response
        finally:
            del self._pending[request_id]
            self._release_slot(topic.gateway)
        if isinstance(outcome, Unanswered):
            raise outcome
        return outcome

    async def _send(self, topic: RequestTopic, request: Request, request_id: RequestId) -> None:
        """Publish the request, waiting while the connection to the broker is congested."""
        body = requests.encode_request(replace(request, id=request_id))
        await self._transport.send_urgent(Publish(self._topics.format_topic(topic), body, qos=1))

    def _timeout_error(
        self, topic: RequestTopic, pending: _PendingRequest, timeout: float, started_at: float
    ) -> Unanswered:
        """Return the error for a timeout, depending on the phase in which the request was."""
        match pending.progress:
            case SendProgress.WAITING:
                return GatewayBusy(
                    f"gateway {topic.gateway} is busy: the request was not sent within {timeout:g} s"
                )
            case SendProgress.SENDING:
                return BrokerUnavailable("the broker did not accept the request in time")
            case SendProgress.SENT:
                if self._unreadable_at.get(topic.to_response_topic(), -1) >= started_at:
                    return MalformedResponse(
                        f"gateway {topic.gateway} sent a response that is not a JSON object"
                    )
                return GatewayTimeout(f"gateway {topic.gateway} did not respond within {timeout:g} s")

    def _on_message(self, message: Publish) -> None:
        """Match a received response to a pending request, if it belongs to this client."""
        try:
            topic = self._topics.parse_uncached(message.topic)
        except MalformedInput:
            return
        if not isinstance(topic, ResponseTopic):
            return
        request_id = requests.decode_request_id(message.payload)
        if request_id is None and _is_unreadable(message):
            self._record_unreadable(topic)
        match = self._tracker.match_response(topic, request_id)
        self.response_counts[match] += 1
        if match is ResponseMatch.LATE and request_id is not None:
            self._on_late_response(topic, request_id, message.payload)
        if match is not ResponseMatch.ANSWER or request_id is None:
            return
        pending = self._pending.get(request_id)
        if pending is not None and not pending.response.done():  # otherwise just canceled, or not sent yet
            pending.response.set_result(
                self._decode_response(topic, message.payload, _loop_time() - pending.started_at)
            )

    def _on_late_response(self, topic: ResponseTopic, request_id: RequestId, data: bytes) -> None:
        """Handle a response that arrives when its caller no longer waits: call the caller's callback.

        If the gateway has reached the device after all, clear the failure that the timeout recorded.
        """
        callback = self._late_callbacks.pop(request_id, None)
        received_at = self._now()
        try:
            reply = RpcResponse(responses.decode_response(topic.operation, data), received_at, received_at)
        except MalformedInput:
            return
        if reply.response.status not in _UNREACHABLE_STATUSES:
            self._record_reachability(topic, reply.response)
        if callback is not None:
            callback(reply)

    def _record_unreadable(self, topic: ResponseTopic) -> None:
        """Record that a message on a response topic could not be read, so that its request is unknown.

        If a request with this response topic times out, the message is assumed to be its response.
        """
        if len(self._unreadable_at) >= _MAX_UNREADABLE_TOPICS:
            self._unreadable_at.clear()
        self._unreadable_at[topic] = _loop_time()

    def _decode_response(
        self, topic: ResponseTopic, data: bytes, seconds: float
    ) -> RpcResponse | MalformedResponse:
        """Decode a response that arrived `seconds` after its request was sent."""
        received_at = self._now()
        # Computed from the duration: the system clock may have been set since the request was sent.
        sent_at = received_at - round(seconds * 1000)
        try:
            reply = RpcResponse(responses.decode_response(topic.operation, data), sent_at, received_at)
        except MalformedInput as exc:
            problem = MalformedResponse(
                f"gateway {topic.gateway} sent a response that cannot be decoded: {exc}"
            )
            problem.__cause__ = exc
            return problem
        if self._on_clock_sample is not None:
            self._on_clock_sample(
                mac_to_int(topic.gateway), sent_at, received_at, to_millis(reply.response.time)
            )
        return reply


def _check_timeout(timeout: float) -> None:
    """Raise `GatewayBusy` if the timeout has expired before the request is sent."""
    if timeout <= 0:
        raise GatewayBusy("the timeout expired before the request could be sent")


def _loop_time() -> float:
    """Return the event loop's time in seconds."""
    return asyncio.get_running_loop().time()


def _is_unreadable(message: Publish) -> bool:
    """Return whether the payload is not a JSON object, so that its request id cannot be read."""
    try:
        payload.decode_object(message.payload)
    except MalformedInput:
        return True
    return False
