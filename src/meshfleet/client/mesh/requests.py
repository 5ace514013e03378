"""What callers ask for, as requests of the wire: checked here, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from meshfleet.client.arguments import (
    check_argument_names,
    format_optional_time,
    normalize_identifier,
    normalize_mac,
    parse_enum,
    select_operation,
    to_json_value,
    to_wire_value,
)
from meshfleet.errors.protocol import WireError
from meshfleet.protocol import payload, requests
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation
from meshfleet.protocol.hex import Secret
from meshfleet.protocol.ids import Identifier, IdentifierName, is_identifier
from meshfleet.protocol.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.client.arguments import Moment
    from meshfleet.client.mesh.reports import Report
    from meshfleet.protocol.requests import (
        AckRequest,
        ApiVersionRequest,
        ReadRequest,
        WriteDecodedRequest,
        WriteRequest,
    )


class RequestParameters(TypedDict, total=False):
    """What may be said with every read and write. None: as the gateway sees fit."""

    priority: int | None
    """0 to 4: how urgent it is inside the mesh."""
    extender_id: str | None
    access_type: AccessType | str | None
    public_key: str | Secret | None
    key: str | Secret | None
    """In hex: secrets, which are never shown."""


_ACK_OPERATIONS: Final[Mapping[Kind, Operation]] = {
    Kind.MEASUREMENT: Operation.ACK,
    Kind.MEASUREMENT_DECODED: Operation.ACK_DECODED,
    Kind.EVENT: Operation.ACK,
    Kind.EVENT_DECODED: Operation.ACK_DECODED,
}
"""The kinds of reports that can be acknowledged (ack-7)."""


def build_request_topic(gateway: str, device: str, operation: Operation, identifier: str) -> RequestTopic:
    """Where to ask: hex is for the raw operation, a name for the decoded one (request-34)."""
    spelt = normalize_identifier(identifier)
    known = Identifier(spelt) if is_identifier(spelt) else IdentifierName(spelt)
    return RequestTopic(
        normalize_mac(gateway), normalize_mac(device, "device"), select_operation(spelt, operation), known
    )


def build_apiversion(priority: int | None) -> ApiVersionRequest:
    """A question for the version."""
    return payload.build_payload(requests.ApiVersionRequest, _to_wire_names({"priority": priority}))


def build_read(parameters: RequestParameters) -> ReadRequest:
    """A read."""
    return payload.build_payload(requests.ReadRequest, _to_wire_names(parameters))


def build_write(
    operation: Operation, value: Any, ext: Mapping[str, Any] | None, parameters: RequestParameters
) -> WriteRequest | WriteDecodedRequest:
    """A write of hex or bytes, or of JSON when it is a decoded one. None writes NULL."""
    given = {**_to_wire_names(parameters), "value": to_wire_value(operation, value)}
    if operation is Operation.WRITE:
        if ext is not None:
            raise WireError("ext", "goes with the name of an identifier; raw values have it at their end")
        return payload.build_payload(requests.WriteRequest, given)
    if ext is not None:
        given["ext"] = to_json_value(dict(ext), "ext")
    return payload.build_payload(requests.WriteDecodedRequest, given)


def build_ack(time: Moment, kind: int, priority: int | None) -> AckRequest:
    """An ack of the sample of this time."""
    given = {"time": format_optional_time(time), "type": parse_enum(AckType, kind, "type")}
    return payload.build_payload(requests.AckRequest, {**given, **_to_wire_names({"priority": priority})})


def build_ack_topic(report: Report) -> RequestTopic:
    """Where a report is acknowledged."""
    operation = _ACK_OPERATIONS.get(report.kind)
    if operation is None:
        raise WireError("kind", f"only measurements and events are acknowledged, no {report.kind}")
    return RequestTopic(report.gateway, report.device, operation, report.identifier)


def is_repeatable(topic: RequestTopic, kind: int | None = None) -> bool:
    """Whether it does no harm when it is carried out twice.

    A write may be a command; and who erases all samples means those of now, not those of a minute later.
    """
    return topic.operation not in {Operation.WRITE, Operation.WRITE_DECODED} and kind != AckType.ERASE_ALL


_WIRE_NAMES: Final = {
    "priority": "priority",
    "extender_id": "extenderId",
    "access_type": "accessType",
    "public_key": "publicKey",
    "key": "key",
}


def _to_wire_names(parameters: RequestParameters) -> dict[str, Any]:
    """Parameters under the names that they have on the wire."""
    check_argument_names(parameters, RequestParameters)
    given: dict[str, Any] = {
        _WIRE_NAMES[name]: value.reveal() if isinstance(value, Secret) else value
        for name, value in parameters.items()
        if value is not None
    }
    if "accessType" in given:
        given["accessType"] = parse_enum(AccessType, given["accessType"], "accessType")
    return given
