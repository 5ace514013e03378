"""Executes requests on their target device: checks, reads and writes of properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from meshfleet.emulator.requests.commands import COMMANDS_BY_IDENTIFIER, DeviceCommands, RequestRejection
from meshfleet.emulator.simulation import properties
from meshfleet.emulator.simulation.products import GATEWAY_PRODUCT, PRODUCTS, DeviceMode
from meshfleet.emulator.simulation.properties import accepts_value, apply_value_effects
from meshfleet.emulator.simulation.site import derive_public_key
from meshfleet.errors.protocol import UndecodableValue, UnencodableValue
from meshfleet.protocol import api_versions
from meshfleet.protocol.codes import AccessType, Operation, Status
from meshfleet.protocol.hex import Secret, format_hex, parse_hex
from meshfleet.protocol.identifiers import IdentifierAccess
from meshfleet.protocol.ids import Identifier
from meshfleet.protocol.requests import ReadRequest, WriteDecodedRequest, WriteRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.requests.active_request import ActiveRequest
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.updates import FirmwareUpdater
    from meshfleet.protocol.identifiers import IdentifierDefinition


# Writes: ordinary properties store the value, command properties trigger an action.

_COMMANDS_WITHOUT_VALUE: Final = frozenset(("8300", "8301", "8302"))
"""Identifiers of commands without a value, which are triggered by the write itself (request-18)."""


class PropertyWriter:
    """Writes properties of the devices of one gateway, and executes command properties."""

    def __init__(self, context: EmulatorContext, behavior: DeviceBehavior, updates: FirmwareUpdater) -> None:
        self._context = context
        self._behavior = behavior
        self._commands = DeviceCommands(context, behavior, updates)

    def write(
        self, device: SimulatedDevice, identifier: Identifier, raw: bytes | None, sim_time: float
    ) -> RequestRejection | None:
        """Write a writable property of the device. `raw` is None for NULL.

        Return None on success, or the rejection of the write.
        """
        if raw is None and identifier not in _COMMANDS_WITHOUT_VALUE:
            return RequestRejection(Status.INVALID_VALUE, f"{identifier} cannot be written with NULL")
        value = raw or b""
        if rejection := self._check_layout(identifier, value):
            return rejection
        if command := COMMANDS_BY_IDENTIFIER.get(identifier):
            return command(self._commands, device, value, sim_time)
        if not accepts_value(device, identifier, value):
            return RequestRejection(Status.INVALID_VALUE, f"{device.product.name} does not accept this value")
        self._behavior.set_property(device, identifier, value, sim_time)
        apply_value_effects(device, identifier, value)
        return None

    def _check_layout(self, identifier: Identifier, value: bytes) -> RequestRejection | None:
        """Return the rejection of a raw value that does not fit the layout of its identifier, else None."""
        definition = self._context.catalogue.find(identifier)
        if definition is None or definition.layout is None:
            return None
        try:
            decoded = definition.decode(value)
            if decoded.ext is not None:
                return RequestRejection(
                    Status.INVALID_VALUE, f"the value is longer than the layout of {definition.name}"
                )
            definition.encode(decoded.value)  # not every readable value is writable (value-44)
        except (UndecodableValue, UnencodableValue) as exc:
            return RequestRejection(Status.INVALID_VALUE, exc.reason)
        return None


_DEVICE_MODE: Final = Identifier("8110")
_GATEWAY_ONLY_IDENTIFIERS: Final = GATEWAY_PRODUCT.identifiers.difference(
    *(product.identifiers for product in PRODUCTS)
)
_READABLE: Final = (IdentifierAccess.READ, IdentifierAccess.READ_WRITE)
_WRITABLE: Final = (IdentifierAccess.WRITE, IdentifierAccess.READ_WRITE)


class RequestExecutor:
    """Executes requests on the devices of one gateway; decoded (JSON) values are translated to raw values."""

    def __init__(self, context: EmulatorContext, writer: PropertyWriter) -> None:
        self._context = context
        self._writer = writer
        self._checks_access = api_versions.is_supported(
            "request", Operation.READ, "accessType", context.settings.api_version
        )

    def check_decoded(self, active_request: ActiveRequest) -> bool:
        """Return whether a decoded request can be converted to a raw one; if not, send an error response.

        The name must be in the catalogue, and the JSON value must fit its layout. Return True for a raw
        request.
        """
        if not active_request.topic.operation.is_decoded:
            return True
        definition = self._find_definition(active_request)
        if definition is None:
            active_request.fail_at_gateway(
                Status.UNKNOWN_IDENTIFIER, f"no identifier has the name {active_request.topic.identifier}"
            )
            return False
        if definition.layout is None:
            active_request.fail_at_gateway(
                Status.NOT_SUPPORTED,
                f"{definition.name} ({definition.id}) has no decoded form, use a raw request",
            )
            return False
        try:
            self._encode_value(active_request)
        except UnencodableValue as exc:
            active_request.fail_at_gateway(Status.INVALID_VALUE, str(exc))
            return False
        return True

    def can_receive(self, active_request: ActiveRequest) -> bool:
        """Return whether the target device of a request receives the request.

        A device in storage mode receives only writes of property 8110 (gateway-32).
        """
        device = active_request.device
        if device is None or not device.battery_level(self._context.scheduler.now):
            return False
        can_wake = device.mode is DeviceMode.STORAGE and active_request.topic.operation in _WRITE_OPERATIONS
        if can_wake and self._get_identifier(active_request) == _DEVICE_MODE:
            return not (device.is_silent or device.is_offline)
        return device.is_reachable

    def execute_now(self, active_request: ActiveRequest) -> None:
        """Execute a request to the gateway itself and send the response at once."""
        self.execute(active_request)()

    def execute(self, active_request: ActiveRequest) -> Callable[[], None]:
        """Execute a request on its target device.

        Return a function that publishes the response. The caller calls it when the response has reached the
        gateway.
        """
        device = active_request.device
        assert device is not None  # noqa: S101 # requests to unknown devices are rejected before
        if rejection := self._check_access(device, active_request) or self._check_identifier(
            device, active_request
        ):
            return lambda: active_request.reject(*rejection)
        if active_request.topic.operation in _WRITE_OPERATIONS:
            return self._write(device, active_request)
        return self._read(device, active_request)

    def _read(self, device: SimulatedDevice, active_request: ActiveRequest) -> Callable[[], None]:
        """Read a property. Return the function that publishes the response."""
        raw = properties.read_property(
            device, self._get_identifier(active_request), self._context.scheduler.now
        )
        if active_request.topic.operation is Operation.READ:
            return lambda: active_request.complete(value=format_hex(raw))
        try:
            decoded = self._context.catalogue.decode(self._get_identifier(active_request), raw)
        except UndecodableValue as exc:
            reason = str(exc)
            return lambda: active_request.reject(Status.FAILED, reason)
        ext = UNSET if decoded.ext is None else decoded.ext
        return lambda: active_request.complete(value=decoded.value, ext=ext)

    def _write(self, device: SimulatedDevice, active_request: ActiveRequest) -> Callable[[], None]:
        """Write a property. Return the function that publishes the response."""
        now = self._context.scheduler.now
        rejection = self._writer.write(
            device, self._get_identifier(active_request), self._encode_value(active_request), now
        )
        if rejection is None:
            return active_request.complete
        return lambda: active_request.reject(*rejection)

    # Checks

    def _check_access(
        self, device: SimulatedDevice, active_request: ActiveRequest
    ) -> RequestRejection | None:
        """Check key and access type of a request (response-32). API versions before 2.2.0 have neither."""
        request = active_request.request
        if not self._checks_access or not isinstance(
            request, ReadRequest | WriteRequest | WriteDecodedRequest
        ):
            return None
        access_type = None if request.access_type is UNSET else request.access_type
        if access_type is not device.access:
            requirement = (
                f"requires accessType {device.access}" if device.access else "does not use accessType"
            )
            return RequestRejection(Status.ACCESS_DENIED, f"the device {requirement}")
        if request.key is not UNSET and request.key != Secret(self._context.site.network_key):
            return RequestRejection(Status.ACCESS_DENIED, "the key is not the key of this network")
        if access_type is AccessType.UNPROVISIONED and request.public_key != Secret(
            derive_public_key(device.mac)
        ):
            return RequestRejection(
                Status.ACCESS_DENIED, "the publicKey is not the public key of this device"
            )
        return None

    def _check_identifier(
        self, device: SimulatedDevice, active_request: ActiveRequest
    ) -> RequestRejection | None:
        """Check that the device has the identifier and allows the access (response-26, response-28)."""
        identifier = self._get_identifier(active_request)
        if identifier not in device.product.identifiers:
            if identifier in _GATEWAY_ONLY_IDENTIFIERS:
                return RequestRejection(Status.NOT_SUPPORTED, f"only gateways have {identifier}")
            return RequestRejection(Status.UNKNOWN_IDENTIFIER, f"{device.product.name} has no {identifier}")
        access = self._context.catalogue[identifier].access
        is_write = active_request.topic.operation in _WRITE_OPERATIONS
        if access in (_WRITABLE if is_write else _READABLE):
            return None
        reason = f"{identifier} is {'read-only' if is_write else 'write-only'}"
        return RequestRejection(Status.ACCESS_NOT_ALLOWED, reason)

    # Content of the request

    def _find_definition(self, active_request: ActiveRequest) -> IdentifierDefinition | None:
        """Return the definition of the name in the topic of a decoded request; None if it is unknown."""
        definition = self._context.catalogue.find(active_request.topic.identifier or "")
        return (
            definition
            if definition is not None and definition.name == active_request.topic.identifier
            else None
        )

    def _get_identifier(self, active_request: ActiveRequest) -> Identifier:
        """Return the identifier that a raw or decoded request reads or writes."""
        if active_request.topic.operation.is_decoded:
            definition = self._find_definition(active_request)
            assert definition is not None  # noqa: S101 # checked by check_decoded
            return definition.id
        return Identifier(active_request.topic.identifier or "")

    def _encode_value(self, active_request: ActiveRequest) -> bytes | None:
        """Return the raw value that a request writes, or None for NULL (request-15 to request-17)."""
        match active_request.request:
            case WriteRequest(value=value):
                return None if value is None else parse_hex(value)
            case WriteDecodedRequest(value=None, ext=ext) if ext is UNSET or not ext:
                return None
            case WriteDecodedRequest(value=value, ext=ext):
                definition = self._context.catalogue[self._get_identifier(active_request)]
                return definition.encode(value, None if ext is UNSET else ext)
        return None


_WRITE_OPERATIONS: Final = (Operation.WRITE, Operation.WRITE_DECODED)
