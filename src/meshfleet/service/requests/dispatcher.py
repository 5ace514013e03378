"""Executes requests of REST clients to devices and gateways, from submission to the response.

The dispatcher selects a gateway and sends the request in a new task, so the REST client may wait for the
response or fetch it later. A request that must not get lost is stored in the history before it is sent.
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
from meshfleet.rest.requests import RequestOutcome, RequestState
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
    from meshfleet.rest.requests import RequestRecord
    from meshfleet.service.actor import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.requests.gateway_selector import GatewayRoute, GatewaySelector
    from meshfleet.service.requests.history import RequestHistory
    from meshfleet.service.requests.prepared_request import PreparedRequest
    from meshfleet.service.requests.rpc import RpcClient


# Conversion of a gateway's response to the REST response (rest-99).

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


def build_request_outcome(response: Response, entry: HistoryEntry, route: GatewayRoute) -> RequestOutcome:
    """Build the REST response from the response of the gateway and the reason for selecting the gateway."""
    fields: dict[str, Any] = {name: getattr(response, name, UNSET) for name in _COPIED_FIELDS}
    for name, format_value in _FORMATTED_FIELDS.items():
        value = getattr(response, name, UNSET)
        fields[name] = value if value is UNSET else format_value(value)
    if entry.secrets and fields["error_message"] is not UNSET:
        fields["error_message"] = entry.redact(fields["error_message"])
    return RequestOutcome(**fields, id=entry.record.id, gateway=route.gateway, choice=route.choice)


# Entry point for REST handlers; it exists even while no dispatcher is attached.

_KEY_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,255}")


class RequestFacade:
    """Entry point of REST routes to the request dispatcher, which is attached after the start."""

    def __init__(self, secret: bytes) -> None:
        """Create a facade that hashes idempotency keys and request bodies with the HMAC key `secret`."""
        self._secret = secret
        self._dispatcher: RequestDispatcher | None = None

    def attach(self, dispatcher: RequestDispatcher) -> None:
        """Set the dispatcher that executes all further requests."""
        self._dispatcher = dispatcher

    @property
    def dispatcher(self) -> RequestDispatcher:
        """Attached dispatcher. Raises `BrokerUnavailable` if no dispatcher is attached yet."""
        if self._dispatcher is None:
            raise BrokerUnavailable("no requests can be sent: the service is not connected to a broker yet")
        return self._dispatcher

    async def flush_history(self) -> None:
        """Wait until all finished requests are written to the request history in the database."""
        if self._dispatcher is not None:
            with suppress(DatabaseUnavailable):  # stored entries can still be read
                await self._dispatcher.flush_history()

    def build_idempotency_key(
        self, key: str | None, by: Actor, scope: str, request_body: Struct
    ) -> IdempotencyKey | None:
        """Return the hashed form of an idempotency key, which is unique per actor (rest-25).

        `scope` is the device or path that the request addresses. Return None if `key` is None. Raise
        `InvalidRequest` if the key is malformed.
        """
        if key is None:
            return None
        if not _KEY_PATTERN.fullmatch(key):
            raise InvalidRequest(
                [Fault("Idempotency-Key", "must be 1 to 255 printable ASCII characters without spaces")]
            )
        # All fields with their defaults: a body that omits a field equals one that sends its default.
        body = {name: value for name, value in asdict(request_body).items() if value is not UNSET}
        return IdempotencyKey(
            self._hash_parts(by.display_name, key),
            self._hash_parts(scope, msgspec.json.encode(body).decode()),
        )

    def _hash_parts(self, *parts: str) -> str:
        # Each part is preceded by its length, so that different lists of parts never give the same text.
        """Hash several strings with the secret. Different lists of strings have different hashes."""
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def get_response_or_raise(record: RequestRecord) -> RequestOutcome:
    """Return the response of a finished request, or raise the error with which the request failed."""
    if record.state is RequestState.DONE and record.response is not None:
        return record.response
    if record.problem is None:
        raise Interrupted("the outcome of the request is unknown")
    raise decode_problem(record.problem.code, Unanswered.http, ProblemDetails(record.problem.detail))


_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3
"""Maximum number of times that a read request is sent if gateways disconnect before they respond."""


class RequestDispatcher:
    """Executes requests of REST clients, and records the requests in the request history."""

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
        """Number of finished requests by operation and outcome: `done`, or the error code."""

    async def run(self) -> None:
        """Execute requests until this task is canceled. Record unfinished requests as failed."""
        history_task = asyncio.create_task(self._history.run(), name="requests.history")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rpc.watch_connections(), name="requests.watch")
                self._tasks = tasks
                try:
                    await asyncio.shield(history_task)
                finally:
                    self._tasks = None  # no request may start while the running ones are canceled
        finally:
            self._history.stop()
            await asyncio.wait({history_task})

    async def submit(
        self,
        device: Mac,
        prepared: PreparedRequest,
        *,
        by: Actor,
        key: IdempotencyKey | None = None,
        is_awaited: bool = True,
    ) -> RequestHandle:
        """Send a request in a new task, unless one with the same idempotency key was sent before.

        Return a handle of the request, or of the earlier request with the same key. The future in the handle
        resolves to the outcome. Raise `NotFound`, `GatewayTooOld`, or an `Unanswered` error if the request
        cannot be sent. `is_awaited` is False if the REST client does not wait for the outcome.
        """
        is_durable = key is not None or not is_awaited or not prepared.is_read
        deadline = asyncio.get_running_loop().time() + prepared.timeout

        async def start() -> RequestHandle:
            try:
                return await self._start_request(
                    device, prepared, by=by, key=key, is_durable=is_durable, deadline=deadline
                )
            except FleetError as exc:
                self.outcomes[str(prepared.operation), exc.code] += 1
                raise

        return await start() if key is None else await self._idempotency.start_once(key, start)

    async def flush_history(self) -> None:
        """Wait until all queued entries of the request history are written."""
        await self._history.flush()

    # Internals

    async def _find_by_key(self, key: str) -> KeyedRequest | None:
        """Find the request that was submitted with an idempotency key, in the queued or stored history."""
        await self._history.flush()
        return await self._database.read(store.find_request_by_key, key)

    async def _start_request(  # noqa: PLR0913 # keyword-only except the first two
        self,
        device: Mac,
        prepared: PreparedRequest,
        *,
        by: Actor,
        key: IdempotencyKey | None,
        is_durable: bool,
        deadline: float,
    ) -> RequestHandle:
        """Select a gateway, record the request if it must not get lost, and send it in a new task.

        Raise the errors that `submit` raises. `deadline` is the time in seconds of the event loop at which
        the request times out.
        """
        route = await self._selector.select(device, prepared.gateway)
        self._rpc.check_sendable(_build_topic(route, device, prepared), prepared.request)
        entry = HistoryEntry.create(self._rpc.new_id(), device, prepared, by=by, now=self._now())
        entry.set_gateway(route.gateway)
        if key is not None:
            entry.key, entry.digest = key
        if is_durable:
            await self._history.write(entry)
        if self._tasks is None:
            self._reject_request(entry, BrokerUnavailable("the service is shutting down"))
        outcome: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        execution = self._execute_request(entry, prepared, route, deadline)
        task = self._tasks.create_task(execution, name=f"request {entry.record.id}")
        task.add_done_callback(lambda _: self._finish_request(entry, prepared, outcome))
        return RequestHandle(entry.record.id, outcome)

    def _reject_request(self, entry: HistoryEntry, error: Unanswered) -> NoReturn:
        """Record in the request history that a request was not sent, and raise `error`."""
        entry.fail(error, self._now())
        self._history.enqueue(entry)
        raise error

    async def _execute_request(
        self, entry: HistoryEntry, prepared: PreparedRequest, route: GatewayRoute, deadline: float
    ) -> None:
        """Send a request, and set its response or error in the history entry."""
        try:
            entry.complete(await self._send_with_retries(entry, prepared, route, deadline), self._now())
        except FleetError as exc:
            entry.fail(exc, self._now())
        except asyncio.CancelledError:
            entry.fail(Interrupted("the service stopped before the response arrived"), self._now())
            raise
        except Exception:  # noqa: BLE001 # one failing request must not cancel the others
            _log.exception("request failed with an unexpected error")
            entry.fail(Interrupted("unexpected error in the service, see its log"), self._now())

    def _finish_request(
        self, entry: HistoryEntry, prepared: PreparedRequest, outcome: asyncio.Future[RequestRecord]
    ) -> None:
        """Record the outcome of a request, and resolve the future of its handle.

        An entry without outcome was not sent: its task was canceled before the task started.
        """
        if entry.finished_at is None:
            entry.fail(BrokerUnavailable("the service is shutting down"), self._now())
        problem = entry.record.problem
        self.outcomes[str(prepared.operation), "done" if problem is None else problem.code] += 1
        self._history.enqueue(entry)
        outcome.set_result(entry.record)

    async def _send_with_retries(
        self, entry: HistoryEntry, prepared: PreparedRequest, route: GatewayRoute, deadline: float
    ) -> RequestOutcome | None:
        """Send a request and return its response, or None for an operation without response.

        A read request is sent again if its gateway disconnects before it responds.
        """
        loop, request_id = asyncio.get_running_loop(), RequestId(entry.record.id)
        error: Unanswered | None = None
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            topic, seconds_left = _build_topic(route, entry.device, prepared), deadline - loop.time()
            try:
                if not prepared.operation.is_answered:
                    await self._rpc.send(topic, prepared.request, timeout=seconds_left, request_id=request_id)
                    return None
                reply = await self._rpc.request(
                    topic, prepared.request, timeout=seconds_left, request_id=request_id
                )
                return build_request_outcome(reply.response, entry, route)
            except Unanswered as exc:
                # If an earlier attempt may have been sent, raise the error that says so.
                error = exc if exc.sent or error is None else error
                may_retry = isinstance(exc, GatewayLost | GatewayOffline) and loop.time() < deadline
                if not prepared.is_read or attempt == _MAX_ATTEMPTS or not may_retry:
                    raise error from None
                route = await self._select_gateway_again(entry, prepared, error)
                request_id = RequestId(f"{entry.record.id}.{attempt + 1}")
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _select_gateway_again(
        self, entry: HistoryEntry, prepared: PreparedRequest, error: Unanswered
    ) -> GatewayRoute:
        """Select the same or another gateway for the next attempt to send a request.

        Raise `error` if no gateway is available.
        """
        try:
            route = await self._selector.select(entry.device, prepared.gateway)
            self._rpc.check_sendable(_build_topic(route, entry.device, prepared), prepared.request)
        except FleetError:
            raise error from None
        entry.set_gateway(route.gateway)
        return route


def _build_topic(route: GatewayRoute, device: Mac, prepared: PreparedRequest) -> RequestTopic:
    """Build the topic of a request to a device through the gateway of a route."""
    return RequestTopic(route.gateway, device, prepared.operation, prepared.identifier)
