"""REST route of rejected reports: `/api/v1/rejects` (rest-95)."""

from typing import Annotated, NamedTuple

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter
from msgspec import Struct
from sqlalchemy import Connection, select

from meshfleet.db import Database
from meshfleet.db.tables import reject
from meshfleet.protocol.ids import mac_from_int, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.telemetry import Reject, RejectPage
from meshfleet.service.devices.parameters import parse_gateway_mac
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken


class RejectSelection(Struct, frozen=True, kw_only=True):
    """Filter of a list of rejected reports; a page token is valid only for an equal filter."""

    gateway: int | None
    """Gateway that sent the rejected reports; None for all gateways."""


class RejectEntry(NamedTuple):
    """Rejected report with its database row id."""

    number: int
    body: Reject


def load_rejects(
    connection: Connection, selection: RejectSelection, *, before: int | None, limit: int
) -> list[RejectEntry]:
    """Load rejected reports, newest first; only rows with an id below `before`, if given."""
    query = select(reject).order_by(reject.c.id.desc()).limit(limit)
    if selection.gateway is not None:
        query = query.where(reject.c.gateway == selection.gateway)
    if before is not None:
        query = query.where(reject.c.id < before)
    return [
        RejectEntry(
            row.id,
            Reject(
                time=format_millis(row.time),
                gateway=None if row.gateway is None else mac_from_int(row.gateway),
                topic=row.topic,
                reason=row.reason,
                payload=row.payload.decode(errors="replace"),
            ),
        )
        for row in connection.execute(query)
    ]


@get()
async def list_rejects(
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
    gateway: Annotated[
        str | None,
        QueryParameter(name="Gateway", description="MAC or device id of the gateway that sent the report."),
    ] = None,
) -> RejectPage:
    """List rejected reports, the newest first."""
    gateway_number = None if gateway is None else mac_to_int(parse_gateway_mac(gateway, "Gateway"))
    selection = RejectSelection(gateway=gateway_number)
    before = pages.decode_start(selection, next_token, start=None)
    entries = await database.read(load_rejects, selection, before=before, limit=limit + 1)
    page = pages.build_page(selection, entries, limit, lambda last: (last.number,))
    return RejectPage(items=[entry.body for entry in page["items"]], next_token=page["next_token"])


router = Router("/api/v1/rejects", route_handlers=[list_rejects], tags=["Samples"])
