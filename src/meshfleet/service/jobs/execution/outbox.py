"""Requests of jobs on their way: written with the state that they belong to, sent after that, and only once.

Whoever sends one says first until when it waits for the answer. If that time passes and nobody took the
answer over, the sender has ended, and nobody knows whether it had sent the request: whoever finds it says so.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.protocol.codes import Operation
from meshfleet.rest import JobState
from meshfleet.service.jobs.execution.execution_events import RequestResult
from meshfleet.service.jobs.updates.model import RequestUnanswered, UpdateStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.protocol.topics import AnyIdentifier

_COLUMNS: Final = "id, job, device, attempt, step, gateway, target, operation, identifier, value"
_SELECT_NEW: Final = (
    f"SELECT {_COLUMNS} FROM job_outbox WHERE taken_until IS NULL AND NOT (gateway IN numbers)"  # noqa: S608 # our own names
    # No update of a canceled job begins; the next step of the job takes these back.
    f" AND NOT (step IN ('{UpdateStep.START}', '{UpdateStep.ENTER_DFU}')"
    f" AND EXISTS (SELECT 1 FROM job j WHERE j.id = job_outbox.job AND j.state = '{JobState.CANCELING}'))"
    " LIMIT {most}"
)
_SELECT_ABANDONED: Final = f"SELECT {_COLUMNS} FROM job_outbox WHERE taken_until <= ? LIMIT ?"  # noqa: S608 # our own names
_LOCK: Final = " FOR UPDATE SKIP LOCKED"
_LEASE: Final = "UPDATE job_outbox SET taken_until = ? WHERE id = ?"
_RELEASE: Final = "UPDATE job_outbox SET taken_until = 0 WHERE taken_until IS NOT NULL"

REQUESTS_PER_BATCH: Final = 256

MAX_IN_FLIGHT_PER_GATEWAY: Final = 100
"""Letters on their way to one gateway: one that is silent must not keep all others waiting."""


class OutboxRequest(NamedTuple):
    """A request to be sent."""

    id: str
    job: int
    device: int
    attempt: int
    step: UpdateStep
    gateway: int
    target: int
    operation: Operation
    identifier: AnyIdentifier
    value: Any

    def build_result(self, event: Any) -> RequestResult:
        """What came of it."""
        return RequestResult(self.id, self.job, self.device, self.attempt, event)


class RequestBatch(NamedTuple):
    """Letters to be sent now."""

    requests: list[OutboxRequest]
    has_more: bool
    """Whether there may be more."""


def lease_requests(
    connection: Connection, limit: int, in_flight: Mapping[int, int], *, until: int
) -> RequestBatch:
    """Take letters to be sent, of which nobody else gets any; we wait for their answers until that time.

    `at_gateways` tells how many of ours are on their way to which gateway.
    """
    full = [gateway for gateway, count in in_flight.items() if count >= MAX_IN_FLIGHT_PER_GATEWAY]
    text = _SELECT_NEW.format(most=limit) + ("" if connection.dialect.name == "sqlite" else _LOCK)
    found = [_parse_request(row) for row in bulk.query_in(connection, text, full)]
    counts, letters = Counter(in_flight), []
    for each in found:
        counts[each.gateway] += 1
        if counts[each.gateway] <= MAX_IN_FLIGHT_PER_GATEWAY:
            letters.append(each)
    bulk.execute_many(connection, _LEASE, [(until, each.id) for each in letters])
    return RequestBatch(letters, has_more=len(found) == limit)


def list_abandoned_requests(connection: Connection, now: int, own_count: int) -> list[RequestResult]:
    """Letters whose senders have ended. Others may find the same: `advancing.reply` takes each over once.

    So many of them may be our own, after a suspension of the machine, and must not crowd out the others.
    """
    rows = bulk.query_rows(connection, _SELECT_ABANDONED, (now, REQUESTS_PER_BATCH + own_count))
    return [
        each.build_result(
            RequestUnanswered(each.step, "the service ended before an answer came", is_connection_lost=True)
        )
        for each in map(_parse_request, rows)
    ]


def release_leases(connection: Connection) -> None:
    """All senders have ended: this is the only program here, and it has just begun."""
    bulk.execute_many(connection, _RELEASE, [()])


def _parse_request(row: Sequence[Any]) -> OutboxRequest:
    number, job, device, attempt, step, gateway, target, operation, identifier, value = row
    return OutboxRequest(
        number,
        job,
        device,
        attempt,
        UpdateStep(step),
        gateway,
        target,
        Operation(operation),
        identifier,
        None if value is None else msgspec.json.decode(value),
    )
