"""Handles requests to a gateway: parses and checks them, sends them through the mesh, and responds."""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import UNSET

from meshfleet.emulator.requests.active_request import ActiveRequest
from meshfleet.emulator.requests.execution import RequestExecutor
from meshfleet.errors.protocol import MalformedIdentifier, MalformedInput
from meshfleet.mqtt.codec.topic_names import MAX_STRING_BYTES
from meshfleet.protocol import api_versions, requests, responses
from meshfleet.protocol.codes import AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.protocol.ids import Identifier
from meshfleet.protocol.payload import MAX_PAYLOAD_BYTES
from meshfleet.protocol.requests import AckRequest
from meshfleet.protocol.times import to_millis
from meshfleet.protocol.topics import BroadcastTopic, RequestTopic

if TYPE_CHECKING:
    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.requests.execution import PropertyWriter
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.simulation.sample_buffer import SampleBuffer


# Acks: a client confirms the samples that it has stored, or requests older ones (ack-18 to ack-23).

_BACKFILL_PAUSE: Final = 0.05
"""Simulated seconds between two samples of a backfill."""

_SAMPLE_KINDS: Final = (Kind.MEASUREMENT, Kind.EVENT)


class _AckedSeries(NamedTuple):
    """Samples of one kind and identifier of a device, to which an ack applies."""

    device: SimulatedDevice
    kind: Kind
    identifier: Identifier
    samples: SampleBuffer


class SampleAckHandler:
    """Handles acks of samples for the devices of one gateway. Acks have no response (ack-5)."""

    def __init__(self, context: EmulatorContext) -> None:
        self._context = context

    def handle(self, topic: RequestTopic, payload: bytes) -> None:
        """Send an ack through the mesh to its device. Drop malformed acks and acks to unknown devices."""
        device = self._context.devices.get(topic.device)
        definition = self._context.catalogue.find(topic.identifier or "")
        try:
            ack = requests.decode_request(
                topic.operation, payload, version=self._context.settings.api_version
            )
        except MalformedInput:
            return
        if topic.operation.is_decoded:
            identifier = (
                definition.id if definition is not None and definition.name == topic.identifier else None
            )
        else:
            identifier = Identifier(topic.identifier or "")
        if isinstance(ack, AckRequest) and device is not None and identifier is not None:
            self._send(device, identifier, ack)

    def _send(self, device: SimulatedDevice, identifier: Identifier, ack: AckRequest) -> None:
        """Send an ack to a device, or drop the ack if there is no route to the device."""
        mesh = self._context.mesh
        relay = (
            device.node if device.is_connected else mesh.find_relay(device.node, self._context.scheduler.now)
        )
        route = mesh.find_route(relay) if relay is not None else None
        if route is not None:
            on_arrival = partial(self._on_arrival, device, identifier, ack)
            self._context.packets.send((mesh.root, *route), priority=ack.priority, on_arrival=on_arrival)

    def _on_arrival(
        self, device: SimulatedDevice, identifier: Identifier, ack: AckRequest, _sim_time: float
    ) -> None:
        """Apply an ack that has arrived at its device, if the device can be reached."""
        if not device.is_reachable:
            return
        for kind in _SAMPLE_KINDS:
            samples = (device.sample_buffers or {}).get((kind, identifier))
            if samples is not None:
                self._apply(_AckedSeries(device, kind, identifier, samples), ack.type, to_millis(ack.time))

    def _apply(self, series: _AckedSeries, type_: AckType, millis: int) -> None:
        """Delete the acknowledged sample, which has the Unix time `millis`; start a backfill if requested."""
        samples = series.samples
        if type_ is AckType.ERASE_ALL:
            samples.clear()
            return
        samples.remove(millis)
        if type_ is AckType.BACKFILL and not samples.is_backfilling:
            samples.is_backfilling = True
            self._backfill(series, (millis, 0), self._context.scheduler.now)

    def _backfill(self, series: _AckedSeries, before: tuple[int, int], _sim_time: float) -> None:
        """Publish the newest sample before the Unix time (ms) and `seq` in `before`; schedule the next older.

        (ack-20)
        """
        device, kind, identifier, samples = series
        sample = samples.find_newest_before(*before)
        if sample is None or not device.is_reachable or self._context.is_restarting:
            samples.is_backfilling = False
            return
        self._context.reports.publish_sample(device, kind, identifier, sample)
        self._context.scheduler.after(_BACKFILL_PAUSE, partial(self._backfill, series, sample[:2]))


DEVICE_TIMEOUT: Final = 10.0
"""Simulated seconds that the gateway waits for the response of a device (gateway-28)."""

MAX_OPEN_REQUESTS: Final = 256
"""Maximum number of requests to devices in progress; further requests get the status BUSY."""

_PROCESSING_SECONDS: Final = 0.005
"""Simulated seconds that a target device needs to execute a request."""

_SESSION_SECONDS: Final = 0.120
"""Duration in simulated seconds of the connection between an extender and an unconnected device."""


class GatewayRequestHandler:
    """Handles the requests to one gateway and its devices."""

    def __init__(self, context: EmulatorContext, writer: PropertyWriter) -> None:
        self._context = context
        self._executor = RequestExecutor(context, writer)
        self._acks = SampleAckHandler(context)
        self._open_requests: set[ActiveRequest] = set()
        self._sessions: dict[MeshNode, list[tuple[int, int, ActiveRequest]]] = {}
        """Requests that wait at each busy extender, highest priority first."""
        self._queued_count = 0

    def handle(self, topic: str, payload: bytes | None) -> None:
        """Handle a message on a subscribed topic. `payload` is None if the payload was too long to read.

        Ignore messages to which no response is possible.
        """
        try:
            parsed = self._context.topics.parse(topic)
        except MalformedInput as exc:
            self._reject_topic(topic, payload, exc)
            return
        if isinstance(parsed, BroadcastTopic):
            parsed = parsed.to_request_topic(self._context.settings.mac)
            if parsed.device not in self._context.devices:
                return  # only gateways that know the device respond (gateway-15)
        if isinstance(parsed, RequestTopic) and parsed.gateway == self._context.settings.mac:
            self._handle_request(parsed, payload)

    def _reject_topic(self, topic: str, payload: bytes | None, error: MalformedInput) -> None:
        """Respond to a message on a request topic that is malformed (response-24, response-26)."""
        context, mac = self._context, self._context.settings.mac
        response_topic = context.topics.format_response_topic(topic, mac)
        if response_topic is None or len(response_topic.encode()) > MAX_STRING_BYTES:
            return  # longer than MQTT allows: response topics are longer than request topics
        device, _, operation_part = response_topic.removeprefix(
            context.topics.response_filter(mac).removesuffix("#")
        ).partition("/")
        is_broadcast = not topic.startswith(context.topics.request_filter(mac).removesuffix("#"))
        if is_broadcast and device not in context.devices:
            return  # only gateways that know the device respond (gateway-15)
        if operation_part.partition("/")[0] in {
            Operation.ACK,
            Operation.ACK_DECODED,
        } and self._supports_operation(Operation.ACK):
            return
        is_identifier_error = isinstance(error, MalformedIdentifier)
        request_id = requests.decode_request_id(payload or b"")
        response = responses.Response(
            time=context.clock.wall_time(context.scheduler.now),
            status=Status.UNKNOWN_IDENTIFIER if is_identifier_error else Status.UNKNOWN_OPERATION,
            response_time=0,
            origin=Origin.CONNECTED if device == mac else Origin.GATEWAY,
            id=UNSET if request_id is None else request_id,
            error_message=str(error),
        )
        context.outbox.put(
            response_topic,
            responses.encode_unknown_operation_response(response, version=context.settings.api_version),
        )

    def _supports_operation(self, operation: Operation) -> bool:
        return api_versions.is_supported("request", operation, None, self._context.settings.api_version)

    def _handle_request(self, topic: RequestTopic, payload: bytes | None) -> None:
        """Decode a request and start its execution, or send an error response."""
        operation, version = topic.operation, self._context.settings.api_version
        if not operation.is_answered and self._supports_operation(operation):
            self._acks.handle(topic, payload or b"")
            return
        active_request = ActiveRequest(self._context, topic, requests.decode_request_id(payload or b""))
        if not self._supports_operation(operation):
            active_request.fail_at_gateway(
                Status.UNKNOWN_OPERATION, f"{operation} is not supported in API version {version}"
            )
            return
        if payload is None:
            active_request.fail_at_gateway(
                Status.INVALID_REQUEST, f"the payload has more than {MAX_PAYLOAD_BYTES} bytes"
            )
            return
        try:
            active_request.request = requests.decode_request(operation, payload, version=version)
        except MalformedInput as exc:
            is_value_error = exc.field.partition(".")[0] in {"value", "ext"}
            status = Status.INVALID_VALUE if is_value_error else Status.INVALID_REQUEST
            active_request.fail_at_gateway(status, str(exc))
            return
        self._dispatch(active_request)

    def _dispatch(self, active_request: ActiveRequest) -> None:
        """Check a parsed request and start its execution."""
        context, topic = self._context, active_request.topic
        if topic.operation is Operation.APIVERSION:
            self._respond_with_version(active_request)
        elif active_request.device is None:
            active_request.fail_at_gateway(
                Status.UNREACHABLE, f"device {topic.device} not found at this gateway"
            )
        elif len(self._open_requests) >= MAX_OPEN_REQUESTS:
            active_request.fail_at_gateway(
                Status.BUSY, f"the gateway is already processing {MAX_OPEN_REQUESTS} requests"
            )
        elif not self._executor.check_decoded(active_request):
            return
        elif active_request.device is context.gateway_device:
            context.scheduler.after(
                _PROCESSING_SECONDS, lambda _sim_time: self._executor.execute_now(active_request)
            )
        else:
            self._open_requests.add(active_request)
            active_request.on_done = self._open_requests.discard
            context.scheduler.after(DEVICE_TIMEOUT, partial(self._expire, active_request))
            self._send(active_request)

    def _respond_with_version(self, active_request: ActiveRequest) -> None:
        """Respond to an `apiversion` request. Only the gateway itself has an API version."""
        if active_request.topic.device == self._context.settings.mac:
            active_request.complete(version=self._context.settings.api_version)
        else:
            active_request.fail_at_gateway(Status.NOT_SUPPORTED, "only a gateway has an API version")

    def _expire(self, active_request: ActiveRequest, _sim_time: float) -> None:
        """Send a timeout response, because the device did not respond in time."""
        self._open_requests.discard(active_request)
        active_request.time_out()

    # Transport through the mesh

    def _send(self, active_request: ActiveRequest) -> None:
        """Send a request through the mesh, to an unconnected device through an extender."""
        device, mesh = active_request.device, self._context.mesh
        assert device is not None  # noqa: S101 # checked by _dispatch
        if device.is_connected:
            relay: MeshNode | None = device.node
            on_arrival = partial(self._on_target_reached, active_request)
        else:
            relay = active_request.extender = self._select_relay(active_request)
            on_arrival = partial(self._queue_at_extender, active_request)
        route = mesh.find_route(relay) if relay is not None else None
        if route is None:
            active_request.fail_at_gateway(Status.UNREACHABLE, "no route to the device")
        else:
            active_request.route = route
            self._context.packets.send(
                (mesh.root, *route), priority=_get_priority(active_request), on_arrival=on_arrival
            )

    def _select_relay(self, active_request: ActiveRequest) -> MeshNode | None:
        """Return the node that reaches the unconnected target: the requested extender, or the best one."""
        device, extender_id = active_request.device, getattr(active_request.request, "extender_id", UNSET)
        assert device is not None  # noqa: S101 # checked by _dispatch
        if extender_id is UNSET:
            return self._context.mesh.find_relay(device.node, self._context.scheduler.now)
        return self._context.mesh.find_relay_by_mac(device.node, extender_id, self._context.scheduler.now)

    def _queue_at_extender(self, active_request: ActiveRequest, sim_time: float) -> None:
        """Queue a request at its extender, which serves one unconnected device at a time (gateway-20)."""
        extender = active_request.extender
        assert extender is not None  # noqa: S101 # set by _send for unconnected targets
        self._queued_count += 1
        is_free = extender not in self._sessions
        heappush(
            self._sessions.setdefault(extender, []),
            (-_get_priority(active_request), self._queued_count, active_request),
        )
        if is_free:
            self._start_next_session(extender, sim_time)

    def _start_next_session(self, extender: MeshNode, sim_time: float) -> None:
        """Let an extender connect to the device of its next waiting request, if any."""
        queue = self._sessions[extender]
        while queue:
            _, count, active_request = heappop(queue)
            if active_request.is_pending and active_request.device is not None:
                end = (
                    sim_time
                    + active_request.device.seconds_to_advertisement(sim_time, count)
                    + _SESSION_SECONDS
                )
                self._context.scheduler.at(end, partial(self._end_session, extender, active_request))
                return
        del self._sessions[extender]

    def _end_session(self, extender: MeshNode, active_request: ActiveRequest, sim_time: float) -> None:
        """Pass a request to the device that the extender is connected to, and free the extender."""
        self._on_target_reached(active_request, sim_time)
        self._start_next_session(extender, sim_time)

    def _on_target_reached(self, active_request: ActiveRequest, _sim_time: float) -> None:
        """Let the target device execute a request, if the device can receive it."""
        if active_request.is_pending and self._executor.can_receive(active_request):
            self._context.scheduler.after(
                _PROCESSING_SECONDS, partial(self._execute_and_respond, active_request)
            )

    def _execute_and_respond(self, active_request: ActiveRequest, _sim_time: float) -> None:
        """Execute a request and send the response back over the current route to the gateway."""
        if not active_request.is_pending or active_request.device is None:
            return
        node = active_request.extender or active_request.device.node
        route = self._context.mesh.find_route(node)
        deliver = self._executor.execute(active_request)
        if route is not None:
            active_request.route = route
            path = (*reversed(route), self._context.mesh.root)
            self._context.packets.send(
                path, priority=_get_priority(active_request), on_arrival=lambda _sim_time: deliver()
            )


def _get_priority(active_request: ActiveRequest) -> int:
    return active_request.request.priority if active_request.request is not None else Priority.MEDIUM
