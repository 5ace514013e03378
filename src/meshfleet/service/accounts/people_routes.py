"""`/api/v1/users`: the people who may log in."""

from litestar import Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody

from meshfleet.db import Database
from meshfleet.errors import MalformedText, NotFound
from meshfleet.service.accounts import people
from meshfleet.service.accounts.gatekeeper import Gatekeeper
from meshfleet.service.accounts.model import Actor
from meshfleet.service.accounts.passwords import Passwords
from meshfleet.service.clock import Now
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.http.paths import segment
from meshfleet.wire.rest import (
    NewUser,
    User,
    UserChange,
    UserPage,
    parse_password,
    parse_username,
)


@get()
async def list_users(
    database: Given[Database],
    pages: Given[Pages],
    limit: Given[int],
    next_token: NextToken = None,
) -> UserPage:
    """List users by name."""
    after = pages.after("users", next_token, start="")
    found = await database.read(people.users, after=after, limit=limit + 1)
    return UserPage(**pages.cut("users", found, limit, lambda last: (last.username,)))


@post(problems=(409, 429))
async def create_user(
    data: JSONBody[NewUser],
    actor: Given[Actor],
    database: Given[Database],
    passwords: Given[Passwords],
    now: Given[Now],
) -> User:
    """Let somebody in from now on."""
    username, password = parse_username(data.username), parse_password(data.password)
    hashed = await passwords.hash(password)
    return await database.write(people.create, username, hashed=hashed, role=data.role, by=actor, now=now())


@get("/{username:str}")
async def show_user(username: FromPath[str], database: Given[Database]) -> User:
    """Show a user."""
    return await database.read(people.user, _name(username))


@put("/{username:str}", problems=(409, 429))
async def change_user(
    username: FromPath[str],
    data: JSONBody[UserChange],
    actor: Given[Actor],
    database: Given[Database],
    passwords: Given[Passwords],
    gatekeeper: Given[Gatekeeper],
    now: Given[Now],
) -> User:
    """Change the role or the password of a user; with a new password all their logins end."""
    name = _name(username)
    hashed = None if data.password is None else await passwords.hash(parse_password(data.password))
    user = await database.write(people.change, name, role=data.role, hashed=hashed, by=actor, now=now())
    gatekeeper.forget()
    return user


@delete("/{username:str}", problems=(409,))
async def remove_user(
    username: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    gatekeeper: Given[Gatekeeper],
    now: Given[Now],
) -> None:
    """Let somebody in no longer; their logins end. The last admin stays."""
    await database.write(people.remove, _name(username), by=actor, now=now())
    gatekeeper.forget()


def _name(text: str) -> str:
    try:
        return parse_username(segment(text))
    except MalformedText:
        raise NotFound("there is no such user") from None


router = Router(
    "/api/v1/users",
    route_handlers=[list_users, create_user, show_user, change_user, remove_user],
    tags=["People"],
)
