"""What the protocol allows survives the wire; what it does not is one of our errors, and nothing else."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import WireError
from meshfleet.wire import reports, requests, responses
from meshfleet.wire.codes import Kind, Operation
from meshfleet.wire.topics import ReportTopic, Topic, Topics
from tests.wire.strategies import any_reports, any_requests, any_responses, any_topics, damaged

TOPICS = Topics()


@given(any_topics())
def test_every_topic_survives_the_wire(topic: Topic) -> None:
    assert TOPICS.parse(str(topic)) == topic
    assert type(TOPICS.parse(str(topic))) is type(topic)


@given(any_reports())
def test_every_report_survives_the_wire(made: tuple[ReportTopic, reports.Report]) -> None:
    topic, report = made
    assert reports.decode(topic.kind, reports.encode(topic.kind, report)) == report


@given(any_requests())
def test_every_request_survives_the_wire(made: tuple[Operation, requests.Request]) -> None:
    operation, request = made
    assert requests.decode(operation, requests.encode(request)) == request


@given(any_responses())
def test_every_response_survives_the_wire(made: tuple[Operation, responses.Response]) -> None:
    operation, response = made
    assert responses.decode(operation, responses.encode(operation, response)) == response


@given(st.data())
def test_a_damaged_report_is_read_or_rejected_by_our_error(data: st.DataObject) -> None:
    topic, report = data.draw(any_reports())
    with suppress(WireError):
        reports.decode(topic.kind, data.draw(damaged(reports.encode(topic.kind, report))))


@given(st.data())
def test_a_damaged_request_is_read_or_rejected_by_our_error(data: st.DataObject) -> None:
    operation, request = data.draw(any_requests())
    with suppress(WireError):
        requests.decode(operation, data.draw(damaged(requests.encode(request))))


@given(st.data())
def test_a_damaged_response_is_read_or_rejected_by_our_error(data: st.DataObject) -> None:
    operation, response = data.draw(any_responses())
    with suppress(WireError):
        responses.decode(operation, data.draw(damaged(responses.encode(operation, response))))


@given(st.sampled_from(Kind), st.binary())
def test_arbitrary_bytes_are_no_report_or_rejected_by_our_error(kind: Kind, payload: bytes) -> None:
    with suppress(WireError):
        reports.decode(kind, payload)


@given(st.data())
def test_a_damaged_topic_is_read_or_rejected_by_our_error(data: st.DataObject) -> None:
    topic = data.draw(any_topics())
    text = data.draw(damaged(str(topic).encode())).decode(errors="replace")
    with suppress(WireError):
        assert str(TOPICS.parse(text)) == text
