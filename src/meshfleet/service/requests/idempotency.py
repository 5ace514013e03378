"""Idempotency keys: requests with the same key are sent only once (rest-25, rest-26)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.errors import FleetError, Interrupted, KeyReused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.rest.requests import RequestRecord


class IdempotencyKey(NamedTuple):
    """Hashes of an idempotency key and of the request that was submitted with the key."""

    name: str
    """Hash of the idempotency key and of the actor who made the request."""
    digest: str
    """Hash of the request, to detect a different request with the same key."""


class RequestHandle(NamedTuple):
    """Id and future outcome of an accepted request."""

    id: str
    outcome: asyncio.Future[RequestRecord]
    """Future that resolves to the finished request."""


class KeyedRequest(NamedTuple):
    """Stored request that was submitted with an idempotency key."""

    digest: str
    record: RequestRecord


class IdempotencyRegistry:
    """Makes sure that requests with the same idempotency key are sent only once.

    Running requests are kept in memory by key. Finished requests are looked up in the request history.
    """

    def __init__(self, find_stored_request: Callable[[str], Awaitable[KeyedRequest | None]]) -> None:
        self._find_stored_request = find_stored_request
        self._running: dict[str, tuple[str, asyncio.Future[RequestHandle]]] = {}
        """Digest and future handle of each running request, by hash of its idempotency key."""

    async def start_once(
        self, key: IdempotencyKey, start: Callable[[], Awaitable[RequestHandle]]
    ) -> RequestHandle:
        """Start a request, or return the handle of the earlier request with the same idempotency key.

        Raise `KeyReused` if a different request was submitted with the key. If the request cannot be started,
        the key can be used again.
        """
        if key.name in self._running:
            digest, running = self._running[key.name]
            _check_same_request(key, digest)
            return await asyncio.shield(running)
        started: asyncio.Future[RequestHandle] = asyncio.get_running_loop().create_future()
        self._running[key.name] = key.digest, started
        try:
            handle = await self._find_handle(key) or await start()
        except BaseException as exc:
            del self._running[key.name]
            started.set_exception(
                exc if isinstance(exc, FleetError) else Interrupted("the request was not started")
            )
            started.exception()  # mark as retrieved: there may be no other caller
            raise
        started.set_result(handle)
        handle.outcome.add_done_callback(lambda _: self._running.pop(key.name, None))
        return handle

    async def _find_handle(self, key: IdempotencyKey) -> RequestHandle | None:
        """Return a handle of the stored request with an idempotency key; None if there is none.

        Raise `KeyReused` if a different request was submitted with the key.
        """
        stored = await self._find_stored_request(key.name)
        if stored is None:
            return None
        _check_same_request(key, stored.digest)
        outcome: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        outcome.set_result(stored.record)
        return RequestHandle(stored.record.id, outcome)


def _check_same_request(key: IdempotencyKey, digest: str) -> None:
    """Raise `KeyReused` unless the request submitted with `key` has the digest of the earlier request."""
    if digest != key.digest:
        raise KeyReused("this Idempotency-Key was used before with a different request")
