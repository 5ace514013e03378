"""Requests of people, from the door to the answer.

A request gets a gateway, is written down if it must not be forgotten, and is then carried by a task of its
own: whoever asked may wait for it, or come back later.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from meshfleet.errors import (
    BrokerUnavailable,
    DatabaseUnavailable,
    Fault,
    FleetError,
    GatewayLost,
    GatewayOffline,
    Interrupted,
    InvalidRequest,
    ProblemDetails,
    Unanswered,
)
from meshfleet.errors.problems import decode_problem
from meshfleet.protocol.ids import RequestId
from meshfleet.protocol.times import format_time
from meshfleet.protocol.topics import RequestTopic
from meshfleet.rest import RequestAnswer, RequestState
from meshfleet.service.requests import store
from meshfleet.service.requests.history_entry import HistoryEntry
from meshfleet.service.requests.idempotency import (
    IdempotencyKey,
    IdempotencyRegistry,
    KeyedRequest,
    RequestHandle,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from msgspec import Struct

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac
    from meshfleet.protocol.responses import Response
    from meshfleet.rest import RequestRecord
    from meshfleet.service.actor import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.requests.gateway_selector import GatewayRoute, GatewaySelector
    from meshfleet.service.requests.history import RequestHistory
    from meshfleet.service.requests.prepared_request import PreparedRequest
    from meshfleet.service.requests.rpc import RpcClient


# Responses of gateways as they are answered over REST (rest-99).

_COPIED_FIELDS: Final = (
    "status",
    "response_time",
    "error_message",
    "route",
    "extender_route",
    "value",
    "ext",
)
_FORMATTED_FIELDS: Final[Mapping[str, Callable[[Any], object]]] = {
    "time": format_time,
    "origin": int,
    "extender_id": str.upper,
    "version": str,
}


def build_answer(response: Response, entry: HistoryEntry, route: GatewayRoute) -> RequestAnswer:
    """What a gateway answered to a request, and why that gateway."""
    told: dict[str, Any] = {name: getattr(response, name, UNSET) for name in _COPIED_FIELDS}
    for name, spell in _FORMATTED_FIELDS.items():
        given = getattr(response, name, UNSET)
        told[name] = given if given is UNSET else spell(given)
    if entry.secrets and told["error_message"] is not UNSET:
        told["error_message"] = entry.redact(told["error_message"])
    return RequestAnswer(**told, id=entry.record.id, gateway=route.gateway, choice=route.choice)


# Where requests are handed in over REST, whether or not there is anybody to carry them.

_KEY_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,255}")


class RequestFacade:
    """Shut until somebody carries requests."""

    def __init__(self, secret: bytes) -> None:
        """`secret` keeps what is remembered of requests from telling what was in them."""
        self._secret = secret
        self._dispatcher: RequestDispatcher | None = None

    def attach(self, dispatcher: RequestDispatcher) -> None:
        """From now on requests are carried."""
        self._dispatcher = dispatcher

    @property
    def dispatcher(self) -> RequestDispatcher:
        """Who carries them."""
        if self._dispatcher is None:
            raise BrokerUnavailable("no broker is connected that could carry requests")
        return self._dispatcher

    async def flush_history(self) -> None:
        """Let the history be complete before it is read."""
        if self._dispatcher is not None:
            with suppress(DatabaseUnavailable):  # what is there can be read all the same
                await self._dispatcher.flush_history()

    def build_key(
        self, given: str | None, by: Actor, scope: str, request_body: Struct
    ) -> IdempotencyKey | None:
        """An idempotency key as it is remembered: it is each actor's own (rest-25).

        `place` is where something is asked for: a device, or a path.
        """
        if given is None:
            return None
        if not _KEY_PATTERN.fullmatch(given):
            raise InvalidRequest([Fault("Idempotency-Key", "is not 1 to 255 characters of ASCII, no spaces")])
        # All fields, so that one that is left out is the same as one that says what holds anyway.
        body = {name: each for name, each in asdict(request_body).items() if each is not UNSET}
        return IdempotencyKey(
            self._hash(by.display_name, given), self._hash(scope, msgspec.json.encode(body).decode())
        )

    def _hash(self, *parts: str) -> str:
        # Each with its length, so that no two are the same when put together.
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def unwrap_answer(record: RequestRecord) -> RequestAnswer:
    """The answer to a request that is over, or the error that it ended with."""
    if record.state is RequestState.DONE and record.response is not None:
        return record.response
    if record.problem is None:
        raise Interrupted("nobody knows what became of it")
    raise decode_problem(record.problem.code, Unanswered.http, ProblemDetails(record.problem.detail))


_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
"""How often a read is sent whose gateway goes away meanwhile."""


class RequestDispatcher:
    """Carries requests."""

    def __init__(
        self,
        database: Database,
        *,
        rpc: RpcClient,
        selector: GatewaySelector,
        history: RequestHistory,
        now: Now,
    ) -> None:
        self._database = database
        self._rpc = rpc
        self._selector = selector
        self._history = history
        self._now = now
        self._idempotency = IdempotencyRegistry(self._find_by_key)
        self._tasks: asyncio.TaskGroup | None = None
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """What became of requests: by operation, and `done` or the code of the problem."""

    async def run(self) -> None:
        """Carry requests until cancelled; those that run then are given up, and written down so."""
        writing = asyncio.create_task(self._history.run(), name="requests.book")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rpc.watch_connections(), name="requests.watch")
                self._tasks = tasks
                try:
                    await asyncio.shield(writing)
                finally:
                    self._tasks = None  # else one more could begin while all others are given up
        finally:
            self._history.stop()
            await asyncio.wait({writing})

    async def submit(
        self,
        device: Mac,
        prepared: PreparedRequest,
        *,
        by: Actor,
        key: IdempotencyKey | None = None,
        is_awaited: bool = True,
    ) -> RequestHandle:
        """Send a request, unless the same came before with the same key.

        Raises `NotFound`, `GatewayTooOld`, or one of `Unanswered` when it could not be sent. What becomes of
        it then is told by what comes back.
        """
        must_last = key is not None or not is_awaited or not prepared.is_read
        until = asyncio.get_running_loop().time() + prepared.timeout

        async def begin() -> RequestHandle:
            try:
                return await self._start(
                    device, prepared, by=by, key=key, is_durable=must_last, deadline=until
                )
            except FleetError as exc:
                self.outcomes[str(prepared.operation), exc.code] += 1
                raise

        return await begin() if key is None else await self._idempotency.run_once(key, begin)

    async def flush_history(self) -> None:
        """Wait until the history has all that happened."""
        await self._history.flush()

    # Inside

    async def _find_by_key(self, key: str) -> KeyedRequest | None:
        await self._history.flush()
        return await self._database.read(store.find_request_by_key, key)

    async def _start(  # noqa: PLR0913 # by name
        self,
        device: Mac,
        prepared: PreparedRequest,
        *,
        by: Actor,
        key: IdempotencyKey | None,
        is_durable: bool,
        deadline: float,
    ) -> RequestHandle:
        route = await self._selector.select(device, prepared.gateway)
        self._rpc.check_sendable(_topic(route, device, prepared), prepared.request)
        entry = HistoryEntry.create(self._rpc.new_id(), device, prepared, by=by, now=self._now())
        entry.set_gateway(route.gateway)
        if key is not None:
            entry.key, entry.digest = key
        if is_durable:
            await self._history.write(entry)
        if self._tasks is None:
            self._reject(entry, BrokerUnavailable("the service is about to end"))
        over: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        carrying = self._execute(entry, prepared, route, deadline)
        task = self._tasks.create_task(carrying, name=f"request {entry.record.id}")
        task.add_done_callback(lambda _: self._finish(entry, prepared, over))
        return RequestHandle(entry.record.id, over)

    def _reject(self, entry: HistoryEntry, error: Unanswered) -> NoReturn:
        """Write down that it was not sent."""
        entry.fail(error, self._now())
        self._history.enqueue(entry)
        raise error

    async def _execute(
        self, entry: HistoryEntry, prepared: PreparedRequest, route: GatewayRoute, deadline: float
    ) -> None:
        """Send it, and wait for what becomes of it."""
        try:
            entry.complete(await self._send_with_retries(entry, prepared, route, deadline), self._now())
        except FleetError as exc:
            entry.fail(exc, self._now())
        except asyncio.CancelledError:
            entry.fail(Interrupted("the service ended before an answer came"), self._now())
            raise
        except Exception:  # noqa: BLE001 # one request must not end all others
            _log.exception("a request could not be carried")
            entry.fail(Interrupted("something went wrong here; the log tells more"), self._now())

    def _finish(
        self, entry: HistoryEntry, prepared: PreparedRequest, outcome: asyncio.Future[RequestRecord]
    ) -> None:
        """Write down what became of it, and tell who waits. If its task never began, it was not sent."""
        if entry.finished_at is None:
            entry.fail(BrokerUnavailable("the service is about to end"), self._now())
        problem = entry.record.problem
        self.outcomes[str(prepared.operation), "done" if problem is None else problem.code] += 1
        self._history.enqueue(entry)
        outcome.set_result(entry.record)

    async def _send_with_retries(
        self, entry: HistoryEntry, prepared: PreparedRequest, route: GatewayRoute, deadline: float
    ) -> RequestAnswer | None:
        """What comes back; None: nothing is expected to. A read is sent again if its gateway goes away."""
        loop, request_id = asyncio.get_running_loop(), RequestId(entry.record.id)
        lost: Unanswered | None = None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            topic, left = _topic(route, entry.device, prepared), deadline - loop.time()
            try:
                if not prepared.operation.is_answered:
                    await self._rpc.send(topic, prepared.request, timeout=left, request_id=request_id)
                    return None
                answer = await self._rpc.request(topic, prepared.request, timeout=left, request_id=request_id)
                return build_answer(answer.response, entry, route)
            except Unanswered as gone:
                lost = gone if gone.sent or lost is None else lost  # that it may have left is what counts
                may_help = isinstance(gone, GatewayLost | GatewayOffline) and loop.time() < deadline
                if not prepared.is_read or attempt == _MAX_ATTEMPTS or not may_help:
                    raise lost from None
                route = await self._select_again(entry, prepared, lost)
                request_id = RequestId(f"{entry.record.id}.{attempt + 1}")
        raise AssertionError("the last try returns or raises")

    async def _select_again(
        self, entry: HistoryEntry, prepared: PreparedRequest, error: Unanswered
    ) -> GatewayRoute:
        """Another way to the device, or the same gateway that is back; else it stays as it is."""
        try:
            route = await self._selector.select(entry.device, prepared.gateway)
            self._rpc.check_sendable(_topic(route, entry.device, prepared), prepared.request)
        except FleetError:
            raise error from None
        entry.set_gateway(route.gateway)
        return route


def _topic(route: GatewayRoute, device: Mac, prepared: PreparedRequest) -> RequestTopic:
    return RequestTopic(route.gateway, device, prepared.operation, prepared.identifier)
