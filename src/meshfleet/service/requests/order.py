"""What somebody wants to have sent, checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET

from meshfleet.errors import (
    Fault,
    InvalidRequest,
    MalformedIdentifier,
    MalformedPayload,
    PayloadTooLarge,
    UnencodableValue,
    shown,
)
from meshfleet.service.devices.paths import parse_gateway
from meshfleet.wire import requests
from meshfleet.wire.codes import Operation
from meshfleet.wire.hextext import Secret
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.ids import is_identifier, parse_identifier, parse_identifier_name
from meshfleet.wire.payload import MAX_PAYLOAD, read_object
from meshfleet.wire.rest import SentRequest
from meshfleet.wire.times import write_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.wire.ids import Mac
    from meshfleet.wire.requests import Request
    from meshfleet.wire.rest import NewRequest
    from meshfleet.wire.topics import AnyIdentifier

_ACCESS: Final = ("extender_id", "access_type", "public_key", "key")
_PARAMETERS: Final[Mapping[Operation, tuple[str, ...]]] = {
    Operation.APIVERSION: ("priority",),
    Operation.READ: ("priority", *_ACCESS),
    Operation.READ_DECODED: ("priority", *_ACCESS),
    Operation.WRITE: ("value", "priority", *_ACCESS),
    Operation.WRITE_DECODED: ("value", "ext", "priority", *_ACCESS),
    Operation.ACK: ("time", "type", "priority"),
    Operation.ACK_DECODED: ("time", "type", "priority"),
}
"""What each operation takes besides its identifier (request-8 to request-13, ack-2)."""

_NAMES: Final = {
    "value": "value",
    "ext": "ext",
    "priority": "priority",
    "extender_id": "extenderId",
    "access_type": "accessType",
    "public_key": "publicKey",
    "key": "key",
    "time": "time",
    "type": "type",
}
"""All parameters, as they are spelled."""

_SECRET: Final = {"public_key", "key"}
_KEYS: Final = {"publicKey", "key"}

_LONGEST: Final = MAX_PAYLOAD - 256
"""Bytes of a request; its id comes to it."""


class Order(NamedTuple):
    """A request as it will be sent, but for its gateway and its id."""

    operation: Operation
    identifier: AnyIdentifier | None
    request: Request
    gateway: Mac | None
    """Through which it is to go; None: whichever is best."""
    timeout: float
    """Seconds."""
    shown: SentRequest
    """What may be told of it: no key."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys that it carries, in hex."""
        given = (getattr(self.request, name, UNSET) for name in _SECRET)
        held = (each.reveal() for each in given if isinstance(each, Secret))
        return tuple(sorted(filter(None, held), key=len, reverse=True))  # one may be a part of the other

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, and so can be sent again."""
        return self.operation in {Operation.APIVERSION, Operation.READ, Operation.READ_DECODED}


def read_order(asked: NewRequest) -> Order:
    """Read what is asked, or say what is wrong with it."""
    given = {name: value for name in _NAMES if (value := getattr(asked, name)) is not UNSET}
    _refuse_foreign(asked.operation, given)
    identifier = _identifier(asked)
    request = requests.make(asked.operation, {_NAMES[name]: value for name, value in given.items()})
    if isinstance(request, requests.WriteDecoded):
        _check_encodable(str(identifier), request)
    if isinstance(request, requests.WriteDecoded | requests.Write):
        _check_writable(request)
    return Order(
        asked.operation,
        identifier,
        request,
        None if asked.gateway is UNSET else parse_gateway(asked.gateway, "gateway"),
        asked.timeout_ms / 1000,
        _shown(asked, identifier, request),
    )


def _refuse_foreign(operation: Operation, given: Mapping[str, Any]) -> None:
    """Refuse what the operation does not take: it would be overlooked."""
    foreign = [name for name in given if name not in _PARAMETERS[operation]]
    if foreign:
        raise InvalidRequest([Fault(_NAMES[name], f"does not belong to {operation}") for name in foreign])


def _identifier(asked: NewRequest) -> AnyIdentifier | None:
    operation, text = asked.operation, asked.identifier
    if not operation.has_identifier:
        if text is not UNSET:
            raise InvalidRequest([Fault("identifier", f"does not belong to {operation}")])
        return None
    if text is UNSET:
        raise InvalidRequest([Fault("identifier", "is missing")])
    if not operation.decoded:
        return parse_identifier(text.lower())
    if is_identifier(text) and text not in BUILTIN.names:
        raw = operation.removesuffix("-decoded")
        raise MalformedIdentifier(
            "identifier", f"{shown(text)} is hex, which is for {raw}; here a name is due"
        )
    return parse_identifier_name(text)


def _check_encodable(name: str, request: requests.WriteDecoded) -> None:
    """Refuse a value that no gateway could encode.

    Names and extensions that the catalogue does not know are passed on: the gateway decides (request-19).
    """
    entry = BUILTIN.find(name)
    if entry is None or entry.layout is None or request.value is None:
        return
    ext = None if request.ext is UNSET or entry.extension is None else request.ext
    try:
        entry.encode(request.value, ext)
    except UnencodableValue as exc:
        raise UnencodableValue("value", f"does not fit {name}: {exc.reason}") from exc


def _check_writable(request: Request) -> None:
    """Refuse what no payload can hold, and no gateway would read."""
    written = requests.encode(request)
    if len(written) > _LONGEST:
        raise PayloadTooLarge("value", f"makes a request of {len(written)} bytes; {_LONGEST} are possible")
    try:
        read_object(written)
    except MalformedPayload as exc:
        raise MalformedPayload("value", exc.reason) from exc


def _shown(asked: NewRequest, identifier: AnyIdentifier | None, request: Request) -> SentRequest:
    told = {
        name: getattr(asked, name)
        for name in _PARAMETERS[asked.operation]
        if name not in _SECRET and getattr(asked, name) is not UNSET
    }
    if isinstance(request, requests.Ack):
        told["time"], told["type"] = write_time(request.time), int(request.type)
    if "priority" in told:
        told["priority"] = int(request.priority)
    for name in {"value", "ext"} & told.keys():
        told[name] = _masked(told[name])
    return SentRequest(
        operation=asked.operation,
        identifier=UNSET if identifier is None else identifier,
        timeout_ms=asked.timeout_ms,
        **told,
    )


def _masked(value: Any) -> Any:
    """A value without keys of a mesh that may be inside it."""
    match value:
        case dict():
            return {name: "…" if name in _KEYS else _masked(each) for name, each in value.items()}
        case list():
            return [_masked(each) for each in value]
    return value
