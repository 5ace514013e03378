"""Matching of responses to requests, without sending or waiting."""

from __future__ import annotations

import pytest

from meshfleet.errors import MalformedResponse, TooManyRequests
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.ids import Identifier, Mac, RequestId
from meshfleet.protocol.request_tracker import RequestTracker, ResponseMatch
from meshfleet.protocol.topics import ResponseTopic, TopicCodec
from tests.row_tables import each_row

GATEWAY, OTHER = Mac("02005e000001"), Mac("02005e000002")
DEVICE = Mac("02005e0000aa")
READ = ResponseTopic(GATEWAY, DEVICE, Operation.READ, Identifier("8000"))


@pytest.mark.rule("request-27")
def test_a_response_is_matched_once() -> None:
    tracker = RequestTracker("x")
    request_id = tracker.open(READ)
    assert len(tracker) == 1
    assert tracker.match_response(READ, request_id) is ResponseMatch.ANSWER
    assert len(tracker) == 0


@pytest.mark.rule("request-28")
def test_further_responses_to_a_request_are_repeated() -> None:
    tracker = RequestTracker("x")
    request_id = tracker.open(READ)
    matches = [tracker.match_response(READ, request_id) for _ in range(3)]
    assert matches == [ResponseMatch.ANSWER, ResponseMatch.REPEATED, ResponseMatch.REPEATED]


@pytest.mark.rule("request-28")
def test_a_response_to_an_abandoned_request_is_late() -> None:
    tracker = RequestTracker("x")
    request_id = tracker.open(READ)
    tracker.abandon(request_id)
    assert len(tracker) == 0
    assert tracker.match_response(READ, request_id) is ResponseMatch.LATE


def test_abandoning_an_answered_request_changes_nothing() -> None:
    tracker = RequestTracker("x")
    request_id = tracker.open(READ)
    tracker.match_response(READ, request_id)
    tracker.abandon(request_id)
    assert tracker.match_response(READ, request_id) is ResponseMatch.REPEATED


@pytest.mark.rule("request-27", "request-28")
@each_row(
    "topic",
    [
        ResponseTopic(OTHER, DEVICE, Operation.READ, Identifier("8000")),
        ResponseTopic(GATEWAY, OTHER, Operation.READ, Identifier("8000")),
        ResponseTopic(GATEWAY, DEVICE, Operation.WRITE, Identifier("8000")),
        ResponseTopic(GATEWAY, DEVICE, Operation.READ, Identifier("8001")),
        ResponseTopic(GATEWAY, DEVICE, Operation.APIVERSION),
    ],
)
def test_a_known_id_on_another_topic_is_foreign_and_closes_nothing(topic: ResponseTopic) -> None:
    tracker = RequestTracker("x")
    request_id = tracker.open(READ)
    assert tracker.match_response(topic, request_id) is ResponseMatch.FOREIGN
    assert tracker.match_response(READ, request_id) is ResponseMatch.ANSWER
    assert tracker.match_response(topic, request_id) is ResponseMatch.FOREIGN


@pytest.mark.rule("request-28", "request-29")
@each_row("request_id", [None, RequestId(""), RequestId("x-2"), RequestId("y-1")])
def test_the_id_of_another_client_or_none_is_foreign(request_id: RequestId | None) -> None:
    tracker = RequestTracker("x")
    tracker.open(READ)
    assert tracker.match_response(READ, request_id) is ResponseMatch.FOREIGN
    assert len(tracker) == 1


@pytest.mark.rule("request-26")
def test_no_id_is_used_twice() -> None:
    one, other = RequestTracker("x"), RequestTracker("y")
    ids = [one.open(READ)]
    for _ in range(100):
        one.match_response(READ, ids[-1])
        ids += [one.open(READ), other.open(READ)]
    assert len(set(ids)) == len(ids)


def test_the_number_of_open_requests_is_limited() -> None:
    tracker = RequestTracker("x")
    first, *_ = [tracker.open(READ) for _ in range(20_000)]
    with pytest.raises(TooManyRequests):
        tracker.open(READ)
    assert len(tracker) == 20_000
    tracker.abandon(first)
    tracker.open(READ)


def test_only_the_newest_closed_requests_are_remembered() -> None:
    tracker = RequestTracker("x")
    closed = [tracker.open(READ)]
    tracker.abandon(closed[0])
    for _ in range(10_000):
        closed.append(tracker.open(READ))
        tracker.abandon(closed[-1])
    assert tracker.match_response(READ, closed[0]) is ResponseMatch.FOREIGN
    assert tracker.match_response(READ, closed[1]) is ResponseMatch.LATE


@pytest.mark.rule("request-28")
def test_a_message_is_matched_by_the_id_in_its_payload() -> None:
    tracker = RequestTracker("x")
    request_id = tracker.open(READ)
    received = tracker.match_message(TopicCodec(), str(READ), f'{{"id": "{request_id}"}}'.encode())
    assert received is not None
    assert received[:3] == (ResponseMatch.ANSWER, request_id, READ)
    assert isinstance(received.decode(), MalformedResponse)


@each_row("topic", ["mt/gateways/request/02005e0000aa/read/8000", "mt", ""])
def test_a_message_on_another_topic_is_not_matched(topic: str) -> None:
    assert RequestTracker("x").match_message(TopicCodec(), topic, b"{}") is None


def test_an_unreadable_message_may_belong_to_each_open_request_on_its_topic() -> None:
    tracker, topics = RequestTracker("x"), TopicCodec()
    elsewhere = ResponseTopic(OTHER, DEVICE, Operation.READ, Identifier("8000"))
    answered, first, second, foreign = (tracker.open(topic) for topic in (READ, READ, READ, elsewhere))
    tracker.match_response(READ, answered)
    received = tracker.match_message(topics, str(READ), b"")
    later = tracker.open(READ)
    assert received is not None
    assert received.match is ResponseMatch.FOREIGN
    marked = [each for each in (answered, first, second, foreign, later) if tracker.may_be_unreadable(each)]
    assert marked == [first, second]
    tracker.match_message(topics, str(READ), b"[]")
    assert tracker.may_be_unreadable(later)
