"""Requests: what clients ask of gateways and, through them, of devices."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.errors import WireError
from meshfleet.wire import gating, payload
from meshfleet.wire.codes import AccessType, AckType, Operation, Priority
from meshfleet.wire.fields import WHOLE, ExtenderId, HexOrNull, Json, SecretField, Time
from meshfleet.wire.ids import RequestId
from meshfleet.wire.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.wire.ids import Version

PriorityField = Annotated[Priority, WHOLE]
AckTypeField = Annotated[AckType, WHOLE]


class ApiVersion(Payload, frozen=True, kw_only=True):
    """Which version does the gateway speak? (request-8)."""

    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM


class Read(Payload, frozen=True, kw_only=True):
    """Read a property, raw or decoded (request-10, request-11)."""

    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM
    extender_id: ExtenderId | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET


class Write(Payload, frozen=True, kw_only=True):
    """Write a property as hex; None writes NULL (request-12, request-15)."""

    value: HexOrNull = None
    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM
    extender_id: ExtenderId | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET


class WriteDecoded(Payload, frozen=True, kw_only=True):
    """Write a property as JSON; None writes NULL, an empty text does not (request-13, request-16 and -17)."""

    value: Json = None
    ext: dict[str, Json] | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM
    extender_id: ExtenderId | UnsetType = UNSET
    access_type: AccessType | UnsetType = UNSET
    public_key: SecretField | UnsetType = UNSET
    key: SecretField | UnsetType = UNSET


class Ack(Payload, frozen=True, kw_only=True):
    """Acknowledge a timestamped sample, raw or decoded; never answered (ack-1 to ack-4)."""

    time: Time
    type: AckTypeField
    id: RequestId | UnsetType = UNSET
    priority: PriorityField = Priority.MEDIUM


Request = ApiVersion | Read | Write | WriteDecoded | Ack

_STRUCTS: Final[Mapping[Operation, type[Request]]] = {
    Operation.APIVERSION: ApiVersion,
    Operation.READ: Read,
    Operation.READ_DECODED: Read,
    Operation.WRITE: Write,
    Operation.WRITE_DECODED: WriteDecoded,
    Operation.ACK: Ack,
    Operation.ACK_DECODED: Ack,
}


def decode(operation: Operation, data: bytes, *, version: Version = gating.NEWEST) -> Request:
    """Read the payload of a request as a gateway of this version does: newer parameters are not looked at.

    The field of an error tells what to answer: `value` and `ext` are a wrong value, all else a wrong request.
    """
    unknown = gating.newer_fields("request", operation, version)
    return payload.read(_STRUCTS[operation], data or b"{}", without=unknown)


def make(operation: Operation, given: dict[str, Json]) -> Request:
    """Make a request of its parameters, spelled as in a payload and checked as there."""
    return payload.convert(_STRUCTS[operation], given)


def read_id(data: bytes) -> RequestId | None:
    """Read the id of a request that may be malformed otherwise: its answer should carry it (response-22)."""
    try:
        given = payload.read_object(data or b"{}").get("id")
    except WireError:
        return None
    return RequestId(given) if isinstance(given, str) else None


def encode(request: Request) -> bytes:
    """Write the payload of a request."""
    return payload.write(request)


def check_supported(operation: Operation, request: Request, version: Version) -> None:
    """Raise `GatewayTooOld` when a gateway of this version lacks the operation or a parameter used."""
    used = frozenset(
        name for attribute, name in _names(type(request)) if getattr(request, attribute) is not UNSET
    )
    gating.check_supported(operation, used, version)


@cache
def _names(kind: type[Request]) -> tuple[tuple[str, str], ...]:
    """The parameters of a request, each with how it is spelled. msgspec takes long to tell them."""
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))
