"""Clients come and go: who is let in, with which session, and what is done when they leave."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.broker.access import Access, Kind
from meshfleet.broker.door import NotAdmitted
from meshfleet.broker.log_limit import LogLimit
from meshfleet.errors import DatabaseUnavailable, shown
from meshfleet.wire.mqtt.packets import Accept, Publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.broker.access import Account
    from meshfleet.broker.connection import Connection
    from meshfleet.broker.crowd import Crowd
    from meshfleet.broker.door import Door
    from meshfleet.broker.journal import Journal
    from meshfleet.broker.post import Post
    from meshfleet.broker.session import Session
    from meshfleet.broker.sessions import Sessions
    from meshfleet.broker.stock import Stock
    from meshfleet.wire.mqtt.packets import Connect

_log = logging.getLogger(__name__)

_LONGEST_CLIENT_ID: Final = 256
"""Characters."""

_TIDY: Final = 10
"""Sweeps between two looks at all sessions."""


class Lobby:
    """Lets clients in, as long as it runs."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        *,
        door: Door,
        crowd: Crowd,
        sessions: Sessions,
        post: Post,
        journal: Journal,
        stock: Stock,
        now: Callable[[], int],
        prefix: str,
        sweep_seconds: float,
    ) -> None:
        self._door = door
        self._crowd = crowd
        self._sessions = sessions
        self._post = post
        self._journal = journal
        self._stock = stock
        self._now = now
        self._prefix = prefix
        self._sweep_seconds = sweep_seconds
        self._tasks: asyncio.TaskGroup | None = None
        self.is_open = asyncio.Event()
        """Set once clients are let in; who comes before is sent away without a word."""
        self._turns = 0
        self.last_turns: dict[str, int] = {}
        """The number of the present or last connection of each gateway, by MAC."""
        self.admitted = 0
        """Clients that were let in so far."""
        self.refused = 0
        """Clients that were not."""
        # A line for each client and minute, but few for an address and for all: any client id can be sent.
        self._client_lines = LogLimit()
        self._address_lines = LogLimit(lines=10)
        self._lines = LogLimit(lines=100)

    async def run(self) -> None:
        """Let clients in until cancelled, and look after those who say nothing."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self.is_open.set()
                await self._sweep()
        finally:
            self._tasks = None

    def enter(self, connection: Connection) -> bool:
        """Somebody connects; False: there is no room."""
        return self._tasks is not None and self._crowd.enter(connection)

    def introduce(self, connection: Connection, connect: Connect) -> None:
        """Handle CONNECT: authenticate the client in its own task."""
        self._turns += 1
        connection.turn = self._turns
        if self._crowd.failures.is_exceeded(connection.address):  # it was there before the others failed
            why = "too many connections from there did not log in"
            self.refuse(connection, Accept.SERVER_UNAVAILABLE, why, connect)
        elif self._tasks is not None:
            self._tasks.create_task(self._admit(connection, connect), name="broker.admit")

    async def _admit(self, connection: Connection, connect: Connect) -> None:
        try:
            _check_client_id(connect)
            account = await self._door.admit(connect, connection.address)
            if connection.is_open:
                self._let_in(connection, connect, account)
        except NotAdmitted as exc:
            self.refuse(connection, exc.accept, str(exc), connect)
        except DatabaseUnavailable as exc:
            connection.counts_as_failure = False
            self.refuse(connection, Accept.SERVER_UNAVAILABLE, str(exc), connect)
        except Exception:  # noqa: BLE001 # a mistake of ours must not shut out all others
            _log.exception("%s cannot be let in", connection)
            connection.counts_as_failure = False
            self.refuse(connection, Accept.SERVER_UNAVAILABLE, "the service made a mistake", connect)

    def refuse(
        self, connection: Connection, code: Accept, reason: str, connect: Connect | None = None
    ) -> None:
        """Refuse a CONNECT, with its reason in the log. `connect` is None if it could not be read."""
        self.refused += 1
        client = ""
        if connect is not None:
            client = f" (client id {shown(connect.client_id)}, user {shown(connect.user)})"
        if (
            self._client_lines.count((connection.address, client))
            and self._address_lines.count(connection.address)
            and self._lines.count(None)
        ):
            _log.warning("connection from %s refused: %s%s", connection.address, reason, client)
        connection.refuse(code)

    def _let_in(self, connection: Connection, connect: Connect, account: Account) -> None:
        client_id = _client_id(connect, account)
        access = Access(account, self._prefix)
        if connect.will is not None and not access.may_publish(connect.will.topic):
            self._door.forbidden(account, connection.address, "will", connect.will.topic)
            why = f"its account may not publish its will to {shown(connect.will.topic)}"
            raise NotAdmitted(Accept.NOT_AUTHORIZED, why)
        connection.account, connection.access = account, access
        before = self._sessions.line(str(account), client_id)
        if before is not None and before.turn > connection.turn:
            connection.close("its client has connected anew")
            return
        if not self._crowd.name(connection, instead_of=before):
            raise NotAdmitted(Accept.SERVER_UNAVAILABLE, "its account has too many connections")
        opened = self._sessions.open(str(account), client_id, access, clean=connect.clean)
        self.admitted += 1
        connection.will = connect.will
        connection.keep_alive = float(connect.keep_alive)
        connection.session = opened.session
        opened.session.resume(connection, self._now())
        if account.kind is Kind.GATEWAY and client_id == account.name:  # else its diagnostics (broker-5)
            self.last_turns[account.name] = connection.turn
        self._journal.save_session(opened.session)
        welcome = partial(connection.welcome, session_present=opened.is_present)
        if opened.must_wait:
            self._journal.then(welcome)
        else:
            welcome()

    def leave(self, connection: Connection) -> None:
        """Somebody is gone."""
        self._crowd.leave(connection)
        if connection.account is None and connection.counts_as_failure:
            self._crowd.count_failure(connection.address)
        session, will = connection.session, connection.will
        if session is None:
            return
        if session.line is connection:
            self._sessions.leave(session, self._now())
        if will is not None:  # [MQTT-3.1.2-8]
            message = Publish(will.topic, will.payload, will.qos, will.retain)
            self._post.pass_on(message, str(connection.account))
            self._journal.hurry()

    def count_cut_off(self, session: Session) -> None:
        """Count a client that is cut off, and the messages that are lost with a clean session."""
        self._stock.cut_off += 1
        if session.number is None:
            self._stock.dropped["cut-off"] += len(session)

    async def _sweep(self) -> None:
        loop, count = asyncio.get_running_loop(), 0
        while True:
            await asyncio.sleep(self._sweep_seconds)
            now, count = loop.time(), count + 1
            self._crowd.start_second()
            for connection in self._crowd:
                loop.call_soon(connection.check, now)  # by itself: what goes wrong with one is its own affair
            if count % _TIDY == 0:
                self._sessions.tidy(self._now())


def _check_client_id(connect: Connect) -> None:
    """Whether anybody may come with this client id."""
    if not connect.client_id and not connect.clean:
        raise NotAdmitted(Accept.IDENTIFIER_REJECTED, "it has no client id")  # [MQTT-3.1.3-8]
    if len(connect.client_id) > _LONGEST_CLIENT_ID:
        raise NotAdmitted(Accept.IDENTIFIER_REJECTED, "its client id is too long")


def _client_id(connect: Connect, account: Account) -> str:
    """The client id, if the account may have it."""
    client_id = connect.client_id
    if account.kind is Kind.GATEWAY and client_id not in {account.name, account.name.upper()}:
        raise NotAdmitted(Accept.IDENTIFIER_REJECTED, "the client id of a gateway is its MAC")  # broker-5
    return client_id or f"unnamed-{secrets.token_hex(8)}"  # [MQTT-3.1.3-6]
