"""Messages of the AsyncAPI document: one per kind of report, request and response, and for diagnostics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.protocol.api_versions import InterfacePart, find_first_version
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.payload import Payload, encode_payload
from meshfleet.service.asyncapi import examples, schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.protocol.ids import Version

CORRELATION_ID: Final = "requestId"

_REPORT_TEXTS: Final[Mapping[Kind, str]] = {
    Kind.HEARTBEAT: "Heartbeat of a device, with its status.",
    Kind.DFU: "Heartbeat of a device in DFU mode, in which it accepts new firmware.",
    Kind.RSSI: "Signal strength with which a mesh node receives a device.",
    Kind.PROPERTY: "The value of a property.",
    Kind.MEASUREMENT: "A sample of a measurement.",
    Kind.MEASUREMENT_ERROR: "A measurement that failed.",
    Kind.EVENT: "A sample of an event.",
}

_REQUEST_TEXTS: Final[Mapping[Operation, str]] = {
    Operation.APIVERSION: "Request the version of the messaging interface. The device must be the gateway "
    "itself.",
    Operation.READ: "Read a property as hex.",
    Operation.READ_DECODED: "Read a property as JSON.",
    Operation.WRITE: "Write a property as hex.",
    Operation.WRITE_DECODED: "Write a property as JSON.",
    Operation.ACK: "Acknowledge a timestamped sample that was reported raw. There is no response.",
    Operation.ACK_DECODED: (
        "Acknowledge a timestamped sample that was reported decoded. There is no response."
    ),
}

_RAW_TEXT: Final = "Raw: used in raw mode, and in decoded mode for values that the gateway cannot decode."
_DECODED_TEXT: Final = "Decoded: used in decoded mode for values that the gateway can decode."


class MessageDescription(NamedTuple):
    """Description of an MQTT message in the AsyncAPI document, with the schema of its payload."""

    name: str
    description: str
    tag: str
    payload: str
    """Name of the payload's JSON schema."""
    schemas: Mapping[str, dict[str, Any]]
    """JSON schema of the payload and schemas to which it refers, by name."""
    examples: Sequence[bytes]
    since: Version | None = None
    """Interface version that added the message; None if the message has always existed."""
    has_id: bool = True
    """Whether the payload has an `id` by which a response is matched to its request."""

    def to_dict(self) -> dict[str, Any]:
        """Return the AsyncAPI message object."""
        correlation = {"$ref": f"#/components/correlationIds/{CORRELATION_ID}"}
        return {
            "name": self.name,
            "title": self.name.replace("-", " ").capitalize(),
            "summary": self.summary,
            "description": self.description + (f" Since version {self.since}." if self.since else ""),
            **({"correlationId": correlation} if self.has_id else {}),
            "payload": schemas.build_schema_reference(self.payload),
            "tags": [{"name": self.tag}],
            "examples": [
                {"name": f"example{number}", "payload": msgspec.json.decode(payload)}
                for number, payload in enumerate(self.examples, 1)
            ],
            **({"x-since": str(self.since)} if self.since else {}),
        }

    @property
    def summary(self) -> str:
        """First sentence of the message's description."""
        return self.description.partition(". ")[0].removesuffix(".") + "."


def build_report_message(kind: Kind) -> MessageDescription:
    """Return the AsyncAPI message of a report kind."""
    form = "" if not kind.has_identifier else f" {_DECODED_TEXT if kind.is_decoded else _RAW_TEXT}"
    text = _REPORT_TEXTS[kind.raw_kind] + form
    return _build_message(str(kind), text, "report", kind, examples.REPORTS[kind], has_id=False)


def build_request_message(operation: Operation) -> MessageDescription:
    """Return the AsyncAPI request message of an operation."""
    name, text, payloads = f"{operation}-request", _REQUEST_TEXTS[operation], examples.REQUESTS[operation]
    return _build_message(name, text, "request", operation, payloads, has_id=operation.is_answered)


def build_response_message(operation: Operation) -> MessageDescription:
    """Return the AsyncAPI response message of an operation."""
    text = f"Result of a {operation} request. `status` says whether it succeeded."
    payloads = examples.RESPONSES[operation]
    return _build_message(f"{operation}-response", text, "response", operation, payloads, has_id=True)


def _build_message(  # noqa: PLR0913 # one call for each part of the interface
    name: str,
    text: str,
    part: InterfacePart,
    code: Kind | Operation,
    payloads: Sequence[Payload],
    *,
    has_id: bool,
) -> MessageDescription:
    payload = type(payloads[0])
    return MessageDescription(
        name,
        text,
        f"{part}s",
        payload.__name__,
        {payload.__name__: schemas.build_schema(payload, part, code)},
        [encode_payload(each) for each in payloads],
        since=find_first_version(part, code, None),
        has_id=has_id,
    )


IMAGE_REQUEST: Final = MessageDescription(
    "firmware-question",
    "A gateway requests a firmware image.",
    "diagnostics",
    "FirmwareCommand",
    schemas.IMAGE_REQUEST_SCHEMAS,
    examples.IMAGE_REQUESTS,
)
IMAGE_RESPONSE: Final = MessageDescription(
    "firmware-answer",
    "Download address of a firmware image, or that there is no such image.",
    "diagnostics",
    "FirmwareResponse",
    schemas.IMAGE_RESPONSE_SCHEMAS,
    examples.IMAGE_RESPONSES,
)
