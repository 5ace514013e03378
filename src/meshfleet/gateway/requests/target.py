"""The target of a request: what it checks, reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from meshfleet.errors import UndecodableValue, UnencodableValue
from meshfleet.gateway.world import properties
from meshfleet.gateway.world.products import GATEWAY, PRODUCTS, Mode
from meshfleet.gateway.world.site import public_key
from meshfleet.wire import gating
from meshfleet.wire.codes import AccessType, Operation, Status
from meshfleet.wire.hextext import Secret, to_bytes, to_hex
from meshfleet.wire.identifiers import Access
from meshfleet.wire.ids import Identifier
from meshfleet.wire.requests import Read, Write, WriteDecoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.requests.exchange import Exchange
    from meshfleet.gateway.requests.writing import Writing
    from meshfleet.gateway.world.device import Device
    from meshfleet.wire.identifiers import Entry

_MODE: Final = Identifier("8110")
_GATEWAYS_ONLY: Final = GATEWAY.identifiers.difference(*(product.identifiers for product in PRODUCTS))
_READABLE: Final = (Access.READ, Access.READ_WRITE)
_WRITABLE: Final = (Access.WRITE, Access.READ_WRITE)


class Target:
    """Devices as those who serve requests; the gateway translates for them what is decoded."""

    def __init__(self, core: Core, writing: Writing) -> None:
        self._core = core
        self._writing = writing
        self._guards = gating.exists("request", Operation.READ, "accessType", core.settings.api_version)

    def translate(self, exchange: Exchange) -> bool:
        """See to it that a decoded request can be sent raw; else it is refused here and now."""
        if not exchange.topic.operation.decoded:
            return True
        entry = self._entry(exchange)
        if entry is None:
            exchange.give_up(
                Status.UNKNOWN_IDENTIFIER, f"no identifier is called {exchange.topic.identifier}"
            )
            return False
        if entry.layout is None:
            exchange.give_up(Status.NOT_SUPPORTED, f"{entry.name} ({entry.id}) is known as raw only")
            return False
        try:
            self._raw(exchange)
        except UnencodableValue as exc:
            exchange.give_up(Status.INVALID_VALUE, str(exc))
            return False
        return True

    def hears(self, exchange: Exchange) -> bool:
        """Whether the device takes the request at all. The gateway wakes one from storage (gateway-32)."""
        device = exchange.device
        if device is None or not device.battery_level(self._core.agenda.now):
            return False
        wakes = device.mode is Mode.STORAGE and exchange.topic.operation in _WRITES
        if wakes and self._identifier(exchange) == _MODE:
            return not (device.is_silent or device.is_away)
        return device.is_reachable

    def serve(self, exchange: Exchange) -> None:
        """Serve a request on the spot."""
        self.perform(exchange)()

    def perform(self, exchange: Exchange) -> Callable[[], None]:
        """Do what a request asks; gives what delivers the response, which may take its time."""
        device = exchange.device
        assert device is not None  # noqa: S101 # only known devices get requests
        if refusal := self._denial(device, exchange) or self._obstacle(device, exchange):
            status, reason = refusal
            return lambda: exchange.refuse(status, reason)
        if exchange.topic.operation in _WRITES:
            return self._write(device, exchange)
        return self._read(device, exchange)

    def _read(self, device: Device, exchange: Exchange) -> Callable[[], None]:
        raw = properties.read(device, self._identifier(exchange), self._core.agenda.now)
        if exchange.topic.operation is Operation.READ:
            return lambda: exchange.answer(value=to_hex(raw))
        try:
            decoded = self._core.catalogue.decode(self._identifier(exchange), raw)
        except UndecodableValue as exc:
            reason = str(exc)
            return lambda: exchange.refuse(Status.FAILED, reason)
        ext = UNSET if decoded.ext is None else decoded.ext
        return lambda: exchange.answer(value=decoded.value, ext=ext)

    def _write(self, device: Device, exchange: Exchange) -> Callable[[], None]:
        now = self._core.agenda.now
        refusal = self._writing.write(device, self._identifier(exchange), self._raw(exchange), now)
        if refusal is None:
            return exchange.answer
        return lambda: exchange.refuse(refusal.status, refusal.reason)

    # What stands in the way

    def _denial(self, device: Device, exchange: Exchange) -> tuple[Status, str] | None:
        """Check the key and the access type (response-32). Before 2.2.0 there were none."""
        request = exchange.request
        if not self._guards or not isinstance(request, Read | Write | WriteDecoded):
            return None
        given = None if request.access_type is UNSET else request.access_type
        if given is not device.access:
            is_wanted = f"only with accessType {device.access}" if device.access else "without accessType"
            return Status.ACCESS_DENIED, f"the device is reached {is_wanted}"
        if request.key is not UNSET and request.key != Secret(self._core.site.key):
            return Status.ACCESS_DENIED, "the key is not the one of this network"
        if given is AccessType.UNPROVISIONED and request.public_key != Secret(public_key(device.mac)):
            return Status.ACCESS_DENIED, "the publicKey is not the one of this device"
        return None

    def _obstacle(self, device: Device, exchange: Exchange) -> tuple[Status, str] | None:
        """Check that the device has the identifier and allows the access (response-26, response-28)."""
        identifier = self._identifier(exchange)
        if identifier not in device.product.identifiers:
            if identifier in _GATEWAYS_ONLY:
                return Status.NOT_SUPPORTED, f"{identifier} is there on gateways only"
            return Status.UNKNOWN_IDENTIFIER, f"{device.product.name} has no {identifier}"
        access = self._core.catalogue[identifier].access
        if exchange.topic.operation in _WRITES:
            return None if access in _WRITABLE else (Status.ACCESS_NOT_ALLOWED, f"{identifier} is read-only")
        return None if access in _READABLE else (Status.ACCESS_NOT_ALLOWED, f"{identifier} is write-only")

    # What the request says

    def _entry(self, exchange: Exchange) -> Entry | None:
        """The identifier of a decoded request, which goes by names and not by ids."""
        entry = self._core.catalogue.find(exchange.topic.identifier or "")
        return entry if entry is not None and entry.name == exchange.topic.identifier else None

    def _identifier(self, exchange: Exchange) -> Identifier:
        if exchange.topic.operation.decoded:
            entry = self._entry(exchange)
            assert entry is not None  # noqa: S101 # it has been translated
            return entry.id
        return Identifier(exchange.topic.identifier or "")

    def _raw(self, exchange: Exchange) -> bytes | None:
        """The value to write; None is NULL (request-15 to request-17)."""
        match exchange.request:
            case Write(value=value):
                return None if value is None else to_bytes(value)
            case WriteDecoded(value=None, ext=ext) if ext is UNSET or not ext:
                return None
            case WriteDecoded(value=value, ext=ext):
                entry = self._core.catalogue[self._identifier(exchange)]
                return entry.encode(value, None if ext is UNSET else ext)
        return None


_WRITES: Final = (Operation.WRITE, Operation.WRITE_DECODED)
