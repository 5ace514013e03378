"""Who somebody is: changes are noticed, at once or within a second."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest
from sqlalchemy import make_url

from meshfleet.db import Database
from meshfleet.db import postgresql as on_server
from meshfleet.db import sqlite as in_file
from meshfleet.errors import NotLoggedIn
from meshfleet.rest import Role
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


class Gate(NamedTuple):
    """A gatekeeper, the database it looks into, and another process's way to the same."""

    keeper: BearerAuthenticator
    ours: Database
    theirs: Database
    clock: list[int]

    def now(self) -> int:
        return self.clock[0]

    def wait(self, milliseconds: int) -> None:
        self.clock[0] += milliseconds

    def log_in(self, role: Role = Role.ADMIN) -> tuple[str, str]:
        """Make ada and log her in: her token, and the login."""
        self.ours.write_now(
            user_store.insert_user, "ada", hashed="none", role=role, by=COMMAND_LINE, now=self.now()
        )
        return self.token()

    def token(self) -> tuple[str, str]:
        session = self.ours.write_now(user_store.insert_session, ADA, knowing="none", now=self.now())
        return TokenSigner(SECRET).issue("ada", session, self.now() / 1000), session

    async def refuses(self, bearer: str) -> bool:
        try:
            await self.keeper.identify(bearer, ADDRESS)
        except NotLoggedIn:
            return True
        return False


@pytest.fixture
def gate(request: pytest.FixtureRequest, database_kind: str) -> Iterator[Gate]:
    connect: Callable[[], Database] = request.getfixturevalue(f"{database_kind}_twice")
    ours, theirs, clock = connect(), connect(), [START]
    yield Gate(BearerAuthenticator(ours, TokenSigner(SECRET), lambda: clock[0]), ours, theirs, clock)
    ours.close()
    theirs.close()


@pytest.fixture
def sqlite_twice(sqlite_template: Path, tmp_path: Path) -> Callable[[], Database]:
    path = tmp_path / "meshfleet.sqlite"
    shutil.copy(sqlite_template, path)
    return lambda: Database(in_file.create_sqlite_engines(path))


@pytest.fixture
def postgresql_twice(postgresql_server: str, postgresql_database: Database) -> Callable[[], Database]:
    name = postgresql_database.read_now(lambda c: c.exec_driver_sql("SELECT current_database()").scalar())
    postgresql_database.close()
    return lambda: Database(on_server.create_postgresql_engines(str(make_url(f"{postgresql_server}/{name}"))))


async def test_a_token_tells_who_somebody_is_and_where_they_come_from(gate: Gate) -> None:
    token, session = gate.log_in(Role.OPERATOR)
    actor = await gate.keeper.identify(token, ADDRESS)
    assert actor == Actor(name="ada", role=Role.OPERATOR, kind="user", address=ADDRESS, session=session)
    assert (await gate.keeper.identify(token, None)).address is None


async def test_what_we_change_ourselves_is_noticed_at_once(gate: Gate) -> None:
    token, session = gate.log_in()
    assert (await gate.keeper.identify(token, ADDRESS)).role == Role.ADMIN
    gate.ours.write_now(user_store.delete_session, session, by=ADA, now=gate.now())
    gate.keeper.invalidate()
    assert await gate.refuses(token)


async def test_a_logout_elsewhere_is_noticed_within_a_second(gate: Gate) -> None:
    token, session = gate.log_in()
    assert not await gate.refuses(token)
    gate.theirs.write_now(user_store.delete_session, session, by=ADA, now=gate.now())
    gate.wait(1000)
    assert await gate.refuses(token)


async def test_a_new_role_given_elsewhere_is_noticed_within_a_second(gate: Gate) -> None:
    token, _ = gate.log_in(Role.OPERATOR)
    assert (await gate.keeper.identify(token, ADDRESS)).role == Role.OPERATOR
    gate.theirs.write_now(
        user_store.update_user, "ada", role=Role.VIEWER, hashed=None, by=COMMAND_LINE, now=gate.now()
    )
    gate.wait(1000)
    assert (await gate.keeper.identify(token, ADDRESS)).role == Role.VIEWER


async def test_a_removal_elsewhere_is_noticed_within_a_second_and_for_good(gate: Gate) -> None:
    token, _ = gate.log_in(Role.VIEWER)
    assert not await gate.refuses(token)
    gate.theirs.write_now(user_store.delete_user, "ada", by=COMMAND_LINE, now=gate.now())
    gate.wait(1000)
    assert await gate.refuses(token)
    gate.log_in()
    assert await gate.refuses(token), "another person of the same name is another person"


async def test_a_revoked_key_is_noticed_within_a_second(gate: Gate) -> None:
    issued = gate.ours.write_now(
        api_key_store.insert_api_key,
        "robot",
        role=Role.VIEWER,
        expires_at=None,
        by=COMMAND_LINE,
        now=gate.now(),
    )
    actor = await gate.keeper.identify(issued.key, ADDRESS)
    assert actor == Actor(name="robot", role=Role.VIEWER, kind="api-key", address=ADDRESS)
    gate.theirs.write_now(api_key_store.delete_api_key, issued.id, by=COMMAND_LINE, now=gate.now())
    gate.wait(1000)
    assert await gate.refuses(issued.key)


async def test_a_key_ends_when_it_said_it_would(gate: Gate) -> None:
    issued = gate.ours.write_now(
        api_key_store.insert_api_key,
        "robot",
        role=Role.VIEWER,
        expires_at=START + 60_500,
        by=COMMAND_LINE,
        now=gate.now(),
    )
    gate.wait(60_000)
    assert not await gate.refuses(issued.key)
    gate.wait(499)
    assert not await gate.refuses(issued.key)
    gate.wait(1)
    assert await gate.refuses(issued.key)


@pytest.mark.rule("auth-6")
async def test_a_token_ends_on_time_although_it_was_just_looked_at(gate: Gate) -> None:
    token, _ = gate.log_in()
    gate.wait(1_799_999)
    assert not await gate.refuses(token)
    gate.wait(1)
    assert await gate.refuses(token)


async def test_a_clock_that_was_set_back_keeps_nobody_in(gate: Gate) -> None:
    token, session = gate.log_in()
    gate.wait(3000)
    assert not await gate.refuses(token)
    gate.theirs.write_now(user_store.delete_session, session, by=ADA, now=gate.now())
    gate.wait(-2000)
    assert await gate.refuses(token)


async def test_a_token_does_not_open_the_login_of_somebody_else(gate: Gate) -> None:
    _, session = gate.log_in()
    assert await gate.refuses(TokenSigner(SECRET).issue("bob", session, gate.now() / 1000))
    assert await gate.refuses(TokenSigner(SECRET).issue("ada", "another", gate.now() / 1000))


async def test_what_is_neither_token_nor_key_is_refused(gate: Gate) -> None:
    for bearer in ("", "mfk_", "mfk_" + "x" * 43, "MFK_x", "x", "a.b.c", "mfk_\0"):
        assert await gate.refuses(bearer), bearer
