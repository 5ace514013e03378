"""The history of requests in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import and_, or_, select, update

from meshfleet.db import bulk
from meshfleet.db.tables import request
from meshfleet.errors import Interrupted, NotFound
from meshfleet.service.audit import log as audit
from meshfleet.service.requests.entry import columns_of
from meshfleet.service.requests.once import Past
from meshfleet.wire.decoders import decoder_of
from meshfleet.wire.ids import device_id, number_mac
from meshfleet.wire.rest import RequestAnswer, RequestProblem, RequestRecord, RequestState, SentRequest
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.requests.entry import Entry

_NEWS: Final = ("gateway", "finished_at", "state", "answer", "problem", "key")
_CHANGE: Final = "UPDATE SET " + ", ".join(f"{each} = excluded.{each}" for each in _NEWS)
_FORGET: Final = (
    "DELETE FROM request WHERE id IN"
    " (SELECT id FROM request WHERE requested_at < ? ORDER BY requested_at LIMIT 1000)"
)

Position = tuple[int, str]
"""A place in a history: when, and which of those of that moment."""


def write(connection: Connection, entries: Sequence[Entry]) -> None:
    """Write entries, or what is new of them. What changes something is in the audit log, too (auth-26)."""
    bulk.upsert(connection, request, [columns_of(each) for each in entries], otherwise=_CHANGE)
    for each in entries:
        if each.is_new and each.changes and not each.is_unsent:
            audit.record(
                connection,
                each.by,
                f"request.{each.record.request.operation}",
                each.record.device,
                now=each.requested_at,
                request=each.record.id,
                identifier=each.record.request.identifier,
            )


def page(connection: Connection, device: int, *, before: Position | None, limit: int) -> list[RequestRecord]:
    """The newest requests to a device, or those before a position."""
    columns = request.c
    query = select(request).where(columns.device == device)
    if before is not None:
        at, last = before
        older = and_(columns.requested_at == at, columns.id < last)
        query = query.where(or_(columns.requested_at < at, older))
    query = query.order_by(columns.requested_at.desc(), columns.id.desc()).limit(limit)
    return [_record(row) for row in connection.execute(query)]


def show(connection: Connection, request_id: str) -> RequestRecord:
    """One of them."""
    row = connection.execute(select(request).where(request.c.id == request_id)).first()
    if row is None:
        raise NotFound("there is no such request")
    return _record(row)


def by_key(connection: Connection, key: str) -> Past | None:
    """What came with a key before."""
    row = connection.execute(select(request).where(request.c.key == key)).first()
    return None if row is None else Past(row.digest, _record(row))


def close_old(connection: Connection, now: int) -> None:
    """Give up what a service before this one has not come to an end with."""
    problem = RequestProblem(code=Interrupted.code, detail="the service ended before an answer came")
    connection.execute(
        update(request)
        .where(request.c.finished_at.is_(None))
        .values(
            finished_at=now, state=str(RequestState.FAILED), problem=msgspec.json.encode(problem).decode()
        )
    )


def forget(connection: Connection, before: int) -> None:
    """Forget some of what was asked before a time."""
    bulk.execute(connection, _FORGET, [(before,)])


def _record(row: Row[Any]) -> RequestRecord:
    return RequestRecord(
        id=row.id,
        state=RequestState(row.state),
        device=device_id(number_mac(row.device)),
        gateway=None if row.gateway is None else number_mac(row.gateway),
        by=row.actor,
        requested_at=write_millis(row.requested_at),
        finished_at=None if row.finished_at is None else write_millis(row.finished_at),
        request=decoder_of(SentRequest).decode(row.asked),
        response=None if row.answer is None else decoder_of(RequestAnswer).decode(row.answer),
        problem=None if row.problem is None else decoder_of(RequestProblem).decode(row.problem),
    )
