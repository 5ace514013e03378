"""`/api/v1/audit`: who changed what."""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter

from meshfleet.db import Database
from meshfleet.protocol.times import parse_millis
from meshfleet.rest import AuditPage
from meshfleet.service.audit import log as audit
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, NextToken, QueryReader, ToTime


@get()
async def list_changes(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
    by: Annotated[str | None, QueryParameter(name="Actor", description="Who made the change.")] = None,
    action: Annotated[
        str | None, QueryParameter(name="Action", description="Such as `device.rename`.")
    ] = None,
    target: Annotated[str | None, QueryParameter(name="Target", description="What was changed.")] = None,
    since: FromTime = None,
    until: ToTime = None,
) -> AuditPage:
    """List changes, the newest first."""
    reader = QueryReader()
    choice = audit.AuditFilter(
        actor=by,
        action=action,
        target=target,
        since=reader.read(parse_millis, since, "From", unless=None),
        until=reader.read(parse_millis, until, "To", unless=None),
    )
    reader.check_span(choice.since, choice.until)
    reader.raise_faults()
    before = None if next_token is None else audit.AuditPosition(*pages.decode(choice, next_token))
    found = await database.read(audit.list_entries, choice, before=before, limit=limit + 1)
    return AuditPage(**pages.build_page(choice, found, limit, audit.build_position))


router = Router("/api/v1/audit", route_handlers=[list_changes], tags=["People"])
