"""What becomes of what clients send: their messages, their subscriptions, and their answers."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.broker.journal import BUSY
from meshfleet.broker.log_limit import LogLimit
from meshfleet.errors import shown
from meshfleet.wire.mqtt.encoder import encode
from meshfleet.wire.mqtt.packets import REFUSED, Pubcomp, Pubrec, Suback, Unsuback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.broker.connection import Connection
    from meshfleet.broker.door import Door
    from meshfleet.broker.journal import Journal
    from meshfleet.broker.post import Post
    from meshfleet.broker.session import Session
    from meshfleet.broker.stock import Stock
    from meshfleet.settings import Limits
    from meshfleet.wire.mqtt.packets import Oversized, Publish, Subscribe, Unsubscribe

_log = logging.getLogger(__name__)

_LONGEST_FILTER: Final = 1024
"""Bytes; longer ones do not fit into an index of every database."""
_DEEPEST_FILTER: Final = 32
"""Levels."""

_FEW_BYTES: Final = 8 * 1024
"""What is read from a client that has few things to say at a time."""

_NAMED: Final = 5
"""Forbidden filters of one SUBSCRIBE that a log line names."""

_ANSWER: Final = 512
"""Bytes that an answer takes while it waits for its round, about."""


class Desk:
    """Serves clients that were let in."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        *,
        post: Post,
        journal: Journal,
        door: Door,
        stock: Stock,
        limits: Limits,
        round_bytes: int,
    ) -> None:
        self._post = post
        self._journal = journal
        self._door = door
        self._stock = stock
        self._limits = limits
        self._round_bytes = round_bytes
        self._forbidden_lines = LogLimit(lines=5)

    def publish(
        self, connection: Connection, session: Session, messages: Sequence[Publish], size: int
    ) -> None:
        """Take messages that came in so many bytes.

        A hot path: most of them are reports, and go straight into the round.
        """
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
                self._pass_on(connection, session, message, packet_ids)
            else:
                self._forbid(connection, topic)
                break
        self._stock.received += len(messages)
        if not current.is_urgent:
            self._journal.hurry()
        self._fill(connection, size)
        if len(current.reports) >= BUSY and size < _FEW_BYTES and len(packet_ids) > 1:
            # It has more to say than once in a round, and there are many of them: read it once in a round.
            connection.hold()
            self._journal.hold(connection)

    def _fill(self, connection: Connection, size: int) -> None:
        """Count what somebody puts into the round; who finds it full waits for the next one."""
        current = self._journal.round
        current.size += size
        if current.size > self._round_bytes and connection.is_open:
            connection.hold()
            self._journal.hold(connection)

    def _pass_on(
        self, connection: Connection, session: Session, message: Publish, packet_ids: list[int]
    ) -> None:
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

    def publish_large(self, connection: Connection, message: Oversized) -> None:
        """Take note of a message that is larger than we take.

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
            self._fill(connection, len(message.topic))

    def release(self, connection: Connection, session: Session, packet_id: int) -> None:
        """Let go of a message at QoS 2: its id may come again [MQTT-4.3.3-2]."""
        if packet_id in session.received:
            session.received.discard(packet_id)
            self._journal.save_received(session, packet_id, is_open=False)
        self._answer(connection, session, encode(Pubcomp(packet_id)))

    def subscribe(self, connection: Connection, session: Session, ask: Subscribe) -> None:
        """Grant what a client asks for, filter by filter."""
        codes, forbidden = [], []
        for wanted, qos in ask.filters:
            # Each may bring all that is retained. Who has asked for far too much gets no more for now.
            code = REFUSED if connection.is_overdrawn else self._grant(connection, session, wanted, qos)
            codes.append(code)
            if code == REFUSED and not connection.access.may_read(wanted):
                forbidden.append(wanted)
            if not connection.is_open:  # it cannot keep up with what is retained
                return
        if forbidden and self._forbidden_lines.count(session.account):
            self._warn_forbidden(connection, session, forbidden)
        self._answer(connection, session, encode(Suback(ask.packet_id, tuple(codes))))

    def _warn_forbidden(self, connection: Connection, session: Session, forbidden: list[str]) -> None:
        _log.warning(
            "client %s of %s may not subscribe to %s; this account may subscribe to %s, or to parts of them",
            shown(session.client_id),
            connection,
            ", ".join(map(shown, forbidden[:_NAMED])) + (", …" if len(forbidden) > _NAMED else ""),
            ", ".join(connection.access.filters),
        )

    def _grant(self, connection: Connection, session: Session, wanted: str, qos: int) -> int:
        mine = session.subscriptions
        if wanted not in mine and len(mine) >= self._limits.subscriptions:
            return REFUSED
        if not connection.access.may_read(wanted):
            connection.charge(1)
            self._take_note(connection, "subscribe", wanted)
            return REFUSED
        if len(wanted.encode()) > _LONGEST_FILTER or wanted.count("/") >= _DEEPEST_FILTER:
            return REFUSED
        mine[wanted] = granted = min(qos, 1)
        self._journal.save_subscription(session, wanted, granted)
        connection.charge(1 + self._post.subscribe(session, wanted, granted))
        return granted

    def unsubscribe(self, connection: Connection, session: Session, ask: Unsubscribe) -> None:
        """Forget what a client no longer wants."""
        connection.charge(len(ask.filters))
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
            self._fill(connection, _ANSWER)

    def _forbid(self, connection: Connection, topic: str) -> None:
        """A forbidden publish ends the connection: MQTT 3.1.1 has no other way to say no (broker-16)."""
        self._take_note(connection, "publish", topic)
        connection.close("it published where it may not")

    def _take_note(self, connection: Connection, deed: str, topic: str) -> None:
        if connection.account is not None:
            self._door.forbidden(connection.account, connection.address, deed, topic)
