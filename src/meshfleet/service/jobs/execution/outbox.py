"""Job outbox: requests of jobs that are stored with the change of their execution, and then sent once.

A process leases a request before sending: it reserves the request for itself, so that no other process sends
it. The lease lasts until the response must have arrived. If the lease expires without a result, the process
that leased the request has ended, and it is unknown whether the request was sent. The process that finds the
expired lease treats the request as unanswered.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.protocol.codes import Operation
from meshfleet.rest.jobs import JobState
from meshfleet.service.jobs.execution.execution_events import RequestResult
from meshfleet.service.jobs.updates.model import RequestUnanswered, UpdateStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.protocol.topics import AnyIdentifier

_COLUMNS: Final = "id, job, device, attempt, step, gateway, target, operation, identifier, value"
_SELECT_NEW: Final = (
    f"SELECT {_COLUMNS} FROM job_outbox WHERE taken_until IS NULL AND NOT (gateway IN numbers)"  # noqa: S608 # constants only
    # No update of a canceled job starts; the next step of the job withdraws these requests.
    f" AND NOT (step IN ('{UpdateStep.START}', '{UpdateStep.ENTER_DFU}')"
    f" AND EXISTS (SELECT 1 FROM job j WHERE j.id = job_outbox.job AND j.state = '{JobState.CANCELING}'))"
    " LIMIT {limit}"
)
_SELECT_ABANDONED: Final = f"SELECT {_COLUMNS} FROM job_outbox WHERE taken_until <= ? LIMIT ?"  # noqa: S608 # constants only
_LOCK: Final = " FOR UPDATE SKIP LOCKED"
_LEASE: Final = "UPDATE job_outbox SET taken_until = ? WHERE id = ?"
_RELEASE: Final = "UPDATE job_outbox SET taken_until = 0 WHERE taken_until IS NOT NULL"

REQUESTS_PER_BATCH: Final = 256
"""Maximum number of requests that are leased in one transaction."""

MAX_IN_FLIGHT_PER_GATEWAY: Final = 100
"""Maximum requests in flight to one gateway, so that a silent gateway does not block all others."""


class OutboxRequest(NamedTuple):
    """Row of the job outbox: a request to a device or gateway for one execution."""

    id: str
    job: int
    device: int
    attempt: int
    step: UpdateStep
    gateway: int
    """Gateway through which the request is sent."""
    target: int
    """Device or gateway that executes the request."""
    operation: Operation
    identifier: AnyIdentifier
    value: Any

    def build_result(self, event: Any) -> RequestResult:
        """Build the result of this request from an event: a response arrived, or none did."""
        return RequestResult(self.id, self.job, self.device, self.attempt, event)


class RequestBatch(NamedTuple):
    """Requests that this process has leased and sends now."""

    requests: list[OutboxRequest]
    has_more: bool
    """Whether the job outbox may contain more requests to send."""


def lease_requests(
    connection: Connection, limit: int, in_flight: Mapping[int, int], *, until: int
) -> RequestBatch:
    """Reserve (lease) up to `limit` outbox requests for this process, which then sends them.

    `until` is the end of the leases as monotonic time in milliseconds. `in_flight` is the number of requests
    that this process has in flight, by gateway.
    """
    full = [gateway for gateway, count in in_flight.items() if count >= MAX_IN_FLIGHT_PER_GATEWAY]
    text = _SELECT_NEW.format(limit=limit) + ("" if connection.dialect.name == "sqlite" else _LOCK)
    found = [_parse_request(row) for row in bulk.query_in(connection, text, full)]
    counts, requests = Counter(in_flight), []
    for each in found:
        counts[each.gateway] += 1
        if counts[each.gateway] <= MAX_IN_FLIGHT_PER_GATEWAY:
            requests.append(each)
    bulk.execute_many(connection, _LEASE, [(until, each.id) for each in requests])
    return RequestBatch(requests, has_more=len(found) == limit)


def list_abandoned_requests(connection: Connection, now: int, own_count: int) -> list[RequestResult]:
    """Return the result "unanswered" for requests with an expired lease, because their process has ended.

    Several processes may find the same request: `execution_events.apply_results` applies each result once.
    `own_count` is the number of open requests of this process, whose leases also expire if the machine was
    suspended. That many more results are returned, so that requests of ended processes are not left out.
    """
    rows = bulk.query_rows(connection, _SELECT_ABANDONED, (now, REQUESTS_PER_BATCH + own_count))
    return [
        each.build_result(
            RequestUnanswered(
                each.step, "the service stopped before a response arrived", is_connection_lost=True
            )
        )
        for each in map(_parse_request, rows)
    ]


def expire_leases(connection: Connection) -> None:
    """Expire all leases of requests. Call this at the start of a service that runs as a single process."""
    bulk.execute_many(connection, _RELEASE, [()])


def _parse_request(row: Sequence[Any]) -> OutboxRequest:
    """Parse a row of the job outbox."""
    request = OutboxRequest(*row)
    return request._replace(
        step=UpdateStep(request.step),
        operation=Operation(request.operation),
        value=None if request.value is None else msgspec.json.decode(request.value),
    )
