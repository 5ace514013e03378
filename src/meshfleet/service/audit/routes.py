"""`/api/v1/audit`: who changed what."""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter

from meshfleet.db import Database
from meshfleet.service.audit import log as audit
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import FromText, NextToken, ToText
from meshfleet.service.http.query_reader import QueryReader
from meshfleet.wire.rest import AuditPage
from meshfleet.wire.times import parse_millis


@get()
async def list_changes(
    database: Given[Database],
    pages: Given[Pages],
    limit: Given[int],
    next_token: NextToken = None,
    by: Annotated[str | None, QueryParameter(name="Actor", description="Who made the change.")] = None,
    action: Annotated[
        str | None, QueryParameter(name="Action", description="Such as `device.rename`.")
    ] = None,
    target: Annotated[str | None, QueryParameter(name="Target", description="What was changed.")] = None,
    since: FromText = None,
    until: ToText = None,
) -> AuditPage:
    """List changes, the newest first."""
    reader = QueryReader()
    choice = audit.Choice(
        actor=by,
        action=action,
        target=target,
        since=reader.read(parse_millis, since, "From", unless=None),
        until=reader.read(parse_millis, until, "To", unless=None),
    )
    reader.check_span(choice.since, choice.until)
    reader.end()
    before = None if next_token is None else audit.Position(*pages.read(choice, next_token))
    found = await database.read(audit.page, choice, before=before, limit=limit + 1)
    return AuditPage(**pages.cut(choice, found, limit, audit.position))


router = Router("/api/v1/audit", route_handlers=[list_changes], tags=["People"])
