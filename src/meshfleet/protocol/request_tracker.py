"""Matches responses to requests.

A response belongs to a request if gateway, device, operation, identifier and id are equal (request-27).
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Final

from meshfleet.errors import TooManyRequests
from meshfleet.protocol.ids import RequestId

if TYPE_CHECKING:
    from meshfleet.protocol.topics import ResponseTopic

MAX_OPEN_REQUESTS: Final = 20_000
"""Maximum number of requests that wait for a response."""

_MAX_CLOSED_REQUESTS: Final = 10_000
"""Number of closed requests that are remembered. A response to an older request counts as foreign."""


class ResponseMatch(StrEnum):
    """Relation of a response to the tracked requests (request-28)."""

    ANSWER = "answer"
    """Response to an open request."""
    REPEATED = "repeated"
    """Response to a request that was answered before."""
    LATE = "late"
    """Response to a request that was abandoned, for instance after a timeout."""
    FOREIGN = "foreign"
    """Response that belongs to no request of this client (request-29)."""


class RequestTracker:
    """Keeps the open requests and matches responses to them. The caller sends requests and waits."""

    def __init__(self, id_prefix: str, *, max_open: int = MAX_OPEN_REQUESTS) -> None:
        """Create a tracker. All its request ids start with `id_prefix`, which no other client may use."""
        self._id_prefix = id_prefix
        self._max_open = max_open
        self._numbers = count(1)
        self._open: dict[RequestId, ResponseTopic] = {}
        self._closed: OrderedDict[RequestId, tuple[ResponseTopic, ResponseMatch]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of requests that wait for a response."""
        return len(self._open)

    def new_id(self) -> RequestId:
        """Return a request id that no other client uses and that is never reused (request-26)."""
        # Padded with zeros, so that the ids sort in the order of their creation.
        return RequestId(f"{self._id_prefix}-{next(self._numbers):08}")

    def open(self, expected: ResponseTopic, request_id: RequestId | None = None) -> RequestId:
        """Add a request that waits for a response on the topic `expected`. Return the request id.

        The id is a new one if `request_id` is None. Raise `TooManyRequests` if the limit is reached.
        """
        self.check_capacity()
        request_id = request_id or self.new_id()
        self._open[request_id] = expected
        return request_id

    def check_capacity(self) -> None:
        """Raise `TooManyRequests` if no more requests can be opened."""
        if len(self._open) >= self._max_open:
            raise TooManyRequests(f"{self._max_open} requests are waiting for a response")

    def match_response(self, topic: ResponseTopic, request_id: RequestId | None) -> ResponseMatch:
        """Return how a received response relates to the requests. An answered request is closed."""
        if request_id is None:
            return ResponseMatch.FOREIGN
        if self._open.get(request_id) == topic:
            self._close(request_id, ResponseMatch.REPEATED)
            return ResponseMatch.ANSWER
        expected, match = self._closed.get(request_id, (None, ResponseMatch.FOREIGN))
        return match if expected == topic else ResponseMatch.FOREIGN

    def abandon(self, request_id: RequestId) -> bool:
        """Stop waiting for the response to a request.

        Return False if the response was received or the request was abandoned before.
        """
        if request_id not in self._open:
            return False
        self._close(request_id, ResponseMatch.LATE)
        return True

    def _close(self, request_id: RequestId, later_match: ResponseMatch) -> None:
        self._closed[request_id] = self._open.pop(request_id), later_match
        if len(self._closed) > _MAX_CLOSED_REQUESTS:
            self._closed.popitem(last=False)
