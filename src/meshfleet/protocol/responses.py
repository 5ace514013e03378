"""Payloads of the responses of gateways to requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from meshfleet.errors.protocol import MalformedPayload, MalformedTopic
from meshfleet.protocol import api_versions, payload
from meshfleet.protocol.codes import Operation, Origin, Status
from meshfleet.protocol.fields import (
    INTEGER_CODEC,
    ExtenderIdField,
    HexField,
    IntegerField,
    Json,
    TimeField,
    VersionField,
)
from meshfleet.protocol.ids import RequestId
from meshfleet.protocol.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.protocol.ids import Version

OriginField = Annotated[Origin, INTEGER_CODEC]
ResponseTime = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2**53)]
"""Type of `responseTime`, the duration of a request in milliseconds (response-3)."""


class Response(Payload, frozen=True, kw_only=True):
    """Response to a write request, and base class with the fields of all responses.

    (response-1 to response-13)
    """

    time: TimeField
    status: IntegerField
    """Status code: 0 is success; any other number is an error, which may be missing in `Status`."""
    response_time: ResponseTime | UnsetType = UNSET
    origin: OriginField | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    """Error message for people, which may change at any time: code must not depend on it."""
    route: str | UnsetType = UNSET
    extender_id: ExtenderIdField | UnsetType = UNSET
    extender_route: str | UnsetType = UNSET


class ApiVersionResponse(Response, frozen=True, kw_only=True):
    """Response to an `apiversion` request (response-14)."""

    version: VersionField | UnsetType = UNSET


class ReadResponse(Response, frozen=True, kw_only=True):
    """Response to a `read` request (response-15)."""

    value: HexField | UnsetType = UNSET


class ReadDecodedResponse(Response, frozen=True, kw_only=True):
    """Response to a `read-decoded` request (response-16, response-17)."""

    value: Json | UnsetType = UNSET
    ext: dict[str, Json] | UnsetType = UNSET


_RESPONSE_TYPES: Final[Mapping[Operation, type[Response]]] = {
    Operation.APIVERSION: ApiVersionResponse,
    Operation.READ: ReadResponse,
    Operation.READ_DECODED: ReadDecodedResponse,
    Operation.WRITE: Response,
    Operation.WRITE_DECODED: Response,
}
"""Payload type of the response, by operation. The ack operations have no response."""

_REQUIRED_FIELDS: Final = {
    Operation.APIVERSION: "version",
    Operation.READ: "value",
    Operation.READ_DECODED: "value",
}
"""Field that a successful response must contain, by operation."""


def decode_response(operation: Operation, data: bytes) -> Response:
    """Decode the response to an operation. Raise an error if a successful response lacks a required field."""
    if operation not in _RESPONSE_TYPES:
        raise MalformedTopic("operation", f"{operation} has no response")
    response = payload.decode_payload(_RESPONSE_TYPES[operation], data)
    required_field = _REQUIRED_FIELDS.get(operation)
    if required_field and response.status == Status.OK and getattr(response, required_field) is UNSET:
        raise MalformedPayload(required_field, "is missing")
    return response


def encode_response(operation: Operation, response: Response, *, version: Version | None = None) -> bytes:
    """Encode a response. If `version` is given, omit fields that a gateway of that version does not know."""
    if type(response) is not _RESPONSE_TYPES.get(operation):
        raise TypeError(f"{type(response).__name__} is not the response to {operation}")
    return payload.encode_payload(
        response, excluded=api_versions.list_unsupported_fields("response", operation, version)
    )


def encode_unknown_operation_response(response: Response, *, version: Version | None = None) -> bytes:
    """Encode the response to a request whose operation the gateway does not know (response-24)."""
    return payload.encode_payload(
        response, excluded=api_versions.list_unsupported_fields("response", Operation.WRITE, version)
    )
