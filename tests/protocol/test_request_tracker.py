"""Which response belongs to which request, without anybody who sends or waits."""

from __future__ import annotations

import pytest

from meshfleet.errors import TooManyRequests
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.ids import Identifier, Mac, RequestId
from meshfleet.protocol.request_tracker import RequestTracker, ResponseMatch
from meshfleet.protocol.topics import ResponseTopic
from tests.row_tables import each_row

GATEWAY, OTHER = Mac("02005e000001"), Mac("02005e000002")
DEVICE = Mac("02005e0000aa")
READ = ResponseTopic(GATEWAY, DEVICE, Operation.READ, Identifier("8000"))


@pytest.mark.rule("request-27")
def test_an_answer_is_recognised_once() -> None:
    exchange = RequestTracker("x")
    request_id = exchange.open(READ)
    assert len(exchange) == 1
    assert exchange.match_response(READ, request_id) is ResponseMatch.ANSWER
    assert len(exchange) == 0


@pytest.mark.rule("request-28")
def test_what_comes_again_is_repeated_however_often() -> None:
    exchange = RequestTracker("x")
    request_id = exchange.open(READ)
    heard = [exchange.match_response(READ, request_id) for _ in range(3)]
    assert heard == [ResponseMatch.ANSWER, ResponseMatch.REPEATED, ResponseMatch.REPEATED]


@pytest.mark.rule("request-28")
def test_what_comes_after_somebody_gave_up_is_late() -> None:
    exchange = RequestTracker("x")
    request_id = exchange.open(READ)
    exchange.abandon(request_id)
    assert len(exchange) == 0
    assert exchange.match_response(READ, request_id) is ResponseMatch.LATE


def test_giving_up_what_was_answered_changes_nothing() -> None:
    exchange = RequestTracker("x")
    request_id = exchange.open(READ)
    exchange.match_response(READ, request_id)
    exchange.abandon(request_id)
    assert exchange.match_response(READ, request_id) is ResponseMatch.REPEATED


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
def test_our_id_in_another_place_is_foreign_and_closes_nothing(topic: ResponseTopic) -> None:
    exchange = RequestTracker("x")
    request_id = exchange.open(READ)
    assert exchange.match_response(topic, request_id) is ResponseMatch.FOREIGN
    assert exchange.match_response(READ, request_id) is ResponseMatch.ANSWER
    assert exchange.match_response(topic, request_id) is ResponseMatch.FOREIGN


@pytest.mark.rule("request-28", "request-29")
@each_row("request_id", [None, RequestId(""), RequestId("x-2"), RequestId("y-1")])
def test_the_id_of_somebody_else_or_none_is_foreign(request_id: RequestId | None) -> None:
    exchange = RequestTracker("x")
    exchange.open(READ)
    assert exchange.match_response(READ, request_id) is ResponseMatch.FOREIGN
    assert len(exchange) == 1


@pytest.mark.rule("request-26")
def test_no_id_is_used_twice() -> None:
    one, other = RequestTracker("x"), RequestTracker("y")
    given = [one.open(READ)]
    for _ in range(100):
        one.match_response(READ, given[-1])
        given += [one.open(READ), other.open(READ)]
    assert len(set(given)) == len(given)


def test_only_so_many_requests_wait_and_one_that_ends_makes_room() -> None:
    exchange = RequestTracker("x")
    first, *_ = [exchange.open(READ) for _ in range(20_000)]
    with pytest.raises(TooManyRequests):
        exchange.open(READ)
    assert len(exchange) == 20_000
    exchange.abandon(first)
    exchange.open(READ)


def test_of_those_that_are_over_only_the_newest_are_remembered() -> None:
    exchange = RequestTracker("x")
    ended = [exchange.open(READ)]
    exchange.abandon(ended[0])
    for _ in range(10_000):
        ended.append(exchange.open(READ))
        exchange.abandon(ended[-1])
    assert exchange.match_response(READ, ended[0]) is ResponseMatch.FOREIGN
    assert exchange.match_response(READ, ended[1]) is ResponseMatch.LATE
