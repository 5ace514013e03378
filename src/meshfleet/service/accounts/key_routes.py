"""`/api/v1/api-keys`: keys for programs."""

from litestar import Router, delete, get, post
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.service.accounts import keys
from meshfleet.service.accounts.gatekeeper import Gatekeeper
from meshfleet.service.accounts.model import Actor
from meshfleet.service.clock import Now
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.http.paths import segment
from meshfleet.wire.rest import ApiKeyPage, IssuedApiKey, NewApiKey, parse_key_name
from meshfleet.wire.times import parse_millis


@get()
async def list_keys(
    database: Given[Database],
    pages: Given[Pages],
    limit: Given[int],
    next_token: NextToken = None,
) -> ApiKeyPage:
    """List API keys by name. The keys themselves are not told again."""
    after = pages.after("api-keys", next_token, start="")
    found = await database.read(keys.page, after=after, limit=limit + 1)
    return ApiKeyPage(**pages.cut("api-keys", found, limit, lambda last: (last.name,)))


@post(problems=(409,))
async def issue_key(
    data: JSONBody[NewApiKey],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> IssuedApiKey:
    """Make a key for a program. It is told this once."""
    at = now()
    return await database.write(
        keys.issue,
        parse_key_name(data.name),
        role=data.role,
        expires_at=_expiry(data.expires_at, at),
        by=actor,
        now=at,
    )


@delete("/{key_id:str}")
async def revoke_key(
    key_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    gatekeeper: Given[Gatekeeper],
    now: Given[Now],
) -> None:
    """Let nobody in with this key any more."""
    await database.write(keys.revoke, segment(key_id), by=actor, now=now())
    gatekeeper.forget()


def _expiry(text: str | None, now: int) -> int | None:
    if text is None:
        return None
    expires_at = parse_millis(text, "expiresAt")
    if expires_at <= now:
        raise InvalidRequest([Fault("expiresAt", "lies in the past")])
    return expires_at


router = Router("/api/v1/api-keys", route_handlers=[list_keys, issue_key, revoke_key], tags=["People"])
