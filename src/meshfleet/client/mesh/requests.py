"""What callers ask for, as requests of the wire: checked here, before anything is sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.client.names import identifier_of, mac_of
from meshfleet.errors import MalformedTime, UnencodableValue, WireError
from meshfleet.wire import payload, requests
from meshfleet.wire.codes import AckType, Kind, Operation
from meshfleet.wire.hextext import Secret, to_hex
from meshfleet.wire.ids import Identifier, IdentifierName, is_identifier
from meshfleet.wire.times import write_time
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import TypedDict

    from meshfleet.client.mesh.reports import Report
    from meshfleet.wire.codes import AccessType
    from meshfleet.wire.requests import Ack, ApiVersion, Read, Write, WriteDecoded

    class Parameters(TypedDict, total=False):
        """What may be said with every read and write."""

        priority: int | None
        extender_id: str | None
        access_type: AccessType | str | None
        public_key: str | Secret | None
        key: str | Secret | None


_ACKNOWLEDGED: Final[Mapping[Kind, Operation]] = {
    Kind.MEASUREMENT: Operation.ACK,
    Kind.MEASUREMENT_DECODED: Operation.ACK_DECODED,
    Kind.EVENT: Operation.ACK,
    Kind.EVENT_DECODED: Operation.ACK_DECODED,
}
"""The kinds of reports that can be acknowledged (ack-7)."""

_BY_NAME: Final = {
    Operation.READ: Operation.READ_DECODED,
    Operation.WRITE: Operation.WRITE_DECODED,
    Operation.ACK: Operation.ACK_DECODED,
}


def topic_of(gateway: str, device: str, operation: Operation, identifier: str) -> RequestTopic:
    """Where to ask: hex is for the raw operation, a name for the decoded one (request-34)."""
    spelt = identifier_of(identifier)
    if not is_identifier(spelt):
        return RequestTopic(
            mac_of(gateway), mac_of(device, "device"), _BY_NAME[operation], IdentifierName(spelt)
        )
    return RequestTopic(mac_of(gateway), mac_of(device, "device"), operation, Identifier(spelt))


def apiversion_of(priority: int | None) -> ApiVersion:
    """A question for the version."""
    return payload.convert(requests.ApiVersion, _spelt({"priority": priority}))


def read_of(parameters: Parameters) -> Read:
    """A read."""
    return payload.convert(requests.Read, _spelt(parameters))


def write_of(
    operation: Operation, value: Any, ext: Mapping[str, Any] | None, parameters: Parameters
) -> Write | WriteDecoded:
    """A write of hex or bytes, or of JSON when it is a decoded one. None writes NULL."""
    given = _spelt(parameters)
    if operation is Operation.WRITE:
        if ext is not None:
            raise WireError("ext", "goes with the name of an identifier; raw values have it at their end")
        return payload.convert(
            requests.Write, {**given, "value": to_hex(value) if isinstance(value, bytes) else value}
        )
    given["value"] = _json(value, "value")
    if ext is not None:
        given["ext"] = _json(dict(ext), "ext")
    return payload.convert(requests.WriteDecoded, given)


def ack_of(time: datetime, kind: int, priority: int | None) -> Ack:
    """An ack of the sample of this time."""
    if time.tzinfo is None:
        raise MalformedTime("time", "has no offset from UTC")
    given = {"time": write_time(time), "type": kind}
    return payload.convert(requests.Ack, {**given, **_spelt({"priority": priority})})


def ack_topic_of(report: Report) -> RequestTopic:
    """Where a report is acknowledged."""
    operation = _ACKNOWLEDGED.get(report.kind)
    if operation is None:
        raise WireError("kind", f"only measurements and events are acknowledged, no {report.kind}")
    return RequestTopic(report.gateway, report.device, operation, report.identifier)


def is_safe(topic: RequestTopic, kind: int | None = None) -> bool:
    """Whether it does no harm when it is carried out twice.

    A write may be a command; and who erases all samples means those of now, not those of a minute later.
    """
    return topic.operation not in {Operation.WRITE, Operation.WRITE_DECODED} and kind != AckType.ERASE_ALL


def _spelt(parameters: Parameters) -> dict[str, Any]:
    """Parameters under the names that they have on the wire."""
    names = {
        "priority": "priority",
        "extender_id": "extenderId",
        "access_type": "accessType",
        "public_key": "publicKey",
        "key": "key",
    }
    return {
        names[name]: value.reveal() if isinstance(value, Secret) else value
        for name, value in parameters.items()
        if value is not None
    }


def _json(value: Any, field: str) -> Any:
    """The value as JSON has it. What JSON does not have is refused: msgspec would make null of NaN."""
    try:
        return msgspec.json.decode(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise UnencodableValue(field, "is nothing that JSON can say") from None
