"""REST route of the audit log: `/api/v1/audit`."""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter

from meshfleet.db import Database
from meshfleet.protocol.times import parse_millis
from meshfleet.rest.accounts import AuditPage
from meshfleet.service.audit import log as audit
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, NextToken, QueryReader, ToTime


@get()
async def list_changes(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
    by: Annotated[
        str | None, QueryParameter(name="Actor", description="User, API key or gateway that made the change.")
    ] = None,
    action: Annotated[
        str | None, QueryParameter(name="Action", description="Kind of change, for example `device.rename`.")
    ] = None,
    target: Annotated[
        str | None, QueryParameter(name="Target", description="Id or name of the object that was changed.")
    ] = None,
    since: FromTime = None,
    until: ToTime = None,
) -> AuditPage:
    """List the changes recorded in the audit log, the newest first."""
    reader = QueryReader()
    criteria = audit.AuditFilter(
        actor=by,
        action=action,
        target=target,
        since=reader.read(parse_millis, since, "From", default=None),
        until=reader.read(parse_millis, until, "To", default=None),
    )
    reader.check_span(criteria.since, criteria.until)
    reader.raise_faults()
    before = None if next_token is None else audit.AuditPosition(*pages.decode(criteria, next_token))
    found = await database.read(audit.list_entries, criteria, before=before, limit=limit + 1)
    return AuditPage(**pages.build_page(criteria, found, limit, audit.build_position))


router = Router("/api/v1/audit", route_handlers=[list_changes], tags=["People"])
