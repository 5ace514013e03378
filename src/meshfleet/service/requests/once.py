"""What comes with an idempotency key is sent once, however often it comes (rest-25, rest-26)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.errors import FleetError, Interrupted, KeyReused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.wire.rest import RequestRecord


class Key(NamedTuple):
    """An idempotency key, with whose it is, and what came with it; both as hashes."""

    name: str
    digest: str


class Taken(NamedTuple):
    """A request that was taken in."""

    id: str
    over: asyncio.Future[RequestRecord]
    """What became of it."""


class Past(NamedTuple):
    """A request that came with a key before."""

    digest: str
    record: RequestRecord


class Once:
    """Remembers what is being sent under which key; what was sent before is found in the history."""

    def __init__(self, find: Callable[[str], Awaitable[Past | None]]) -> None:
        self._find = find
        self._begun: dict[str, tuple[str, asyncio.Future[Taken]]] = {}

    async def take(self, key: Key, begin: Callable[[], Awaitable[Taken]]) -> Taken:
        """Begin it, or find what was begun before; `KeyReused` if that was something else.

        What could not begin is forgotten: it can be tried again.
        """
        if key.name in self._begun:
            digest, before = self._begun[key.name]
            _check(key, digest)
            return await asyncio.shield(before)
        beginning: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self._begun[key.name] = key.digest, beginning
        try:
            taken = await self._found(key) or await begin()
        except BaseException as exc:
            del self._begun[key.name]
            beginning.set_exception(exc if isinstance(exc, FleetError) else Interrupted("it did not begin"))
            beginning.exception()  # there may be nobody else to hear of it
            raise
        beginning.set_result(taken)
        taken.over.add_done_callback(lambda _: self._begun.pop(key.name, None))
        return taken

    async def _found(self, key: Key) -> Taken | None:
        past = await self._find(key.name)
        if past is None:
            return None
        _check(key, past.digest)
        over: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()
        over.set_result(past.record)
        return Taken(past.record.id, over)


def _check(key: Key, digest: str) -> None:
    if digest != key.digest:
        raise KeyReused("this Idempotency-Key came before with another request")
