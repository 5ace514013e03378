"""`/api/v1/auth`: logging in and what belongs to oneself."""

from litestar import Router, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import JSONBody

from meshfleet.service.accounts.login import Reception
from meshfleet.service.accounts.model import Actor
from meshfleet.service.http.access import address_of
from meshfleet.service.http.asked import Asked
from meshfleet.wire.rest import LoggedIn, Login, Me, NewPassword


@post("/login", status_code=200, problems=(401, 429))
async def log_in(data: JSONBody[Login], request: Asked, reception: Given[Reception]) -> LoggedIn:
    """Log in with user name and password, and get a token for half an hour."""
    return await reception.log_in(data, address_of(request.scope))


@post("/refresh", status_code=200, problems=(409,))
async def refresh(actor: Given[Actor], reception: Given[Reception]) -> LoggedIn:
    """Trade a token that holds for a new one, until 12 hours after the login."""
    return await reception.refresh(actor)


@post("/logout", status_code=204, problems=(409,))
async def log_out(actor: Given[Actor], reception: Given[Reception]) -> None:
    """End the login: its tokens hold no longer."""
    await reception.log_out(actor)


@get("/me")
async def me(actor: Given[Actor]) -> Me:
    """Tell whose token this is, and what they may do."""
    return Me(username=actor.name, role=actor.role, kind="api-key" if actor.kind == "api-key" else "user")


@put("/password", status_code=204, problems=(409, 429))
async def change_password(
    data: JSONBody[NewPassword], actor: Given[Actor], reception: Given[Reception]
) -> None:
    """Change one's own password. All other logins end."""
    await reception.change_password(actor, data)


router = Router(
    "/api/v1/auth", route_handlers=[log_in, refresh, log_out, me, change_password], tags=["Login"]
)
