"""All sessions. A client is known by its account and client id together: nobody takes another's session."""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.broker.door import NotAdmitted
from meshfleet.broker.session import Session
from meshfleet.errors import shown
from meshfleet.wire.mqtt.packets import Accept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.broker.access import Access
    from meshfleet.broker.journal import Journal
    from meshfleet.broker.post import Post
    from meshfleet.broker.session import Line
    from meshfleet.broker.stock import Stock
    from meshfleet.broker.store import Saved
    from meshfleet.broker.written_times import WrittenTimes
    from meshfleet.settings import Limits

_log = logging.getLogger(__name__)

_LONGEST_PAUSE: Final = 10 * 60 * 1000
"""Milliseconds. Longer than any process stands still without its clock."""


class Opened(NamedTuple):
    """The session of a client that has just connected."""

    session: Session
    is_present: bool
    """Whether it was there before."""
    must_wait: bool
    """Whether the client is told only when something is written down."""


class Sessions:
    """Sessions by account and client id."""

    def __init__(  # noqa: PLR0913, PLR0917 # it brings all of them together
        self, journal: Journal, post: Post, stock: Stock, limits: Limits, times: WrittenTimes, now: int
    ) -> None:
        self._journal = journal
        self._post = post
        self._stock = stock
        self._limits = limits
        self._times = times
        self._all: dict[tuple[str, str], Session] = {}
        self._kept = Counter[str]()
        """Sessions that outlive their connections, by account."""
        self._last_number = 0
        self._tidied = now

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._all.values()))

    def restore(self, saved: Saved) -> None:
        """Restore what was written down. All clients are away, those that were connected since now."""
        by_number = {}
        for number, row in saved.sessions.items():
            session = self._make(row.account, row.client_id, number)
            session.left_at = self._times.left_at(row.left_at)
            by_number[number] = session
        for number, wanted, qos in saved.subscriptions:
            by_number[number].subscriptions[wanted] = qos
            self._post.restore(by_number[number], wanted, qos)
        for number, position, letter in saved.messages:
            letter.until = self._times.until(letter.until)
            by_number[number].restore(position, letter)
        for number, packet_id in saved.received:
            by_number[number].received.add(packet_id)
        self._last_number = max(by_number, default=0)

    def open(self, account: str, client_id: str, access: Access, *, clean: bool) -> Opened:
        """The session of a client that connects. Its other connection, if any, ends [MQTT-3.1.4-2]."""
        before = self._all.get((account, client_id))
        if before is not None and before.line is not None:
            before.line.close("its client has connected anew")
            before = self._all.get((account, client_id))
        if clean:
            if before is not None:  # [MQTT-3.1.2-6]
                self.end(before)
            return Opened(self._make(account, client_id), is_present=False, must_wait=before is not None)
        if before is not None:
            self._restrict(before, access)
            return Opened(before, is_present=True, must_wait=False)
        self._check_room(account)
        self._last_number += 1
        session = self._make(account, client_id, self._last_number)
        session.read_rules = access.read_rules
        return Opened(session, is_present=False, must_wait=True)

    def line(self, account: str, client_id: str) -> Line | None:
        """The connection of a client, if it is there."""
        session = self._all.get((account, client_id))
        return None if session is None else session.line

    def leave(self, session: Session, now: int) -> None:
        """The client of a session is gone. So is a clean session."""
        if session.number is None:
            self.end(session)
        else:
            session.pause(now)
            self._journal.save_session(session)

    def end(self, session: Session) -> None:
        """Forget a session."""
        session.end()
        session.line = None
        for wanted in session.subscriptions:
            self._post.unsubscribe(session, wanted)
        self._journal.end_session(session)
        if session.number is not None:
            self._kept[session.account] -= 1
        session.number = None  # whoever ended it may be about to deliver something to it
        key = (session.account, session.client_id)
        if self._all.get(key) is session:
            del self._all[key]

    def tidy(self, now: int) -> None:
        """Forget sessions of clients that have been away for too long, and requests that waited too long.

        Called again and again. If much more time has passed since the last call than a pause can take, the
        clock was set: that makes nobody absent. If the clock on the wall was set, it is written down again
        when clients left: another process compares that with the clock on the wall.
        """
        is_wall_set = self._times.is_wall_set()
        jump = now - self._tidied
        self._tidied = now
        for session in self:
            if session.left_at is None:
                continue
            if abs(jump) > _LONGEST_PAUSE:
                session.left_at += jump
            if now - session.left_at > self._limits.session_age * 1000:
                _log.info("session %s of %s is forgotten", shown(session.client_id), session.account)
                self.end(session)
                continue
            session.expire(now)
            if is_wall_set:
                self._journal.save_session(session)

    def _make(self, account: str, client_id: str, number: int | None = None) -> Session:
        session = Session(account, client_id, stock=self._stock, ledger=self._journal, number=number)
        self._all[account, client_id] = session
        if number is not None:
            self._kept[account] += 1
        return session

    def _restrict(self, session: Session, access: Access) -> None:
        """Keep only what the client may still read: everything, if it may read the same as last time."""
        if session.read_rules == access.read_rules:
            return
        session.read_rules = access.read_rules
        for wanted in [each for each in session.subscriptions if not access.may_read(each)]:
            del session.subscriptions[wanted]
            self._post.unsubscribe(session, wanted)
            self._journal.save_subscription(session, wanted, None)
        may_read = cache(access.may_read)  # many messages may wait, mostly on few topics
        session.forget(lambda letter: not may_read(letter.topic))

    def _check_room(self, account: str) -> None:
        if self._kept[account] >= self._limits.sessions_per_account:
            raise NotAdmitted(
                Accept.SERVER_UNAVAILABLE, "its account has as many sessions that are not clean as it may"
            )
