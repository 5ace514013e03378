"""Database functions for the request history: write, list, load and delete requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import and_, or_, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import request
from meshfleet.errors import Interrupted, NotFound
from meshfleet.protocol.decoders import get_decoder
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.requests import RequestOutcome, RequestProblem, RequestRecord, RequestState, SentRequest
from meshfleet.service.audit import log as audit
from meshfleet.service.requests.history_entry import to_request_row
from meshfleet.service.requests.idempotency import KeyedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.requests.history_entry import HistoryEntry

_CHANGED_COLUMNS: Final = ("gateway", "finished_at", "state", "answer", "problem", "key")
_ON_CONFLICT: Final = "UPDATE SET " + ", ".join(f"{each} = excluded.{each}" for each in _CHANGED_COLUMNS)
_DELETE_OLD: Final = (
    "DELETE FROM request WHERE id IN"
    " (SELECT id FROM request WHERE requested_at < ? ORDER BY requested_at LIMIT 1000)"
)

HistoryPosition = tuple[int, str]
"""Position in a request history: Unix time in milliseconds and id of a request."""


def upsert_requests(connection: Connection, entries: Sequence[HistoryEntry]) -> None:
    """Insert entries into the request history, or update the changed columns of existing entries.

    A new entry of a request that changes something is also written to the audit log (auth-26).
    """
    bulk.upsert_rows(
        connection, request, [to_request_row(each) for each in entries], on_conflict=_ON_CONFLICT
    )
    for each in entries:
        if each.is_new and each.is_audited and not each.is_unsent:
            audit.record_change(
                connection,
                each.actor,
                f"request.{each.record.request.operation}",
                each.record.device,
                now=each.requested_at,
                request=each.record.id,
                identifier=each.record.request.identifier,
            )


def list_requests(
    connection: Connection, device: int, *, before: HistoryPosition | None, limit: int
) -> list[RequestRecord]:
    """List requests to a device, the newest first. If `before` is not None, list only older requests."""
    columns = request.c
    query = select(request).where(columns.device == device)
    if before is not None:
        at, last = before
        older = and_(columns.requested_at == at, columns.id < last)
        query = query.where(or_(columns.requested_at < at, older))
    query = query.order_by(columns.requested_at.desc(), columns.id.desc()).limit(limit)
    return [_build_request_record(row) for row in connection.execute(query)]


def load_request(connection: Connection, request_id: str) -> RequestRecord:
    """Load one request with its outcome. Raise `NotFound` if the request does not exist."""
    row = connection.execute(select(request).where(request.c.id == request_id)).first()
    if row is None:
        raise NotFound("request not found")
    return _build_request_record(row)


def find_request_by_key(connection: Connection, key: str) -> KeyedRequest | None:
    """Return the request that was submitted with an idempotency key, given as a hash; None if none was."""
    row = connection.execute(select(request).where(request.c.key == key)).first()
    return None if row is None else KeyedRequest(row.digest, _build_request_record(row))


def fail_unfinished_requests(connection: Connection, now: int) -> None:
    """Mark all unfinished requests of the previous service process as failed."""
    problem = RequestProblem(code=Interrupted.code, detail="the service stopped before the response arrived")
    connection.execute(
        update(request)
        .where(request.c.finished_at.is_(None))
        .values(
            finished_at=now, state=str(RequestState.FAILED), problem=msgspec.json.encode(problem).decode()
        )
    )


def delete_old_requests(connection: Connection, before: int) -> None:
    """Delete at most 1000 requests that were made before the Unix time `before` in milliseconds."""
    bulk.execute_many(connection, _DELETE_OLD, [(before,)])


def _build_request_record(row: Row[Any]) -> RequestRecord:
    return RequestRecord(
        id=row.id,
        state=RequestState(row.state),
        device=to_device_id(mac_from_int(row.device)),
        gateway=None if row.gateway is None else mac_from_int(row.gateway),
        by=row.actor,
        requested_at=format_millis(row.requested_at),
        finished_at=format_optional_millis(row.finished_at),
        request=get_decoder(SentRequest).decode(row.asked),
        response=None if row.answer is None else get_decoder(RequestOutcome).decode(row.answer),
        problem=None if row.problem is None else get_decoder(RequestProblem).decode(row.problem),
    )
