"""Valid messages survive a round trip; all others raise our error."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedInput, MalformedPayload
from meshfleet.protocol import payload, reports, requests, responses
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.times import parse_time
from meshfleet.protocol.topics import ReportTopic, Topic, TopicCodec
from tests.protocol.strategies import any_reports, any_requests, any_responses, any_topics, damaged
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

TOPICS = TopicCodec()


@given(any_topics())
def test_every_topic_survives_a_round_trip(topic: Topic) -> None:
    assert TOPICS.parse(str(topic)) == topic
    assert type(TOPICS.parse(str(topic))) is type(topic)


@given(any_reports())
def test_every_report_survives_a_round_trip(drawn: tuple[ReportTopic, reports.Report]) -> None:
    topic, report = drawn
    assert reports.decode_report(topic.kind, reports.encode_report(topic.kind, report)) == report


@given(any_requests())
def test_every_request_survives_a_round_trip(drawn: tuple[Operation, requests.Request]) -> None:
    operation, request = drawn
    assert requests.decode_request(operation, requests.encode_request(request)) == request


@given(any_responses())
def test_every_response_survives_a_round_trip(drawn: tuple[Operation, responses.Response]) -> None:
    operation, response = drawn
    assert responses.decode_response(operation, responses.encode_response(operation, response)) == response


@given(st.data())
def test_a_damaged_report_is_decoded_or_raises_our_error(data: st.DataObject) -> None:
    topic, report = data.draw(any_reports())
    with suppress(MalformedInput):
        reports.decode_report(topic.kind, data.draw(damaged(reports.encode_report(topic.kind, report))))


def _decode_or_classify(decode: Callable[[], reports.Report]) -> reports.Report | tuple[str, str]:
    try:
        return decode()
    except MalformedInput as exc:
        return exc.code, exc.field


@given(st.data())
def test_a_damaged_report_has_the_same_result_in_the_fast_and_the_complete_decoder(
    data: st.DataObject,
) -> None:
    topic, report = data.draw(any_reports())
    damaged_report = data.draw(damaged(reports.encode_report(topic.kind, report)))
    fast = _decode_or_classify(lambda: reports.decode_report(topic.kind, damaged_report))
    assert fast == _decode_or_classify(
        lambda: payload.decode_payload(reports.REPORT_TYPES[topic.kind], damaged_report)
    )


@pytest.mark.rule("report-53")
@given(
    any_reports(), st.sampled_from([b"0001-01-01T00:00:00.000+01:00", b"2020-11-04T10:07:20.5859999Z", b"x"])
)
def test_a_report_with_two_timestamps_is_encoded_again_or_rejected(
    drawn: tuple[ReportTopic, reports.Report], time: bytes
) -> None:
    topic, report = drawn
    doubled = reports.encode_report(topic.kind, report)[:-1] + b',"time":"' + time + b'"}'
    with suppress(MalformedInput):
        reports.encode_report(topic.kind, reports.decode_report(topic.kind, doubled))


@given(st.data())
def test_a_damaged_request_is_decoded_or_raises_our_error(data: st.DataObject) -> None:
    operation, request = data.draw(any_requests())
    with suppress(MalformedInput):
        requests.decode_request(operation, data.draw(damaged(requests.encode_request(request))))


@given(st.data())
def test_a_damaged_response_is_decoded_or_raises_our_error(data: st.DataObject) -> None:
    operation, response = data.draw(any_responses())
    with suppress(MalformedInput):
        responses.decode_response(
            operation, data.draw(damaged(responses.encode_response(operation, response)))
        )


@given(st.sampled_from(Kind), st.binary())
def test_arbitrary_bytes_are_decoded_or_raise_our_error(kind: Kind, payload: bytes) -> None:
    with suppress(MalformedInput):
        reports.decode_report(kind, payload)


@given(st.data())
def test_a_damaged_topic_is_parsed_or_raises_our_error(data: st.DataObject) -> None:
    topic = data.draw(any_topics())
    text = data.draw(damaged(str(topic).encode())).decode(errors="replace")
    with suppress(MalformedInput):
        assert str(TOPICS.parse(text)) == text


@pytest.mark.rule("report-54")
@each_row("shape", ["[{}]", '{{"x":{}}}'])
@each_row("prefix", ["", " "])
def test_the_nesting_depth_of_a_value_is_limited(shape: str, prefix: str) -> None:
    def build_report(depth: int) -> bytes:
        value = "1"
        for _ in range(depth):
            value = shape.format(value)
        return f'{prefix}{{"time":"2020-11-04T10:07:20.585Z","seq":1,"value":{value}}}'.encode()

    reports.decode_report(Kind.MEASUREMENT_DECODED, build_report(payload.MAX_NESTING_DEPTH - 1))
    with pytest.raises(MalformedPayload, match="nested too deeply"):
        reports.decode_report(Kind.MEASUREMENT_DECODED, build_report(payload.MAX_NESTING_DEPTH))


def test_a_report_is_not_encoded_as_another_kind() -> None:
    event = reports.Event(time=parse_time("2020-11-04T10:07:20Z"), seq=1)
    with pytest.raises(TypeError, match="Event is not the payload of heartbeat"):
        reports.encode_report(Kind.HEARTBEAT, event)


def test_text_that_utf_8_cannot_encode_is_refused() -> None:
    event = reports.EventDecoded(time=parse_time("2020-11-04T10:07:20Z"), seq=1, value="\ud800")
    with pytest.raises(MalformedPayload):
        reports.encode_report(Kind.EVENT_DECODED, event)
