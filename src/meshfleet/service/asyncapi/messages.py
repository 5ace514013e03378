"""The messages: one for each kind of report, for each operation and its response, and for diagnostics."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.service.asyncapi import envelopes, examples
from meshfleet.service.asyncapi.schemas import reference_to, schema_of
from meshfleet.wire import gating, reports, requests, responses
from meshfleet.wire.codes import Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.wire.payload import Payload

CORRELATION: Final = "requestId"

_REPORTS: Final[Mapping[Kind, str]] = {
    Kind.HEARTBEAT: "A device is alive, and how it is.",
    Kind.DFU: "A device advertises in DFU mode, in which it takes new firmware: its heartbeat in that mode.",
    Kind.RSSI: "How well a mesh node hears a device.",
    Kind.PROPERTY: "The value of a property.",
    Kind.MEASUREMENT: "A measured sample.",
    Kind.MEASUREMENT_ERROR: "A measurement that failed.",
    Kind.EVENT: "Something happened.",
}

_REQUESTS: Final[Mapping[Operation, str]] = {
    Operation.APIVERSION: "Ask for the version of the messaging interface. It fails unless the gateway "
    "itself is addressed.",
    Operation.READ: "Read a property as hex.",
    Operation.READ_DECODED: "Read a property as JSON.",
    Operation.WRITE: "Write a property as hex.",
    Operation.WRITE_DECODED: "Write a property as JSON.",
    Operation.ACK: "Acknowledge a timestamped sample that came raw. There is no response.",
    Operation.ACK_DECODED: "Acknowledge a timestamped sample that came decoded. There is no response.",
}

_RAW: Final = "Raw: used in raw mode, and in decoded mode for what the gateway cannot decode."
_DECODED: Final = "Decoded: used in decoded mode for what the gateway can decode."


class Message(NamedTuple):
    """A message, and the schema of its payload."""

    name: str
    about: str
    tag: str
    payload: str
    """The name of the schema."""
    schemas: Mapping[str, dict[str, Any]]
    examples: list[bytes]
    since: str | None = None
    has_id: bool = True
    """Whether an id ties a request and its response together."""

    def described(self) -> dict[str, Any]:
        """Describe it."""
        return {
            "name": self.name,
            "title": self.name.replace("-", " ").capitalize(),
            "summary": self.about.partition(". ")[0].removesuffix(".") + ".",
            "description": self.about + (f" Since version {self.since}." if self.since else ""),
            **(
                {"correlationId": {"$ref": f"#/components/correlationIds/{CORRELATION}"}}
                if self.has_id
                else {}
            ),
            "payload": reference_to(self.payload),
            "tags": [{"name": self.tag}],
            "examples": examples.shown(self.examples),
            **({"x-since": self.since} if self.since else {}),
        }


@cache
def report(kind: Kind) -> Message:
    """The message of a kind of report."""
    form = "" if not kind.has_identifier else f" {_DECODED if kind.decoded else _RAW}"
    made = _of_struct(reports.STRUCTS[kind], "report", kind)
    return Message(
        str(kind), _REPORTS[kind.raw] + form, "reports", *made, examples.of_report(kind), has_id=False
    )


@cache
def request(operation: Operation) -> Message:
    """The message that asks for an operation."""
    payloads = examples.of_request(operation)
    made = _of_struct(type(requests.decode(operation, payloads[0])), "request", operation)
    since = gating.since("request", operation, None)
    return Message(
        f"{operation}-request",
        _REQUESTS[operation],
        "requests",
        *made,
        payloads,
        since=None if since is None else str(since),
        has_id=operation.is_answered,
    )


@cache
def response(operation: Operation) -> Message:
    """The message that answers an operation."""
    payloads = examples.of_response(operation)
    made = _of_struct(type(responses.decode(operation, payloads[0])), "response", operation)
    about = f"What became of a request to {operation}. `status` says how it went."
    return Message(f"{operation}-response", about, "responses", *made, payloads)


@cache
def question() -> Message:
    """What a gateway asks on the diagnostics connection."""
    return Message(
        "firmware-question",
        "A gateway asks for the image of a firmware.",
        "diagnostics",
        envelopes.QUESTION,
        envelopes.question_schemas(),
        examples.of_question(),
    )


@cache
def answer() -> Message:
    """What it is answered."""
    return Message(
        "firmware-answer",
        "Where the image of a firmware can be downloaded, or that there is none.",
        "diagnostics",
        envelopes.ANSWER,
        envelopes.answer_schemas(),
        examples.of_answer(),
    )


def all_messages() -> Iterator[Message]:
    """Every message there is."""
    yield from map(report, Kind)
    yield from map(request, Operation)
    yield from (response(operation) for operation in Operation if operation.is_answered)
    yield question()
    yield answer()


def _of_struct(
    payload: type[Payload], part: gating.Part, of: Kind | Operation
) -> tuple[str, dict[str, dict[str, Any]]]:
    return payload.__name__, {payload.__name__: schema_of(payload, part, of)}
