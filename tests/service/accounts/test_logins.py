"""Logging in while somebody tries to harm the service."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from argon2 import PasswordHasher

from meshfleet.errors import TooManyAttempts, WrongCredentials
from meshfleet.rest import Login, Role
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

WORD = "correct-horse-battery"
WEAK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
NOW = 1_700_000_000_000


@pytest.mark.rule("auth-13", "auth-15")
async def test_attempts_that_were_never_made_do_not_count_as_failures(database: Database) -> None:
    """Else a crowd at other addresses would lock out the owner of an account, who has made no mistake."""
    passwords = PasswordVerifier()
    reception = _reception(database, passwords)
    database.write_now(
        user_store.insert_user, "ada", hashed=WEAK.hash(WORD), role=Role.VIEWER, by=COMMAND_LINE, now=NOW
    )
    right = Login(username="ada", password=WORD)
    async with _overrun(passwords):
        for _ in range(6):
            with pytest.raises(TooManyAttempts) as told:
                await reception.log_in(right, "192.0.2.1")
            assert told.value.retry_after == 1
    assert (await reception.log_in(right, "192.0.2.1")).status == "SUCCESS"
    passwords.close()


@pytest.mark.rule("auth-14")
async def test_after_many_failed_names_one_password_at_a_time_is_checked_from_an_address(
    database: Database,
) -> None:
    """Else a flood of names takes all threads that check passwords."""
    passwords = PasswordVerifier()
    reception = _reception(database, passwords)

    async def retry_after(name: str, address: str) -> int | None:
        try:
            await reception.log_in(Login(username=name, password=WORD), address)
        except WrongCredentials:
            return None
        except TooManyAttempts as exc:
            return exc.retry_after
        pytest.fail("there is no such user")

    assert [await retry_after(f"name-{at}", "192.0.2.1") for at in range(8)] == [*[None] * 5, 1, 2, 4]
    at_once = await asyncio.gather(
        *(retry_after(f"more-{at}", address) for at in range(4) for address in ("192.0.2.1", "192.0.2.2"))
    )
    assert at_once[0::2] == [8, 1, 1, 1], "the first is checked, the others are told to come back"
    assert at_once[1::2] == [None] * 4, "at another address all are checked"
    passwords.close()


async def test_long_names_do_not_fill_the_memory(database: Database) -> None:
    """A name may be as long as a body; what failed is remembered, and must not be kept as it came."""
    passwords = PasswordVerifier()
    reception = _reception(database, passwords)
    tracemalloc.start()
    for number in range(8):
        with pytest.raises((WrongCredentials, TooManyAttempts)):
            await reception.log_in(Login(username=f"{number}" + "x" * 1_000_000, password=WORD), "192.0.2.1")
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    passwords.close()
    assert held < 4_000_000, "eight names hold as much as eight bodies"


@asynccontextmanager
async def _overrun(passwords: PasswordVerifier) -> AsyncIterator[None]:
    """Keep every place in the queue taken: who gets an answer asks again at once."""
    hashed, over = WEAK.hash("another"), asyncio.Event()

    async def guess() -> None:
        while not over.is_set():
            with suppress(TooManyAttempts):
                await passwords.verify(hashed, WORD)

    async with asyncio.TaskGroup() as guessing:
        for _ in range(32):
            guessing.create_task(guess())
        await asyncio.sleep(0)
        yield
        over.set()


def _reception(database: Database, passwords: PasswordVerifier) -> Logins:
    tokens = TokenSigner(bytes(32))
    return Logins(
        database,
        verifier=passwords,
        throttle=LoginThrottle(),
        signer=tokens,
        authenticator=BearerAuthenticator(database, tokens, lambda: NOW),
        metrics=Metrics(),
        now=lambda: NOW,
        steady=lambda: NOW,
    )
