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

from meshfleet.client.mesh.waiting import Waiting
from meshfleet.client.names import seconds
from meshfleet.errors import (
    BrokerUnreachable,
    ConnectionLost,
    GatewayTimeout,
    LinkClosed,
    MalformedResponse,
    PayloadTooLarge,
    Undelivered,
    WireError,
)
from meshfleet.link import Link, Oversized, Publish
from meshfleet.wire import payload, requests, responses
from meshfleet.wire.exchange import MAX_OPEN, Exchange, Fate
from meshfleet.wire.ids import EVERY_GATEWAY
from meshfleet.wire.payload import MAX_PAYLOAD
from meshfleet.wire.topics import ResponseTopic

if TYPE_CHECKING:
    from meshfleet.errors import FleetError
    from meshfleet.link import Address, Options
    from meshfleet.wire.ids import Mac, RequestId
    from meshfleet.wire.requests import Request
    from meshfleet.wire.responses import Response
    from meshfleet.wire.topics import RequestTopic, Topics

_log = logging.getLogger(__name__)

_ONE_BY_ONE: Final = 50
"""Gateways whose responses are subscribed to one by one. A broker grants a client only so many filters: who
asks more gateways hears all of them."""


class Asking:
    """Requests of one program, on a connection of their own. What they hold is never logged (request-32)."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        topics: Topics,
        options: Options,
        *,
        max_pending: int = MAX_OPEN,
    ) -> None:
        """`max_pending` requests may wait for their answers; one more raises `TooManyRequests`."""
        self._address = address
        self._topics = topics
        # Not sent again when a connection breaks, as reports are: a write must not be carried out twice,
        # minutes later. Whoever sent it is told, and decides.
        self._line = Link(
            address, client_id, clean=True, options=replace(options, once=True), ended=self._broke
        )
        self._exchange = Exchange(secrets.token_hex(8), max_open=max_pending)
        self._waiting: dict[RequestId, Waiting] = {}
        self._subscribed: set[Mac] = set()
        self._hears_all = False
        self._turn = asyncio.Lock()
        self._hearing: asyncio.Task[None] | None = None
        self.heard: Counter[Fate] = Counter()
        """The responses that came, by what they were to us."""

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return len(self._exchange)

    async def begin(self) -> None:
        """Connect, or raise what is in the way."""
        await self._line.__aenter__()
        self._hearing = asyncio.create_task(self._hear_all(), name="responses")

    async def end(self) -> None:
        """Take leave. Who still waits gets `LinkClosed`."""
        self._give_up()
        try:
            await self._line.close()
        except Undelivered as undelivered:
            _log.warning("requests: %s", undelivered)
        finally:
            if self._hearing is not None:
                self._hearing.cancel()
                await asyncio.wait((self._hearing,))

    async def ask(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        is_safe: bool,
        timeout: float,  # noqa: ASYNC109 # who asks does not have to know how it is told
    ) -> Response:
        """Ask, and wait at most so many seconds for the answer. Its status is for the caller to judge.

        What is safe may be sent again after a connection broke. Who cancels it does not call it back.
        """
        self._check(timeout)
        if topic.gateway == EVERY_GATEWAY:
            raise WireError("gateway", "is all of them, each of which would answer: ask one")
        request_id = self._exchange.open(topic.response())
        waiting = self._waiting[request_id] = Waiting(topic, is_safe=is_safe)
        try:
            message = self._message(topic, replace(request, id=request_id))
            async with asyncio.timeout(timeout):
                await self._listen_to(topic.gateway)
                told = await self._answer(waiting, message)
        except TimeoutError:
            raise self._late(waiting, timeout) from None
        finally:
            del self._waiting[request_id]
            self._exchange.give_up(request_id)
        if isinstance(told, Exception):
            raise told
        return told

    async def tell(
        self,
        topic: RequestTopic,
        request: Request,
        *,
        is_safe: bool,
        timeout: float,  # noqa: ASYNC109 # as above
    ) -> None:
        """Send a request that nobody answers; it returns when the broker has it."""
        self._check(timeout)
        waiting = Waiting(topic, is_safe=is_safe)
        message = self._message(topic, request)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    waiting.sent(delivered := await self._line.send(message))
                    try:
                        return await delivered
                    except ConnectionLost as lost:
                        waiting.broke(lost)
                    if isinstance(problem := await waiting.next(), Exception):
                        raise problem
        except TimeoutError:
            if not waiting.may_have_left:
                raise self._unsent(topic) from None
            raise ConnectionLost(
                f"{self._address} did not acknowledge {topic.operation} to gateway {topic.gateway} within "
                f"{timeout:g} s; it may have been carried out"
            ) from None

    # The way out

    async def _answer(self, waiting: Waiting, message: Publish) -> Response | FleetError:
        """Send it, and again whenever it may be lost and that does no harm, until there is an answer."""
        while True:
            waiting.sent(await self._line.send(message))
            if (told := await waiting.next()) is not None:
                return told

    def _message(self, topic: RequestTopic, request: Request) -> Publish:
        body = requests.encode(request)
        if len(body) > MAX_PAYLOAD:
            raise PayloadTooLarge("payload", f"has {len(body)} bytes; {MAX_PAYLOAD} are allowed")
        return Publish(self._topics.spell(topic), body, qos=1)

    async def _listen_to(self, gateway: Mac) -> None:
        """Hear the responses of a gateway, before it is asked for the first time."""
        if self._hears(gateway):
            return
        async with self._turn:
            if self._hears(gateway):  # somebody else has seen to it
                return
            if len(self._subscribed) < _ONE_BY_ONE:
                await self._line.subscribe(self._topics.responses(gateway))
                self._subscribed.add(gateway)
                return
            await self._line.subscribe(self._topics.responses())
            self._hears_all = True
            await self._line.unsubscribe(*map(self._topics.responses, self._subscribed))
            self._subscribed.clear()

    def _hears(self, gateway: Mac) -> bool:
        return self._hears_all or gateway in self._subscribed

    # The way back

    async def _hear_all(self) -> None:
        try:
            async for batch in self._line:
                for message in batch.messages:
                    self._hear(message)
                batch.acknowledge()
        except LinkClosed as closed:
            _log.error("no answers are heard any more: %s", closed)
        finally:
            self._give_up()

    def _hear(self, message: Publish) -> None:
        """A response came, to us or to somebody else (request-29)."""
        try:
            topic = self._topics.read(message.topic)
        except WireError:
            return
        if not isinstance(topic, ResponseTopic):
            return
        request_id = requests.read_id(message.payload)
        if request_id is None and _is_unreadable(message):
            self._hear_noise(topic)
        fate = self._exchange.hear(topic, request_id)
        self.heard[fate] += 1
        if fate is Fate.ANSWER and request_id is not None:
            self._waiting[request_id].tell(_read(topic, message.payload))

    def _hear_noise(self, topic: ResponseTopic) -> None:
        """Nobody can tell to whom this was said. If no answer comes, it was the answer."""
        for waiting in self._waiting.values():
            if waiting.topic.response() == topic:
                waiting.has_noise = True

    # When something goes wrong

    def check_open(self) -> None:
        """Raise `LinkClosed` where there is no connection, nor will be."""
        if self._hearing is None or self._hearing.done():
            raise LinkClosed("there is no connection: use it as `async with`")

    def _check(self, timeout: float) -> None:
        self.check_open()
        seconds(timeout)

    def _broke(self, lost: ConnectionLost) -> None:
        for waiting in self._waiting.values():
            waiting.broke(lost)

    def _give_up(self) -> None:
        for waiting in self._waiting.values():
            waiting.tell(LinkClosed("closed before an answer came; the request may have been carried out"))

    def _late(self, waiting: Waiting, timeout: float) -> FleetError:
        if not waiting.may_have_left:
            return self._unsent(waiting.topic)
        meanwhile = "; meanwhile the connection to the broker broke" if waiting.breaks else ""
        gateway = waiting.topic.gateway
        if waiting.has_noise:
            return MalformedResponse(f"gateway {gateway} answered what cannot be read as JSON of 64 KiB")
        return GatewayTimeout(f"gateway {gateway} did not answer within {timeout:g} s{meanwhile}")

    def _unsent(self, topic: RequestTopic) -> BrokerUnreachable:
        why = self._line.trouble or f"{self._address} does not take requests now"
        return BrokerUnreachable(f"{why}; nothing was sent to gateway {topic.gateway}")


def _is_unreadable(message: Publish) -> bool:
    """Whether not even its id can be read."""
    if isinstance(message, Oversized):
        return True
    try:
        payload.read_object(message.payload)
    except WireError:
        return True
    return False


def _read(topic: ResponseTopic, payload: bytes) -> Response | MalformedResponse:
    try:
        return responses.decode(topic.operation, payload)
    except WireError as exc:
        problem = MalformedResponse(f"gateway {topic.gateway} answered what cannot be read: {exc}")
        problem.__cause__ = exc
        return problem
