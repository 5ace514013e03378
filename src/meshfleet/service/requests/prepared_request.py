"""Parses and checks a request of a REST client to a device or gateway before the request is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET

from meshfleet.errors import Fault, InvalidRequest, quote_input
from meshfleet.errors.protocol import MalformedIdentifier, MalformedPayload, PayloadTooLarge, UnencodableValue
from meshfleet.protocol import requests
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.hex import Secret
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import is_identifier, parse_identifier, parse_identifier_name
from meshfleet.protocol.payload import MAX_PAYLOAD_BYTES, decode_object
from meshfleet.protocol.times import format_time
from meshfleet.rest.requests import SentRequest
from meshfleet.service.devices.parameters import parse_gateway_mac

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Mac
    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.topics import AnyIdentifier
    from meshfleet.rest.requests import NewRequest

_ACCESS_PARAMETERS: Final = ("extender_id", "access_type", "public_key", "key")
_PARAMETERS: Final[Mapping[Operation, tuple[str, ...]]] = {
    Operation.APIVERSION: ("priority",),
    Operation.READ: ("priority", *_ACCESS_PARAMETERS),
    Operation.READ_DECODED: ("priority", *_ACCESS_PARAMETERS),
    Operation.WRITE: ("value", "priority", *_ACCESS_PARAMETERS),
    Operation.WRITE_DECODED: ("value", "ext", "priority", *_ACCESS_PARAMETERS),
    Operation.ACK: ("time", "type", "priority"),
    Operation.ACK_DECODED: ("time", "type", "priority"),
}
"""Parameters that each operation accepts besides the identifier (request-8 to request-13, ack-2)."""

_JSON_NAMES: Final = {
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
"""JSON names of request parameters, by attribute name."""

_SECRET_PARAMETERS: Final = {"public_key", "key"}
_SECRET_JSON_NAMES: Final = {"publicKey", "key"}

_MAX_REQUEST_BYTES: Final = MAX_PAYLOAD_BYTES - 256
"""Maximum size of an encoded request without its request id, in bytes."""


class PreparedRequest(NamedTuple):
    """Checked request that can be sent when a gateway is selected and a request id is assigned."""

    operation: Operation
    identifier: AnyIdentifier | None
    request: Request
    gateway: Mac | None
    """Gateway that the REST client requests; None if the service selects the best gateway."""
    timeout: float
    """Seconds to wait for the response."""
    redacted: SentRequest
    """REST representation of the request without mesh keys, for the history."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Mesh keys in the request in hex, the longest key first."""
        values = (getattr(self.request, name, UNSET) for name in _SECRET_PARAMETERS)
        keys = (each.reveal() for each in values if isinstance(each, Secret))
        return tuple(sorted(filter(None, keys), key=len, reverse=True))  # one may contain the other

    @property
    def is_read(self) -> bool:
        """Whether the request only reads, so that it may be sent more than once."""
        return self.operation in {Operation.APIVERSION, Operation.READ, Operation.READ_DECODED}


def prepare_request(body: NewRequest) -> PreparedRequest:
    """Parse and check the body of a REST request to a device or gateway.

    Raise `InvalidRequest`, or a protocol error (`MalformedInput`) that names the invalid field.
    """
    parameters = {name: value for name in _JSON_NAMES if (value := getattr(body, name)) is not UNSET}
    _reject_foreign_parameters(body.operation, parameters)
    identifier = _parse_identifier(body)
    request = requests.build_request(
        body.operation, {_JSON_NAMES[name]: value for name, value in parameters.items()}
    )
    if isinstance(request, requests.WriteDecodedRequest):
        _check_encodable(str(identifier), request)
    if isinstance(request, requests.WriteDecodedRequest | requests.WriteRequest):
        _check_payload_limits(request)
    return PreparedRequest(
        body.operation,
        identifier,
        request,
        None if body.gateway is UNSET else parse_gateway_mac(body.gateway, "gateway"),
        body.timeout_ms / 1000,
        _redact_request(body, identifier, request),
    )


def _reject_foreign_parameters(operation: Operation, parameters: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` if a parameter does not belong to the operation."""
    foreign = [name for name in parameters if name not in _PARAMETERS[operation]]
    if foreign:
        raise InvalidRequest(
            [Fault(_JSON_NAMES[name], f"is not a parameter of {operation}") for name in foreign]
        )


def _parse_identifier(body: NewRequest) -> AnyIdentifier | None:
    """Parse the identifier of a request: hex for a raw operation, a name for a decoded one, else None."""
    operation, text = body.operation, body.identifier
    if not operation.has_identifier:
        if text is not UNSET:
            raise InvalidRequest([Fault("identifier", f"is not a parameter of {operation}")])
        return None
    if text is UNSET:
        raise InvalidRequest([Fault("identifier", "is missing")])
    if not operation.is_decoded:
        return parse_identifier(text.lower())
    if is_identifier(text) and text not in BUILTIN_CATALOGUE.names:
        raw = operation.removesuffix("-decoded")
        raise MalformedIdentifier(
            "identifier", f"{quote_input(text)} is hex, use it with {raw}; {operation} requires a name"
        )
    return parse_identifier_name(text)


def _check_encodable(name: str, request: requests.WriteDecodedRequest) -> None:
    """Raise `UnencodableValue` for a value that no gateway can encode.

    Values of names and extensions that are not in the catalogue are checked by the gateway (request-19).
    """
    entry = BUILTIN_CATALOGUE.find(name)
    if entry is None or entry.layout is None or request.value is None:
        return
    ext = None if request.ext is UNSET or entry.extension is None else request.ext
    try:
        entry.encode(request.value, ext)
    except UnencodableValue as exc:
        raise UnencodableValue("value", f"does not fit {name}: {exc.reason}") from exc


def _check_payload_limits(request: Request) -> None:
    """Raise `PayloadTooLarge` or `MalformedPayload` if a request is too large or too deeply nested."""
    encoded = requests.encode_request(request)
    if len(encoded) > _MAX_REQUEST_BYTES:
        raise PayloadTooLarge(
            "value",
            f"results in a request of {len(encoded)} bytes, the maximum is {_MAX_REQUEST_BYTES}",
        )
    try:
        decode_object(encoded)
    except MalformedPayload as exc:
        raise MalformedPayload("value", exc.reason) from exc


def _redact_request(body: NewRequest, identifier: AnyIdentifier | None, request: Request) -> SentRequest:
    """Build the REST representation of a request without its mesh keys."""
    fields = {
        name: getattr(body, name)
        for name in _PARAMETERS[body.operation]
        if name not in _SECRET_PARAMETERS and getattr(body, name) is not UNSET
    }
    if isinstance(request, requests.AckRequest):
        fields["time"], fields["type"] = format_time(request.time), int(request.type)
    if "priority" in fields:
        fields["priority"] = int(request.priority)
    for name in {"value", "ext"} & fields.keys():
        fields[name] = _mask_mesh_keys(fields[name])
    return SentRequest(
        operation=body.operation,
        identifier=UNSET if identifier is None else identifier,
        timeout_ms=body.timeout_ms,
        **fields,
    )


def _mask_mesh_keys(value: Any) -> Any:
    """Return a copy of a JSON value with all mesh keys masked, at any depth."""
    match value:
        case dict():
            return {
                name: "…" if name in _SECRET_JSON_NAMES else _mask_mesh_keys(each)
                for name, each in value.items()
            }
        case list():
            return [_mask_mesh_keys(each) for each in value]
    return value
