"""Matches the responses of gateways to the requests of a client.

A response belongs to a request if gateway, device, operation, identifier and id are equal (request-27).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import MalformedResponse, TooManyRequests
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol import payload, responses
from meshfleet.protocol.ids import RequestId
from meshfleet.protocol.topics import ResponseTopic

if TYPE_CHECKING:
    from meshfleet.protocol.responses import Response
    from meshfleet.protocol.topics import TopicCodec

MAX_OPEN_REQUESTS: Final = 20_000
"""Default limit on the number of requests that wait for a response."""

_MAX_CLOSED_REQUESTS: Final = 10_000
"""Number of closed requests that are remembered. A response to an older closed request counts as foreign."""

_MAX_UNREADABLE_TOPICS: Final = 1000
"""Maximum number of topics for which an unreadable response is remembered."""


class ResponseMatch(StrEnum):
    """Relation of a received response to the requests of this client (request-28)."""

    ANSWER = "answer"
    """Response to an open request."""
    REPEATED = "repeated"
    """Response to a request that already got a response."""
    LATE = "late"
    """Response to a request that was abandoned, for instance after a timeout."""
    FOREIGN = "foreign"
    """Response that belongs to no request of this client (request-29)."""


class ReceivedResponse(NamedTuple):
    """Message on a response topic, and how it relates to the requests of this client."""

    match: ResponseMatch
    request_id: RequestId | None
    """Request id in the payload; None if the payload has no valid id."""
    topic: ResponseTopic
    data: bytes
    """Payload of the response as received, not decoded."""

    def decode(self) -> Response | MalformedResponse:
        """Decode the payload of the response. Return the error, instead of raising it, if it is malformed."""
        try:
            return responses.decode_response(self.topic.operation, self.data)
        except MalformedInput as exc:
            problem = MalformedResponse(
                f"gateway {self.topic.gateway} sent a response that cannot be decoded: {exc}"
            )
            problem.__cause__ = exc
            return problem


class _OpenRequest(NamedTuple):
    """Request that waits for its response."""

    topic: ResponseTopic
    """Topic on which the response is expected."""
    unreadable_before: int
    """Number of unreadable responses, on any topic, before the request was opened."""


class RequestTracker:
    """Keeps the requests that wait for a response, and matches responses to these requests."""

    def __init__(self, id_prefix: str, *, max_open: int = MAX_OPEN_REQUESTS) -> None:
        """Create a tracker whose request ids start with `id_prefix`, which no other client may use."""
        self._id_prefix = id_prefix
        self._max_open = max_open
        self._numbers = count(1)
        self._open: dict[RequestId, _OpenRequest] = {}
        self._closed: OrderedDict[RequestId, tuple[ResponseTopic, ResponseMatch]] = OrderedDict()
        self._unreadable_count = 0
        self._unreadable: dict[ResponseTopic, int] = {}
        """Value of `_unreadable_count` after the last unreadable response, by topic."""

    def __len__(self) -> int:
        """Return the number of requests that wait for a response."""
        return len(self._open)

    def new_id(self) -> RequestId:
        """Return a request id that no other client uses and that is never reused (request-26)."""
        # Padded with zeros, so that the ids sort in the order of their creation.
        return RequestId(f"{self._id_prefix}-{next(self._numbers):08}")

    def open(self, expected: ResponseTopic, request_id: RequestId | None = None) -> RequestId:
        """Add a request that waits for a response on the topic `expected`, and return the request id.

        Create a new id if `request_id` is None. Raise `TooManyRequests` if `max_open` requests wait already.
        """
        self.check_capacity()
        request_id = request_id or self.new_id()
        self._open[request_id] = _OpenRequest(expected, self._unreadable_count)
        return request_id

    def check_capacity(self) -> None:
        """Raise `TooManyRequests` if the maximum number of requests wait for a response."""
        if len(self._open) >= self._max_open:
            raise TooManyRequests(f"{self._max_open} requests are waiting for a response")

    def match_message(self, topics: TopicCodec, topic: str, data: bytes) -> ReceivedResponse | None:
        """Match a received MQTT message to the requests of this client, as `match_response` does.

        Return None if the message is not on a response topic.
        """
        try:
            parsed = topics.parse_uncached(topic)
        except MalformedInput:
            return None
        if not isinstance(parsed, ResponseTopic):
            return None
        try:
            given_id = payload.decode_object(data).get("id")
        except MalformedInput:
            self._record_unreadable(parsed)
            given_id = None
        request_id = RequestId(given_id) if isinstance(given_id, str) else None
        return ReceivedResponse(self.match_response(parsed, request_id), request_id, parsed, data)

    def match_response(self, topic: ResponseTopic, request_id: RequestId | None) -> ResponseMatch:
        """Return how a received response relates to the requests of this client.

        If the response belongs to an open request, close the request.
        """
        if request_id is None:
            return ResponseMatch.FOREIGN
        if request_id in self._open and self._open[request_id].topic == topic:
            self._close(request_id, ResponseMatch.REPEATED)
            return ResponseMatch.ANSWER
        expected, match = self._closed.get(request_id, (None, ResponseMatch.FOREIGN))
        return match if expected == topic else ResponseMatch.FOREIGN

    def may_be_unreadable(self, request_id: RequestId) -> bool:
        """Return whether the response to an open request may have arrived, but cannot be read.

        A response that is not a JSON object has no id, so it may belong to any open request with its topic.
        """
        request = self._open.get(request_id)
        return request is not None and self._unreadable.get(request.topic, 0) > request.unreadable_before

    def abandon(self, request_id: RequestId) -> bool:
        """Stop waiting for the response to a request.

        Return False if the request was answered or abandoned before.
        """
        if request_id not in self._open:
            return False
        self._close(request_id, ResponseMatch.LATE)
        return True

    def _close(self, request_id: RequestId, later_match: ResponseMatch) -> None:
        """Close an open request. `later_match` is how a later response to this request will be matched."""
        self._closed[request_id] = self._open.pop(request_id).topic, later_match
        if len(self._closed) > _MAX_CLOSED_REQUESTS:
            self._closed.popitem(last=False)

    def _record_unreadable(self, topic: ResponseTopic) -> None:
        """Record that a response without a readable id has arrived on a topic."""
        if len(self._unreadable) >= _MAX_UNREADABLE_TOPICS:
            self._unreadable.clear()
        self._unreadable_count += 1
        self._unreadable[topic] = self._unreadable_count
