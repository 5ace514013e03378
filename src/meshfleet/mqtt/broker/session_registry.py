"""All sessions. A client is known by its account and client id together: nobody takes another's session."""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import quote_input
from meshfleet.mqtt.broker.auth import NotAdmitted
from meshfleet.mqtt.broker.session import MqttSession
from meshfleet.mqtt.codec.packets import ConnectReturnCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.mqtt.broker.auth import TopicPermissions
    from meshfleet.mqtt.broker.group_commit import GroupCommit
    from meshfleet.mqtt.broker.quotas import QueueQuotas
    from meshfleet.mqtt.broker.router import MessageRouter
    from meshfleet.mqtt.broker.session import SessionConnection
    from meshfleet.mqtt.broker.store import StoredState
    from meshfleet.mqtt.broker.wall_clock import WallClockConverter
    from meshfleet.mqtt.broker_limits import BrokerLimits

_log = logging.getLogger(__name__)

_MAX_PAUSE_MS: Final = 10 * 60 * 1000
"""Milliseconds. Longer than any process stands still without its clock."""


class OpenedSession(NamedTuple):
    """The session of a client that has just connected."""

    session: MqttSession
    session_present: bool
    """Whether it was there before."""
    must_wait_for_commit: bool
    """Whether the client is told only when something is written down."""


class SessionRegistry:
    """Sessions by account and client id."""

    def __init__(  # noqa: PLR0913, PLR0917 # it brings all of them together
        self,
        group_commit: GroupCommit,
        router: MessageRouter,
        quotas: QueueQuotas,
        limits: BrokerLimits,
        wall_clock: WallClockConverter,
        now: int,
    ) -> None:
        self._group_commit = group_commit
        self._router = router
        self._quotas = quotas
        self._limits = limits
        self._wall_clock = wall_clock
        self._all: dict[tuple[str, str], MqttSession] = {}
        self._persistent_counts = Counter[str]()
        """Sessions that outlive their connections, by account."""
        self._last_persistent_id = 0
        self._last_cleanup = now

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[MqttSession]:
        return iter(list(self._all.values()))

    def restore(self, stored_state: StoredState) -> None:
        """Restore what was written down. All clients are away, those that were connected since now."""
        by_number = {}
        for number, row in stored_state.sessions.items():
            session = self._create(row.account, row.client_id, number)
            session.left_at = self._wall_clock.disconnect_time_from_wall(row.left_at)
            by_number[number] = session
        for number, wanted, qos in stored_state.subscriptions:
            by_number[number].subscriptions[wanted] = qos
            self._router.restore_subscription(by_number[number], wanted, qos)
        for number, position, letter in stored_state.messages:
            letter.expires_at = self._wall_clock.expiry_from_wall(letter.expires_at)
            by_number[number].restore(position, letter)
        for number, packet_id in stored_state.unreleased_ids:
            by_number[number].unreleased_ids.add(packet_id)
        self._last_persistent_id = max(by_number, default=0)

    def open(
        self, account: str, client_id: str, permissions: TopicPermissions, *, clean: bool
    ) -> OpenedSession:
        """The session of a client that connects. Its other connection, if any, ends [MQTT-3.1.4-2]."""
        before = self._all.get((account, client_id))
        if before is not None and before.connection is not None:
            before.connection.close("its client has connected anew")
            before = self._all.get((account, client_id))
        if clean:
            if before is not None:  # [MQTT-3.1.2-6]
                self.delete(before)
            return OpenedSession(
                self._create(account, client_id),
                session_present=False,
                must_wait_for_commit=before is not None,
            )
        if before is not None:
            self._apply_permissions(before, permissions)
            return OpenedSession(before, session_present=True, must_wait_for_commit=False)
        self._check_session_limit(account)
        self._last_persistent_id += 1
        session = self._create(account, client_id, self._last_persistent_id)
        session.read_rules = permissions.read_rules
        return OpenedSession(session, session_present=False, must_wait_for_commit=True)

    def find_connection(self, account: str, client_id: str) -> SessionConnection | None:
        """The connection of a client, if it is there."""
        session = self._all.get((account, client_id))
        return None if session is None else session.connection

    def handle_disconnect(self, session: MqttSession, now: int) -> None:
        """The client of a session is gone. So is a clean session."""
        if session.persistent_id is None:
            self.delete(session)
        else:
            session.pause(now)
            self._group_commit.save_session(session)

    def delete(self, session: MqttSession) -> None:
        """Forget a session."""
        session.clear()
        session.connection = None
        for wanted in session.subscriptions:
            self._router.unsubscribe(session, wanted)
        self._group_commit.delete_session(session)
        if session.persistent_id is not None:
            self._persistent_counts[session.account] -= 1
        session.persistent_id = None  # whoever ended it may be about to deliver something to it
        key = (session.account, session.client_id)
        if self._all.get(key) is session:
            del self._all[key]

    def delete_expired(self, now: int) -> None:
        """Forget sessions of clients that have been away for too long, and requests that waited too long.

        Called again and again. If much more time has passed since the last call than a pause can take, the
        clock was set: that makes nobody absent. If the clock on the wall was set, it is written down again
        when clients left: another process compares that with the clock on the wall.
        """
        is_wall_set = self._wall_clock.detect_clock_change()
        jump = now - self._last_cleanup
        self._last_cleanup = now
        for session in self:
            if session.left_at is None:
                continue
            if abs(jump) > _MAX_PAUSE_MS:
                session.left_at += jump
            if now - session.left_at > self._limits.session_age * 1000:
                _log.info("session %s of %s is forgotten", quote_input(session.client_id), session.account)
                self.delete(session)
                continue
            session.drop_expired(now)
            if is_wall_set:
                self._group_commit.save_session(session)

    def _create(self, account: str, client_id: str, persistent_id: int | None = None) -> MqttSession:
        session = MqttSession(
            account,
            client_id,
            quotas=self._quotas,
            message_store=self._group_commit,
            persistent_id=persistent_id,
        )
        self._all[account, client_id] = session
        if persistent_id is not None:
            self._persistent_counts[account] += 1
        return session

    def _apply_permissions(self, session: MqttSession, permissions: TopicPermissions) -> None:
        """Keep only what the client may still read: everything, if it may read the same as last time."""
        if session.read_rules == permissions.read_rules:
            return
        session.read_rules = permissions.read_rules
        for wanted in [each for each in session.subscriptions if not permissions.may_read(each)]:
            del session.subscriptions[wanted]
            self._router.unsubscribe(session, wanted)
            self._group_commit.save_subscription(session, wanted, None)
        may_read = cache(permissions.may_read)  # many messages may wait, mostly on few topics
        session.drop_matching(lambda letter: not may_read(letter.topic))

    def _check_session_limit(self, account: str) -> None:
        if self._persistent_counts[account] >= self._limits.sessions_per_account:
            raise NotAdmitted(
                ConnectReturnCode.SERVER_UNAVAILABLE,
                "its account has as many sessions that are not clean as it may",
            )
