"""Which response belongs to which request.

A response belongs to a request when gateway, device, operation, identifier and id all agree (request-27).
Whoever asks brings time and connection: here nobody waits, and nobody sends.
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
"""Requests that may wait for their answers."""

_MAX_CLOSED_REQUESTS: Final = 10_000
"""Requests that are over and still recognised; what comes later than that counts as somebody else's."""


class ResponseMatch(StrEnum):
    """What a response is to us (request-28)."""

    ANSWER = "answer"
    """The one that somebody waits for."""
    REPEATED = "repeated"
    """It was answered before."""
    LATE = "late"
    """Nobody waits for it any more."""
    FOREIGN = "foreign"
    """The answer to a request of somebody else (request-29), or to none at all."""


class RequestTracker:
    """Pairs responses with requests. Owns no clock and no connection: the caller brings both."""

    def __init__(self, id_prefix: str, *, max_open: int = MAX_OPEN_REQUESTS) -> None:
        """`name` is in front of all our ids: nobody else has it."""
        self._name = id_prefix
        self._max_open = max_open
        self._numbers = count(1)
        self._open: dict[RequestId, ResponseTopic] = {}
        self._closed: OrderedDict[RequestId, tuple[ResponseTopic, ResponseMatch]] = OrderedDict()

    def __len__(self) -> int:
        """How many requests wait for their answers."""
        return len(self._open)

    def new_id(self) -> RequestId:
        """An id that nobody else has, and that is never given again (request-26)."""
        # With zeros in front, so that those of one moment sort as they were given.
        return RequestId(f"{self._name}-{next(self._numbers):08}")

    def open(self, expected: ResponseTopic, request_id: RequestId | None = None) -> RequestId:
        """Expect an answer there; gives the id that it will have: a new one, unless one is given."""
        self.check_capacity()
        request_id = request_id or self.new_id()
        self._open[request_id] = expected
        return request_id

    def check_capacity(self) -> None:
        """Raise `TooManyRequests` if no more can be opened."""
        if len(self._open) >= self._max_open:
            raise TooManyRequests(f"{self._max_open} requests wait for their answers")

    def match_response(self, topic: ResponseTopic, request_id: RequestId | None) -> ResponseMatch:
        """A response came. If it is the answer, its request is over."""
        if request_id is None:
            return ResponseMatch.FOREIGN
        if self._open.get(request_id) == topic:
            self._close(request_id, ResponseMatch.REPEATED)
            return ResponseMatch.ANSWER
        expected, fate = self._closed.get(request_id, (None, ResponseMatch.FOREIGN))
        return fate if expected == topic else ResponseMatch.FOREIGN

    def abandon(self, request_id: RequestId) -> bool:
        """Stop waiting for an answer. Return False if it has come, or was given up before."""
        if request_id not in self._open:
            return False
        self._close(request_id, ResponseMatch.LATE)
        return True

    def _close(self, request_id: RequestId, later_match: ResponseMatch) -> None:
        self._closed[request_id] = self._open.pop(request_id), later_match
        if len(self._closed) > _MAX_CLOSED_REQUESTS:
            self._closed.popitem(last=False)
