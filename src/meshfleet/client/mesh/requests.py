"""Builds requests of the MT2 protocol from the arguments of methods of `Mesh`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.client.arguments import (
    RequestParameters,
    check_argument_names,
    format_optional_time,
    normalize_identifier,
    normalize_mac,
    parse_enum,
    select_operation,
    to_json_value,
    to_wire_value,
)
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol import payload, requests
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation
from meshfleet.protocol.hex import Secret
from meshfleet.protocol.ids import Identifier, IdentifierName, is_identifier
from meshfleet.protocol.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.client.arguments import Moment
    from meshfleet.client.mesh.reports import Report


_ACK_OPERATIONS: Final[Mapping[Kind, Operation]] = {
    Kind.MEASUREMENT: Operation.ACK,
    Kind.MEASUREMENT_DECODED: Operation.ACK_DECODED,
    Kind.EVENT: Operation.ACK,
    Kind.EVENT_DECODED: Operation.ACK_DECODED,
}
"""Operation that acknowledges a report of this kind; reports of other kinds get no ack (ack-7)."""


def build_request_topic(gateway: str, device: str, operation: Operation, identifier: str) -> RequestTopic:
    """Return the MQTT topic of a request, decoded if the identifier is a name (request-34)."""
    normalized = normalize_identifier(identifier)
    parsed = Identifier(normalized) if is_identifier(normalized) else IdentifierName(normalized)
    return RequestTopic(
        normalize_mac(gateway),
        normalize_mac(device, "device"),
        select_operation(normalized, operation),
        parsed,
    )


def build_apiversion(priority: int | None) -> requests.ApiVersionRequest:
    """Build the payload of a request for the API version of a gateway."""
    return payload.build_payload(requests.ApiVersionRequest, _to_wire_names({"priority": priority}))


def build_read(parameters: RequestParameters) -> requests.ReadRequest:
    """Build the payload of a read request."""
    return payload.build_payload(requests.ReadRequest, _to_wire_names(parameters))


def build_write(
    operation: Operation, value: Any, ext: Mapping[str, Any] | None, parameters: RequestParameters
) -> requests.WriteRequest | requests.WriteDecodedRequest:
    """Build a write request: the value is hex or bytes, for a decoded operation any JSON; None is NULL."""
    fields = {**_to_wire_names(parameters), "value": to_wire_value(operation, value)}
    if operation is Operation.WRITE:
        if ext is not None:
            raise MalformedInput(
                "ext", "needs the name of an identifier; raw values end with their extension"
            )
        return payload.build_payload(requests.WriteRequest, fields)
    if ext is not None:
        fields["ext"] = to_json_value(dict(ext), "ext")
    return payload.build_payload(requests.WriteDecodedRequest, fields)


def build_ack(time: Moment, kind: int, priority: int | None) -> requests.AckRequest:
    """Build the payload of an ack for the sample with this time. `kind` is a value of `AckType`."""
    fields = {"time": format_optional_time(time), "type": parse_enum(AckType, kind, "type")}
    return payload.build_payload(requests.AckRequest, {**fields, **_to_wire_names({"priority": priority})})


def build_ack_topic(report: Report) -> RequestTopic:
    """Return the MQTT topic of the ack for a report. Raise `MalformedInput` for a kind without acks."""
    operation = _ACK_OPERATIONS.get(report.kind)
    if operation is None:
        raise MalformedInput("kind", f"only measurements and events can be acknowledged, not {report.kind}")
    return RequestTopic(report.gateway, report.device, operation, report.identifier)


def is_repeatable(topic: RequestTopic, kind: int | None = None) -> bool:
    """Return whether a request may be executed twice without harm. `kind` is the `AckType` of an ack.

    Writes are not repeatable, because they may be commands. An ack that erases all samples is not
    repeatable, because the second ack would erase newer samples.
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
    """Convert request parameters to payload fields. Omit parameters that are None."""
    check_argument_names(parameters, RequestParameters)
    fields: dict[str, Any] = {
        _WIRE_NAMES[name]: value.reveal() if isinstance(value, Secret) else value
        for name, value in parameters.items()
        if value is not None
    }
    if "accessType" in fields:
        fields["accessType"] = parse_enum(AccessType, fields["accessType"], "accessType")
    return fields
