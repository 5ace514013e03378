"""What comes with an idempotency key is sent once, however often it comes (rest-25, rest-26)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.errors import FleetError, Interrupted, KeyReused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.rest import RequestRecord


class IdempotencyKey(NamedTuple):
    """An idempotency key, with whose it is, and what came with it; both as hashes."""

    name: str
    digest: str


class RequestHandle(NamedTuple):
    """A request that was taken in."""

    id: str
    outcome: asyncio.Future[RequestRecord]
    """What became of it."""


class KeyedRequest(NamedTuple):
    """A request that came with a key before."""

    digest: str
    record: RequestRecord


class IdempotencyRegistry:
    """Remembers what is being sent under which key; what was sent before is found in the history."""

    def __init__(self, find: Callable[[str], Awaitable[KeyedRequest | None]]) -> None:
        self._find = find
        self._running: dict[str, tuple[str, asyncio.Future[RequestHandle]]] = {}

    async def run_once(
        self, key: IdempotencyKey, start: Callable[[], Awaitable[RequestHandle]]
    ) -> RequestHandle:
        """Begin it, or find what was begun before; `KeyReused` if that was something else.

        What could not begin is forgotten: it can be tried again.
        """
        if key.name in self._running:
            digest, before = self._running[key.name]
            _check_same_request(key, digest)
            return await asyncio.shield(before)
        beginning: asyncio.Future[RequestHandle] = asyncio.get_running_loop().create_future()
        self._running[key.name] = key.digest, beginning
        try:
            taken = await self._find_handle(key) or await start()
        except BaseException as exc:
            del self._running[key.name]
            beginning.set_exception(exc if isinstance(exc, FleetError) else Interrupted("it did not begin"))
            beginning.exception()  # there may be nobody else to hear of it
            raise
        beginning.set_result(taken)
        taken.outcome.add_done_callback(lambda _: self._running.pop(key.name, None))
        return taken

    async def _find_handle(self, key: IdempotencyKey) -> RequestHandle | None:
        past = await self._find(key.name)
        if past is None:
            return None
        _check_same_request(key, past.digest)
        over: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        over.set_result(past.record)
        return RequestHandle(past.record.id, over)


def _check_same_request(key: IdempotencyKey, digest: str) -> None:
    if digest != key.digest:
        raise KeyReused("this Idempotency-Key came before with another request")
