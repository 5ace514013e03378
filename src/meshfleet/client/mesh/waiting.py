"""One request between its sending and its answer, and what a broken connection means to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.errors import ConnectionLost

if TYPE_CHECKING:
    from meshfleet.errors import FleetError
    from meshfleet.wire.responses import Response
    from meshfleet.wire.topics import RequestTopic

_TRIES: Final = 2
"""Connections that may break at one message before the message counts as the reason."""


class Waiting:
    """A request for which somebody waits."""

    __slots__ = (
        "_delivered",
        "_is_safe",
        "_news",
        "_told",
        "_unacknowledged",
        "breaks",
        "has_noise",
        "may_have_left",
        "topic",
    )

    def __init__(self, topic: RequestTopic, *, is_safe: bool) -> None:
        """What is safe may be carried out twice."""
        self.topic = topic
        self.may_have_left = False
        self.has_noise = False
        """Whether something came from there that nobody can read."""
        self.breaks = 0
        """Connections that broke since it was sent."""
        self._is_safe = is_safe
        self._unacknowledged = 0
        self._delivered: asyncio.Future[None] | None = None
        self._told: Response | FleetError | None = None
        self._news = _future()

    def sent(self, delivered: asyncio.Future[None]) -> None:
        """It has left; the future tells when the broker has it."""
        self.may_have_left = True
        self._delivered = delivered

    async def next(self) -> Response | FleetError | None:
        """What became of it; None: it may be lost, and is to be sent again."""
        await self._news
        self._news = _future()
        return self._told

    def tell(self, told: Response | FleetError) -> None:
        """This became of it. An answer counts too when it is read after its connection broke."""
        self._told = self._told or told
        self._wake()

    def broke(self, lost: ConnectionLost) -> None:
        """The connection broke: decide whether to send it again, to wait on, or to give up."""
        delivered, self._delivered = self._delivered, None
        if delivered is None:
            return  # it was not on this connection
        self.breaks += 1
        is_acknowledged = delivered.done() and not delivered.cancelled() and delivered.exception() is None
        self._unacknowledged += not is_acknowledged
        if not is_acknowledged and (not self._is_safe or self._unacknowledged >= _TRIES):
            self.tell(_explained(self.topic, lost))
        elif self._is_safe:
            self._wake()

    def _wake(self) -> None:
        if not self._news.done():
            self._news.set_result(None)


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _explained(topic: RequestTopic, lost: ConnectionLost) -> ConnectionLost:
    return ConnectionLost(
        f"{lost}, before it acknowledged {topic.operation} to gateway {topic.gateway}, which may have been "
        "carried out; some brokers end the connection of those who may not send requests"
    )
