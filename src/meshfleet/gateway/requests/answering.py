"""Requests: read, checked, carried through the mesh to the target, and answered."""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from meshfleet.errors import MalformedIdentifier, WireError
from meshfleet.gateway.requests.acknowledging import Acknowledging
from meshfleet.gateway.requests.exchange import Exchange
from meshfleet.gateway.requests.target import Target
from meshfleet.wire import gating, requests, responses
from meshfleet.wire.codes import Operation, Origin, Priority, Status
from meshfleet.wire.mqtt.names import LONGEST
from meshfleet.wire.payload import MAX_PAYLOAD
from meshfleet.wire.topics import BroadcastTopic, RequestTopic

if TYPE_CHECKING:
    from meshfleet.gateway.core import Core
    from meshfleet.gateway.requests.writing import Writing
    from meshfleet.gateway.world.node import Node

PATIENCE: Final = 10.0
"""Seconds that the gateway waits for a device (gateway-28)."""

MOST_OPEN: Final = 256
"""Requests that a gateway works on; more are too many."""

_THINKING: Final = 0.005
"""Seconds that a target takes to answer."""

_SESSION: Final = 0.120
"""Seconds to set up and use a short session with an unconnected device."""


class Answering:
    """The requests to one gateway."""

    def __init__(self, core: Core, writing: Writing) -> None:
        self._core = core
        self._target = Target(core, writing)
        self._acknowledging = Acknowledging(core)
        self._open: set[Exchange] = set()
        self._sessions: dict[Node, list[tuple[int, int, Exchange]]] = {}
        """What waits for an extender that is busy with another unconnected device: the urgent first."""
        self._count = 0

    def take(self, topic: str, payload: bytes | None) -> None:
        """Work on whatever came on a subscribed topic. What cannot be answered is ignored."""
        try:
            parsed = self._core.topics.parse(topic)
        except WireError as exc:
            self._refuse_topic(topic, payload, exc)
            return
        if isinstance(parsed, BroadcastTopic):
            parsed = parsed.addressed_to(self._core.settings.mac)
            if parsed.device not in self._core.devices:
                return  # only those who know the device answer (gateway-15)
        if isinstance(parsed, RequestTopic) and parsed.gateway == self._core.settings.mac:
            self._take(parsed, payload)

    def _refuse_topic(self, topic: str, payload: bytes | None, problem: WireError) -> None:
        """Answer what has the shape of a request and is none (response-24, response-26)."""
        core, mac = self._core, self._core.settings.mac
        answer_to = core.topics.answer_to(topic, mac)
        if answer_to is None or len(answer_to.encode()) > LONGEST:
            return  # no topic of MQTT is longer, and answers have longer ones than requests
        device, _, what = answer_to.removeprefix(core.topics.responses(mac).removesuffix("#")).partition("/")
        to_all = not topic.startswith(core.topics.requests(mac).removesuffix("#"))
        if to_all and device not in core.devices:
            return  # gateway-15
        if what.partition("/")[0] in {Operation.ACK, Operation.ACK_DECODED} and self._knows(Operation.ACK):
            return
        is_identifier = isinstance(problem, MalformedIdentifier)
        request_id = requests.read_id(payload or b"")
        response = responses.Response(
            time=core.clock.time(core.agenda.now),
            status=Status.UNKNOWN_IDENTIFIER if is_identifier else Status.UNKNOWN_OPERATION,
            response_time=0,
            origin=Origin.CONNECTED if device == mac else Origin.GATEWAY,
            id=UNSET if request_id is None else request_id,
            error_message=str(problem),
        )
        core.outbox.put(answer_to, responses.encode_refusal(response, version=core.settings.api_version))

    def _knows(self, operation: Operation) -> bool:
        return gating.exists("request", operation, None, self._core.settings.api_version)

    def _take(self, topic: RequestTopic, payload: bytes | None) -> None:
        operation, version = topic.operation, self._core.settings.api_version
        if not operation.is_answered and self._knows(operation):
            self._acknowledging.take(topic, payload or b"")
            return
        exchange = Exchange(self._core, topic, requests.read_id(payload or b""))
        if not self._knows(operation):
            exchange.give_up(Status.UNKNOWN_OPERATION, f"{operation} is not known at version {version}")
            return
        if payload is None:
            exchange.give_up(Status.INVALID_REQUEST, f"the payload has more than {MAX_PAYLOAD} bytes")
            return
        try:
            exchange.request = requests.decode(operation, payload, version=version)
        except WireError as exc:
            wrong_value = exc.field.partition(".")[0] in {"value", "ext"}
            status = Status.INVALID_VALUE if wrong_value else Status.INVALID_REQUEST
            exchange.give_up(status, str(exc))
            return
        self._begin(exchange)

    def _begin(self, exchange: Exchange) -> None:
        """Send a request on its way."""
        core, topic = self._core, exchange.topic
        if topic.operation is Operation.APIVERSION:
            self._tell_version(exchange)
        elif exchange.device is None:
            exchange.give_up(Status.UNREACHABLE, f"the gateway knows no device {topic.device}")
        elif len(self._open) >= MOST_OPEN:
            exchange.give_up(Status.BUSY, f"the gateway works on {MOST_OPEN} requests already")
        elif not self._target.translate(exchange):
            return
        elif exchange.device is core.own:
            core.agenda.after(_THINKING, lambda _t: self._target.serve(exchange))
        else:
            self._open.add(exchange)
            exchange.ended = self._open.discard
            core.agenda.after(PATIENCE, partial(self._expire, exchange))
            self._send(exchange)

    def _tell_version(self, exchange: Exchange) -> None:
        if exchange.topic.device == self._core.settings.mac:
            exchange.answer(version=self._core.settings.api_version)
        else:
            exchange.give_up(Status.NOT_SUPPORTED, "only a gateway has an API version")

    def _expire(self, exchange: Exchange, _t: float) -> None:
        self._open.discard(exchange)
        exchange.time_out()

    # Through the mesh

    def _send(self, exchange: Exchange) -> None:
        """Send a request to a connected device itself, to an unconnected one through an extender."""
        device, mesh = exchange.device, self._core.mesh
        assert device is not None  # noqa: S101 # its only caller has seen to it
        if device.is_connected:
            relay: Node | None = device.node
            arrived = partial(self._at_target, exchange)
        else:
            relay = exchange.extender = self._reacher(exchange)
            arrived = partial(self._at_extender, exchange)
        route = mesh.route(relay) if relay is not None else None
        if route is None:
            exchange.give_up(Status.UNREACHABLE, "there is no route to the device")
        else:
            exchange.way = route
            self._core.traffic.send((mesh.root, *route), priority=_priority(exchange), arrived=arrived)

    def _reacher(self, exchange: Exchange) -> Node | None:
        device, wished = exchange.device, getattr(exchange.request, "extender_id", UNSET)
        assert device is not None  # noqa: S101 # see above
        if wished is UNSET:
            return self._core.mesh.reacher(device.node, self._core.agenda.now)
        return self._core.mesh.reacher_named(device.node, wished, self._core.agenda.now)

    def _at_extender(self, exchange: Exchange, t: float) -> None:
        """Wait for the target's next advertisement, one target after the other (gateway-20)."""
        extender = exchange.extender
        assert extender is not None  # noqa: S101 # see above
        self._count += 1
        is_free = extender not in self._sessions
        heappush(self._sessions.setdefault(extender, []), (-_priority(exchange), self._count, exchange))
        if is_free:
            self._next_session(extender, t)

    def _next_session(self, extender: Node, t: float) -> None:
        waiting = self._sessions[extender]
        while waiting:
            _, count, exchange = heappop(waiting)
            if exchange.is_alive and exchange.device is not None:
                end = t + exchange.device.advertisement_in(t, count) + _SESSION
                self._core.agenda.at(end, partial(self._end_session, extender, exchange))
                return
        del self._sessions[extender]

    def _end_session(self, extender: Node, exchange: Exchange, t: float) -> None:
        self._at_target(exchange, t)
        self._next_session(extender, t)

    def _at_target(self, exchange: Exchange, _t: float) -> None:
        if exchange.is_alive and self._target.hears(exchange):
            self._core.agenda.after(_THINKING, partial(self._return, exchange))

    def _return(self, exchange: Exchange, _t: float) -> None:
        """Serve the request, and carry the response back the way that leads back now."""
        if not exchange.is_alive or exchange.device is None:
            return
        node = exchange.extender or exchange.device.node
        route = self._core.mesh.route(node)
        deliver = self._target.perform(exchange)
        if route is not None:
            exchange.way = route
            path = (*reversed(route), self._core.mesh.root)
            self._core.traffic.send(path, priority=_priority(exchange), arrived=lambda _t: deliver())


def _priority(exchange: Exchange) -> int:
    return exchange.request.priority if exchange.request is not None else Priority.MEDIUM
