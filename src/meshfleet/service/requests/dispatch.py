"""Requests of people, from the door to the answer.

A request gets a gateway, is written down if it must not be forgotten, and is then carried by a task of its
own: whoever asked may wait for it, or come back later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NoReturn

from meshfleet.errors import (
    BrokerUnavailable,
    FleetError,
    GatewayLost,
    GatewayOffline,
    Interrupted,
    Unanswered,
)
from meshfleet.service.requests import store
from meshfleet.service.requests.answers import answer_of
from meshfleet.service.requests.entry import Entry
from meshfleet.service.requests.once import Once, Past, Taken
from meshfleet.wire.ids import RequestId
from meshfleet.wire.topics import RequestTopic

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.requests.asking import Asking
    from meshfleet.service.requests.book import Book
    from meshfleet.service.requests.gateway_selector import GatewaySelector, Route
    from meshfleet.service.requests.once import Key
    from meshfleet.service.requests.order import Order
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.rest import RequestAnswer, RequestRecord

_log = logging.getLogger(__name__)

_TRIES: Final = 3
"""How often a read is sent whose gateway goes away meanwhile."""


class Dispatch:
    """Carries requests."""

    def __init__(
        self, database: Database, *, asking: Asking, selector: GatewaySelector, book: Book, now: Now
    ) -> None:
        self._database = database
        self._asking = asking
        self._selector = selector
        self._book = book
        self._now = now
        self._once = Once(self._find)
        self._tasks: asyncio.TaskGroup | None = None
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """What became of requests: by operation, and `done` or the code of the problem."""

    async def run(self) -> None:
        """Carry requests until cancelled; those that run then are given up, and written down so."""
        writing = asyncio.create_task(self._book.run(), name="requests.book")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._asking.watch(), name="requests.watch")
                self._tasks = tasks
                try:
                    await asyncio.shield(writing)
                finally:
                    self._tasks = None  # else one more could begin while all others are given up
        finally:
            self._book.end()
            await asyncio.wait({writing})

    async def take(
        self, device: Mac, order: Order, *, by: Actor, key: Key | None = None, waited_for: bool = True
    ) -> Taken:
        """Send a request, unless the same came before with the same key.

        Raises `NotFound`, `GatewayTooOld`, or one of `Unanswered` when it could not be sent. What becomes of
        it then is told by what comes back.
        """
        must_last = key is not None or not waited_for or not order.is_read
        until = asyncio.get_running_loop().time() + order.timeout

        async def begin() -> Taken:
            try:
                return await self._begin(device, order, by=by, key=key, must_last=must_last, until=until)
            except FleetError as exc:
                self.outcomes[str(order.operation), exc.code] += 1
                raise

        return await begin() if key is None else await self._once.take(key, begin)

    async def settle(self) -> None:
        """Wait until the history has all that happened."""
        await self._book.settle()

    # Inside

    async def _find(self, key: str) -> Past | None:
        await self._book.settle()
        return await self._database.read(store.by_key, key)

    async def _begin(  # noqa: PLR0913 # by name
        self, device: Mac, order: Order, *, by: Actor, key: Key | None, must_last: bool, until: float
    ) -> Taken:
        route = await self._selector.select(device, order.gateway)
        self._asking.check(_topic(route, device, order), order.request)
        entry = Entry.begin(self._asking.new_id(), device, order, by=by, now=self._now())
        entry.go_through(route.gateway)
        if key is not None:
            entry.key, entry.digest = key
        if must_last:
            await self._book.write(entry)
        if self._tasks is None:
            self._refuse(entry, BrokerUnavailable("the service is about to end"))
        over: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        carrying = self._carry(entry, order, route, until)
        task = self._tasks.create_task(carrying, name=f"request {entry.record.id}")
        task.add_done_callback(lambda _: self._end(entry, order, over))
        return Taken(entry.record.id, over)

    def _refuse(self, entry: Entry, error: Unanswered) -> NoReturn:
        """Write down that it was not sent."""
        entry.fail(error, self._now())
        self._book.note(entry)
        raise error

    async def _carry(self, entry: Entry, order: Order, route: Route, until: float) -> None:
        """Send it, and wait for what becomes of it."""
        try:
            entry.finish(await self._answered(entry, order, route, until), self._now())
        except FleetError as exc:
            entry.fail(exc, self._now())
        except asyncio.CancelledError:
            entry.fail(Interrupted("the service ended before an answer came"), self._now())
            raise
        except Exception:  # noqa: BLE001 # one request must not end all others
            _log.exception("a request could not be carried")
            entry.fail(Interrupted("something went wrong here; the log tells more"), self._now())

    def _end(self, entry: Entry, order: Order, over: asyncio.Future[RequestRecord]) -> None:
        """Write down what became of it, and tell who waits. If its task never began, it was not sent."""
        if entry.finished_at is None:
            entry.fail(BrokerUnavailable("the service is about to end"), self._now())
        problem = entry.record.problem
        self.outcomes[str(order.operation), "done" if problem is None else problem.code] += 1
        self._book.note(entry)
        over.set_result(entry.record)

    async def _answered(self, entry: Entry, order: Order, route: Route, until: float) -> RequestAnswer | None:
        """What comes back; None: nothing is expected to. A read is sent again if its gateway goes away."""
        loop, request_id = asyncio.get_running_loop(), RequestId(entry.record.id)
        lost: Unanswered | None = None
        for attempt in range(1, _TRIES + 1):
            topic, left = _topic(route, entry.device, order), until - loop.time()
            try:
                if not order.operation.is_answered:
                    await self._asking.send(topic, order.request, timeout=left, request_id=request_id)
                    return None
                answer = await self._asking.ask(topic, order.request, timeout=left, request_id=request_id)
                return answer_of(answer.response, entry, route)
            except Unanswered as gone:
                lost = gone if gone.sent or lost is None else lost  # that it may have left is what counts
                may_help = isinstance(gone, GatewayLost | GatewayOffline) and loop.time() < until
                if not order.is_read or attempt == _TRIES or not may_help:
                    raise lost from None
                route = await self._another(entry, order, lost)
                request_id = RequestId(f"{entry.record.id}.{attempt + 1}")
        raise AssertionError("the last try returns or raises")

    async def _another(self, entry: Entry, order: Order, gone: Unanswered) -> Route:
        """Another way to the device, or the same gateway that is back; else it stays as it is."""
        try:
            route = await self._selector.select(entry.device, order.gateway)
            self._asking.check(_topic(route, entry.device, order), order.request)
        except FleetError:
            raise gone from None
        entry.go_through(route.gateway)
        return route


def _topic(route: Route, device: Mac, order: Order) -> RequestTopic:
    return RequestTopic(route.gateway, device, order.operation, order.identifier)
