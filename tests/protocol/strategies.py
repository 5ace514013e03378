"""Hypothesis strategies for all ids, topics, reports, requests and responses that the protocol allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET

from meshfleet.protocol import reports, requests, responses
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin, Priority
from meshfleet.protocol.hex import Hex, Secret
from meshfleet.protocol.ids import Identifier, IdentifierName, Mac, RequestId, Version
from meshfleet.protocol.topics import BroadcastTopic, ReportTopic, RequestTopic, ResponseTopic, Topic

macs = st.integers(0, 2**48 - 1).map(lambda number: Mac(f"{number:012x}"))


identifiers = st.binary(min_size=1, max_size=4).map(lambda raw: Identifier(raw.hex()))

identifier_names = st.text(
    st.characters(exclude_characters="/+#\x7f", exclude_categories=("Cc", "Cs")), min_size=1, max_size=128
).map(IdentifierName)

times = st.integers(0, 4 * 10**12).map(
    lambda millis: datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=millis)
)
hexes = st.binary(max_size=40).map(lambda raw: Hex(raw.hex()))
seqs = st.integers(0, 255)
wholes = st.integers(-(2**53), 2**53)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
versions = st.builds(
    Version, st.integers(0, 99999), st.integers(0, 99999), st.integers(0, 99999), st.integers(0, 255)
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | wholes | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
exts = st.dictionaries(texts, json_values, max_size=4)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for an optional field."""
    return st.just(UNSET) | strategy


_BODIES: dict[Kind, st.SearchStrategy[reports.Report]] = {
    Kind.HEARTBEAT: st.builds(
        reports.Heartbeat, time=times, seq=seqs, status=wholes, last_count=maybe(st.integers(0, 2**53))
    ),
    Kind.DFU: st.builds(reports.Dfu, time=times, parent=macs, rssi=wholes),
    Kind.RSSI: st.builds(
        reports.Rssi,
        time=times,
        parent=macs,
        rssi=wholes,
        channel=maybe(st.integers(37, 39)),
        seq=maybe(seqs),
        unreachable=st.booleans(),
    ),
    Kind.PROPERTY: st.builds(reports.Property, time=times, value=hexes, seq=maybe(seqs)),
    Kind.PROPERTY_DECODED: st.builds(
        reports.PropertyDecoded, time=times, value=json_values, ext=maybe(exts), seq=maybe(seqs)
    ),
    Kind.MEASUREMENT: st.builds(reports.Measurement, time=times, seq=seqs, value=hexes),
    Kind.MEASUREMENT_DECODED: st.builds(
        reports.MeasurementDecoded, time=times, seq=seqs, value=json_values, ext=maybe(exts)
    ),
    Kind.MEASUREMENT_ERROR: st.builds(
        reports.MeasurementError, time=times, seq=seqs, error=wholes, error_ext=maybe(wholes)
    ),
    Kind.MEASUREMENT_ERROR_DECODED: st.builds(
        reports.MeasurementError, time=times, seq=seqs, error=wholes, error_ext=maybe(wholes)
    ),
    Kind.EVENT: st.builds(reports.Event, time=times, seq=seqs, value=maybe(hexes)),
    Kind.EVENT_DECODED: st.builds(
        reports.EventDecoded, time=times, seq=seqs, value=maybe(json_values), ext=maybe(exts)
    ),
}


@st.composite
def report_topics(draw: st.DrawFn, kind: Kind | None = None) -> ReportTopic:
    """Draw a topic of a report of this kind, or of any kind."""
    kind = kind or draw(st.sampled_from(Kind))
    return ReportTopic(draw(macs), draw(macs), kind, _draw_identifier(draw, kind))


@st.composite
def any_reports(draw: st.DrawFn) -> tuple[ReportTopic, reports.Report]:
    """Draw a report and its topic."""
    topic = draw(report_topics())
    return topic, draw(_BODIES[topic.kind])


@st.composite
def any_topics(draw: st.DrawFn) -> Topic:
    """Draw a topic of any type."""
    operation = draw(st.sampled_from(Operation))
    identifier = _draw_identifier(draw, operation)
    gateway, device = draw(macs), draw(macs)
    topics: list[Topic] = [
        draw(report_topics()),
        RequestTopic(gateway, device, operation, identifier),
        ResponseTopic(gateway, device, operation, identifier),
        BroadcastTopic(device, operation, identifier),
    ]
    return draw(st.sampled_from(topics))


def _draw_identifier(draw: st.DrawFn, keyword: Kind | Operation) -> Identifier | IdentifierName | None:
    if not keyword.has_identifier:
        return None
    return draw(identifier_names) if keyword.is_decoded else draw(identifiers)


_common_fields: dict[str, st.SearchStrategy[Any]] = {
    "id": maybe(texts.map(RequestId)),
    "priority": st.sampled_from(Priority),
}
_access_fields: dict[str, st.SearchStrategy[Any]] = {
    **_common_fields,
    "extender_id": maybe(macs),
    "access_type": maybe(st.sampled_from(AccessType)),
    "public_key": maybe(st.binary(max_size=65).map(Secret)),
    "key": maybe(st.binary(max_size=32).map(Secret)),
}
_written_values = st.none() | st.binary(min_size=1, max_size=40).map(lambda raw: Hex(raw.hex()))

_REQUESTS: dict[Operation, st.SearchStrategy[requests.Request]] = {
    Operation.APIVERSION: st.builds(requests.ApiVersionRequest, **_common_fields),
    Operation.READ: st.builds(requests.ReadRequest, **_access_fields),
    Operation.READ_DECODED: st.builds(requests.ReadRequest, **_access_fields),
    Operation.WRITE: st.builds(requests.WriteRequest, value=_written_values, **_access_fields),
    Operation.WRITE_DECODED: st.builds(
        requests.WriteDecodedRequest, value=json_values, ext=maybe(exts), **_access_fields
    ),
    Operation.ACK: st.builds(
        requests.AckRequest, time=times, type=st.sampled_from(AckType), **_common_fields
    ),
    Operation.ACK_DECODED: st.builds(
        requests.AckRequest, time=times, type=st.sampled_from(AckType), **_common_fields
    ),
}


@st.composite
def any_requests(draw: st.DrawFn) -> tuple[Operation, requests.Request]:
    """Draw a request and its operation."""
    operation = draw(st.sampled_from(Operation))
    return operation, draw(_REQUESTS[operation])


_response_fields: dict[str, st.SearchStrategy[Any]] = {
    "time": times,
    "status": wholes,
    "response_time": maybe(st.integers(0, 2**53) | st.floats(0, 10**9)),
    "origin": maybe(st.sampled_from(Origin)),
    "id": maybe(texts.map(RequestId)),
    "error_message": maybe(texts),
    "route": maybe(texts),
    "extender_id": maybe(macs),
    "extender_route": maybe(texts),
}

_RESPONSES: dict[Operation, st.SearchStrategy[responses.Response]] = {
    Operation.APIVERSION: st.builds(responses.ApiVersionResponse, version=versions, **_response_fields),
    Operation.READ: st.builds(responses.ReadResponse, value=hexes, **_response_fields),
    Operation.READ_DECODED: st.builds(
        responses.ReadDecodedResponse, value=json_values, ext=maybe(exts), **_response_fields
    ),
    Operation.WRITE: st.builds(responses.Response, **_response_fields),
    Operation.WRITE_DECODED: st.builds(responses.Response, **_response_fields),
}


@st.composite
def any_responses(draw: st.DrawFn) -> tuple[Operation, responses.Response]:
    """Draw a response and its operation."""
    operation = draw(st.sampled_from(sorted(_RESPONSES)))
    return operation, draw(_RESPONSES[operation])


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    """Draw a damaged payload: truncated, with a flipped bit, or with inserted bytes."""
    position = draw(st.integers(0, max(0, len(payload) - 1)))
    return draw(
        st.sampled_from(
            [
                payload[:position],
                payload[position:],
                payload[:position]
                + bytes([payload[position] ^ 1 << draw(st.integers(0, 7))])
                + payload[position + 1 :],
                payload[:position] + draw(st.binary(min_size=1, max_size=4)) + payload[position:],
            ]
        )
    )
