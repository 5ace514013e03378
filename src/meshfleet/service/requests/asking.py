"""Asks gateways, and devices through them, and waits for what they answer."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import GatewayOffline, GatewayTimeout, MalformedResponse, WireError
from meshfleet.wire import requests, responses
from meshfleet.wire.exchange import Exchange, Fate
from meshfleet.wire.mqtt.packets import Publish
from meshfleet.wire.topics import RequestTopic, ResponseTopic

if TYPE_CHECKING:
    from meshfleet.service.clock import Now
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.wire.codes import Operation
    from meshfleet.wire.ids import Mac, RequestId
    from meshfleet.wire.requests import Request
    from meshfleet.wire.responses import Response
    from meshfleet.wire.topics import AnyIdentifier, Topics


class Answer(NamedTuple):
    """A response, whatever its status."""

    response: Response
    sent: int
    """When the request left, in milliseconds."""
    received: int
    """When the response came."""


class Asking:
    """Sends requests of the service. What they hold is never logged (request-32)."""

    def __init__(self, carrier: Carrier, topics: Topics, now: Now) -> None:
        self._carrier = carrier
        self._topics = topics
        self._now = now
        self._exchange = Exchange(secrets.token_hex(8))
        self._waiting: dict[RequestId, asyncio.Future[Answer | MalformedResponse]] = {}
        self.heard: Counter[Fate] = Counter()
        """The responses of all gateways, by what they were to us."""
        carrier.listen(topics.responses(), self._hear)

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return len(self._exchange)

    async def ask(  # noqa: PLR0913 # the parts of a topic, and what is sent there
        self,
        gateway: Mac,
        device: Mac,
        operation: Operation,
        request: Request,
        identifier: AnyIdentifier | None = None,
        *,
        timeout: float,  # noqa: ASYNC109 # who asks does not have to know how it is told
    ) -> Answer:
        """Ask, and wait at most so many seconds for the answer. Its status is for the caller to judge.

        Raises `GatewayOffline` when it is known that nobody would hear it, `GatewayTimeout` when no answer
        came, and `MalformedResponse` when one came that cannot be read. Who cancels it does not call it back.
        """
        if self._carrier.has(gateway) is False:
            raise GatewayOffline(f"gateway {gateway} is not connected")
        topic = RequestTopic(gateway, device, operation, identifier)
        request_id = self._exchange.open(topic.response())
        answer: asyncio.Future[Answer | MalformedResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            body = requests.encode(replace(request, id=request_id))
            sent = self._now()
            self._carrier.send([Publish(self._topics.spell(topic), body, qos=1)])
            async with asyncio.timeout(timeout):
                told = await answer
        except TimeoutError:
            raise GatewayTimeout(f"gateway {gateway} did not answer within {timeout:g} s") from None
        finally:
            del self._waiting[request_id]
            self._exchange.give_up(request_id)
        if isinstance(told, MalformedResponse):
            raise told
        return told._replace(sent=sent)

    def _hear(self, message: Publish) -> None:
        """A response came, to us or to somebody else."""
        try:
            topic = self._topics.read(message.topic)
        except WireError:
            return
        if not isinstance(topic, ResponseTopic):
            return
        request_id = requests.read_id(message.payload)
        fate = self._exchange.hear(topic, request_id)
        self.heard[fate] += 1
        if fate is not Fate.ANSWER or request_id is None:
            return
        answer = self._waiting[request_id]
        if not answer.done():  # as it is when it was cancelled a moment ago
            answer.set_result(self._read(topic, message.payload))

    def _read(self, topic: ResponseTopic, payload: bytes) -> Answer | MalformedResponse:
        try:
            return Answer(responses.decode(topic.operation, payload), 0, self._now())
        except WireError as exc:
            problem = MalformedResponse(f"gateway {topic.gateway} answered what cannot be read: {exc}")
            problem.__cause__ = exc
            return problem
