"""Registry of all MQTT sessions of the broker.

A client is identified by its account and client id together, so that no account can take over a session of
another account.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import quote_input
from meshfleet.mqtt.broker.auth import NotAdmitted, TopicPermissions
from meshfleet.mqtt.broker.session import MqttSession
from meshfleet.mqtt.codec.packets import ConnectReturnCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.mqtt.broker.group_commit import GroupCommit
    from meshfleet.mqtt.broker.quotas import QueueQuotas
    from meshfleet.mqtt.broker.router import MessageRouter
    from meshfleet.mqtt.broker.session import SessionConnection
    from meshfleet.mqtt.broker.store import StoredState
    from meshfleet.mqtt.broker.wall_clock import WallClockConverter
    from meshfleet.mqtt.broker_limits import BrokerLimits

_log = logging.getLogger(__name__)

_MAX_PAUSE_MS: Final = 10 * 60 * 1000
"""Maximum milliseconds between two cleanups of sessions. Beyond it, the monotonic clock must have been set:
no process pauses that long."""


class OpenedSession(NamedTuple):
    """Result of opening a session for a client that connects."""

    session: MqttSession
    session_present: bool
    """Whether the session existed before the client connected."""
    must_wait_for_commit: bool
    """Whether CONNACK must wait for the commit of the session change."""


class SessionRegistry:
    """Holds all MQTT sessions by account and client id: opens, pauses, expires and deletes sessions."""

    def __init__(  # noqa: PLR0913, PLR0917 # collaborators, passed once
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
        self.limits = limits
        self._wall_clock = wall_clock
        self._all: dict[tuple[str, str], MqttSession] = {}
        self._persistent_counts = Counter[str]()
        """Number of persistent sessions, by account."""
        self._last_persistent_id = 0
        self._last_cleanup = now

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[MqttSession]:
        return iter(list(self._all.values()))

    def restore(self, stored_state: StoredState) -> None:
        """Restore the persisted sessions, all as sessions of disconnected clients.

        Clients that were connected when the service stopped count as disconnected from now on.
        """
        sessions = {}
        for persistent_id, row in stored_state.sessions.items():
            session = self._create_session(row.account, row.client_id, persistent_id)
            session.left_at = self._wall_clock.convert_disconnect_time(row.left_at)
            sessions[persistent_id] = session
        for persistent_id, topic_filter, qos in stored_state.subscriptions:
            sessions[persistent_id].subscriptions[topic_filter] = qos
            self._router.restore_subscription(sessions[persistent_id], topic_filter, qos)
        for persistent_id, position, message in stored_state.messages:
            message.expires_at = self._wall_clock.convert_expiry_time(message.expires_at)
            sessions[persistent_id].restore_message(position, message)
        for persistent_id, packet_id in stored_state.unreleased_ids:
            sessions[persistent_id].unreleased_ids.add(packet_id)
        self._last_persistent_id = max(sessions, default=0)

    def open(
        self, account: str, client_id: str, permissions: TopicPermissions, *, clean: bool
    ) -> OpenedSession:
        """Create the session of a client that connects, or find its persistent session.

        Close an older connection of the client [MQTT-3.1.4-2]. Raise `NotAdmitted` if the account has too
        many persistent sessions.
        """
        previous = self._all.get((account, client_id))
        if previous is not None and previous.connection is not None:
            previous.connection.close("replaced by a newer connection of the same client")
            previous = self._all.get((account, client_id))
        if clean:
            if previous is not None:  # [MQTT-3.1.2-6]
                self.delete(previous)
            return OpenedSession(
                self._create_session(account, client_id),
                session_present=False,
                must_wait_for_commit=previous is not None,
            )
        if previous is not None:
            self._drop_forbidden(previous, permissions)
            return OpenedSession(previous, session_present=True, must_wait_for_commit=False)
        if self._persistent_counts[account] >= self.limits.sessions_per_account:
            reason = "the account has too many persistent sessions"
            raise NotAdmitted(ConnectReturnCode.SERVER_UNAVAILABLE, reason)
        self._last_persistent_id += 1
        session = self._create_session(account, client_id, self._last_persistent_id)
        session.read_rules = permissions.read_rules
        return OpenedSession(session, session_present=False, must_wait_for_commit=True)

    def find_connection(self, account: str, client_id: str) -> SessionConnection | None:
        """Return the connection of a client, or None if the client is not connected."""
        session = self._all.get((account, client_id))
        return None if session is None else session.connection

    def handle_disconnect(self, session: MqttSession, now: int) -> None:
        """Pause the persistent session of a disconnected client; delete a clean session."""
        if session.persistent_id is None:
            self.delete(session)
        else:
            session.pause(now)
            self._group_commit.save_session(session)

    def delete(self, session: MqttSession) -> None:
        """Delete a session with its subscriptions and messages."""
        session.clear()
        session.connection = None
        for topic_filter in session.subscriptions:
            self._router.unsubscribe(session, topic_filter)
        self._group_commit.delete_session(session)
        if session.persistent_id is not None:
            self._persistent_counts[session.account] -= 1
        session.persistent_id = None  # a delivery that is under way must not persist anything
        key = (session.account, session.client_id)
        if self._all.get(key) is session:
            del self._all[key]

    def delete_expired(self, now: int) -> None:
        """Delete sessions of clients that stayed disconnected for too long, and drop expired requests.

        Called periodically. If implausibly much time has passed since the last call, the monotonic clock was
        set, and the times of disconnects are shifted by the difference. If the wall clock was set, the times
        of disconnects are persisted again: the next process compares these times with the wall clock.
        """
        is_wall_set = self._wall_clock.detect_clock_change()
        jump = now - self._last_cleanup
        self._last_cleanup = now
        for session in self:
            if session.left_at is None:
                continue
            if abs(jump) > _MAX_PAUSE_MS:
                session.left_at += jump
            if now - session.left_at > self.limits.session_age * 1000:
                _log.info(
                    "session %s of %s deleted: its client stayed away for too long",
                    quote_input(session.client_id),
                    session.account,
                )
                self.delete(session)
                continue
            session.drop_expired(now)
            if is_wall_set:
                self._group_commit.save_session(session)

    def _create_session(self, account: str, client_id: str, persistent_id: int | None = None) -> MqttSession:
        """Create and register a session, a clean one if `persistent_id` is None."""
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

    def _drop_forbidden(self, session: MqttSession, permissions: TopicPermissions) -> None:
        """Drop the subscriptions and waiting messages that the account of a session may no longer read."""
        if session.read_rules == permissions.read_rules:
            return
        session.read_rules = permissions.read_rules
        for topic_filter in [each for each in session.subscriptions if not permissions.may_read(each)]:
            del session.subscriptions[topic_filter]
            self._router.unsubscribe(session, topic_filter)
            self._group_commit.save_subscription(session, topic_filter, None)
        may_read = cache(permissions.may_read)  # many messages may be queued, mostly on few topics
        session.drop_matching(lambda message: not may_read(message.topic))
