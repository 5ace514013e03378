"""What callers ask for, as requests of the wire: checked here, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypedDict

from meshfleet.client.names import check_names, identifier_of, mac_of, moment, one_of, operation_on
from meshfleet.client.values import as_json, value_for
from meshfleet.errors import WireError
from meshfleet.wire import payload, requests
from meshfleet.wire.codes import AccessType, AckType, Kind, Operation
from meshfleet.wire.hextext import Secret
from meshfleet.wire.ids import Identifier, IdentifierName, is_identifier
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.client.mesh.reports import Report
    from meshfleet.client.names import Moment
    from meshfleet.wire.requests import Ack, ApiVersion, Read, Write, WriteDecoded


class Parameters(TypedDict, total=False):
    """What may be said with every read and write. None: as the gateway sees fit."""

    priority: int | None
    """0 to 4: how urgent it is inside the mesh."""
    extender_id: str | None
    access_type: AccessType | str | None
    public_key: str | Secret | None
    key: str | Secret | None
    """In hex: secrets, which are never shown."""


_ACKNOWLEDGED: Final[Mapping[Kind, Operation]] = {
    Kind.MEASUREMENT: Operation.ACK,
    Kind.MEASUREMENT_DECODED: Operation.ACK_DECODED,
    Kind.EVENT: Operation.ACK,
    Kind.EVENT_DECODED: Operation.ACK_DECODED,
}
"""The kinds of reports that can be acknowledged (ack-7)."""


def topic_of(gateway: str, device: str, operation: Operation, identifier: str) -> RequestTopic:
    """Where to ask: hex is for the raw operation, a name for the decoded one (request-34)."""
    spelt = identifier_of(identifier)
    known = Identifier(spelt) if is_identifier(spelt) else IdentifierName(spelt)
    return RequestTopic(mac_of(gateway), mac_of(device, "device"), operation_on(spelt, operation), known)


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
    given = {**_spelt(parameters), "value": value_for(operation, value)}
    if operation is Operation.WRITE:
        if ext is not None:
            raise WireError("ext", "goes with the name of an identifier; raw values have it at their end")
        return payload.convert(requests.Write, given)
    if ext is not None:
        given["ext"] = as_json(dict(ext), "ext")
    return payload.convert(requests.WriteDecoded, given)


def ack_of(time: Moment, kind: int, priority: int | None) -> Ack:
    """An ack of the sample of this time."""
    given = {"time": moment(time), "type": one_of(AckType, kind, "type")}
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


_NAMES: Final = {
    "priority": "priority",
    "extender_id": "extenderId",
    "access_type": "accessType",
    "public_key": "publicKey",
    "key": "key",
}


def _spelt(parameters: Parameters) -> dict[str, Any]:
    """Parameters under the names that they have on the wire."""
    check_names(parameters, Parameters)
    given: dict[str, Any] = {
        _NAMES[name]: value.reveal() if isinstance(value, Secret) else value
        for name, value in parameters.items()
        if value is not None
    }
    if "accessType" in given:
        given["accessType"] = one_of(AccessType, given["accessType"], "accessType")
    return given
