"""The connection that requests leave on. It comes back by itself, as every link, and sends nothing twice.

A link repeats what its broker has not acknowledged, since a report must not be lost. A request is another
matter: whoever writes to a device must not have it written twice, minutes later, because a connection broke.
So what is on its way when that happens is given up here, and whoever sent it is told and decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from meshfleet.link import Link
from meshfleet.link.flight import Delivery, Flight

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.errors import ConnectionLost
    from meshfleet.link import Address, Options, Publish
    from meshfleet.link.connection import Connection


class Line(Link):
    """A link with a clean session that tells of every message what became of it."""

    __slots__ = ("_broke",)

    def __init__(
        self, address: Address, client_id: str, *, options: Options, broke: Callable[[ConnectionLost], None]
    ) -> None:
        """`broke` is told of every connection that ends, when all its messages were given up."""
        super().__init__(address, client_id, clean=True, options=options)
        self._broke = broke

    async def send(self, message: Publish) -> asyncio.Future[None]:
        """Let a message of QoS 1 leave as soon as it can; when this returns it may have arrived.

        The future is done when the broker has acknowledged it, and fails with `ConnectionLost` when the
        connection broke before.
        """
        delivery = Delivery(1, asyncio.get_running_loop().create_future())
        async with self._turn:
            connection, _ = await self._room()
            connection.send(b"".join(self._flight.launch((message,), delivery)))
            self._balance(connection)
        return delivery.done

    def connection_ended(self, connection: Connection, reason: ConnectionLost) -> None:
        """Give up what was on its way, and come back."""
        given_up, self._flight = self._flight, Flight(self._options.window)
        given_up.give_up(reason)
        super().connection_ended(connection, reason)
        self._broke(reason)
