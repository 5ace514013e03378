"""People's passwords: argon2id, in a few threads of their own (auth-19).

A check costs a good part of a tenth of a second and 19 MiB. So only a few run at once, and when too many wait
the next one is told to come back: the rest of the service must not starve while somebody guesses passwords.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import Argon2Error, InvalidHashError

from meshfleet.errors import TooManyAttempts

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

PASSWORD_HASHER: Final = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1, type=Type.ID)
"""The least that OWASP recommends: a gateway host has little memory."""

_THREADS: Final = 2
_MAX_PENDING: Final = 32


class PasswordVerifier:
    """Makes and checks hashes. Another hasher than the default is for tests alone: it makes weaker hashes."""

    def __init__(self, hasher: PasswordHasher = PASSWORD_HASHER) -> None:
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(_THREADS, "passwords")
        self._pending = 0
        # Checked when there is no such user, so that this takes as long (auth-3).
        self._dummy_hash = hasher.hash(secrets.token_urlsafe())

    async def hash(self, password: str) -> str:
        """The hash to store."""
        return await self._in_thread(self._hasher.hash, password)

    async def verify(self, hashed: str | None, password: str) -> bool:
        """Whether it is the password; with None, which is nobody's hash, it never is."""
        fits = await self._in_thread(self._matches, self._dummy_hash if hashed is None else hashed, password)
        return fits and hashed is not None

    def is_outdated(self, hashed: str) -> bool:
        """Whether a hash was made with less effort than new ones are."""
        return self._hasher.check_needs_rehash(hashed)

    def close(self) -> None:
        """Let checks that run come to their end."""
        self._threads.shutdown(cancel_futures=True)

    def _matches(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (Argon2Error, InvalidHashError, UnicodeEncodeError):
            return False

    async def _in_thread(self, work: Callable[..., Result], *args: str) -> Result:
        if self._pending >= _MAX_PENDING:
            raise TooManyAttempts(1)
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        finally:
            self._pending -= 1


def hash_password(password: str) -> str:
    """The hash to store, in a program without an event loop."""
    return PASSWORD_HASHER.hash(password)
