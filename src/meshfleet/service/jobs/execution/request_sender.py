"""Sends leased requests of the job outbox to gateways, and collects their results."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from meshfleet.errors import FleetError, GatewayBusy, GatewayLost, Unanswered
from meshfleet.errors.protocol import GatewayTooOld
from meshfleet.protocol.codes import Operation, Origin, Priority, Status
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.requests import ReadRequest, WriteDecodedRequest
from meshfleet.protocol.responses import ReadDecodedResponse, ReadResponse
from meshfleet.protocol.topics import RequestTopic
from meshfleet.service.jobs.updates import model, timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import Response
    from meshfleet.service.jobs.execution.execution_events import RequestResult
    from meshfleet.service.jobs.execution.outbox import OutboxRequest
    from meshfleet.service.requests.rpc import RpcClient, RpcResponse

MAX_IN_FLIGHT: Final = 2000
"""Maximum number of job requests that this process has in flight."""

_PROXY_ORIGINS: Final = frozenset({Origin.EXTENDER, Origin.GATEWAY})
"""Origins of responses that an extender or gateway sent on behalf of the device."""

RESPONSE_TIMEOUT_S: Final = timeouts.RESPONSE_TIMEOUT / 1000
"""Seconds to wait for the response to a job request."""


class _OutgoingRequest:
    """Job request that waits to be sent, or for its response. It can be dropped until it is sent."""

    __slots__ = ("is_dropped", "is_leased", "is_sent", "request")

    def __init__(self, request: OutboxRequest, is_leased: Callable[[], bool]) -> None:
        self.request = request
        self.is_leased = is_leased
        self.is_sent = False
        self.is_dropped = False

    def mark_sent(self) -> None:
        """Mark the request as sent, so that it is no longer dropped. Called immediately before sending.

        Raise `GatewayBusy` if the lease has expired: another process may treat the request as unanswered.
        """
        if not self.is_leased():
            raise GatewayBusy("the request waited too long to be sent")
        self.is_sent = True


class JobRequestSender:
    """Sends job requests, each in its own task, and puts their results into the queue `results`."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc
        self._in_flight: dict[asyncio.Task[None], _OutgoingRequest] = {}
        self._canceled_jobs: set[int] = set()
        """Numbers of jobs that are being canceled. Their start commands are dropped."""
        self._unprocessed: set[str] = set()
        """Ids of requests whose result was not passed to `mark_processed` yet."""
        self.results: asyncio.Queue[RequestResult] = asyncio.Queue()

    @property
    def free_slots(self) -> int:
        """Number of requests that can be sent now without exceeding `MAX_IN_FLIGHT`."""
        return MAX_IN_FLIGHT - len(self._in_flight)

    @property
    def in_flight_by_gateway(self) -> Counter[int]:
        """Number of requests in flight to each gateway, by gateway."""
        return Counter(each.request.gateway for each in self._in_flight.values())

    @property
    def open_request_ids(self) -> set[str]:
        """Ids of requests that are in flight, or whose result was not passed to `mark_processed` yet."""
        return self._unprocessed.union(each.request.id for each in self._in_flight.values())

    def mark_processed(self, results: Iterable[RequestResult]) -> None:
        """Remove the requests of these results from `open_request_ids`.

        Call this after the results were applied to their executions, or could not be applied.
        """
        self._unprocessed.difference_update(each.request_id for each in results)

    def send(self, request: OutboxRequest, is_leased: Callable[[], bool]) -> None:
        """Send a request in a new task, unless the request would start an update of a canceled job.

        `is_leased` is called immediately before sending: a request whose lease has expired is not sent.
        """
        if self._is_canceled_start(request):
            self._queue_result(_build_canceled_result(request))
            return
        outgoing = _OutgoingRequest(request, is_leased)
        task = asyncio.create_task(self._send_outgoing(outgoing), name=f"jobs.request {request.id}")
        self._in_flight[task] = outgoing
        task.add_done_callback(self._on_task_done)

    def set_canceled_jobs(self, jobs: Iterable[int]) -> None:
        """Set the jobs that are being canceled, and drop their start commands that were not sent yet."""
        self._canceled_jobs = set(jobs)
        if self._canceled_jobs:
            self._drop_canceled_starts()

    def drop_start_commands(self, job: int) -> None:
        """Drop the start commands of a canceled job that were not sent yet.

        Later start commands of the job are dropped, too, until `set_canceled_jobs` is called without the job.
        """
        self._canceled_jobs.add(job)
        self._drop_canceled_starts()

    def _drop_canceled_starts(self) -> None:
        """Cancel the tasks of start commands that were not sent yet and whose job is being canceled."""
        for task, each in self._in_flight.items():
            if self._is_canceled_start(each.request) and not each.is_sent and not each.is_dropped:
                each.is_dropped = True
                task.cancel()

    def _is_canceled_start(self, request: OutboxRequest) -> bool:
        """Return whether a request would start an update of a job that is being canceled."""
        return request.job in self._canceled_jobs and request.step in model.START_STEPS

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Remove a request whose task has ended. If it was dropped, queue the result "not sent"."""
        each = self._in_flight.pop(task)
        if each.is_dropped and task.cancelled():
            self._queue_result(_build_canceled_result(each.request))

    async def close(self) -> None:
        """Cancel all requests in flight. The next job runner finds their expired leases in the outbox."""
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _send_outgoing(self, outgoing: _OutgoingRequest) -> None:
        """Send a request, wait for its response, and queue its result."""
        self._queue_result(outgoing.request.build_result(await self._send_and_wait(outgoing)))

    async def _send_and_wait(
        self, outgoing: _OutgoingRequest
    ) -> model.ResponseReceived | model.RequestNotSent | model.RequestUnanswered:
        """Send a request and wait for its response. Return its event, even after an error."""
        request = outgoing.request
        try:
            response = await self._rpc.request(
                _build_topic(request),
                _build_request(request),
                timeout=RESPONSE_TIMEOUT_S,
                on_late_response=partial(self._on_late_response, request),
                before_send=outgoing.mark_sent,
            )
        except GatewayTooOld:
            return model.ResponseReceived(request.step, Status.UNKNOWN_OPERATION)
        except GatewayLost as exc:
            return model.RequestUnanswered(request.step, str(exc), is_connection_lost=True)
        except Unanswered as exc:
            return (model.RequestUnanswered if exc.sent else model.RequestNotSent)(request.step, str(exc))
        except FleetError as exc:
            return model.RequestUnanswered(request.step, str(exc))
        return _build_response_event(request, response)

    def _on_late_response(self, request: OutboxRequest, response: RpcResponse) -> None:
        """Queue a response that arrived too late as a result, to be stored as evidence (rest-143)."""
        self._queue_result(request.build_result(_build_response_event(request, response)))

    def _queue_result(self, result: RequestResult) -> None:
        """Put the result of a request into the queue `results`."""
        self._unprocessed.add(result.request_id)
        self.results.put_nowait(result)


def _build_canceled_result(request: OutboxRequest) -> RequestResult:
    """Build the result of a request that was not sent, because its job was canceled."""
    return request.build_result(
        model.RequestNotSent(request.step, "the job was canceled before the request was sent")
    )


def _build_response_event(request: OutboxRequest, rpc_response: RpcResponse) -> model.ResponseReceived:
    """Build the event for the execution from a response."""
    response = rpc_response.response
    return model.ResponseReceived(request.step, response.status, _find_value(request, response))


def _build_topic(request: OutboxRequest) -> RequestTopic:
    return RequestTopic(
        mac_from_int(request.gateway), mac_from_int(request.target), request.operation, request.identifier
    )


def _build_request(request: OutboxRequest) -> Request:
    # Requests of users have a higher priority and overtake those of jobs.
    if request.operation is Operation.WRITE_DECODED:
        return WriteDecodedRequest(value=request.value, priority=Priority.LOW)
    return ReadRequest(priority=Priority.LOW)


def _find_value(request: OutboxRequest, response: Response) -> Any:
    """Return the value in a response; None if an extender or gateway responded instead of the device."""
    if request.target != request.gateway and response.origin in _PROXY_ORIGINS:
        return None
    if isinstance(response, ReadResponse | ReadDecodedResponse) and response.value is not UNSET:
        return response.value
    return None
