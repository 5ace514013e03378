"""Asks gateways, and devices through them, and waits for what they answer.

All requests of the service go this way: those of people over REST, of jobs, and of the registry. Whoever asks
says how long it can wait. That time runs from the beginning: while others are before it at its gateway, and
while the gateway has it.
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
from meshfleet.errors.protocol import WireError
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
    """Takes a gateway, when it was asked and answered by our clock, and the time that it told."""

MAX_CONCURRENT: Final = 16
"""Requests that a gateway gets at a time, unless set."""

_MAX_UNREADABLE_TOPICS: Final = 1000
"""Topics with such noise that are remembered."""

_UNREACHABLE_STATUSES: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE})
"""What a gateway answers when it did not reach the device."""

_MAX_LATE_LISTENERS: Final = 2000
"""Requests without an answer whose callers still want to hear of a late one."""

_WATCH_SECONDS: Final = 1.0
"""Seconds between two looks at whether gateways are still there that were asked something."""


class RpcResponse(NamedTuple):
    """A response, whatever its status."""

    response: Response
    sent_at: int
    """When the request left, in milliseconds by the clock that tells when the response came."""
    received_at: int
    """When the response came."""


class SendProgress(Enum):
    """How far a request has come."""

    WAITING = 0
    """For its turn."""
    SENDING = 1
    """There may be no room on the way to the broker."""
    SENT = 2


class _PendingRequest:
    """A request whose answer is waited for."""

    __slots__ = ("connection_number", "gateway", "progress", "response", "started_at")

    def __init__(self, gateway: Mac, answer: asyncio.Future[RpcResponse | Unanswered]) -> None:
        self.gateway = gateway
        self.response = answer
        """Errors come as results: nobody may be left to hear of one."""
        self.progress = SendProgress.WAITING
        self.started_at = 0.0
        """When it was given to the broker, by the event loop's clock."""
        self.connection_number: int | None = None
        """The connection of the gateway when it was sent."""


class RpcClient:
    """Sends requests of the service. What they hold is never logged (request-32)."""

    def __init__(  # noqa: PLR0913 # by name
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
        """`version` tells what a gateway speaks.

        `failures` remembers which tries failed; `measure` learns the time of a gateway from every answer.
        """
        self._transport = transport
        self._topics = topics
        self._now = now
        self._get_version = get_version
        self._failures = FailedAttempts() if failures is None else failures
        self._on_clock_sample = on_clock_sample
        self._exchange = RequestTracker(secrets.token_hex(8))
        self._queues: GatewayQueues[asyncio.Future[None]] = GatewayQueues(max_concurrent)
        self._pending: dict[RequestId, _PendingRequest] = {}
        self._late_listeners: dict[RequestId, Callable[[RpcResponse], None]] = {}
        self._unreadable_at: dict[ResponseTopic, float] = {}
        """When something came that nobody can read, where answers come."""
        self.response_counts: Counter[ResponseMatch] = Counter()
        """The responses of all gateways, by what they were to us."""
        transport.subscribe(topics.response_filter(), self._on_message)

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return len(self._exchange)

    @property
    def queued(self) -> int:
        """How many of them wait for their turn."""
        return self._queues.queued

    def new_id(self) -> RequestId:
        """An id for a request, which nobody else has."""
        return self._exchange.new_id()

    def check_sendable(self, topic: RequestTopic, request: Request) -> None:
        """Raise what speaks against asking this now, if anything does."""
        if topic.operation.is_answered:
            self._exchange.check_capacity()
        self._check_reachable(topic, request)

    def _check_reachable(self, topic: RequestTopic, request: Request) -> None:
        """Raise what speaks against sending this now: nobody there, or too old for it (version-12)."""
        if (reason := self._transport.unavailable_reason) is not None:
            raise BrokerUnavailable(f"the broker is away: {reason}")
        if self._transport.connection_number(topic.gateway) == 0:
            raise GatewayOffline(f"gateway {topic.gateway} is not connected")
        requests.check_request_supported(topic.operation, request, self._get_version(topic.gateway))

    async def send(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 # as below
        request_id: RequestId,
    ) -> None:
        """Send what is never answered; see `check`. It has no turn to wait for."""
        self.check_sendable(topic, request)
        _check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._send(topic, request, request_id)
        except TimeoutError:
            raise BrokerUnavailable("the broker took nothing in time") from None

    async def request(  # noqa: PLR0913 # by name
        self,
        topic: RequestTopic,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 # who asks does not have to know how it is told
        request_id: RequestId | None = None,
        on_late_response: Callable[[RpcResponse], None] | None = None,
        before_send: Callable[[], None] | None = None,
    ) -> RpcResponse:
        """Ask, and wait at most so many seconds for the answer. Its status is for the caller to judge.

        Raises one of `Unanswered`, whose classes tell whether anything was sent, or `GatewayTooOld`. Who
        cancels it does not call it back. What becomes of it counts when the next gateway is chosen. `late` is
        called at most once, with an answer that comes after that. `leaves` is called when its turn has come,
        just before it is sent: until then, whoever cancels it does call it back. If it raises `Unanswered`,
        nothing is sent.
        """
        try:
            answer = await self._request(topic, request, timeout, request_id, on_late_response, before_send)
        except Unanswered as exc:
            if exc.sent:
                self._failures.add(mac_to_int(topic.device), mac_to_int(topic.gateway))
            raise
        self._record_reachability(topic, answer.response)
        return answer

    async def _request(  # noqa: PLR0913, PLR0917 # as above
        self,
        topic: RequestTopic,
        request: Request,
        timeout: float,  # noqa: ASYNC109 # as above
        request_id: RequestId | None,
        on_late_response: Callable[[RpcResponse], None] | None,
        before_send: Callable[[], None] | None,
    ) -> RpcResponse:
        self._check_reachable(topic, request)
        _check_timeout(timeout)
        request_id, began = self._exchange.open(topic.to_response_topic(), request_id), _loop_time()
        asked = _PendingRequest(topic.gateway, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(timeout):
                await self._acquire_slot(topic, request)
                return await self._send_and_wait(topic, request, request_id, asked, before_send)
        except TimeoutError:
            raise self._timeout_error(topic, asked, timeout, began) from None
        finally:
            if (
                self._exchange.abandon(request_id)
                and on_late_response is not None
                and asked.progress is SendProgress.SENT
            ):
                self._add_late_listener(request_id, on_late_response)

    async def watch_connections(self, *, pause: float = _WATCH_SECONDS) -> None:
        """Tell those who wait for gateways that have gone, until cancelled."""
        while True:
            await asyncio.sleep(pause)
            self.fail_lost_requests()

    def fail_lost_requests(self) -> None:
        """Give up what was asked of gateways over connections that have ended."""
        turns: dict[Mac, int | None] = {}
        for asked in self._pending.values():
            gateway = asked.gateway
            if gateway not in turns:
                turns[gateway] = self._transport.connection_number(gateway)
            if (
                asked.progress is SendProgress.SENT
                and turns[gateway] != asked.connection_number
                and not asked.response.done()
            ):
                asked.response.set_result(GatewayLost(f"gateway {gateway} went away before it answered"))

    # Inside

    def _record_reachability(self, topic: RequestTopic | ResponseTopic, response: Response) -> None:
        """Remember whether a gateway has reached the device."""
        device, gateway = mac_to_int(topic.device), mac_to_int(topic.gateway)
        if response.status in _UNREACHABLE_STATUSES:
            self._failures.add(device, gateway)
        else:
            self._failures.clear(device, gateway)

    def _add_late_listener(
        self, request_id: RequestId, on_late_response: Callable[[RpcResponse], None]
    ) -> None:
        """Remember who wants to hear of a late answer; beyond a limit the oldest is forgotten."""
        self._late_listeners[request_id] = on_late_response
        if len(self._late_listeners) > _MAX_LATE_LISTENERS:
            del self._late_listeners[next(iter(self._late_listeners))]

    async def _acquire_slot(self, topic: RequestTopic, request: Request) -> None:
        """Wait until the gateway may have another request; whoever gets that far must `_leave` it."""
        gateway, turn = topic.gateway, asyncio.get_running_loop().create_future()
        if self._queues.acquire_or_enqueue(gateway, request.priority, turn):
            return
        try:
            await turn
            self._check_reachable(topic, request)
        except BaseException:
            if turn.cancelled():
                self._queues.cancel(gateway, request.priority, turn)
            else:  # it was our turn, and is not needed any more
                self._release_slot(gateway)
            raise

    def _release_slot(self, gateway: Mac) -> None:
        """Let the next one have its turn, who may have been cancelled a moment ago."""
        while (turn := self._queues.release(gateway)) is not None:
            if not turn.done():
                turn.set_result(None)
                return

    async def _send_and_wait(
        self,
        topic: RequestTopic,
        request: Request,
        request_id: RequestId,
        pending: _PendingRequest,
        before_send: Callable[[], None] | None,
    ) -> RpcResponse:
        """Send, and wait for the answer; with that our turn ends."""
        self._pending[request_id] = pending
        pending.started_at = _loop_time()
        try:
            if before_send is not None:
                before_send()
            pending.progress = SendProgress.SENDING
            await self._send(topic, request, request_id)
            pending.connection_number, pending.progress = (
                self._transport.connection_number(topic.gateway),
                SendProgress.SENT,
            )
            told = await pending.response
        finally:
            del self._pending[request_id]
            self._release_slot(topic.gateway)
        if isinstance(told, Unanswered):
            raise told
        return told

    async def _send(self, topic: RequestTopic, request: Request, request_id: RequestId) -> None:
        """Let it leave, as soon as there is room on the way."""
        body = requests.encode_request(replace(request, id=request_id))
        await self._transport.send_urgent(Publish(self._topics.format_topic(topic), body, qos=1))

    def _timeout_error(
        self, topic: RequestTopic, pending: _PendingRequest, timeout: float, started_at: float
    ) -> Unanswered:
        """Which part of the way took all the time."""
        match pending.progress:
            case SendProgress.WAITING:
                return GatewayBusy(f"gateway {topic.gateway} had no time for it within {timeout:g} s")
            case SendProgress.SENDING:
                return BrokerUnavailable("the broker took nothing in time")
            case SendProgress.SENT:
                if self._unreadable_at.get(topic.to_response_topic(), -1) >= started_at:
                    return MalformedResponse(f"gateway {topic.gateway} answered what is no JSON")
                return GatewayTimeout(f"gateway {topic.gateway} did not answer within {timeout:g} s")

    def _on_message(self, message: Publish) -> None:
        """A response came, to us or to somebody else."""
        try:
            topic = self._topics.parse_uncached(message.topic)
        except WireError:
            return
        if not isinstance(topic, ResponseTopic):
            return
        request_id = requests.decode_request_id(message.payload)
        if request_id is None and _is_unreadable(message):
            self._record_unreadable(topic)
        fate = self._exchange.match_response(topic, request_id)
        self.response_counts[fate] += 1
        if fate is ResponseMatch.LATE and request_id is not None:
            self._on_late_response(topic, request_id, message.payload)
        if fate is not ResponseMatch.ANSWER or request_id is None:
            return
        asked = self._pending.get(request_id)
        if asked is not None and not asked.response.done():  # else cancelled a moment ago, or not sent yet
            asked.response.set_result(
                self._decode_response(topic, message.payload, _loop_time() - asked.started_at)
            )

    def _on_late_response(self, topic: ResponseTopic, request_id: RequestId, data: bytes) -> None:
        """Handle an answer that comes when its caller waits no longer.

        It takes back that the try failed, if its gateway has reached the device after all.
        """
        late = self._late_listeners.pop(request_id, None)
        received = self._now()
        try:
            answer = RpcResponse(responses.decode_response(topic.operation, data), received, received)
        except WireError:
            return
        if answer.response.status not in _UNREACHABLE_STATUSES:
            self._record_reachability(topic, answer.response)
        if late is not None:
            late(answer)

    def _record_unreadable(self, topic: ResponseTopic) -> None:
        """Nobody can tell to whom this was said. If no answer comes there, it was the answer."""
        if len(self._unreadable_at) >= _MAX_UNREADABLE_TOPICS:
            self._unreadable_at.clear()
        self._unreadable_at[topic] = _loop_time()

    def _decode_response(
        self, topic: ResponseTopic, data: bytes, seconds: float
    ) -> RpcResponse | MalformedResponse:
        """Read what a gateway answered after so many seconds."""
        received = self._now()
        # The machine's clock may have been set meanwhile, so this is not read from it.
        sent = received - round(seconds * 1000)
        try:
            answer = RpcResponse(responses.decode_response(topic.operation, data), sent, received)
        except WireError as exc:
            problem = MalformedResponse(f"gateway {topic.gateway} answered what cannot be read: {exc}")
            problem.__cause__ = exc
            return problem
        if self._on_clock_sample is not None:
            self._on_clock_sample(mac_to_int(topic.gateway), sent, received, to_millis(answer.response.time))
        return answer


def _check_timeout(timeout: float) -> None:
    """Refuse what is over before it begins: it would leave, and nobody would wait."""
    if timeout <= 0:
        raise GatewayBusy("no time was left to send it")


def _loop_time() -> float:
    """The time of the event loop, in seconds."""
    return asyncio.get_running_loop().time()


def _is_unreadable(message: Publish) -> bool:
    """Whether not even an id can be read from it."""
    try:
        payload.decode_object(message.payload)
    except WireError:
        return True
    return False
