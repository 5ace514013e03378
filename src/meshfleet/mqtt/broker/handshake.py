"""Handles CONNECT: authenticates an MQTT client, and opens its session or refuses it.

The end of connections is handled here too.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.errors import DatabaseUnavailable, quote_input
from meshfleet.mqtt.broker.auth import (
    Account,
    AccountKind,
    Authenticator,
    HomeAssistantTopics,
    NotAdmitted,
    TopicPermissions,
)
from meshfleet.mqtt.broker.log_limiter import LogLimiter
from meshfleet.mqtt.codec.packets import Connect, ConnectReturnCode, Publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.broker.connection import ServerConnection
    from meshfleet.mqtt.broker.connections import ConnectionRegistry
    from meshfleet.mqtt.broker.group_commit import GroupCommit
    from meshfleet.mqtt.broker.quotas import QueueQuotas
    from meshfleet.mqtt.broker.router import MessageRouter
    from meshfleet.mqtt.broker.session import MqttSession
    from meshfleet.mqtt.broker.session_registry import SessionRegistry

_log = logging.getLogger(__name__)

_MAX_CLIENT_ID_CHARS: Final = 256

_SWEEPS_PER_CLEANUP: Final = 10
"""Number of checks of all connections between two deletions of expired sessions."""


class ConnectHandler:
    """Handles CONNECT and the end of connections. Clients are accepted only while `run` is active."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        *,
        authenticator: Authenticator,
        connections: ConnectionRegistry,
        sessions: SessionRegistry,
        router: MessageRouter,
        group_commit: GroupCommit,
        quotas: QueueQuotas,
        monotonic_clock: Callable[[], int],
        topic_prefix: str,
        home_assistant: HomeAssistantTopics,
        sweep_seconds: float,
    ) -> None:
        self._authenticator = authenticator
        self._connections = connections
        self._sessions = sessions
        self._router = router
        self._group_commit = group_commit
        self._quotas = quotas
        self._monotonic_clock = monotonic_clock
        self._topic_prefix = topic_prefix
        self.home_assistant = home_assistant
        """Topics of Home Assistant, for the permissions of clients that connect from now on."""
        self._sweep_seconds = sweep_seconds
        self._tasks: asyncio.TaskGroup | None = None
        self.accepting = asyncio.Event()
        """Event that is set once clients are accepted. Earlier connections are closed without a CONNACK."""
        self._last_number = 0
        """Number of CONNECT packets handled so far. The id of a connection is the number of its CONNECT."""
        self.last_connection_ids: dict[str, int] = {}
        """Id of the current or last connection of each gateway, by MAC."""
        self.admitted_count = 0
        """Number of accepted CONNECT packets since the broker started."""
        self.refused_count = 0
        """Number of refused CONNECT packets since the broker started."""
        # One line per client and minute, and few per address and in total: a client can send any client id.
        self._client_log_limiter = LogLimiter()
        self._address_log_limiter = LogLimiter(lines=10)
        self._total_log_limiter = LogLimiter(lines=100)

    async def run(self) -> None:
        """Accept clients until canceled, and check the deadlines of all connections periodically."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self.accepting.set()
                await self._check_connections_periodically()
        finally:
            self._tasks = None

    def register(self, connection: ServerConnection) -> bool:
        """Add a new connection to the registry.

        Return False if a limit of connections is reached, or the broker does not accept clients.
        """
        return self._tasks is not None and self._connections.add(connection)

    def handle_connect(self, connection: ServerConnection, connect: Connect) -> None:
        """Handle CONNECT: authenticate the client in its own task."""
        self._last_number += 1
        connection.number = self._last_number
        # The slot may have been reserved before other connections from this address failed.
        if self._connections.failed_logins.is_exceeded(connection.address):
            reason = "too many connections from this address failed to log in"
            self.refuse(connection, ConnectReturnCode.SERVER_UNAVAILABLE, reason, connect)
        elif self._tasks is not None:
            self._tasks.create_task(self._authenticate(connection, connect), name="broker.authenticate")

    async def _authenticate(self, connection: ServerConnection, connect: Connect) -> None:
        """Authenticate a client, then open its session or refuse the connection."""
        try:
            _check_client_id(connect)
            account = await self._authenticator.authenticate(connect, connection.address)
            if connection.is_open:
                self._open_session(connection, connect, account)
        except NotAdmitted as exc:
            self.refuse(connection, exc.return_code, str(exc), connect)
        except DatabaseUnavailable as exc:
            connection.counts_as_failure = False
            self.refuse(connection, ConnectReturnCode.SERVER_UNAVAILABLE, str(exc), connect)
        except Exception:  # noqa: BLE001 # a defect must not end the task group, which serves all clients
            _log.exception("unexpected error while authenticating %s", connection)
            connection.counts_as_failure = False
            reason = "internal error of the service"
            self.refuse(connection, ConnectReturnCode.SERVER_UNAVAILABLE, reason, connect)

    def refuse(
        self,
        connection: ServerConnection,
        code: ConnectReturnCode,
        reason: str,
        connect: Connect | None = None,
    ) -> None:
        """Refuse a connection: send CONNACK with the return code `code`, and log the reason.

        `connect` is None if the CONNECT of the client cannot be decoded.
        """
        self.refused_count += 1
        client_text = ""
        if connect is not None:
            client_text = f" (client id {quote_input(connect.client_id)}, user {quote_input(connect.user)})"
        if (
            self._client_log_limiter.count((connection.address, client_text))
            and self._address_log_limiter.count(connection.address)
            and self._total_log_limiter.count(None)
        ):
            _log.warning("connection from %s refused: %s%s", connection.address, reason, client_text)
        connection.refuse(code)

    def _open_session(self, connection: ServerConnection, connect: Connect, account: Account) -> None:
        """Open the session of an authenticated client, and send CONNACK.

        CONNACK is sent after the commit if a session is created or deleted. Raise `NotAdmitted` if the
        account may not use the client id or the will topic, or a limit is reached.
        """
        client_id = _choose_client_id(connect, account)
        permissions = TopicPermissions(account, self._topic_prefix, self.home_assistant)
        if connect.will is not None and not permissions.may_publish(connect.will.topic):
            self._authenticator.on_access_denied(account, connection.address, "will", connect.will.topic)
            reason = f"the account may not publish its will message to {quote_input(connect.will.topic)}"
            raise NotAdmitted(ConnectReturnCode.NOT_AUTHORIZED, reason)
        connection.admit(account, permissions)
        previous = self._sessions.find_connection(str(account), client_id)
        if previous is not None and previous.number > connection.number:
            connection.close("replaced by a newer connection of the same client")
            return
        if not self._connections.assign_account(connection, replacing=previous):
            raise NotAdmitted(ConnectReturnCode.SERVER_UNAVAILABLE, "the account has too many connections")
        # Home Assistant subscribes again at each start: nothing of its many subscriptions need be stored.
        is_clean = connect.clean or account.kind is AccountKind.HOME_ASSISTANT
        opened = self._sessions.open(str(account), client_id, permissions, clean=is_clean)
        self.admitted_count += 1
        connection.will = connect.will
        connection.keep_alive = float(connect.keep_alive)
        connection.session = opened.session
        opened.session.resume(connection, self._monotonic_clock())
        # With another client id, this is the diagnostics connection of the gateway (broker-5).
        if account.kind is AccountKind.GATEWAY and client_id == account.name:
            self.last_connection_ids[account.name] = connection.number
        self._group_commit.save_session(opened.session)
        accept = partial(connection.accept, session_present=opened.session_present)
        if opened.must_wait_for_commit:
            self._group_commit.call_after_commit(accept)
        else:
            accept()

    def handle_disconnect(self, connection: ServerConnection) -> None:
        """Remove a closed connection, pause or delete its session, and publish its will message if any."""
        self._connections.remove(connection)
        if connection.account is None and connection.counts_as_failure:
            self._connections.count_failed_login(connection.address)
        session, will = connection.session, connection.will
        if session is None:
            return
        if session.connection is connection:
            self._sessions.handle_disconnect(session, self._monotonic_clock())
        if will is not None:  # [MQTT-3.1.2-8]
            message = Publish(will.topic, will.payload, will.qos, will.retain)
            self._router.route(message, str(connection.account))
            self._group_commit.request_commit()

    def count_cut_off(self, session: MqttSession) -> None:
        """Count a client that is disconnected because it does not keep up.

        If its session is clean, count the messages that wait in the session as dropped.
        """
        self._quotas.cut_off_count += 1
        if session.persistent_id is None:
            self._quotas.dropped_counts["cut-off"] += len(session)

    async def _check_connections_periodically(self) -> None:
        """Check the deadlines of all connections every `sweep_seconds`; less often, delete old sessions."""
        loop, sweeps = asyncio.get_running_loop(), 0
        while True:
            await asyncio.sleep(self._sweep_seconds)
            now, sweeps = loop.time(), sweeps + 1
            self._connections.reset_pending_logins()
            for connection in self._connections:
                # Check each connection in its own callback, so that an exception affects only that one.
                loop.call_soon(connection.check_deadlines, now)
            if sweeps % _SWEEPS_PER_CLEANUP == 0:
                self._sessions.delete_expired(self._monotonic_clock())


def _check_client_id(connect: Connect) -> None:
    """Raise `NotAdmitted` if the client id is not allowed for any account."""
    if not connect.client_id and not connect.clean:
        # [MQTT-3.1.3-8]
        raise NotAdmitted(
            ConnectReturnCode.IDENTIFIER_REJECTED, "the client id is empty, which needs a clean session"
        )
    if len(connect.client_id) > _MAX_CLIENT_ID_CHARS:
        raise NotAdmitted(
            ConnectReturnCode.IDENTIFIER_REJECTED,
            f"the client id is longer than {_MAX_CLIENT_ID_CHARS} characters",
        )


def _choose_client_id(connect: Connect, account: Account) -> str:
    """Return the client id of a CONNECT, or a random client id if it is empty.

    Raise `NotAdmitted` if the account may not use the client id.
    """
    client_id = connect.client_id
    if account.kind is AccountKind.GATEWAY and client_id not in {account.name, account.name.upper()}:
        # broker-5
        raise NotAdmitted(ConnectReturnCode.IDENTIFIER_REJECTED, "the client id of a gateway must be its MAC")
    return client_id or f"unnamed-{secrets.token_hex(8)}"  # [MQTT-3.1.3-6]
