"""REST routes of logins, users and API keys: `/api/v1/auth`, `/api/v1/users` and `/api/v1/api-keys`."""

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.errors import Fault, InvalidRequest, NotFound
from meshfleet.errors.protocol import MalformedText
from meshfleet.protocol.times import parse_millis
from meshfleet.rest import accounts as bodies
from meshfleet.rest.inputs import parse_key_name, parse_password, parse_username
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.accounts.bearer import BearerAuthenticator
from meshfleet.service.accounts.login import Logins
from meshfleet.service.accounts.passwords import PasswordVerifier
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.http.access import get_client_address
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import ApiRequest, decode_segment

# `/api/v1/api-keys`: API keys for programs.


@get()
async def list_keys(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> bodies.ApiKeyPage:
    """List API keys sorted by name, without the secret keys themselves."""
    after = pages.decode_start("api-keys", next_token, start="")
    found = await database.read(api_key_store.list_api_keys, after=after, limit=limit + 1)
    return bodies.ApiKeyPage(**pages.build_page("api-keys", found, limit, lambda last: (last.name,)))


@post(problems=(409,))
async def issue_key(
    data: JSONBody[bodies.NewApiKey],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> bodies.IssuedApiKey:
    """Create an API key for a program. Only this response contains the secret key."""
    created_at = now()
    if data.kind is bodies.ApiKeyKind.HOMEASSISTANT and data.role is bodies.Role.ADMIN:
        raise InvalidRequest([Fault("role", "must be viewer or operator for Home Assistant")])
    return await database.write(
        api_key_store.insert_api_key,
        parse_key_name(data.name),
        role=data.role,
        kind=data.kind,
        expires_at=_parse_expiry(data.expires_at, created_at),
        by=actor,
        now=created_at,
    )


@delete("/{key_id:str}")
async def revoke_key(
    key_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    authenticator: Given[BearerAuthenticator],
    now: Given[Now],
) -> None:
    """Revoke an API key. Requests with the key are rejected from now on."""
    await database.write(api_key_store.delete_api_key, decode_segment(key_id), by=actor, now=now())
    authenticator.invalidate()


def _parse_expiry(text: str | None, now: int) -> int | None:
    if text is None:
        return None
    expires_at = parse_millis(text, "expiresAt")
    if expires_at <= now:
        raise InvalidRequest([Fault("expiresAt", "must be in the future")])
    return expires_at


api_key_router = Router(
    "/api/v1/api-keys", route_handlers=[list_keys, issue_key, revoke_key], tags=["People"]
)


# `/api/v1/users`: accounts that may log in.


@get()
async def list_users(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> bodies.UserPage:
    """List users sorted by name."""
    after = pages.decode_start("users", next_token, start="")
    found = await database.read(user_store.list_users, after=after, limit=limit + 1)
    return bodies.UserPage(**pages.build_page("users", found, limit, lambda last: (last.username,)))


@post(problems=(409, 429))
async def create_user(
    data: JSONBody[bodies.NewUser],
    actor: Given[Actor],
    database: Given[Database],
    passwords: Given[PasswordVerifier],
    now: Given[Now],
) -> bodies.User:
    """Create a user."""
    username, password = parse_username(data.username), parse_password(data.password)
    hashed = await passwords.hash(password)
    return await database.write(
        user_store.insert_user, username, hashed=hashed, role=data.role, by=actor, now=now()
    )


@get("/{username:str}")
async def show_user(username: FromPath[str], database: Given[Database]) -> bodies.User:
    """Get a user."""
    return await database.read(user_store.load_user, _parse_username_segment(username))


@put("/{username:str}", problems=(409, 429))
async def change_user(
    username: FromPath[str],
    data: JSONBody[bodies.UserChange],
    actor: Given[Actor],
    database: Given[Database],
    passwords: Given[PasswordVerifier],
    authenticator: Given[BearerAuthenticator],
    now: Given[Now],
) -> bodies.User:
    """Change the role or the password of a user. A new password ends all sessions of the user."""
    name = _parse_username_segment(username)
    hashed = None if data.password is None else await passwords.hash(parse_password(data.password))
    user = await database.write(
        user_store.update_user, name, role=data.role, hashed=hashed, by=actor, now=now()
    )
    authenticator.invalidate()
    return user


@delete("/{username:str}", problems=(409,))
async def remove_user(
    username: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    authenticator: Given[BearerAuthenticator],
    now: Given[Now],
) -> None:
    """Remove a user and end the user's sessions. The last admin cannot be removed."""
    await database.write(user_store.delete_user, _parse_username_segment(username), by=actor, now=now())
    authenticator.invalidate()


def _parse_username_segment(text: str) -> str:
    try:
        return parse_username(decode_segment(text))
    except MalformedText:
        raise NotFound("user not found") from None


user_router = Router(
    "/api/v1/users",
    route_handlers=[list_users, create_user, show_user, change_user, remove_user],
    tags=["People"],
)


@post("/login", status_code=200, problems=(401, 429))
async def log_in(data: JSONBody[bodies.Login], request: ApiRequest, logins: Given[Logins]) -> bodies.LoggedIn:
    """Log in with user name and password. The access token is valid for 30 minutes."""
    return await logins.log_in(data, get_client_address(request.scope))


@post("/refresh", status_code=200, problems=(409,))
async def refresh(actor: Given[Actor], logins: Given[Logins]) -> bodies.LoggedIn:
    """Exchange a valid access token for a new one, until 12 hours after the login."""
    return await logins.refresh(actor)


@post("/logout", status_code=204, problems=(409,))
async def log_out(actor: Given[Actor], logins: Given[Logins]) -> None:
    """Log out: end the session and invalidate its access tokens."""
    await logins.log_out(actor)


@get("/me")
async def me(actor: Given[Actor]) -> bodies.Me:
    """Get the user or API key that sends this request, with its role."""
    return bodies.Me(
        username=actor.name, role=actor.role, kind="api-key" if actor.kind == "api-key" else "user"
    )


@put("/password", status_code=204, problems=(409, 429))
async def change_password(
    data: JSONBody[bodies.NewPassword], actor: Given[Actor], logins: Given[Logins]
) -> None:
    """Change your own password. All your other sessions end."""
    await logins.change_password(actor, data)


auth_router = Router(
    "/api/v1/auth", route_handlers=[log_in, refresh, log_out, me, change_password], tags=["Login"]
)
