"""The target of a request: what it checks, reads and writes."""

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


# What a write does to a device: properties take the value, command properties act.

_COMMANDS_WITHOUT_VALUE: Final = frozenset(("8300", "8301", "8302"))
"""Commands that take no value: the write itself is the word (request-18)."""


class PropertyWriter:
    """Writes to the devices of one gateway."""

    def __init__(self, core: EmulatorContext, behavior: DeviceBehavior, updates: FirmwareUpdater) -> None:
        self._core = core
        self._behavior = behavior
        self._commands = DeviceCommands(core, behavior, updates)

    def write(
        self, device: SimulatedDevice, identifier: Identifier, raw: bytes | None, t: float
    ) -> RequestRejection | None:
        """Write a value that the device has and allows to be written; None as value is NULL."""
        if raw is None and identifier not in _COMMANDS_WITHOUT_VALUE:
            return RequestRejection(Status.INVALID_VALUE, f"{identifier} cannot be written with NULL")
        value = raw or b""
        if refusal := self._check_layout(identifier, value):
            return refusal
        if act := COMMANDS_BY_IDENTIFIER.get(identifier):
            return act(self._commands, device, value, t)
        if not accepts_value(device, identifier, value):
            return RequestRejection(Status.INVALID_VALUE, f"{device.product.name} does not take this value")
        self._behavior.set_property(device, identifier, value, t)
        apply_value_effects(device, identifier, value)
        return None

    def _check_layout(self, identifier: Identifier, value: bytes) -> RequestRejection | None:
        """Check a value against its layout, where that is known. It may not be longer here."""
        entry = self._core.catalogue.find(identifier)
        if entry is None or entry.layout is None:
            return None
        try:
            decoded = entry.decode(value)
            if decoded.ext is not None:
                return RequestRejection(
                    Status.INVALID_VALUE, f"{entry.name} takes no more bytes than its layout has"
                )
            entry.encode(decoded.value)  # what is read as it is may still be refused when written (value-44)
        except (UndecodableValue, UnencodableValue) as exc:
            return RequestRejection(Status.INVALID_VALUE, exc.reason)
        return None


_DEVICE_MODE: Final = Identifier("8110")
_GATEWAYS_ONLY: Final = GATEWAY_PRODUCT.identifiers.difference(*(product.identifiers for product in PRODUCTS))
_READABLE: Final = (IdentifierAccess.READ, IdentifierAccess.READ_WRITE)
_WRITABLE: Final = (IdentifierAccess.WRITE, IdentifierAccess.READ_WRITE)


class RequestExecutor:
    """Devices as those who serve requests; the gateway translates for them what is decoded."""

    def __init__(self, core: EmulatorContext, writer: PropertyWriter) -> None:
        self._core = core
        self._writer = writer
        self._checks_access = api_versions.is_supported(
            "request", Operation.READ, "accessType", core.settings.api_version
        )

    def check_decoded(self, exchange: ActiveRequest) -> bool:
        """See to it that a decoded request can be sent raw; else it is refused here and now."""
        if not exchange.topic.operation.is_decoded:
            return True
        entry = self._entry(exchange)
        if entry is None:
            exchange.fail_at_gateway(
                Status.UNKNOWN_IDENTIFIER, f"no identifier is called {exchange.topic.identifier}"
            )
            return False
        if entry.layout is None:
            exchange.fail_at_gateway(Status.NOT_SUPPORTED, f"{entry.name} ({entry.id}) is known as raw only")
            return False
        try:
            self._raw(exchange)
        except UnencodableValue as exc:
            exchange.fail_at_gateway(Status.INVALID_VALUE, str(exc))
            return False
        return True

    def can_receive(self, exchange: ActiveRequest) -> bool:
        """Whether the device takes the request at all. The gateway wakes one from storage (gateway-32)."""
        device = exchange.device
        if device is None or not device.battery_level(self._core.scheduler.now):
            return False
        wakes = device.mode is DeviceMode.STORAGE and exchange.topic.operation in _WRITE_OPERATIONS
        if wakes and self._identifier(exchange) == _DEVICE_MODE:
            return not (device.is_silent or device.is_offline)
        return device.is_reachable

    def execute_now(self, exchange: ActiveRequest) -> None:
        """Serve a request on the spot."""
        self.execute(exchange)()

    def execute(self, exchange: ActiveRequest) -> Callable[[], None]:
        """Do what a request asks; gives what delivers the response, which may take its time."""
        device = exchange.device
        assert device is not None  # noqa: S101 # only known devices get requests
        if refusal := self._check_access(device, exchange) or self._check_identifier(device, exchange):
            status, reason = refusal
            return lambda: exchange.reject(status, reason)
        if exchange.topic.operation in _WRITE_OPERATIONS:
            return self._write(device, exchange)
        return self._read(device, exchange)

    def _read(self, device: SimulatedDevice, exchange: ActiveRequest) -> Callable[[], None]:
        raw = properties.read_property(device, self._identifier(exchange), self._core.scheduler.now)
        if exchange.topic.operation is Operation.READ:
            return lambda: exchange.complete(value=format_hex(raw))
        try:
            decoded = self._core.catalogue.decode(self._identifier(exchange), raw)
        except UndecodableValue as exc:
            reason = str(exc)
            return lambda: exchange.reject(Status.FAILED, reason)
        ext = UNSET if decoded.ext is None else decoded.ext
        return lambda: exchange.complete(value=decoded.value, ext=ext)

    def _write(self, device: SimulatedDevice, exchange: ActiveRequest) -> Callable[[], None]:
        now = self._core.scheduler.now
        refusal = self._writer.write(device, self._identifier(exchange), self._raw(exchange), now)
        if refusal is None:
            return exchange.complete
        return lambda: exchange.reject(refusal.status, refusal.reason)

    # What stands in the way

    def _check_access(self, device: SimulatedDevice, exchange: ActiveRequest) -> tuple[Status, str] | None:
        """Check the key and the access type (response-32). Before 2.2.0 there were none."""
        request = exchange.request
        if not self._checks_access or not isinstance(
            request, ReadRequest | WriteRequest | WriteDecodedRequest
        ):
            return None
        given = None if request.access_type is UNSET else request.access_type
        if given is not device.access:
            is_wanted = f"only with accessType {device.access}" if device.access else "without accessType"
            return Status.ACCESS_DENIED, f"the device is reached {is_wanted}"
        if request.key is not UNSET and request.key != Secret(self._core.site.network_key):
            return Status.ACCESS_DENIED, "the key is not the one of this network"
        if given is AccessType.UNPROVISIONED and request.public_key != Secret(derive_public_key(device.mac)):
            return Status.ACCESS_DENIED, "the publicKey is not the one of this device"
        return None

    def _check_identifier(
        self, device: SimulatedDevice, exchange: ActiveRequest
    ) -> tuple[Status, str] | None:
        """Check that the device has the identifier and allows the access (response-26, response-28)."""
        identifier = self._identifier(exchange)
        if identifier not in device.product.identifiers:
            if identifier in _GATEWAYS_ONLY:
                return Status.NOT_SUPPORTED, f"{identifier} is there on gateways only"
            return Status.UNKNOWN_IDENTIFIER, f"{device.product.name} has no {identifier}"
        access = self._core.catalogue[identifier].access
        if exchange.topic.operation in _WRITE_OPERATIONS:
            return None if access in _WRITABLE else (Status.ACCESS_NOT_ALLOWED, f"{identifier} is read-only")
        return None if access in _READABLE else (Status.ACCESS_NOT_ALLOWED, f"{identifier} is write-only")

    # What the request says

    def _entry(self, exchange: ActiveRequest) -> IdentifierDefinition | None:
        """The identifier of a decoded request, which goes by names and not by ids."""
        entry = self._core.catalogue.find(exchange.topic.identifier or "")
        return entry if entry is not None and entry.name == exchange.topic.identifier else None

    def _identifier(self, exchange: ActiveRequest) -> Identifier:
        if exchange.topic.operation.is_decoded:
            entry = self._entry(exchange)
            assert entry is not None  # noqa: S101 # it has been translated
            return entry.id
        return Identifier(exchange.topic.identifier or "")

    def _raw(self, exchange: ActiveRequest) -> bytes | None:
        """The value to write; None is NULL (request-15 to request-17)."""
        match exchange.request:
            case WriteRequest(value=value):
                return None if value is None else parse_hex(value)
            case WriteDecodedRequest(value=None, ext=ext) if ext is UNSET or not ext:
                return None
            case WriteDecodedRequest(value=value, ext=ext):
                entry = self._core.catalogue[self._identifier(exchange)]
                return entry.encode(value, None if ext is UNSET else ext)
        return None


_WRITE_OPERATIONS: Final = (Operation.WRITE, Operation.WRITE_DECODED)
