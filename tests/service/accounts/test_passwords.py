"""Passwords by themselves: how they are stored, and what happens when too many are checked at once."""

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

WORD = "correct-horse-battery"
WEAK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture
def passwords() -> Iterator[PasswordVerifier]:
    passwords = PasswordVerifier()
    yield passwords
    passwords.close()


@pytest.mark.rule("auth-19")
async def test_a_password_is_stored_as_argon2id_with_a_salt_of_its_own(passwords: PasswordVerifier) -> None:
    first, second = await passwords.hash(WORD), hash_password(WORD)
    assert first != second
    for hashed in (first, second):
        used = extract_parameters(hashed)
        assert (used.type, used.time_cost >= 2, used.memory_cost >= 19 * 1024) == (Type.ID, True, True)
        assert WORD not in hashed


@pytest.mark.parametrize("other", ["", WORD[:-1], WORD + " ", WORD.upper(), WORD + "\0", "\ud800"])
async def test_only_the_very_same_password_fits(passwords: PasswordVerifier, other: str) -> None:
    hashed = WEAK.hash(WORD)
    assert await passwords.verify(hashed, WORD)
    assert not await passwords.verify(hashed, other)


async def test_any_script_and_any_length_fits(passwords: PasswordVerifier) -> None:
    for word in ("пароль-とパスワード", "\U0001f600" * 10, "x" * 1024, "a\0b\0c\0d\0e\0f"):
        hashed = await passwords.hash(word)
        assert await passwords.verify(hashed, word)
        assert not await passwords.verify(hashed, word[:-1])


async def test_nobody_has_a_password(passwords: PasswordVerifier) -> None:
    for word in ("", WORD):
        assert not await passwords.verify(None, word)


@pytest.mark.parametrize("stored", ["", "lost", "$argon2id$", "$2b$12$" + "x" * 53, WORD])
async def test_a_stored_hash_that_is_none_never_fits(passwords: PasswordVerifier, stored: str) -> None:
    for word in ("", WORD, stored):
        assert not await passwords.verify(stored, word)


async def test_weaker_hashes_are_outdated_and_new_ones_are_not(passwords: PasswordVerifier) -> None:
    assert not passwords.is_outdated(await passwords.hash(WORD))
    assert passwords.is_outdated(WEAK.hash(WORD))
    assert passwords.is_outdated(PasswordHasher(time_cost=2, memory_cost=19 * 1024, type=Type.I).hash(WORD))


async def test_when_too_many_wait_the_next_is_told_to_come_back(passwords: PasswordVerifier) -> None:
    hashed = WEAK.hash(WORD)
    answers = await asyncio.gather(
        *(passwords.verify(hashed, WORD) for _ in range(40)), return_exceptions=True
    )
    refused = [each for each in answers if isinstance(each, TooManyAttempts)]
    assert (len(refused), answers.count(True)) == (8, 32)
    assert {each.retry_after for each in refused} == {1}
    assert await passwords.verify(hashed, WORD)
