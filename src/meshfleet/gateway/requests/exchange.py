"""One request on its way, and the response that it will get. Exactly one, whoever gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from meshfleet.wire import responses
from meshfleet.wire.codes import Operation, Origin, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.world.device import Device
    from meshfleet.gateway.world.node import Node
    from meshfleet.wire.ids import RequestId
    from meshfleet.wire.requests import Request
    from meshfleet.wire.topics import RequestTopic

_STRUCTS: Final[dict[Operation, type[responses.Response]]] = {
    Operation.APIVERSION: responses.ApiVersionResponse,
    Operation.READ: responses.ReadResponse,
    Operation.READ_DECODED: responses.ReadDecodedResponse,
}


class Exchange:
    """A request, and where its response comes from."""

    __slots__ = (
        "_booted",
        "_core",
        "_since",
        "device",
        "ended",
        "extender",
        "is_over",
        "request",
        "request_id",
        "topic",
        "way",
    )

    def __init__(self, core: Core, topic: RequestTopic, request_id: RequestId | None) -> None:
        self._core = core
        self._since = core.clock.millis(core.agenda.now)
        self._booted = core.own.booted
        self.topic = topic
        self.request_id = request_id
        self.request: Request | None = None
        self.device: Device | None = core.devices.get(topic.device)
        self.extender: Node | None = None
        """Who reaches the unconnected target."""
        self.way: tuple[Node, ...] = ()
        """The hops of the last packet, to the target or to the extender."""
        self.ended: Callable[[Exchange], None] | None = None
        """Told when the response is given."""
        self.is_over = False

    @property
    def is_alive(self) -> bool:
        """Whether there is still something to answer: a gateway that restarts forgets what it was asked."""
        return not (self.is_over or self._core.is_down or self._core.own.booted != self._booted)

    def answer(self, **content: Any) -> None:
        """Let the target answer (response-8 to response-10)."""
        origin = Origin.CONNECTED if self.extender is None else Origin.UNCONNECTED
        self._respond(Status.OK, origin, content)

    def refuse(self, status: Status, message: str) -> None:
        """Let the target refuse."""
        origin = Origin.CONNECTED if self.extender is None else Origin.UNCONNECTED
        self._respond(status, origin, {"error_message": message})

    def give_up(self, status: Status, message: str) -> None:
        """Let the gateway answer in place of the target; for itself, it is the target (response-9)."""
        own = self.topic.device == self._core.settings.mac
        self.extender = None
        self._respond(status, Origin.CONNECTED if own else Origin.GATEWAY, {"error_message": message})

    def time_out(self) -> None:
        """Let whoever waited in vain answer: the extender, or the gateway (response-29, response-30)."""
        origin = Origin.GATEWAY if self.extender is None else Origin.EXTENDER
        self._respond(Status.TIMEOUT, origin, {"error_message": "the device does not answer"})

    def _respond(self, status: Status, origin: Origin, content: dict[str, Any]) -> None:
        if not self.is_alive:
            return
        self.is_over = True
        if self.ended is not None:
            self.ended(self)
        core, operation = self._core, self.topic.operation
        now = core.agenda.now
        response = _STRUCTS.get(operation, responses.Response)(
            time=core.clock.time(now),
            status=status,
            response_time=max(0, core.clock.millis(now) - self._since),
            origin=origin,
            id=UNSET if self.request_id is None else self.request_id,
            **self._way(origin),
            **content,
        )
        version = core.settings.api_version
        if operation.is_answered:
            payload = responses.encode(operation, response, version=version)
        else:
            payload = responses.encode_refusal(response, version=version)
        core.outbox.put(core.topics.spell(self.topic.response()), payload)

    def _way(self, origin: Origin) -> dict[str, Any]:
        """Tell the way to the target, or to the extender that stands for it (response-11, response-12)."""
        if self.extender is not None:
            return {"extender_id": self.extender.mac, "extender_route": self._route()}
        if origin is Origin.CONNECTED and self.device is not None and self.device is not self._core.own:
            return {"route": self._route()}
        return {}

    def _route(self) -> str:
        """Spell a route; the one to the gateway itself is its MAC."""
        return "-".join(hop.mac for hop in self.way or (self._core.mesh.root,))
