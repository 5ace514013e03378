"""Password hashing for users: argon2id, in a small thread pool of its own (auth-19).

One check takes nearly 0.1 s of CPU time and 19 MiB of memory. Only two checks run at once, and if too many
are pending, further checks are rejected: password guessing must not slow down the rest of the service.
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
"""Password hasher with the minimum cost that OWASP recommends, because small hosts have little memory."""

_THREADS: Final = 2
"""Number of threads that hash and check passwords."""
_MAX_PENDING: Final = 32
"""Maximum number of running and waiting password checks."""


class PasswordVerifier:
    """Hashes and verifies passwords in threads. Only tests pass another hasher, a faster and weaker one."""

    def __init__(self, hasher: PasswordHasher = PASSWORD_HASHER) -> None:
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(_THREADS, "passwords")
        self._pending = 0
        # Verified when the user does not exist, so that the response takes the same time (auth-3).
        self._dummy_hash = hasher.hash(secrets.token_urlsafe())

    async def hash(self, password: str) -> str:
        """Return the hash to store for a password. Raise `TooManyAttempts` if too many checks are pending."""
        return await self._run_in_thread(self._hasher.hash, password)

    async def verify(self, hashed: str | None, password: str) -> bool:
        """Return whether a password matches a hash. Raise `TooManyAttempts` if too many checks are pending.

        Pass None as `hashed` if the user does not exist: the result is False, and takes the same time.
        """
        matches = await self._run_in_thread(
            self._matches_hash, self._dummy_hash if hashed is None else hashed, password
        )
        return matches and hashed is not None

    def is_outdated(self, hashed: str) -> bool:
        """Return whether a hash was created with other cost parameters than new hashes."""
        return self._hasher.check_needs_rehash(hashed)

    def close(self) -> None:
        """Wait for running password checks and drop queued checks."""
        self._threads.shutdown(cancel_futures=True)

    def _matches_hash(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (Argon2Error, InvalidHashError, UnicodeEncodeError):
            return False

    async def _run_in_thread(self, function: Callable[..., Result], *args: str) -> Result:
        """Call a function in the thread pool. Raise `TooManyAttempts` if too many calls are pending."""
        if self._pending >= _MAX_PENDING:
            raise TooManyAttempts(1)
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        finally:
            self._pending -= 1


def hash_password(password: str) -> str:
    """Return the hash to store for a password. The call blocks: do not use it in an event loop."""
    return PASSWORD_HASHER.hash(password)
