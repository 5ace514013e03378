"""Example payloads for every message of the AsyncAPI document."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

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

REPORTS: Final[Mapping[Kind, Sequence[reports.Report]]] = {
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
"""Example reports by report kind."""

REQUESTS: Final[Mapping[Operation, Sequence[requests.Request]]] = {
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
"""Example requests by operation."""

_CONNECTED: Final[dict[str, Any]] = {"time": _TIME, "origin": Origin.CONNECTED, "id": _ID}
_THROUGH_EXTENDER: Final[dict[str, Any]] = {
    "time": _TIME,
    "id": _ID,
    "extender_id": _EXTENDER,
    "extender_route": str(_EXTENDER),
}
_ROUTE: Final = f"{_EXTENDER}-{EXAMPLE_DEVICE}"

RESPONSES: Final[Mapping[Operation, Sequence[responses.Response]]] = {
    Operation.APIVERSION: (
        responses.ApiVersionResponse(
            **_CONNECTED, status=Status.OK, response_time=4, version=Version(2, 4, 0)
        ),
    ),
    Operation.READ: (
        responses.ReadResponse(
            **_CONNECTED, status=Status.OK, response_time=180, route=_ROUTE, value=Hex("5f")
        ),
        responses.ReadResponse(
            **_CONNECTED,
            status=Status.UNKNOWN_IDENTIFIER,
            response_time=160,
            error_message="the device has no such identifier",
            route=_ROUTE,
        ),
    ),
    Operation.READ_DECODED: (
        responses.ReadDecodedResponse(
            **_THROUGH_EXTENDER,
            status=Status.OK,
            response_time=420.5,
            origin=Origin.UNCONNECTED,
            value=95,
        ),
    ),
    Operation.WRITE: (responses.Response(**_CONNECTED, status=Status.OK, response_time=210),),
    Operation.WRITE_DECODED: (
        responses.Response(
            **_THROUGH_EXTENDER, status=Status.TIMEOUT, response_time=10_002, origin=Origin.EXTENDER
        ),
    ),
}
"""Example responses by operation, for operations that have a response."""

_IMAGE_REQUEST: Final = diagnostics.ImageRequest(
    model_number=ModelNumber("2011"),
    version=Version(2, 5, 0),
    firmware_type=diagnostics.FirmwareType.NORDIC_PACKAGE,
)
_IMAGE_LOCATION: Final = diagnostics.ImageLocation(
    uri="https://fleet.example.org/firmware/2011-2.5.0.zip?signature=abc",
    file_name="2011-2.5.0.zip",
    firmware_type=diagnostics.FirmwareType.NORDIC_PACKAGE,
    sha256=Hex("5e" * 32),
    size=182_344,
)

IMAGE_REQUESTS: Final = (diagnostics.encode_image_request(_ID, _IMAGE_REQUEST),)
"""Example payloads of firmware requests."""
IMAGE_RESPONSES: Final = (
    diagnostics.encode_image_response(_ID, _IMAGE_LOCATION),
    diagnostics.encode_image_response(_ID, None),
)
"""Example payloads of responses to firmware requests: image found, and image not found."""
