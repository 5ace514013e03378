"""Responses: what gateways answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from meshfleet.errors import MalformedPayload, MalformedTopic
from meshfleet.wire import gating, payload
from meshfleet.wire.codes import Operation, Origin, Status
from meshfleet.wire.fields import WHOLE, ExtenderId, HexField, Json, Time, VersionField, Whole
from meshfleet.wire.ids import RequestId
from meshfleet.wire.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.wire.ids import Version

OriginField = Annotated[Origin, WHOLE]
ResponseTime = Annotated[int, Meta(ge=0, le=2**53)] | Annotated[float, Meta(ge=0, le=2**53)]
"""Milliseconds (response-3)."""


class Response(Payload, frozen=True, kw_only=True):
    """The answer to a write, and the fields that every answer has (response-1 to response-13)."""

    time: Time
    status: Whole
    """0 is success; others may be a `Status`, or a number that only the gateway understands."""
    response_time: ResponseTime | UnsetType = UNSET
    origin: OriginField | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    error_message: str | UnsetType = UNSET
    """For people. It may change at any time: decide nothing by it."""
    route: str | UnsetType = UNSET
    extender_id: ExtenderId | UnsetType = UNSET
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


_STRUCTS: Final[Mapping[Operation, type[Response]]] = {
    Operation.APIVERSION: ApiVersionResponse,
    Operation.READ: ReadResponse,
    Operation.READ_DECODED: ReadDecodedResponse,
    Operation.WRITE: Response,
    Operation.WRITE_DECODED: Response,
}
"""Acks are not among them: whoever knows them never answers them."""

_WANTED: Final = {Operation.APIVERSION: "version", Operation.READ: "value", Operation.READ_DECODED: "value"}
"""What a successful response must carry."""


def decode(operation: Operation, data: bytes) -> Response:
    """Read the response to an operation. A successful one carries what was asked for."""
    if operation not in _STRUCTS:
        raise MalformedTopic("operation", f"{operation} is never answered")
    response = payload.read(_STRUCTS[operation], data)
    wanted = _WANTED.get(operation)
    if wanted and response.status == Status.OK and getattr(response, wanted) is UNSET:
        raise MalformedPayload(wanted, "is missing")
    return response


def encode(operation: Operation, response: Response, *, version: Version | None = None) -> bytes:
    """Write a response; for a gateway of an older version without the fields it does not know."""
    if type(response) is not _STRUCTS.get(operation):
        raise TypeError(f"{operation} is not answered with {type(response).__name__}")
    return payload.write(response, without=gating.newer_fields("response", operation, version))


def encode_refusal(response: Response, *, version: Version | None = None) -> bytes:
    """Write the response to an operation that the gateway does not know (response-24)."""
    return payload.write(response, without=gating.newer_fields("response", Operation.WRITE, version))
