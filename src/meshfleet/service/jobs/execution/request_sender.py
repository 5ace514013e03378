"""Sends the letters of the outbox, and collects what comes of them."""

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
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.model import (
    START_STEPS,
    RequestNotSent,
    RequestUnanswered,
    ResponseReceived,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshfleet.protocol.requests import Request
    from meshfleet.protocol.responses import Response
    from meshfleet.service.jobs.execution.execution_events import RequestResult
    from meshfleet.service.jobs.execution.outbox import OutboxRequest
    from meshfleet.service.requests.rpc import RpcClient, RpcResponse

MAX_IN_FLIGHT: Final = 2000
"""Letters on their way."""

_PROXY_ORIGINS: Final = frozenset({Origin.EXTENDER, Origin.GATEWAY})
"""Who may answer in the place of a device."""

RESPONSE_TIMEOUT_S: Final = timeouts.RESPONSE_TIMEOUT / 1000
"""Seconds for an answer."""


class _OutgoingRequest:
    """A letter, and whether it can still be dropped."""

    __slots__ = ("is_dropped", "is_leased", "is_sent", "request")

    def __init__(self, request: OutboxRequest, is_leased: Callable[[], bool]) -> None:
        self.request = request
        self.is_leased = is_leased
        self.is_sent = False
        self.is_dropped = False

    def mark_sent(self) -> None:
        """It is sent now, and cannot be dropped any more.

        Raises `GatewayBusy` if its lease has ended meanwhile: another program may have taken it over.
        """
        if not self.is_leased():
            raise GatewayBusy("it waited for its turn until the time for it was over")
        self.is_sent = True


class JobRequestSender:
    """Letters on their way. What becomes of them is put into `replies`."""

    def __init__(self, rpc: RpcClient) -> None:
        self._rpc = rpc
        self._in_flight: dict[asyncio.Task[None], _OutgoingRequest] = {}
        self._canceled_jobs: set[int] = set()
        """Jobs whose updates must not begin any more."""
        self._unprocessed: set[str] = set()
        """Requests whose replies were not taken over yet."""
        self.results: asyncio.Queue[RequestResult] = asyncio.Queue()

    @property
    def free_slots(self) -> int:
        """How many more can be sent."""
        return MAX_IN_FLIGHT - len(self._in_flight)

    @property
    def in_flight_by_gateway(self) -> Counter[int]:
        """How many are at which gateway."""
        return Counter(each.request.gateway for each in self._in_flight.values())

    @property
    def open_request_ids(self) -> set[str]:
        """The requests that were sent here, until their replies are taken over: see `settle`."""
        return self._unprocessed.union(each.request.id for each in self._in_flight.values())

    def mark_processed(self, results: Iterable[RequestResult]) -> None:
        """Forget requests whose replies were taken over, or could not be."""
        self._unprocessed.difference_update(each.request_id for each in results)

    def send(self, request: OutboxRequest, is_leased: Callable[[], bool]) -> None:
        """Send a letter, unless it would begin an update of a canceled job.

        When its turn comes, `is_ours` tells whether it still belongs to this program.
        """
        if self._is_canceled(request):
            self._put_result(_build_canceled_result(request))
            return
        sending = _OutgoingRequest(request, is_leased)
        task = asyncio.create_task(self._send(sending), name=f"jobs.post {request.id}")
        self._in_flight[task] = sending
        task.add_done_callback(self._on_task_done)

    def set_canceled_jobs(self, jobs: Iterable[int]) -> None:
        """Replace the jobs that are being canceled, and drop their starts: see `drop_starts`."""
        self._canceled_jobs = set(jobs)
        if self._canceled_jobs:
            self._drop_starts()

    def drop_starts(self, job: int) -> None:
        """Drop the commands of a canceled job that would begin updates and still wait for their turn.

        Those that come later are dropped as well, until `set_canceled` leaves the job out.
        """
        self._canceled_jobs.add(job)
        self._drop_starts()

    def _drop_starts(self) -> None:
        for task, each in self._in_flight.items():
            if self._is_canceled(each.request) and not each.is_sent and not each.is_dropped:
                each.is_dropped = True
                task.cancel()

    def _is_canceled(self, request: OutboxRequest) -> bool:
        return request.job in self._canceled_jobs and request.step in START_STEPS

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        each = self._in_flight.pop(task)
        if each.is_dropped and task.cancelled():
            self._put_result(_build_canceled_result(each.request))

    async def close(self) -> None:
        """Wait for no answer any more: the next start asks again."""
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    async def _send(self, pending: _OutgoingRequest) -> None:
        self._put_result(pending.request.build_result(await self._request(pending)))

    async def _request(
        self, pending: _OutgoingRequest
    ) -> ResponseReceived | RequestNotSent | RequestUnanswered:
        letter = pending.request
        try:
            answer = await self._rpc.request(
                _build_topic(letter),
                _build_request(letter),
                timeout=RESPONSE_TIMEOUT_S,
                on_late_response=partial(self._on_late_response, letter),
                before_send=pending.mark_sent,
            )
        except GatewayTooOld:
            return ResponseReceived(letter.step, Status.UNKNOWN_OPERATION)
        except GatewayLost as exc:
            return RequestUnanswered(letter.step, str(exc), is_connection_lost=True)
        except Unanswered as exc:
            return (RequestUnanswered if exc.sent else RequestNotSent)(letter.step, str(exc))
        except FleetError as exc:
            return RequestUnanswered(letter.step, str(exc))
        return _build_response_event(letter, answer)

    def _on_late_response(self, request: OutboxRequest, answer: RpcResponse) -> None:
        """Pass on an answer that came too late to move anything: it is evidence (rest-143)."""
        self._put_result(request.build_result(_build_response_event(request, answer)))

    def _put_result(self, result: RequestResult) -> None:
        self._unprocessed.add(result.request_id)
        self.results.put_nowait(result)


def _build_canceled_result(request: OutboxRequest) -> RequestResult:
    return request.build_result(RequestNotSent(request.step, "the job was canceled before it was sent"))


def _build_response_event(request: OutboxRequest, answer: RpcResponse) -> ResponseReceived:
    return ResponseReceived(request.step, answer.response.status, _find_value(request, answer.response))


def _build_topic(request: OutboxRequest) -> RequestTopic:
    return RequestTopic(
        mac_from_int(request.gateway), mac_from_int(request.target), request.operation, request.identifier
    )


def _build_request(request: OutboxRequest) -> Request:
    # People come first: what they ask for overtakes what waits here.
    if request.operation is Operation.WRITE_DECODED:
        return WriteDecodedRequest(value=request.value, priority=Priority.LOW)
    return ReadRequest(priority=Priority.LOW)


def _find_value(request: OutboxRequest, response: Response) -> Any:
    """What was read. What others say in the place of a device is no proof of anything."""
    if request.target != request.gateway and response.origin in _PROXY_ORIGINS:
        return None
    if isinstance(response, ReadResponse | ReadDecodedResponse) and response.value is not UNSET:
        return response.value
    return None
