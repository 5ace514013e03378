"""Logins while an attacker floods the service."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from argon2 import PasswordHasher

from meshfleet.errors import TooManyAttempts, WrongCredentials
from meshfleet.rest.accounts import Login, Role
from meshfleet.service.accounts import user_store
from meshfleet.service.accounts.bearer import BearerAuthenticator, TokenSigner
from meshfleet.service.accounts.login import Logins
from meshfleet.service.accounts.passwords import PasswordVerifier
from meshfleet.service.accounts.throttle import LoginThrottle
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

PASSWORD = "correct-horse-battery"  # noqa: S105 # a password of this test
WEAK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
NOW = 1_700_000_000_000


@pytest.mark.rule("auth-13", "auth-15")
async def test_rejected_attempts_do_not_count_as_failed_logins(database: Database) -> None:
    """Otherwise a flood from other addresses would lock out the owner of an account."""
    passwords = PasswordVerifier()
    logins = _build_logins(database, passwords)
    database.write_now(
        user_store.insert_user,
        "ada",
        hashed=WEAK_HASHER.hash(PASSWORD),
        role=Role.VIEWER,
        by=COMMAND_LINE,
        now=NOW,
    )
    login = Login(username="ada", password=PASSWORD)
    async with _saturate(passwords):
        for _ in range(6):
            with pytest.raises(TooManyAttempts) as caught:
                await logins.log_in(login, "192.0.2.1")
            assert caught.value.retry_after == 1
    assert (await logins.log_in(login, "192.0.2.1")).status == "SUCCESS"
    passwords.close()


@pytest.mark.rule("auth-14")
async def test_an_address_with_many_failed_names_gets_one_password_check_at_a_time(
    database: Database,
) -> None:
    """Otherwise a flood of names would occupy all threads that check passwords."""
    passwords = PasswordVerifier()
    logins = _build_logins(database, passwords)

    async def retry_after(name: str, address: str) -> int | None:
        try:
            await logins.log_in(Login(username=name, password=PASSWORD), address)
        except WrongCredentials:
            return None
        except TooManyAttempts as exc:
            return exc.retry_after
        pytest.fail("logged in as an unknown user")

    assert [await retry_after(f"name-{at}", "192.0.2.1") for at in range(8)] == [*[None] * 5, 1, 2, 4]
    concurrent = await asyncio.gather(
        *(retry_after(f"more-{at}", address) for at in range(4) for address in ("192.0.2.1", "192.0.2.2"))
    )
    assert concurrent[0::2] == [8, 1, 1, 1], "the first is checked, the others are rejected"
    assert concurrent[1::2] == [None] * 4, "all attempts from another address are checked"
    passwords.close()


async def test_long_names_do_not_fill_the_memory(database: Database) -> None:
    """Failed names must not be stored in full, as a name may be as long as a body."""
    passwords = PasswordVerifier()
    logins = _build_logins(database, passwords)
    tracemalloc.start()
    for number in range(8):
        with pytest.raises((WrongCredentials, TooManyAttempts)):
            await logins.log_in(Login(username=f"{number}" + "x" * 1_000_000, password=PASSWORD), "192.0.2.1")
    used_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    passwords.close()
    assert used_bytes < 4_000_000, "the throttle stores the full names"


@asynccontextmanager
async def _saturate(passwords: PasswordVerifier) -> AsyncIterator[None]:
    """Keep the queue of password checks full: each finished check is repeated at once."""
    hashed, stopped = WEAK_HASHER.hash("another"), asyncio.Event()

    async def guess() -> None:
        while not stopped.is_set():
            with suppress(TooManyAttempts):
                await passwords.verify(hashed, PASSWORD)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(32):
            tasks.create_task(guess())
        await asyncio.sleep(0)
        yield
        stopped.set()


def _build_logins(database: Database, passwords: PasswordVerifier) -> Logins:
    tokens = TokenSigner(bytes(32))
    return Logins(
        database,
        verifier=passwords,
        throttle=LoginThrottle(),
        signer=tokens,
        authenticator=BearerAuthenticator(database, tokens, lambda: NOW),
        metrics=Metrics(),
        now=lambda: NOW,
        monotonic=lambda: NOW,
    )
