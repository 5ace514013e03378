"""Responses: what gateways answer."""

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
"""Milliseconds (response-3)."""


class Response(Payload, frozen=True, kw_only=True):
    """The answer to a write, and the fields that every answer has (response-1 to response-13)."""

    time: TimeField
    status: IntegerField
    """0 is success; others may be a `Status`, or a number that only the gateway understands."""
    response_time: ResponseTime | UnsetType = UNSET
    origin: OriginField | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    """For people. It may change at any time: decide nothing by it."""
    route: str | UnsetType = UNSET
    extender_id: ExtenderIdField | UnsetType = UNSET
    extender_route: str | UnsetType = UNSET


class ApiVersionResponse(Response, frozen=True, kw_only=True):
    """The answer to apiversion (response-14)."""

    version: VersionField | UnsetType = UNSET


class ReadResponse(Response, frozen=True, kw_only=True):
    """The answer to read (response-15)."""

    value: HexField | UnsetType = UNSET


class ReadDecodedResponse(Response, frozen=True, kw_only=True):
    """The answer to read-decoded (response-16, response-17)."""

    value: Json | UnsetType = UNSET
    ext: dict[str, Json] | UnsetType = UNSET


_RESPONSE_TYPES: Final[Mapping[Operation, type[Response]]] = {
    Operation.APIVERSION: ApiVersionResponse,
    Operation.READ: ReadResponse,
    Operation.READ_DECODED: ReadDecodedResponse,
    Operation.WRITE: Response,
    Operation.WRITE_DECODED: Response,
}
"""Acks are not among them: whoever knows them never answers them."""

_REQUIRED_FIELDS: Final = {
    Operation.APIVERSION: "version",
    Operation.READ: "value",
    Operation.READ_DECODED: "value",
}
"""What a successful response must carry."""


def decode_response(operation: Operation, data: bytes) -> Response:
    """Read the response to an operation. A successful one carries what was asked for."""
    if operation not in _RESPONSE_TYPES:
        raise MalformedTopic("operation", f"{operation} is never answered")
    response = payload.decode_payload(_RESPONSE_TYPES[operation], data)
    wanted = _REQUIRED_FIELDS.get(operation)
    if wanted and response.status == Status.OK and getattr(response, wanted) is UNSET:
        raise MalformedPayload(wanted, "is missing")
    return response


def encode_response(operation: Operation, response: Response, *, version: Version | None = None) -> bytes:
    """Write a response; for a gateway of an older version without the fields it does not know."""
    if type(response) is not _RESPONSE_TYPES.get(operation):
        raise TypeError(f"{operation} is not answered with {type(response).__name__}")
    return payload.encode_payload(
        response, excluded=api_versions.list_unsupported_fields("response", operation, version)
    )


def encode_unknown_operation(response: Response, *, version: Version | None = None) -> bytes:
    """Write the response to an operation that the gateway does not know (response-24)."""
    return payload.encode_payload(
        response, excluded=api_versions.list_unsupported_fields("response", Operation.WRITE, version)
    )
