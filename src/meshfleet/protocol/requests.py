"""Payloads of the requests of clients to gateways and, through gateways, to devices."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol import api_versions, payload
from meshfleet.protocol.codes import AccessType, AckType, Operation, Priority
from meshfleet.protocol.fields import (
    INTEGER_CODEC,
    ExtenderIdField,
    HexOrNullField,
    Json,
    SecretField,
    TimeField,
)
from meshfleet.protocol.ids import RequestId
from meshfleet.protocol.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Version

PriorityField = Annotated[Priority, INTEGER_CODEC]
AckTypeField = Annotated[AckType, INTEGER_CODEC]


class ApiVersionRequest(Payload, frozen=True, kw_only=True):
    """Request for the interface version of a gateway (request-8)."""

    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM


class ReadRequest(Payload, frozen=True, kw_only=True):
    """Request to read the raw or decoded value of a property (request-10, request-11)."""

    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM
    extender_id: ExtenderIdField | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET


class WriteRequest(Payload, frozen=True, kw_only=True):
    """Request to write the raw value (hex) of a property; None writes NULL (request-12, request-15)."""

    value: HexOrNullField = None
    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM
    extender_id: ExtenderIdField | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET


class WriteDecodedRequest(Payload, frozen=True, kw_only=True):
    """Request to write the decoded value (JSON) of a property (request-13).

    None writes NULL, an empty string does not (request-16, request-17).
    """

    value: Json = None
    ext: dict[str, Json] | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM
    extender_id: ExtenderIdField | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET


class AckRequest(Payload, frozen=True, kw_only=True):
    """Request that acknowledges a raw or decoded sample, and gets no response (ack-1 to ack-4)."""

    time: TimeField
    type: AckTypeField
    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM


Request = ApiVersionRequest | ReadRequest | WriteRequest | WriteDecodedRequest | AckRequest

_REQUEST_TYPES: Final[Mapping[Operation, type[Request]]] = {
    Operation.APIVERSION: ApiVersionRequest,
    Operation.READ: ReadRequest,
    Operation.READ_DECODED: ReadRequest,
    Operation.WRITE: WriteRequest,
    Operation.WRITE_DECODED: WriteDecodedRequest,
    Operation.ACK: AckRequest,
    Operation.ACK_DECODED: AckRequest,
}


def decode_request(
    operation: Operation, data: bytes, *, version: Version = api_versions.LATEST_VERSION
) -> Request:
    """Decode the payload of a request as a gateway of this version does: ignore parameters it does not know.

    If the payload is malformed, the gateway responds with INVALID_VALUE for errors in `value` and `ext`, and
    with INVALID_REQUEST for errors in other fields.
    """
    unknown = api_versions.list_unsupported_fields("request", operation, version)
    return payload.decode_payload(_REQUEST_TYPES[operation], data or b"{}", excluded=unknown)


def build_request(operation: Operation, parameters: dict[str, Json]) -> Request:
    """Build a request from `parameters`, the fields of its payload as a JSON object.

    Unknown fields are ignored. Raise a `MalformedInput` that names the field if a value is invalid.
    """
    return payload.build_payload(_REQUEST_TYPES[operation], parameters)


def decode_request_id(data: bytes) -> RequestId | None:
    """Return the id of a request that may be malformed, for the error response (response-22).

    Return None if the request has no valid id.
    """
    try:
        request_id = payload.decode_object(data or b"{}").get("id")
    except MalformedInput:
        return None
    return RequestId(request_id) if isinstance(request_id, str) else None


def encode_request(request: Request) -> bytes:
    """Encode the payload of a request."""
    return payload.encode_payload(request)


def check_request_supported(operation: Operation, request: Request, version: Version) -> None:
    """Raise `GatewayTooOld` if a gateway of this version lacks the operation or a parameter of a request."""
    used_parameters = frozenset(
        name
        for attribute, name in _list_parameter_names(type(request))
        if getattr(request, attribute) is not UNSET
    )
    api_versions.check_operation_supported(operation, used_parameters, version)


@cache
def _list_parameter_names(kind: type[Request]) -> tuple[tuple[str, str], ...]:
    """List the attribute and the JSON name of each parameter of a request type. Cached: msgspec is slow."""
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))
