"""Acks: the sample they acknowledge, and their effect on it and on older samples."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import GatewayTooOld, MalformedIdentifier, MalformedInput, MalformedPayload
from meshfleet.protocol import reports, requests
from meshfleet.protocol.codes import AckType, Kind, Operation, Priority
from meshfleet.protocol.ids import Identifier, IdentifierName, Mac, RequestId, Version
from meshfleet.protocol.requests import AckRequest
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from tests.row_tables import each_row

AT = datetime(2020, 11, 4, 10, 7, 20, 585_000, tzinfo=UTC)
PLAIN: dict[str, Any] = {"time": "2020-11-04T10:07:20.585Z", "type": 1}
ACKS = [Operation.ACK, Operation.ACK_DECODED]
MAC = Mac("c4bd6a010203")


def _decode(operation: Operation, fields: dict[str, Any]) -> AckRequest:
    ack = requests.decode_request(operation, json.dumps(fields).encode())
    assert isinstance(ack, AckRequest)
    return ack


@pytest.mark.rule("ack-1", "ack-2", "ack-3", "ack-4")
@each_row("operation", ACKS)
def test_an_ack_is_decoded_and_encoded_exactly(operation: Operation) -> None:
    payload = b'{"time":"2020-11-04T10:07:20.585Z","type":1,"id":"a-1","priority":0}'
    ack = AckRequest(time=AT, type=AckType.BACKFILL, id=RequestId("a-1"), priority=Priority.LOWEST)
    assert requests.decode_request(operation, payload) == ack
    assert requests.encode_request(ack) == payload


@pytest.mark.rule("ack-1")
@each_row(
    ("suffix", "topic"),
    [
        ("ack/8800", RequestTopic(MAC, MAC, Operation.ACK, Identifier("8800"))),
        (
            "ack-decoded/temperature",
            RequestTopic(MAC, MAC, Operation.ACK_DECODED, IdentifierName("temperature")),
        ),
    ],
)
def test_a_raw_sample_is_acknowledged_by_its_identifier_and_a_decoded_one_by_its_name(
    suffix: str, topic: RequestTopic
) -> None:
    assert TopicCodec().parse(f"mt/gateway/{MAC}/request/{MAC}/{suffix}") == topic


@pytest.mark.rule("ack-1")
def test_a_raw_ack_does_not_accept_a_name() -> None:
    with pytest.raises(MalformedIdentifier):
        TopicCodec().parse(f"mt/gateway/{MAC}/request/{MAC}/ack/temperature")


@pytest.mark.rule("ack-2", "ack-3")
@each_row("field", ["time", "type"])
@each_row("operation", ACKS)
def test_an_ack_without_time_or_type_is_rejected(operation: Operation, field: str) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        _decode(operation, {name: value for name, value in PLAIN.items() if name != field})
    assert (rejected.value.field, rejected.value.reason) == (field, "is missing")


@pytest.mark.rule("ack-2", "ack-3")
@each_row("operation", ACKS)
def test_an_empty_ack_is_rejected(operation: Operation) -> None:
    with pytest.raises(MalformedPayload) as rejected:
        requests.decode_request(operation, b"")
    assert rejected.value.field == "time"


WRONG: dict[str, list[Any]] = {
    "time": [None, True, 1604484440585, 1.5, [], {}, "", "now", "2020-11-04", "2020-11-04T25:00:00Z"],
    "type": [None, True, False, "0", 0.5, [], {}, -1, 3, 10**400],
    "priority": [None, True, "2", 2.5, [], {}, -1, 5],
    "id": [None, True, 1, 1.5, [], {}],
}


@pytest.mark.rule("ack-2", "ack-3", "ack-4")
@each_row(("field", "wrong"), [(field, wrong) for field in WRONG for wrong in WRONG[field]])
@each_row("operation", ACKS)
def test_an_error_names_the_wrong_parameter(operation: Operation, field: str, wrong: Any) -> None:
    with pytest.raises(MalformedInput) as rejected:
        _decode(operation, PLAIN | {field: wrong})
    assert rejected.value.field == field


@pytest.mark.rule("ack-3")
@each_row(
    ("number", "expected"),
    [
        (0, AckType.ACK),
        (1, AckType.BACKFILL),
        (2, AckType.ERASE_ALL),
        (0.0, AckType.ACK),
        (2.0, AckType.ERASE_ALL),
    ],
)
@each_row("operation", ACKS)
def test_there_are_three_types_of_ack(operation: Operation, number: float, expected: AckType) -> None:
    assert _decode(operation, PLAIN | {"type": number}).type is expected


@pytest.mark.rule("ack-4")
@each_row("operation", ACKS)
def test_the_default_priority_of_an_ack_is_2(operation: Operation) -> None:
    assert _decode(operation, PLAIN).priority == 2
    assert [_decode(operation, PLAIN | {"priority": number}).priority for number in range(5)] == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.rule("ack-2", "ack-10")
@each_row(
    ("sample", "acknowledged"),
    [
        ("2020-11-04T10:07:20.585Z", "2020-11-04T10:07:20.585Z"),
        ("2020-11-04T10:07:20Z", "2020-11-04T10:07:20.000Z"),
        ("2020-11-04T10:07:20.5Z", "2020-11-04T10:07:20.500Z"),
        ("2020-11-04T10:07:20.5859999Z", "2020-11-04T10:07:20.585Z"),
        ("2020-11-04T10:07:20.999999999Z", "2020-11-04T10:07:20.999Z"),
        ("2020-11-04T12:07:20.5859999+02:00", "2020-11-04T10:07:20.585Z"),
        ("2020-11-04T10:07:20.585", "2020-11-04T10:07:20.585Z"),
    ],
)
@each_row("kind", [Kind.MEASUREMENT, Kind.EVENT])
def test_an_ack_has_the_time_of_its_sample_truncated_to_milliseconds(
    kind: Kind, sample: str, acknowledged: str
) -> None:
    report = reports.decode_report(kind, f'{{"time":"{sample}","seq":1,"value":"00"}}'.encode())
    assert requests.encode_request(AckRequest(time=report.time, type=AckType.ACK)) == (
        b'{"time":"%b","type":0}' % acknowledged.encode()
    )


@pytest.mark.rule("ack-2", "ack-10")
@given(st.integers(0, 999_999), st.integers(-23 * 60, 23 * 60))
def test_the_time_of_an_ack_is_encoded_as_utc_in_whole_milliseconds(micros: int, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    time = AT.replace(microsecond=micros).astimezone(zone)
    written = json.loads(requests.encode_request(AckRequest(time=time, type=AckType.ERASE_ALL)))
    assert written == {"time": f"2020-11-04T10:07:20.{micros // 1000:03}Z", "type": 2}


@pytest.mark.rule("ack-2", "ack-10")
@each_row("time", ["2020-11-04T10:07:20.5859999Z", "2020-11-04T11:07:20.585+01:00"])
@each_row("operation", ACKS)
def test_the_time_of_a_received_ack_is_truncated_to_milliseconds(operation: Operation, time: str) -> None:
    ack = _decode(operation, PLAIN | {"time": time})
    assert (ack.time, ack.time.tzinfo) == (AT, UTC)


@each_row("operation", ACKS)
def test_an_ack_ignores_parameters_of_other_operations(operation: Operation) -> None:
    fields = PLAIN | {"value": 0, "ext": 0, "extenderId": 0, "accessType": 0, "publicKey": 0, "key": 0}
    assert _decode(operation, fields) == AckRequest(time=AT, type=AckType.BACKFILL)


@pytest.mark.rule("request-25")
@each_row("operation", Operation)
def test_only_acks_have_no_response(operation: Operation) -> None:
    assert operation.is_answered == (operation not in ACKS)


@pytest.mark.rule("version-8")
@each_row("operation", ACKS)
def test_acks_are_supported_since_2_4_0(operation: Operation) -> None:
    ack = AckRequest(time=AT, type=AckType.ACK)
    requests.check_request_supported(operation, ack, Version(2, 4, 0))
    with pytest.raises(GatewayTooOld):
        requests.check_request_supported(operation, ack, Version(2, 3, 9))
