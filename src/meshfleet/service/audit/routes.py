"""`/api/v1/audit`: who changed what."""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import QueryParameter

from meshfleet.db import Database
from meshfleet.service.audit import log as audit
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.wire.rest import AuditPage


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
) -> AuditPage:
    """List changes, the newest first."""
    choice = audit.Choice(actor=by, action=action, target=target)
    before = pages.after(choice, next_token, start=None)
    found = await database.read(audit.page, choice, before=before, limit=limit + 1)
    return AuditPage(**pages.cut(choice, found, limit, lambda last: (last.id,)))


router = Router("/api/v1/audit", route_handlers=[list_changes], tags=["People"])
