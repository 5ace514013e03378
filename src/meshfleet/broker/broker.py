"""The broker: who is connected, what they may do, and what becomes of what they send."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.broker.access import Access, Account, Kind
from meshfleet.broker.connection import Connection
from meshfleet.broker.crowd import Crowd
from meshfleet.broker.door import NotAdmitted
from meshfleet.broker.journal import FULL, Journal
from meshfleet.broker.post import Listener, Post
from meshfleet.broker.requests import RequestRules
from meshfleet.broker.retained import Retained
from meshfleet.broker.sessions import Sessions
from meshfleet.broker.stock import Stock
from meshfleet.errors import DatabaseUnavailable
from meshfleet.wire.mqtt.encoder import encode
from meshfleet.wire.mqtt.packets import (
    REFUSED,
    Accept,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Unsuback,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.broker.door import Door
    from meshfleet.broker.journal import Consumer
    from meshfleet.broker.session import Session
    from meshfleet.broker.store import Saved
    from meshfleet.settings import Limits
    from meshfleet.wire.mqtt.packets import Connect, Oversized, Subscribe, Unsubscribe

_log = logging.getLogger(__name__)

_SERVICE: Final = "service"
"""Who publishes without a connection."""

_READ: Final = 64 * 1024
"""Bytes that are read at once."""

_LONGEST_FILTER: Final = 1024
"""Bytes; longer ones do not fit into an index of every database."""
_DEEPEST_FILTER: Final = 32
"""Levels."""
_LONGEST_CLIENT_ID: Final = 256
"""Characters."""

_SWEEP: Final = 1.0
"""Seconds between two looks at all connections."""
_TIDY: Final = 10
"""Sweeps between two looks at all sessions."""
_GRACE: Final = 10.0
"""Seconds that the last round has when the broker stops."""


class Broker:
    """An MQTT 3.1.1 broker without listeners: whoever listens makes a `connection` for each client."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        *,
        door: Door,
        consumer: Consumer,
        consumed: Sequence[str],
        limits: Limits,
        saved: Saved,
        now: Callable[[], int],
        prefix: str = "",
        max_age: float = 60.0,
    ) -> None:
        self._door = door
        self._limits = limits
        self._now = now
        self._prefix = prefix
        self.stock = Stock(limits)
        self.crowd = Crowd(limits)
        self.retained = Retained(limits.retained)
        self.retained.restore(saved.retained)
        self._journal = Journal(consumer, place=saved.place)
        self._post = Post(
            self._journal,
            self.retained,
            consumed=consumed,
            requests=RequestRules(prefix, max_age),
            now=now,
        )
        self.sessions = Sessions(self._journal, self._post, self.stock, limits)
        self.sessions.restore(saved, now())
        self._tasks: asyncio.TaskGroup | None = None
        self._turns = 0
        self.admitted = 0
        """Clients that were let in so far."""
        self.refused = 0
        """Clients that were not."""
        self.buffer = memoryview(bytearray(_READ))

    # For the service

    async def run(self) -> None:
        """Work until cancelled; then everybody is sent away, and what they are owed is written down."""
        writing = asyncio.create_task(self._journal.run(), name="broker.journal")
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._sweep(), name="broker.sweep")
                await asyncio.shield(writing)
        finally:
            self._tasks = None
            for connection in self.crowd:
                connection.close("the broker stops")
            self._journal.stop()
            await asyncio.wait([writing], timeout=_GRACE)
            writing.cancel()

    def connection(self) -> Connection:
        """The other end for a client that connects."""
        return Connection(self, self._limits)

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish as the service. At QoS 1 it is written down for all who are owed it when this returns."""
        self._post.pass_on(Publish(topic, payload, qos, retain), _SERVICE)
        if qos:
            done = asyncio.get_running_loop().create_future()
            self._journal.then(lambda: None if done.done() else done.set_result(None))
            await done

    def listen(self, wanted: str, heard: Callable[[Publish], None]) -> Listener:
        """Let the service hear what a filter matches, beginning with what is retained there."""
        listener = Listener(heard)
        self._post.subscribe(listener, wanted, 1)
        return listener

    def stop_listening(self, wanted: str, listener: Listener) -> None:
        """Take that back."""
        self._post.unsubscribe(listener, wanted)

    def accounts(self) -> list[Account]:
        """Whose connections and sessions there are. Of who is absent nothing is known but the name."""
        present = {each.account for each in self.crowd if each.account is not None}  # with each of its proofs
        absent = {session.account for session in self.sessions}.difference(map(str, present))
        return [*present, *map(Account.parse, absent)]

    def expel(self, account: Account, *, forget: bool = False) -> None:
        """End all connections of an account, whose word no longer counts; its sessions too if asked."""
        for connection in self.crowd.of(str(account)):
            connection.will = None
            connection.close("its account has changed")
        if forget:
            for session in self.sessions:
                if session.account == str(account):
                    self.sessions.end(session)

    # For connections: they come and go

    def arrived(self, connection: Connection) -> bool:
        """Somebody connects; False: there is no room."""
        return self._tasks is not None and self.crowd.enter(connection)

    def introduced(self, connection: Connection, connect: Connect) -> None:
        """And says who it is."""
        self._turns += 1
        connection.turn = self._turns
        if self._tasks is not None:
            self._tasks.create_task(self._admit(connection, connect), name="broker.admit")

    async def _admit(self, connection: Connection, connect: Connect) -> None:
        try:
            _check_client_id(connect)
            account = await self._door.admit(connect, connection.address)
            if connection.is_open:
                self._let_in(connection, connect, account)
        except NotAdmitted as exc:
            _log.info("%s is refused: %s", connection, exc)
            self._refuse(connection, exc.accept)
        except DatabaseUnavailable as exc:
            _log.warning("%s is refused: %s", connection, exc)
            self._refuse(connection, Accept.SERVER_UNAVAILABLE)

    def _refuse(self, connection: Connection, code: Accept) -> None:
        self.refused += 1
        connection.refuse(code)

    def _let_in(self, connection: Connection, connect: Connect, account: Account) -> None:
        client_id = _client_id(connect, account)
        access = Access(account, self._prefix)
        if connect.will is not None and not access.may_publish(connect.will.topic):
            self._door.forbidden(account, connection.address, "will", connect.will.topic)
            raise NotAdmitted(Accept.NOT_AUTHORIZED, "its will is forbidden")
        connection.account, connection.access = account, access
        before = self.sessions.line(str(account), client_id)
        if before is not None and before.turn > connection.turn:
            connection.close("its client has connected anew")
            return
        if not self.crowd.name(connection, instead_of=before):
            raise NotAdmitted(Accept.SERVER_UNAVAILABLE, "its account has too many connections")
        opened = self.sessions.open(str(account), client_id, access, clean=connect.clean)
        self.admitted += 1
        connection.will = connect.will
        connection.keep_alive = float(connect.keep_alive)
        connection.session = opened.session
        opened.session.resume(connection, self._now())
        self._journal.save_session(opened.session)
        welcome = partial(connection.welcome, session_present=opened.is_present)
        if opened.must_wait:
            self._journal.then(welcome)
        else:
            welcome()

    def left(self, connection: Connection) -> None:
        """Somebody is gone."""
        self.crowd.leave(connection)
        session, will = connection.session, connection.will
        if session is None:
            return
        if session.line is connection:
            self.sessions.leave(session, self._now())
        if will is not None:  # [MQTT-3.1.2-8]
            message = Publish(will.topic, will.payload, will.qos, will.retain)
            self._post.pass_on(message, str(connection.account))
            self._journal.hurry()

    async def _sweep(self) -> None:
        """Look after those who say nothing."""
        loop, count = asyncio.get_running_loop(), 0
        while True:
            await asyncio.sleep(_SWEEP)
            now, count = loop.time(), count + 1
            for connection in self.crowd:
                connection.check(now)
            if count % _TIDY == 0:
                self.sessions.tidy(self._now())

    # For connections: what they send

    def published(self, connection: Connection, messages: Sequence[Publish], size: int) -> None:
        """Somebody publishes. A hot path: most messages are reports, and go straight into the round."""
        if connection.version != self._post.version:
            connection.version = self._post.version
            connection.quiet = self._post.quiet(connection.access.fronts)
        current, quiet = self._journal.round, connection.quiet
        consume, packet_ids = current.reports.append, current.acks.setdefault(connection, [])
        for message in messages:
            topic = message.topic
            if quiet and topic.startswith(quiet) and message.qos == 1 and not message.retain:
                consume(message)
                packet_ids.append(message.packet_id)
            elif connection.access.may_publish(topic):
                self._pass_on(connection, message, packet_ids)
            else:
                self._forbid(connection, topic)
                break
        current.size += size
        self.stock.received += len(messages)
        if not current.is_urgent:
            self._journal.hurry()
        if current.size > FULL and connection.is_open:  # let it wait for the next round
            connection.hold()
            self._journal.hold(connection)

    def _pass_on(self, connection: Connection, message: Publish, packet_ids: list[int]) -> None:
        session = connection.session
        if session is None:
            return
        if message.qos > 1:
            if message.packet_id not in session.received:  # [MQTT-4.3.3-2]
                session.received.add(message.packet_id)
                self._journal.save_received(session, message.packet_id, is_open=True)
                self._post.pass_on(message, session.account)
            self._journal.then(partial(connection.send, encode(Pubrec(message.packet_id))))
            return
        self._post.pass_on(message, session.account)
        if message.qos:
            packet_ids.append(message.packet_id)

    def published_large(self, connection: Connection, message: Oversized) -> None:
        """Somebody publishes more than we take.

        A report is acknowledged all the same, or its gateway would send it for ever; the consumer is told.
        """
        if not connection.access.may_publish(message.topic):
            self._forbid(connection, message.topic)
        elif not self._post.way(message.topic).is_consumed or message.qos > 1:
            connection.close(f"it published {message.size} bytes at once")
        else:
            self._journal.round.reports.append(message)
            if message.qos:
                self._journal.round.acks.setdefault(connection, []).append(message.packet_id)
            self._journal.hurry()

    def released(self, connection: Connection, packet_id: int) -> None:
        """Somebody lets go of a message at QoS 2: its id may come again [MQTT-4.3.3-2]."""
        session = connection.session
        if session is None:
            return
        if packet_id in session.received:
            session.received.discard(packet_id)
            self._journal.save_received(session, packet_id, is_open=False)
        self._answer(connection, session, encode(Pubcomp(packet_id)))

    def subscribed(self, connection: Connection, ask: Subscribe) -> None:
        """Somebody asks for topics."""
        session = connection.session
        if session is None:
            return
        codes = [self._grant(connection, session, *each) for each in ask.filters]
        self._answer(connection, session, encode(Suback(ask.packet_id, tuple(codes))))

    def _grant(self, connection: Connection, session: Session, wanted: str, qos: int) -> int:
        mine = session.subscriptions
        if wanted not in mine and len(mine) >= self._limits.subscriptions:
            return REFUSED
        if not connection.access.may_read(wanted):
            self._take_note(connection, "subscribe", wanted)
            return REFUSED
        if len(wanted.encode()) > _LONGEST_FILTER or wanted.count("/") >= _DEEPEST_FILTER:
            return REFUSED
        mine[wanted] = granted = min(qos, 1)
        self._journal.save_subscription(session, wanted, granted)
        self._post.subscribe(session, wanted, granted)
        return granted

    def unsubscribed(self, connection: Connection, ask: Unsubscribe) -> None:
        """Somebody no longer wants some topics."""
        session = connection.session
        if session is None:
            return
        for wanted in ask.filters:
            if session.subscriptions.pop(wanted, None) is not None:
                self._post.unsubscribe(session, wanted)
                self._journal.save_subscription(session, wanted, None)
        self._answer(connection, session, encode(Unsuback(ask.packet_id)))

    def _answer(self, connection: Connection, session: Session, data: bytes) -> None:
        """Answer at once, or when it is written down what the answer promises."""
        if session.number is None:
            connection.send(data)
        else:
            self._journal.then(partial(connection.send, data))

    def _forbid(self, connection: Connection, topic: str) -> None:
        """A forbidden publish ends the connection: MQTT 3.1.1 has no other way to say no (broker-16)."""
        self._take_note(connection, "publish", topic)
        connection.close("it published where it may not")

    def _take_note(self, connection: Connection, deed: str, topic: str) -> None:
        if connection.account is not None:
            self._door.forbidden(connection.account, connection.address, deed, topic)


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
