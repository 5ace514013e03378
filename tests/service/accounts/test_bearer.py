"""Bearer authentication notices changes of accounts at once, those of other processes within a second."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest
from sqlalchemy import make_url

from meshfleet.db import Database
from meshfleet.db import postgresql as postgresql_engines
from meshfleet.db import sqlite as sqlite_engines
from meshfleet.errors import NotLoggedIn
from meshfleet.rest.accounts import Role
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.accounts.bearer import BearerAuthenticator, TokenSigner
from meshfleet.service.actor import COMMAND_LINE, Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

ADDRESS = "192.0.2.1"
ADA = Actor(name="ada", role=Role.ADMIN, kind="user")
SECRET = bytes(range(32))
START = 1_700_000_000_000


class AuthenticationContext(NamedTuple):
    """Authenticator with its database, the same database as another process opens it, and a clock."""

    authenticator: BearerAuthenticator
    ours: Database
    theirs: Database
    clock: list[int]

    def now(self) -> int:
        return self.clock[0]

    def wait(self, milliseconds: int) -> None:
        self.clock[0] += milliseconds

    def log_in(self, role: Role = Role.ADMIN) -> tuple[str, str]:
        """Create the user ada and log in; return the access token and the session id."""
        self.ours.write_now(
            user_store.insert_user, "ada", hashed="none", role=role, by=COMMAND_LINE, now=self.now()
        )
        return self.create_session()

    def create_session(self) -> tuple[str, str]:
        session = self.ours.write_now(user_store.insert_session, ADA, checked_hash="none", now=self.now())
        return TokenSigner(SECRET).issue("ada", session, self.now() / 1000), session

    async def refuses(self, bearer: str) -> bool:
        try:
            await self.authenticator.identify(bearer, ADDRESS)
        except NotLoggedIn:
            return True
        return False


@pytest.fixture
def context(request: pytest.FixtureRequest, database_kind: str) -> Iterator[AuthenticationContext]:
    connect: Callable[[], Database] = request.getfixturevalue(f"{database_kind}_twice")
    ours, theirs, clock = connect(), connect(), [START]
    yield AuthenticationContext(
        BearerAuthenticator(ours, TokenSigner(SECRET), lambda: clock[0]), ours, theirs, clock
    )
    ours.close()
    theirs.close()


@pytest.fixture
def sqlite_twice(sqlite_template: Path, tmp_path: Path) -> Callable[[], Database]:
    path = tmp_path / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    return lambda: Database(sqlite_engines.create_sqlite_engines(path))


@pytest.fixture
def postgresql_twice(postgresql_server: str, postgresql_database: Database) -> Callable[[], Database]:
    name = postgresql_database.read_now(lambda c: c.exec_driver_sql("SELECT current_database()").scalar())
    postgresql_database.close()
    return lambda: Database(
        postgresql_engines.create_postgresql_engines(str(make_url(f"{postgresql_server}/{name}")))
    )


async def test_a_token_identifies_the_user_and_the_address_is_kept(context: AuthenticationContext) -> None:
    token, session = context.log_in(Role.OPERATOR)
    actor = await context.authenticator.identify(token, ADDRESS)
    assert actor == Actor(name="ada", role=Role.OPERATOR, kind="user", address=ADDRESS, session=session)
    assert (await context.authenticator.identify(token, None)).address is None


async def test_a_change_by_this_process_applies_at_once(context: AuthenticationContext) -> None:
    token, session = context.log_in()
    assert (await context.authenticator.identify(token, ADDRESS)).role == Role.ADMIN
    context.ours.write_now(user_store.delete_session, session, by=ADA, now=context.now())
    context.authenticator.invalidate()
    assert await context.refuses(token)


async def test_a_logout_by_another_process_applies_within_a_second(context: AuthenticationContext) -> None:
    token, session = context.log_in()
    assert not await context.refuses(token)
    context.theirs.write_now(user_store.delete_session, session, by=ADA, now=context.now())
    context.wait(1000)
    assert await context.refuses(token)


async def test_a_role_change_by_another_process_applies_within_a_second(
    context: AuthenticationContext,
) -> None:
    token, _ = context.log_in(Role.OPERATOR)
    assert (await context.authenticator.identify(token, ADDRESS)).role == Role.OPERATOR
    context.theirs.write_now(
        user_store.update_user, "ada", role=Role.VIEWER, hashed=None, by=COMMAND_LINE, now=context.now()
    )
    context.wait(1000)
    assert (await context.authenticator.identify(token, ADDRESS)).role == Role.VIEWER


async def test_a_removal_by_another_process_applies_within_a_second_and_forever(
    context: AuthenticationContext,
) -> None:
    token, _ = context.log_in(Role.VIEWER)
    assert not await context.refuses(token)
    context.theirs.write_now(user_store.delete_user, "ada", by=COMMAND_LINE, now=context.now())
    context.wait(1000)
    assert await context.refuses(token)
    context.log_in()
    assert await context.refuses(token), "a new user of the same name does not inherit old tokens"


async def test_a_key_revoked_by_another_process_is_refused_within_a_second(
    context: AuthenticationContext,
) -> None:
    issued = context.ours.write_now(
        api_key_store.insert_api_key,
        "robot",
        role=Role.VIEWER,
        expires_at=None,
        by=COMMAND_LINE,
        now=context.now(),
    )
    actor = await context.authenticator.identify(issued.key, ADDRESS)
    assert actor == Actor(name="robot", role=Role.VIEWER, kind="api-key", address=ADDRESS)
    context.theirs.write_now(api_key_store.delete_api_key, issued.id, by=COMMAND_LINE, now=context.now())
    context.wait(1000)
    assert await context.refuses(issued.key)


async def test_a_key_is_refused_from_its_expiry_on(context: AuthenticationContext) -> None:
    issued = context.ours.write_now(
        api_key_store.insert_api_key,
        "robot",
        role=Role.VIEWER,
        expires_at=START + 60_500,
        by=COMMAND_LINE,
        now=context.now(),
    )
    context.wait(60_000)
    assert not await context.refuses(issued.key)
    context.wait(499)
    assert not await context.refuses(issued.key)
    context.wait(1)
    assert await context.refuses(issued.key)


@pytest.mark.rule("auth-6")
async def test_a_token_expires_on_time_although_it_is_cached(context: AuthenticationContext) -> None:
    token, _ = context.log_in()
    context.wait(1_799_999)
    assert not await context.refuses(token)
    context.wait(1)
    assert await context.refuses(token)


async def test_a_clock_set_back_does_not_extend_cached_authentications(
    context: AuthenticationContext,
) -> None:
    token, session = context.log_in()
    context.wait(3000)
    assert not await context.refuses(token)
    context.theirs.write_now(user_store.delete_session, session, by=ADA, now=context.now())
    context.wait(-2000)
    assert await context.refuses(token)


async def test_a_token_is_refused_for_the_session_of_another_user(context: AuthenticationContext) -> None:
    _, session = context.log_in()
    assert await context.refuses(TokenSigner(SECRET).issue("bob", session, context.now() / 1000))
    assert await context.refuses(TokenSigner(SECRET).issue("ada", "another", context.now() / 1000))


async def test_a_text_that_is_neither_token_nor_key_is_refused(context: AuthenticationContext) -> None:
    for bearer in ("", "mfk_", "mfk_" + "x" * 43, "MFK_x", "x", "a.b.c", "mfk_\0"):
        assert await context.refuses(bearer), bearer
