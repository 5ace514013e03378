"""Keeps a connection: makes the first one, and another whenever one is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from meshfleet.errors import LinkClosed, LinkError
from meshfleet.link.bell import Bell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.link.connection import Connection
    from meshfleet.link.delays import Delays

_log = logging.getLogger(__name__)


class Keeper:
    """Has a connection most of the time, and somebody at work to get one the rest of it.

    While there is a connection no task runs: ten thousand idle ones cost memory and nothing else.
    """

    __slots__ = (
        "_break",
        "_delays",
        "_entered",
        "_make",
        "_name",
        "_pauses",
        "_return",
        "_since",
        "changed",
        "closing",
        "connection",
        "trouble",
    )

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[Connection]],
        delays: Delays,
        broken: Callable[[LinkClosed], None],
    ) -> None:
        self._name = name
        self._make = make
        self._delays = delays
        self._break = broken
        """Called when the link will not come back, by a defect of ours."""
        self._pauses = iter(delays)
        self._since = 0.0
        self._return: asyncio.Task[None] | None = None
        self._entered = False
        self.connection: Connection | None = None
        self.trouble: LinkError | None = LinkClosed("the link is not open: use it as `async with`")
        """Why there is no connection now, or None when there is one."""
        self.changed = Bell()
        """Rings when a connection came or got room, and when everybody is to wake."""
        self.closing = False

    async def begin(self, *, patient: bool) -> None:
        """Make the first connection. Only the patient go on when that fails."""
        if self._entered:
            raise LinkClosed("a link is entered once")
        self._entered = True
        try:
            self._take(await self._make())
        except LinkError as trouble:
            if not patient:
                raise
            self._begin_return(trouble)

    async def up(self) -> Connection:
        """The connection, as soon as there is one."""
        self.check_open()
        while self.connection is None:
            await self.changed.wait()
            self.check_open()
        return self.connection

    def check_open(self) -> None:
        """Whether there is a connection or will be."""
        if self.closing:
            raise LinkClosed("the link is closed")
        if isinstance(self.trouble, LinkClosed):
            raise LinkClosed(*self.trouble.args)

    def lose(self, connection: Connection, reason: LinkError) -> None:
        """Come back, unless it was a connection that never became ours, or that we let go."""
        if connection is self.connection:
            self.connection = None
            self._begin_return(reason)

    async def let_go(self) -> Connection | None:
        """Stop coming back; the connection, if there is one, is the caller's to end."""
        connection, self.connection = self.connection, None
        self.trouble = LinkClosed("the link is closed")
        if self._return is not None and not self._return.done():
            self._return.cancel()
            await asyncio.wait((self._return,))
        return connection

    @property
    def hopeful(self) -> bool:
        """Whether what is on its way may still arrive."""
        return self.connection is not None or (self._return is not None and not self._return.done())

    def _take(self, connection: Connection) -> None:
        self.connection = connection
        self.trouble = None
        self._since = asyncio.get_running_loop().time()
        self.changed.ring()

    def _begin_return(self, trouble: LinkError) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._since >= self._delays.steady_after:
            self._pauses = iter(self._delays)
        self._tell(trouble)
        self._return = loop.create_task(self._come_back(), name=f"return of {self._name}")
        self._return.add_done_callback(self._returned)

    async def _come_back(self) -> None:
        """Try until there is a connection."""
        while self.connection is None:
            await asyncio.sleep(next(self._pauses))
            try:
                self._take(await self._make())
            except LinkError as trouble:
                self._tell(trouble)
        _log.info("%s has a connection again", self._name)

    def _tell(self, trouble: LinkError) -> None:
        """Each reason once, not at every try: ten thousand links would fill a disk."""
        if str(trouble) != str(self.trouble):
            _log.warning("%s has no connection: %s", self._name, trouble)
        self.trouble = trouble.with_traceback(None)  # traces and causes would keep alive what the try made
        trouble.__cause__ = trouble.__context__ = None

    def _returned(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()):
            _log.error("%s has failed", self._name, exc_info=defect)
            self.trouble = LinkClosed("the link has failed, which is a defect of ours: see the log")
            self._break(self.trouble)
