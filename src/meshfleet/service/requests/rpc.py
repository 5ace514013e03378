"""Sends requests over MQTT to gateways and, through gateways, to devices, and waits for the responses.

All requests of the service use this client: requests of REST clients, of jobs, and of the service itself. The
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
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol import api_versions, requests
from meshfleet.protocol.codes import Status
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.request_tracker import RequestTracker, ResponseMatch
from meshfleet.protocol.times import to_millis
from meshfleet.service.requests.gateway_queue import GatewayQueues
from meshfleet.service.requests.gateway_ranking import FailedAttempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.protocol.ids import Mac, RequestId, Version
    from meshfleet.protocol.request_tracker import ReceivedResponse
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import Response
    from meshfleet.protocol.topics import RequestTopic, ResponseTopic, TopicCodec
    from meshfleet.service.clock import Now
    from meshfleet.service.transport import Transport

    ClockSampleCallback: TypeAlias = Callable[[int, int, int, int], None]
    """Callback with a gateway, and the times of request, response and gateway clock in milliseconds."""

MAX_CONCURRENT: Final = 16
"""Default of the maximum number of concurrent requests per gateway."""

_UNREACHABLE_STATUSES: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE})
"""Response statuses with which a gateway reports that it did not reach the device."""

_MAX_LATE_CALLBACKS: Final = 2000
"""Maximum number of timed-out requests whose late response is still passed to a callback."""

_SUBSCRIBE_SECONDS: Final = 5.0
"""Maximum seconds to wait until a gateway that has just connected has subscribed to requests."""
_SUBSCRIBE_POLL_SECONDS: Final = 0.1

_WATCH_SECONDS: Final = 1.0
"""Seconds between two checks whether gateways with pending requests have disconnected."""


class RpcResponse(NamedTuple):
    """Response of a gateway with any status, and the times of request and response."""

    response: Response
    sent_at: int
    """Unix time in milliseconds when the request was sent; equal to `received_at` for a late response."""
    received_at: int
    """Unix time in milliseconds when the response was received."""


class RequestProgress(Enum):
    """Phase of sending a request."""

    WAITING = 0
    """The request waits in the queue of its gateway."""
    SENDING = 1
    """The request is being published over MQTT, which takes time if the connection is congested."""
    SENT = 2


class _PendingRequest:
    """Request that waits to be sent, or waits for its response."""

    __slots__ = ("connection_id", "gateway", "progress", "response", "started_at")

    def __init__(self, gateway: Mac, response: asyncio.Future[RpcResponse | Unanswered]) -> None:
        self.gateway = gateway
        self.response = response
        """Future that resolves to the response or an error.

        Errors are set as results, because asyncio logs exceptions that a canceled caller does not retrieve.
        """
        self.progress = RequestProgress.WAITING
        self.started_at = 0.0
        """Time in seconds of the event loop's clock when publishing started."""
        self.connection_id: int | None = None
        """Connection number of the gateway when the request was sent, to detect a reconnect.

        None if the request was not sent yet, or if the broker is external.
        """


class RpcClient:
    """Sends all requests of the service over MQTT, and matches responses to requests.

    Payloads are never logged, because they may contain mesh keys (request-32).
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
        """Create a client, and subscribe to the MQTT response topics of all gateways.

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
        self.response_counts: Counter[ResponseMatch] = Counter()
        """Number of received responses, by the result of matching the response to a request."""
        transport.subscribe(topics.response_filter(), self._on_message)

    @property
    def pending(self) -> int:
        """Number of requests that are queued or wait for a response."""
        return len(self._tracker)

    @property
    def queued(self) -> int:
        """Number of requests that are queued and not sent yet."""
        return self._queues.queued

    def set_max_concurrent(self, max_concurrent: int) -> None:
        """Change the maximum number of concurrent requests per gateway."""
        for gateway, slot in self._queues.set_max_concurrent(max_concurrent):
            if slot.done():  # canceled, but not removed from the queue yet
                self._release_slot(gateway)
            else:
                slot.set_result(None)

    def new_id(self) -> RequestId:
        """Return a new unique request id."""
        return self._tracker.new_id()

    def check_sendable(self, topic: RequestTopic, request: Request) -> None:
        """Raise an error if a request cannot be sent now.

        Raise `GatewayTooOld` if the gateway does not support the request. Raise an `Unanswered` error if the
        broker or the gateway is not connected, or if too many requests are pending.
        """
        if topic.operation.is_answered:
            self._tracker.check_capacity()
        self._check_reachable(topic, request)

    def _check_reachable(self, topic: RequestTopic, request: Request) -> None:
        """Raise an error if broker or gateway is not connected, or if the gateway is too old (version-12)."""
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
        """Send a request that has no response, without waiting in the queue of the gateway.

        Raise the errors of `check_sendable`, and `BrokerUnavailable` after `timeout` seconds.
        """
        self.check_sendable(topic, request)
        _check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._wait_until_subscribed(topic.gateway)
                await self._publish_request(topic, request, request_id)
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
        """Send a request and wait at most `timeout` seconds for its response, which may have any status.

        Raise `GatewayTooOld` or an `Unanswered` error, whose attribute `sent` says whether the gateway may
        have received the request. The result is recorded for the next selection of a gateway.

        `before_send` is called when the request leaves the queue, just before it is sent. If `before_send`
        raises `Unanswered`, nothing is sent. Canceling the call later does not withdraw the request.
        `on_late_response` is called at most once, with a response that arrives after the call has ended.
        """
        self._check_reachable(topic, request)
        _check_timeout(timeout)
        request_id = self._tracker.open(topic.to_response_topic(), request_id)
        pending = _PendingRequest(topic.gateway, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(timeout):
                await self._acquire_slot(topic, request)
                reply = await self._send_and_wait(topic, request, request_id, pending, before_send)
        except Unanswered as exc:
            self._record_failure(topic, exc)
            raise
        except TimeoutError:
            error = self._build_timeout_error(request_id, pending, timeout)
            self._record_failure(topic, error)
            raise error from None
        finally:
            is_unanswered = self._tracker.abandon(request_id)
            if is_unanswered and on_late_response is not None and pending.progress is RequestProgress.SENT:
                self._add_late_callback(request_id, on_late_response)
        self._record_reachability(topic, reply.response)
        return reply

    async def watch_connections(self, *, pause: float = _WATCH_SECONDS) -> None:
        """Call `fail_lost_requests` every `pause` seconds until this task is canceled."""
        while True:
            await asyncio.sleep(pause)
            self.fail_lost_requests()

    def fail_lost_requests(self) -> None:
        """End requests with `GatewayLost` if their gateway disconnected since the request was sent."""
        connections: dict[Mac, int | None] = {}
        for pending in self._pending.values():
            gateway = pending.gateway
            if gateway not in connections:
                connections[gateway] = self._transport.connection_id(gateway)
            if (
                pending.progress is RequestProgress.SENT
                and connections[gateway] != pending.connection_id
                and not pending.response.done()
            ):
                pending.response.set_result(
                    GatewayLost(f"gateway {gateway} disconnected before it responded")
                )

    # Internals

    def _record_failure(self, topic: RequestTopic, error: Unanswered) -> None:
        """Record for the next selection of a gateway that a request failed after it may have been sent."""
        if error.sent:
            self._failures.add(mac_to_int(topic.device), mac_to_int(topic.gateway))

    def _record_reachability(self, topic: RequestTopic | ResponseTopic, response: Response) -> None:
        """Record whether a gateway reached a device, for the next selection of a gateway."""
        device, gateway = mac_to_int(topic.device), mac_to_int(topic.gateway)
        if response.status in _UNREACHABLE_STATUSES:
            self._failures.add(device, gateway)
        else:
            self._failures.clear(device, gateway)

    def _add_late_callback(
        self, request_id: RequestId, on_late_response: Callable[[RpcResponse], None]
    ) -> None:
        """Register a callback for a late response. Discard the oldest callback if there are too many."""
        self._late_callbacks[request_id] = on_late_response
        if len(self._late_callbacks) > _MAX_LATE_CALLBACKS:
            del self._late_callbacks[next(iter(self._late_callbacks))]

    async def _acquire_slot(self, topic: RequestTopic, request: Request) -> None:
        """Wait until a gateway can process one more request. Call `_release_slot` after the request."""
        gateway, slot = topic.gateway, asyncio.get_running_loop().create_future()
        if self._queues.acquire_or_enqueue(gateway, request.priority, slot):
            return
        try:
            await slot
            self._check_reachable(topic, request)
        except BaseException:
            if slot.cancelled():
                self._queues.cancel_ticket(gateway, request.priority, slot)
            else:  # the slot was granted but is not needed any more
                self._release_slot(gateway)
            raise

    def _release_slot(self, gateway: Mac) -> None:
        """Pass a slot of a gateway to the next queued request that was not canceled, or free the slot."""
        while (slot := self._queues.release_slot(gateway)) is not None:
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
        """Send a request, wait for its response, and release the slot of the gateway."""
        self._pending[request_id] = pending
        pending.started_at = _loop_time()
        try:
            await self._wait_until_subscribed(topic.gateway)
            if before_send is not None:
                before_send()
            # Read before the request is published: the gateway may reconnect while that takes time.
            pending.connection_id = self._transport.connection_id(topic.gateway)
            pending.progress = RequestProgress.SENDING
            await self._publish_request(topic, request, request_id)
            pending.progress = RequestProgress.SENT
            outcome = await pending.response
        finally:
            del self._pending[request_id]
            self._release_slot(topic.gateway)
        if isinstance(outcome, Unanswered):
            raise outcome
        return outcome

    async def _wait_until_subscribed(self, gateway: Mac) -> None:
        """Wait until a gateway that has just connected receives requests, or raise `GatewayOffline`."""
        polls = round(_SUBSCRIBE_SECONDS / _SUBSCRIBE_POLL_SECONDS)
        while not self._transport.hears_requests(gateway):
            if self._transport.connection_id(gateway) == 0:
                raise GatewayOffline(f"gateway {gateway} is not connected")
            if polls == 0:
                raise _build_deaf_gateway_error(gateway)
            polls -= 1
            await asyncio.sleep(_SUBSCRIBE_POLL_SECONDS)

    async def _publish_request(self, topic: RequestTopic, request: Request, request_id: RequestId) -> None:
        """Publish a request over MQTT. Wait while the connection to the broker is congested."""
        body = requests.encode_request(replace(request, id=request_id))
        await self._transport.send_urgent(Publish(self._topics.format_topic(topic), body, qos=1))

    def _build_timeout_error(
        self, request_id: RequestId, pending: _PendingRequest, timeout: float
    ) -> Unanswered:
        """Return the error for a timed-out request that was queued, being sent, or sent."""
        gateway = pending.gateway
        match pending.progress:
            case RequestProgress.WAITING if not self._transport.hears_requests(gateway):
                return _build_deaf_gateway_error(gateway)
            case RequestProgress.WAITING:
                return GatewayBusy(
                    f"gateway {gateway} is busy: the request was not sent within {timeout:g} s"
                )
            case RequestProgress.SENDING:
                return BrokerUnavailable("the broker did not accept the request in time")
            case RequestProgress.SENT:
                if self._tracker.may_be_unreadable(request_id):
                    return MalformedResponse(f"gateway {gateway} sent a response that is not a JSON object")
                return GatewayTimeout(f"gateway {gateway} did not respond within {timeout:g} s")

    def _on_message(self, message: Publish) -> None:
        """Match a received MQTT message to a pending request of this client."""
        received = self._tracker.match_message(self._topics, message.topic, message.payload)
        if received is None:
            return
        self.response_counts[received.match] += 1
        if received.request_id is None:
            return
        if received.match is ResponseMatch.LATE:
            self._on_late_response(received, self._late_callbacks.pop(received.request_id, None))
        elif received.match is ResponseMatch.ANSWER:
            pending = self._pending.get(received.request_id)
            if pending is not None and not pending.response.done():  # otherwise just canceled or not sent
                pending.response.set_result(self._build_outcome(received, pending))

    def _on_late_response(
        self, received: ReceivedResponse, callback: Callable[[RpcResponse], None] | None
    ) -> None:
        """Pass a response that arrives after the timeout to the callback of the request.

        If the gateway has reached the device after all, clear the failure that the timeout recorded.
        """
        received_at, response = self._now(), received.decode()
        if isinstance(response, MalformedResponse):
            return
        if response.status not in _UNREACHABLE_STATUSES:
            self._record_reachability(received.topic, response)
        if callback is not None:
            callback(RpcResponse(response, received_at, received_at))

    def _build_outcome(
        self, received: ReceivedResponse, pending: _PendingRequest
    ) -> RpcResponse | MalformedResponse:
        """Decode the response to a pending request, and pass the time in it to `on_clock_sample`."""
        received_at = self._now()
        # Computed from the duration: the system clock may have been set since the request was sent.
        sent_at = received_at - round((_loop_time() - pending.started_at) * 1000)
        response = received.decode()
        if isinstance(response, MalformedResponse):
            return response
        if self._on_clock_sample is not None:
            self._on_clock_sample(
                mac_to_int(received.topic.gateway), sent_at, received_at, to_millis(response.time)
            )
        return RpcResponse(response, sent_at, received_at)


def _build_deaf_gateway_error(gateway: Mac) -> GatewayOffline:
    return GatewayOffline(f"gateway {gateway} is connected, but has not subscribed to requests")


def _check_timeout(timeout: float) -> None:
    """Raise `GatewayBusy` if no time is left to send a request."""
    if timeout <= 0:
        raise GatewayBusy("the timeout expired before the request could be sent")


def _loop_time() -> float:
    """Return the time of the event loop's clock in seconds."""
    return asyncio.get_running_loop().time()
