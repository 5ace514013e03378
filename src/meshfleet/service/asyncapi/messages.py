"""Messages of the AsyncAPI document: one per kind of report, request and response, and for diagnostics."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.protocol import api_versions, reports, requests, responses
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.service.asyncapi import examples
from meshfleet.service.asyncapi import schemas as envelopes
from meshfleet.service.asyncapi.schemas import build_schema, build_schema_reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.protocol.payload import Payload

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
    """Message of the AsyncAPI document with the schema of its payload."""

    name: str
    description: str
    tag: str
    payload: str
    """Name of the schema of the payload."""
    schemas: Mapping[str, dict[str, Any]]
    examples: list[bytes]
    since: str | None = None
    has_id: bool = True
    """Whether the payload has an `id` by which a response is matched to its request."""

    def to_dict(self) -> dict[str, Any]:
        """Return the AsyncAPI message object."""
        return {
            "name": self.name,
            "title": self.name.replace("-", " ").capitalize(),
            "summary": self.description.partition(". ")[0].removesuffix(".") + ".",
            "description": self.description + (f" Since version {self.since}." if self.since else ""),
            **(
                {"correlationId": {"$ref": f"#/components/correlationIds/{CORRELATION_ID}"}}
                if self.has_id
                else {}
            ),
            "payload": build_schema_reference(self.payload),
            "tags": [{"name": self.tag}],
            "examples": examples.build_examples(self.examples),
            **({"x-since": self.since} if self.since else {}),
        }


@cache
def build_report_message(kind: Kind) -> MessageDescription:
    """Return the message of a kind of report."""
    form = "" if not kind.has_identifier else f" {_DECODED_TEXT if kind.is_decoded else _RAW_TEXT}"
    payload = _build_payload(reports.REPORT_TYPES[kind], "report", kind)
    return MessageDescription(
        str(kind),
        _REPORT_TEXTS[kind.raw_kind] + form,
        "reports",
        *payload,
        examples.encode_report_examples(kind),
        has_id=False,
    )


@cache
def build_request_message(operation: Operation) -> MessageDescription:
    """Return the request message of an operation."""
    payloads = examples.encode_request_examples(operation)
    payload = _build_payload(type(requests.decode_request(operation, payloads[0])), "request", operation)
    since = api_versions.find_first_version("request", operation, None)
    return MessageDescription(
        f"{operation}-request",
        _REQUEST_TEXTS[operation],
        "requests",
        *payload,
        payloads,
        since=None if since is None else str(since),
        has_id=operation.is_answered,
    )


@cache
def build_response_message(operation: Operation) -> MessageDescription:
    """Return the response message of an operation."""
    payloads = examples.encode_response_examples(operation)
    payload = _build_payload(type(responses.decode_response(operation, payloads[0])), "response", operation)
    description = f"Result of a {operation} request. `status` says whether it succeeded."
    return MessageDescription(f"{operation}-response", description, "responses", *payload, payloads)


@cache
def build_firmware_question_message() -> MessageDescription:
    """Return the message with which a gateway requests firmware on the diagnostics connection."""
    return MessageDescription(
        "firmware-question",
        "A gateway requests a firmware image.",
        "diagnostics",
        envelopes.FIRMWARE_QUESTION,
        envelopes.build_firmware_question_schemas(),
        examples.encode_firmware_question_examples(),
    )


@cache
def build_firmware_answer_message() -> MessageDescription:
    """Return the message that answers a firmware request."""
    return MessageDescription(
        "firmware-answer",
        "Download address of a firmware image, or that there is no such image.",
        "diagnostics",
        envelopes.FIRMWARE_ANSWER,
        envelopes.build_firmware_answer_schemas(),
        examples.encode_firmware_answer_examples(),
    )


def iter_messages() -> Iterator[MessageDescription]:
    """Yield all messages of the document."""
    yield from map(build_report_message, Kind)
    yield from map(build_request_message, Operation)
    yield from (build_response_message(operation) for operation in Operation if operation.is_answered)
    yield build_firmware_question_message()
    yield build_firmware_answer_message()


def _build_payload(
    payload: type[Payload], part: api_versions.InterfacePart, of: Kind | Operation
) -> tuple[str, dict[str, dict[str, Any]]]:
    return payload.__name__, {payload.__name__: build_schema(payload, part, of)}
