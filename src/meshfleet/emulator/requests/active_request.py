"""State of one request to an emulated gateway until the response is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from meshfleet.protocol import responses
from meshfleet.protocol.codes import Operation, Origin, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.protocol.ids import RequestId
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.topics import RequestTopic

_RESPONSE_TYPES: Final[dict[Operation, type[responses.Response]]] = {
    Operation.APIVERSION: responses.ApiVersionResponse,
    Operation.READ: responses.ReadResponse,
    Operation.READ_DECODED: responses.ReadDecodedResponse,
}


class ActiveRequest:
    """Request in progress, to which exactly one response is sent."""

    __slots__ = (
        "_context",
        "_gateway_booted_at",
        "_received_ms",
        "device",
        "extender",
        "is_done",
        "on_done",
        "request",
        "request_id",
        "route",
        "topic",
    )

    def __init__(self, context: EmulatorContext, topic: RequestTopic, request_id: RequestId | None) -> None:
        self._context = context
        self._received_ms = context.clock.wall_millis(context.scheduler.now)
        self._gateway_booted_at = context.gateway_device.booted_at
        self.topic = topic
        self.request_id = request_id
        self.request: Request | None = None
        self.device: SimulatedDevice | None = context.devices.get(topic.device)
        self.extender: MeshNode | None = None
        """Extender through which a target without mesh link is reached; None for other targets."""
        self.route: tuple[MeshNode, ...] = ()
        """Nodes on the route of the last packet, to the target or to its extender."""
        self.on_done: Callable[[ActiveRequest], None] | None = None
        """Function that is called with this request just before the response is sent."""
        self.is_done = False

    @property
    def is_pending(self) -> bool:
        """Whether the response must still be sent. A restart of the gateway discards pending requests."""
        return not (
            self.is_done
            or self._context.is_restarting
            or self._context.gateway_device.booted_at != self._gateway_booted_at
        )

    def complete(self, **content: Any) -> None:
        """Send a success response with the further fields `content` and the target as origin.

        (response-8 to response-10)
        """
        origin = Origin.CONNECTED if self.extender is None else Origin.UNCONNECTED
        self._respond(Status.OK, origin, content)

    def reject(self, status: Status, message: str) -> None:
        """Send an error response with the target as origin."""
        origin = Origin.CONNECTED if self.extender is None else Origin.UNCONNECTED
        self._respond(status, origin, {"error_message": message})

    def fail_at_gateway(self, status: Status, message: str) -> None:
        """Send an error response with origin GATEWAY. If the gateway is the target, the origin is CONNECTED.

        (response-9)
        """
        is_gateway_target = self.topic.device == self._context.settings.mac
        self.extender = None
        self._respond(
            status, Origin.CONNECTED if is_gateway_target else Origin.GATEWAY, {"error_message": message}
        )

    def time_out(self) -> None:
        """Send a timeout response, with origin EXTENDER if the request went through one, else GATEWAY.

        (response-29, response-30)
        """
        origin = Origin.GATEWAY if self.extender is None else Origin.EXTENDER
        self._respond(Status.TIMEOUT, origin, {"error_message": "the device did not respond in time"})

    def _respond(self, status: Status, origin: Origin, content: dict[str, Any]) -> None:
        """Send the response with the further fields `content`, unless it was sent or is not needed."""
        if not self.is_pending:
            return
        self.is_done = True
        if self.on_done is not None:
            self.on_done(self)
        context, operation = self._context, self.topic.operation
        now = context.scheduler.now
        response = _RESPONSE_TYPES.get(operation, responses.Response)(
            time=context.clock.wall_time(now),
            status=status,
            response_time=max(0, context.clock.wall_millis(now) - self._received_ms),
            origin=origin,
            id=UNSET if self.request_id is None else self.request_id,
            **self._build_route_fields(origin),
            **content,
        )
        version = context.settings.api_version
        if operation.is_answered:
            payload = responses.encode_response(operation, response, version=version)
        else:
            payload = responses.encode_unknown_operation_response(response, version=version)
        context.outbox.put(context.topics.format_topic(self.topic.to_response_topic()), payload)

    def _build_route_fields(self, origin: Origin) -> dict[str, Any]:
        """Return the response fields for the route to the target or extender (response-11, response-12)."""
        if self.extender is not None:
            return {"extender_id": self.extender.mac, "extender_route": self._format_route()}
        if (
            origin is Origin.CONNECTED
            and self.device is not None
            and self.device is not self._context.gateway_device
        ):
            return {"route": self._format_route()}
        return {}

    def _format_route(self) -> str:
        """Format the route as MACs joined by hyphens. The route to the gateway itself is its own MAC."""
        return "-".join(hop.mac for hop in self.route or (self._context.mesh.root,))
