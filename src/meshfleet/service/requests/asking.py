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
    WireError,
)
from meshfleet.service.requests.gateway_selection import FailedTries
from meshfleet.service.requests.lanes import Lanes
from meshfleet.wire import gating, payload, requests, responses
from meshfleet.wire.codes import Status
from meshfleet.wire.exchange import Exchange, Fate
from meshfleet.wire.ids import mac_number
from meshfleet.wire.mqtt.packets import Publish
from meshfleet.wire.times import to_millis
from meshfleet.wire.topics import RequestTopic, ResponseTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.service.clock import Now
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.wire.ids import Mac, RequestId, Version
    from meshfleet.wire.requests import Request
    from meshfleet.wire.responses import Response
    from meshfleet.wire.topics import Topics

    Measure: TypeAlias = Callable[[int, int, int, int], None]
    """Takes a gateway, when it was asked and answered by our clock, and the time that it told."""

AT_ONCE: Final = 16
"""Requests that a gateway gets at a time, unless set."""

_NOISE: Final = 1000
"""Topics with such noise that are remembered."""

_NOT_REACHED: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE})
"""What a gateway answers when it did not reach the device."""

_LATE: Final = 2000
"""Requests without an answer whose callers still want to hear of a late one."""

_LOOK: Final = 1.0
"""Seconds between two looks at whether gateways are still there that were asked something."""


class Answer(NamedTuple):
    """A response, whatever its status."""

    response: Response
    sent: int
    """When the request left, in milliseconds by the clock that tells when the response came."""
    received: int
    """When the response came."""


class Progress(Enum):
    """How far a request has come."""

    WAITING = 0
    """For its turn."""
    SENDING = 1
    """There may be no room on the way to the broker."""
    SENT = 2


class _Asked:
    """A request whose answer is waited for."""

    __slots__ = ("answer", "began", "gateway", "progress", "turn")

    def __init__(self, gateway: Mac, answer: asyncio.Future[Answer | Unanswered]) -> None:
        self.gateway = gateway
        self.answer = answer
        """Errors come as results: nobody may be left to hear of one."""
        self.progress = Progress.WAITING
        self.began = 0.0
        """When it was given to the broker, by the event loop's clock."""
        self.turn: int | None = None
        """The connection of the gateway when it was sent."""


class Asking:
    """Sends requests of the service. What they hold is never logged (request-32)."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        carrier: Carrier,
        topics: Topics,
        now: Now,
        *,
        version: Callable[[Mac], Version] = lambda _: gating.NEWEST,
        at_once: int = AT_ONCE,
        failures: FailedTries | None = None,
        measure: Measure | None = None,
    ) -> None:
        """`version` tells what a gateway speaks.

        `failures` remembers which tries failed; `measure` learns the time of a gateway from every answer.
        """
        self._carrier = carrier
        self._topics = topics
        self._now = now
        self._version = version
        self._failures = FailedTries() if failures is None else failures
        self._measure = measure
        self._exchange = Exchange(secrets.token_hex(8))
        self._lanes: Lanes[asyncio.Future[None]] = Lanes(at_once)
        self._waiting: dict[RequestId, _Asked] = {}
        self._late_listeners: dict[RequestId, Callable[[Answer], None]] = {}
        self._noise: dict[ResponseTopic, float] = {}
        """When something came that nobody can read, where answers come."""
        self.heard: Counter[Fate] = Counter()
        """The responses of all gateways, by what they were to us."""
        carrier.listen(topics.responses(), self._hear)

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return len(self._exchange)

    @property
    def queued(self) -> int:
        """How many of them wait for their turn."""
        return self._lanes.waiting

    def new_id(self) -> RequestId:
        """An id for a request, which nobody else has."""
        return self._exchange.new_id()

    def check(self, topic: RequestTopic, request: Request) -> None:
        """Raise what speaks against asking this now, if anything does."""
        if topic.operation.is_answered:
            self._exchange.check_room()
        self._check_way(topic, request)

    def _check_way(self, topic: RequestTopic, request: Request) -> None:
        """Raise what speaks against sending this now: nobody there, or too old for it (version-12)."""
        if (reason := self._carrier.muted) is not None:
            raise BrokerUnavailable(f"the broker is away: {reason}")
        if self._carrier.turn(topic.gateway) == 0:
            raise GatewayOffline(f"gateway {topic.gateway} is not connected")
        requests.check_supported(topic.operation, request, self._version(topic.gateway))

    async def send(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 # as below
        request_id: RequestId,
    ) -> None:
        """Send what is never answered; see `check`. It has no turn to wait for."""
        self.check(topic, request)
        _check_time(timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._send(topic, request, request_id)
        except TimeoutError:
            raise BrokerUnavailable("the broker took nothing in time") from None

    async def ask(  # noqa: PLR0913 # by name
        self,
        topic: RequestTopic,
        request: Request,
        *,
        timeout: float,  # noqa: ASYNC109 # who asks does not have to know how it is told
        request_id: RequestId | None = None,
        late: Callable[[Answer], None] | None = None,
        leaves: Callable[[], None] | None = None,
    ) -> Answer:
        """Ask, and wait at most so many seconds for the answer. Its status is for the caller to judge.

        Raises one of `Unanswered`, whose classes tell whether anything was sent, or `GatewayTooOld`. Who
        cancels it does not call it back. What becomes of it counts when the next gateway is chosen. `late` is
        called at most once, with an answer that comes after that. `leaves` is called when its turn has come,
        just before it is sent: until then, whoever cancels it does call it back. If it raises `Unanswered`,
        nothing is sent.
        """
        try:
            answer = await self._ask(topic, request, timeout, request_id, late, leaves)
        except Unanswered as exc:
            if exc.sent:
                self._failures.add(mac_number(topic.device), mac_number(topic.gateway))
            raise
        self._judge(topic, answer.response)
        return answer

    async def _ask(  # noqa: PLR0913, PLR0917 # as above
        self,
        topic: RequestTopic,
        request: Request,
        timeout: float,  # noqa: ASYNC109 # as above
        request_id: RequestId | None,
        late: Callable[[Answer], None] | None,
        leaves: Callable[[], None] | None,
    ) -> Answer:
        self._check_way(topic, request)
        _check_time(timeout)
        request_id, began = self._exchange.open(topic.response(), request_id), _moment()
        asked = _Asked(topic.gateway, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for_turn(topic, request)
                return await self._exchanged(topic, request, request_id, asked, leaves)
        except TimeoutError:
            raise self._late(topic, asked, timeout, began) from None
        finally:
            if self._exchange.give_up(request_id) and late is not None and asked.progress is Progress.SENT:
                self._wait_for_late(request_id, late)

    async def watch(self, *, pause: float = _LOOK) -> None:
        """Tell those who wait for gateways that have gone, until cancelled."""
        while True:
            await asyncio.sleep(pause)
            self.look()

    def look(self) -> None:
        """Give up what was asked of gateways over connections that have ended."""
        turns: dict[Mac, int | None] = {}
        for asked in self._waiting.values():
            gateway = asked.gateway
            if gateway not in turns:
                turns[gateway] = self._carrier.turn(gateway)
            if asked.progress is Progress.SENT and turns[gateway] != asked.turn and not asked.answer.done():
                asked.answer.set_result(GatewayLost(f"gateway {gateway} went away before it answered"))

    # Inside

    def _judge(self, topic: RequestTopic | ResponseTopic, response: Response) -> None:
        """Remember whether a gateway has reached the device."""
        device, gateway = mac_number(topic.device), mac_number(topic.gateway)
        if response.status in _NOT_REACHED:
            self._failures.add(device, gateway)
        else:
            self._failures.clear(device, gateway)

    def _wait_for_late(self, request_id: RequestId, late: Callable[[Answer], None]) -> None:
        """Remember who wants to hear of a late answer; beyond a limit the oldest is forgotten."""
        self._late_listeners[request_id] = late
        if len(self._late_listeners) > _LATE:
            del self._late_listeners[next(iter(self._late_listeners))]

    async def _wait_for_turn(self, topic: RequestTopic, request: Request) -> None:
        """Wait until the gateway may have another request; whoever gets that far must `_leave` it."""
        gateway, turn = topic.gateway, asyncio.get_running_loop().create_future()
        if self._lanes.enter(gateway, request.priority, turn):
            return
        try:
            await turn
            self._check_way(topic, request)
        except BaseException:
            if turn.cancelled():
                self._lanes.give_up(gateway, request.priority, turn)
            else:  # it was our turn, and is not needed any more
                self._leave(gateway)
            raise

    def _leave(self, gateway: Mac) -> None:
        """Let the next one have its turn, who may have been cancelled a moment ago."""
        while (turn := self._lanes.leave(gateway)) is not None:
            if not turn.done():
                turn.set_result(None)
                return

    async def _exchanged(
        self,
        topic: RequestTopic,
        request: Request,
        request_id: RequestId,
        asked: _Asked,
        leaves: Callable[[], None] | None,
    ) -> Answer:
        """Send, and wait for the answer; with that our turn ends."""
        self._waiting[request_id] = asked
        asked.began = _moment()
        try:
            if leaves is not None:
                leaves()
            asked.progress = Progress.SENDING
            await self._send(topic, request, request_id)
            asked.turn, asked.progress = self._carrier.turn(topic.gateway), Progress.SENT
            told = await asked.answer
        finally:
            del self._waiting[request_id]
            self._leave(topic.gateway)
        if isinstance(told, Unanswered):
            raise told
        return told

    async def _send(self, topic: RequestTopic, request: Request, request_id: RequestId) -> None:
        """Let it leave, as soon as there is room on the way."""
        body = requests.encode(replace(request, id=request_id))
        await self._carrier.offer(Publish(self._topics.spell(topic), body, qos=1))

    def _late(self, topic: RequestTopic, asked: _Asked, timeout: float, began: float) -> Unanswered:
        """Which part of the way took all the time."""
        match asked.progress:
            case Progress.WAITING:
                return GatewayBusy(f"gateway {topic.gateway} had no time for it within {timeout:g} s")
            case Progress.SENDING:
                return BrokerUnavailable("the broker took nothing in time")
            case Progress.SENT:
                if self._noise.get(topic.response(), -1) >= began:
                    return MalformedResponse(f"gateway {topic.gateway} answered what is no JSON")
                return GatewayTimeout(f"gateway {topic.gateway} did not answer within {timeout:g} s")

    def _hear(self, message: Publish) -> None:
        """A response came, to us or to somebody else."""
        try:
            topic = self._topics.read(message.topic)
        except WireError:
            return
        if not isinstance(topic, ResponseTopic):
            return
        request_id = requests.read_id(message.payload)
        if request_id is None and _is_noise(message):
            self._hear_noise(topic)
        fate = self._exchange.hear(topic, request_id)
        self.heard[fate] += 1
        if fate is Fate.LATE and request_id is not None:
            self._hear_late(topic, request_id, message.payload)
        if fate is not Fate.ANSWER or request_id is None:
            return
        asked = self._waiting.get(request_id)
        if asked is not None and not asked.answer.done():  # else cancelled a moment ago, or not sent yet
            asked.answer.set_result(self._read(topic, message.payload, _moment() - asked.began))

    def _hear_late(self, topic: ResponseTopic, request_id: RequestId, data: bytes) -> None:
        """Handle an answer that comes when its caller waits no longer.

        It takes back that the try failed, if its gateway has reached the device after all.
        """
        late = self._late_listeners.pop(request_id, None)
        received = self._now()
        try:
            answer = Answer(responses.decode(topic.operation, data), received, received)
        except WireError:
            return
        if answer.response.status not in _NOT_REACHED:
            self._judge(topic, answer.response)
        if late is not None:
            late(answer)

    def _hear_noise(self, topic: ResponseTopic) -> None:
        """Nobody can tell to whom this was said. If no answer comes there, it was the answer."""
        if len(self._noise) >= _NOISE:
            self._noise.clear()
        self._noise[topic] = _moment()

    def _read(self, topic: ResponseTopic, data: bytes, seconds: float) -> Answer | MalformedResponse:
        """Read what a gateway answered after so many seconds."""
        received = self._now()
        # The machine's clock may have been set meanwhile, so this is not read from it.
        sent = received - round(seconds * 1000)
        try:
            answer = Answer(responses.decode(topic.operation, data), sent, received)
        except WireError as exc:
            problem = MalformedResponse(f"gateway {topic.gateway} answered what cannot be read: {exc}")
            problem.__cause__ = exc
            return problem
        if self._measure is not None:
            self._measure(mac_number(topic.gateway), sent, received, to_millis(answer.response.time))
        return answer


def _check_time(timeout: float) -> None:
    """Refuse what is over before it begins: it would leave, and nobody would wait."""
    if timeout <= 0:
        raise GatewayBusy("no time was left to send it")


def _moment() -> float:
    """The time of the event loop, in seconds."""
    return asyncio.get_running_loop().time()


def _is_noise(message: Publish) -> bool:
    """Whether not even an id can be read from it."""
    try:
        payload.read_object(message.payload)
    except WireError:
        return True
    return False
