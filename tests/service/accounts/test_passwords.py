"""Password hashes, and the limit on concurrent checks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from argon2 import PasswordHasher, Type, extract_parameters

from meshfleet.errors import TooManyAttempts
from meshfleet.service.accounts.passwords import PasswordVerifier, hash_password

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

PASSWORD = "correct-horse-battery"  # noqa: S105 # a password of this test
WEAK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture
def passwords() -> Iterator[PasswordVerifier]:
    passwords = PasswordVerifier()
    yield passwords
    passwords.close()


@pytest.mark.rule("auth-19")
async def test_a_password_is_stored_as_argon2id_with_a_salt_of_its_own(passwords: PasswordVerifier) -> None:
    first, second = await passwords.hash(PASSWORD), hash_password(PASSWORD)
    assert first != second
    for hashed in (first, second):
        parameters = extract_parameters(hashed)
        assert (parameters.type, parameters.time_cost >= 2, parameters.memory_cost >= 19 * 1024) == (
            Type.ID,
            True,
            True,
        )
        assert PASSWORD not in hashed


@pytest.mark.parametrize(
    "other", ["", PASSWORD[:-1], PASSWORD + " ", PASSWORD.upper(), PASSWORD + "\0", "\ud800"]
)
async def test_only_the_exact_password_matches(passwords: PasswordVerifier, other: str) -> None:
    hashed = WEAK_HASHER.hash(PASSWORD)
    assert await passwords.verify(hashed, PASSWORD)
    assert not await passwords.verify(hashed, other)


async def test_passwords_of_any_script_and_length_match(passwords: PasswordVerifier) -> None:
    for password in ("пароль-とパスワード", "\U0001f600" * 10, "x" * 1024, "a\0b\0c\0d\0e\0f"):
        hashed = await passwords.hash(password)
        assert await passwords.verify(hashed, password)
        assert not await passwords.verify(hashed, password[:-1])


async def test_no_password_matches_for_an_unknown_user(passwords: PasswordVerifier) -> None:
    for password in ("", PASSWORD):
        assert not await passwords.verify(None, password)


@pytest.mark.parametrize("stored", ["", "lost", "$argon2id$", "$2b$12$" + "x" * 53, PASSWORD])
async def test_an_invalid_stored_hash_never_matches(passwords: PasswordVerifier, stored: str) -> None:
    for password in ("", PASSWORD, stored):
        assert not await passwords.verify(stored, password)


async def test_weaker_hashes_are_outdated_and_new_ones_are_not(passwords: PasswordVerifier) -> None:
    assert not passwords.is_outdated(await passwords.hash(PASSWORD))
    assert passwords.is_outdated(WEAK_HASHER.hash(PASSWORD))
    assert passwords.is_outdated(
        PasswordHasher(time_cost=2, memory_cost=19 * 1024, type=Type.I).hash(PASSWORD)
    )


async def test_checks_beyond_the_queue_limit_are_rejected(passwords: PasswordVerifier) -> None:
    hashed = WEAK_HASHER.hash(PASSWORD)
    results = await asyncio.gather(
        *(passwords.verify(hashed, PASSWORD) for _ in range(40)), return_exceptions=True
    )
    rejected = [each for each in results if isinstance(each, TooManyAttempts)]
    assert (len(rejected), results.count(True)) == (8, 32)
    assert {each.retry_after for each in rejected} == {1}
    assert await passwords.verify(hashed, PASSWORD)
