"""Example payloads of every message of the AsyncAPI document, encoded as the service encodes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.protocol import diagnostics, reports, requests, responses
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from meshfleet.protocol.hex import Hex, Secret
from meshfleet.protocol.ids import Mac, ModelNumber, RequestId, Version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXAMPLE_GATEWAY: Final = Mac("02005e0000f0")
EXAMPLE_DEVICE: Final = Mac("02005e0000f1")
_EXTENDER: Final = Mac("02005e0000f2")

_TIME: Final = datetime(2026, 11, 15, 10, 7, 20, 585_000, tzinfo=UTC)
_ID: Final = RequestId("7f1c-42")
_SITE: Final[dict[str, Any]] = {"transitionCounter": 21, "isTransition": True}

_REPORTS: Final[Mapping[Kind, Sequence[reports.Report]]] = {
    Kind.HEARTBEAT: (reports.Heartbeat(time=_TIME, seq=41, status=0, last_count=3),),
    Kind.DFU: (reports.Dfu(time=_TIME, parent=EXAMPLE_GATEWAY, rssi=-71),),
    Kind.RSSI: (
        reports.Rssi(time=_TIME, parent=EXAMPLE_GATEWAY, rssi=-58, channel=38, seq=41),
        reports.Rssi(time=_TIME, parent=_EXTENDER, rssi=-93, unreachable=True),
    ),
    Kind.PROPERTY: (reports.Property(time=_TIME, value=Hex("200000001501"), seq=3),),
    Kind.PROPERTY_DECODED: (reports.PropertyDecoded(time=_TIME, value=32, ext=_SITE, seq=3),),
    Kind.MEASUREMENT: (reports.Measurement(time=_TIME, seq=7, value=Hex("1234")),),
    Kind.MEASUREMENT_DECODED: (reports.MeasurementDecoded(time=_TIME, seq=7, value=46.6),),
    Kind.MEASUREMENT_ERROR: (reports.MeasurementError(time=_TIME, seq=8, error=Status.TIMEOUT),),
    Kind.MEASUREMENT_ERROR_DECODED: (
        reports.MeasurementError(time=_TIME, seq=8, error=Status.BUSY, error_ext=3),
    ),
    Kind.EVENT: (
        reports.Event(time=_TIME, seq=1, value=Hex("001804")),
        reports.Event(time=_TIME, seq=2),
    ),
    Kind.EVENT_DECODED: (
        reports.EventDecoded(time=_TIME, seq=1, value={"modelNumber": 24, "variant": 4}),
        reports.EventDecoded(time=_TIME, seq=2),
    ),
}

_REQUESTS: Final[Mapping[Operation, Sequence[requests.Request]]] = {
    Operation.APIVERSION: (requests.ApiVersionRequest(id=_ID),),
    Operation.READ: (
        requests.ReadRequest(id=_ID, priority=Priority.HIGH),
        requests.ReadRequest(id=_ID, extender_id=_EXTENDER, access_type=AccessType.LEGACY),
    ),
    Operation.READ_DECODED: (
        requests.ReadRequest(
            id=_ID,
            access_type=AccessType.UNPROVISIONED,
            public_key=Secret(b"\x04" + bytes(range(64))),
            key=Secret(bytes(range(16))),
        ),
    ),
    Operation.WRITE: (requests.WriteRequest(id=_ID, value=Hex("04")), requests.WriteRequest(id=_ID)),
    Operation.WRITE_DECODED: (
        requests.WriteDecodedRequest(id=_ID, value="unconnected", extender_id=_EXTENDER),
    ),
    Operation.ACK: (requests.AckRequest(time=_TIME, type=AckType.ACK),),
    Operation.ACK_DECODED: (requests.AckRequest(time=_TIME, type=AckType.BACKFILL, priority=Priority.LOW),),
}

_RESPONSES: Final[Mapping[Operation, Sequence[responses.Response]]] = {
    Operation.APIVERSION: (
        responses.ApiVersionResponse(
            time=_TIME,
            status=Status.OK,
            response_time=4,
            origin=Origin.CONNECTED,
            id=_ID,
            version=Version(2, 4, 0),
        ),
    ),
    Operation.READ: (
        responses.ReadResponse(
            time=_TIME,
            status=Status.OK,
            response_time=180,
            origin=Origin.CONNECTED,
            id=_ID,
            route=f"{_EXTENDER}-{EXAMPLE_DEVICE}",
            value=Hex("5f"),
        ),
        responses.ReadResponse(
            time=_TIME,
            status=Status.UNKNOWN_IDENTIFIER,
            response_time=160,
            origin=Origin.CONNECTED,
            id=_ID,
            error_message="the device has no such identifier",
            route=f"{_EXTENDER}-{EXAMPLE_DEVICE}",
        ),
    ),
    Operation.READ_DECODED: (
        responses.ReadDecodedResponse(
            time=_TIME,
            status=Status.OK,
            response_time=420.5,
            origin=Origin.UNCONNECTED,
            id=_ID,
            extender_id=_EXTENDER,
            extender_route=str(_EXTENDER),
            value=95,
        ),
    ),
    Operation.WRITE: (
        responses.Response(time=_TIME, status=Status.OK, response_time=210, origin=Origin.CONNECTED, id=_ID),
    ),
    Operation.WRITE_DECODED: (
        responses.Response(
            time=_TIME,
            status=Status.TIMEOUT,
            response_time=10_002,
            origin=Origin.EXTENDER,
            id=_ID,
            extender_id=_EXTENDER,
            extender_route=str(_EXTENDER),
        ),
    ),
}

_QUESTION: Final = diagnostics.FirmwareQuestion(
    model_number=ModelNumber("2011"),
    version=Version(2, 5, 0),
    firmware_type=diagnostics.FirmwareType.NORDIC_PACKAGE,
)
_ANSWER: Final = diagnostics.FirmwareAnswer(
    uri="https://fleet.example.org/firmware/2011-2.5.0.zip?signature=abc",
    file_name="2011-2.5.0.zip",
    firmware_type=diagnostics.FirmwareType.NORDIC_PACKAGE,
    sha256=Hex("5e" * 32),
    size=182_344,
)


def encode_report_examples(kind: Kind) -> list[bytes]:
    """Return example payloads of a kind of report."""
    return [reports.encode_report(kind, report) for report in _REPORTS[kind]]


def encode_request_examples(operation: Operation) -> list[bytes]:
    """Return example payloads of the requests of an operation."""
    return [requests.encode_request(request) for request in _REQUESTS[operation]]


def encode_response_examples(operation: Operation) -> list[bytes]:
    """Return example payloads of the responses to an operation."""
    return [responses.encode_response(operation, response) for response in _RESPONSES[operation]]


def encode_firmware_question_examples() -> list[bytes]:
    """Return an example payload of a firmware request on the diagnostics connection."""
    return [diagnostics.encode_question(_ID, _QUESTION)]


def encode_firmware_answer_examples() -> list[bytes]:
    """Return example payloads of the responses to a firmware request: image found, and not found."""
    return [diagnostics.encode_answer(_ID, _ANSWER), diagnostics.encode_answer(_ID, None)]


def build_examples(payloads: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return encoded payloads as the AsyncAPI example objects of a message."""
    return [
        {"name": f"example{number}", "payload": msgspec.json.decode(payload)}
        for number, payload in enumerate(payloads, 1)
    ]
