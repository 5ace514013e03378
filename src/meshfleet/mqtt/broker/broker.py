"""Interface of the embedded broker to the service: run, publish, subscribe, find connected gateways."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.mqtt.broker.auth import Account, AccountKind, Authenticator, HomeAssistantTopics
from meshfleet.mqtt.broker.connection import ServerConnection
from meshfleet.mqtt.broker.connections import ConnectionRegistry
from meshfleet.mqtt.broker.group_commit import GroupCommit, ReportConsumer
from meshfleet.mqtt.broker.handshake import ConnectHandler
from meshfleet.mqtt.broker.packet_handler import PacketHandler
from meshfleet.mqtt.broker.quotas import QueueQuotas
from meshfleet.mqtt.broker.request_expiry import RequestTopicRules
from meshfleet.mqtt.broker.retained_messages import SERVICE_ACCOUNT, RetainedMessageStore
from meshfleet.mqtt.broker.router import CallbackSubscriber, MessageRouter
from meshfleet.mqtt.broker.session_registry import SessionRegistry
from meshfleet.mqtt.broker.wall_clock import WallClockConverter
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.broker.store import StoredState
    from meshfleet.mqtt.broker_limits import BrokerLimits

_READ_BUFFER_BYTES: Final = 64 * 1024
"""Maximum bytes that one read from a client returns."""

_MAX_RETAINED_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes of all retained messages of clients together, or half the queue limit of a client if that is
less: one subscription may match all retained messages."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes received in a commit batch; beyond it the broker stops reading until the next batch."""

_LAST_COMMIT_SECONDS: Final = 10.0
"""Seconds that the last commit may take when the broker stops."""


class Broker:
    """MQTT 3.1.1 broker without sockets: a listener calls `create_connection` for each client."""

    def __init__(  # noqa: PLR0913 # keyword-only; it creates all parts of the broker
        self,
        *,
        authenticator: Authenticator,
        consumed_filters: Sequence[str],
        limits: BrokerLimits,
        stored_state: StoredState,
        owner_token: bytes,
        monotonic_clock: Callable[[], int],
        wall_clock: Callable[[], int],
        topic_prefix: str = "",
        home_assistant: HomeAssistantTopics | None = None,
        request_max_age: float = 60.0,
        slow_seconds: float = 10.0,
        sweep_seconds: float = 1.0,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """`monotonic_clock` measures waits, `wall_clock` gives the times to persist, both in milliseconds.

        All connections are checked every `sweep_seconds`. Once a commit batch holds more than
        `max_batch_bytes`, the broker does not read from publishers until the next batch.
        """
        self.limits = limits
        self.quotas = QueueQuotas(limits, slow_seconds)
        self.connections = ConnectionRegistry(limits)
        self.retained = RetainedMessageStore(limits.retained, _compute_max_retained_bytes(limits))
        self.retained.restore(stored_state.retained)
        times = WallClockConverter(
            monotonic_clock=monotonic_clock, wall_clock=wall_clock, request_max_age=request_max_age
        )
        self._request_rules = RequestTopicRules(topic_prefix, request_max_age)
        self._group_commit = GroupCommit(owner_token=owner_token, wall_clock=times)
        self._router = MessageRouter(
            self._group_commit,
            self.retained,
            consumed_filters=consumed_filters,
            request_rules=self._request_rules,
            monotonic_clock=monotonic_clock,
        )
        self.sessions = SessionRegistry(
            self._group_commit, self._router, self.quotas, limits, times, monotonic_clock()
        )
        self.sessions.restore(stored_state)
        self.connect_handler = ConnectHandler(
            authenticator=authenticator,
            connections=self.connections,
            sessions=self.sessions,
            router=self._router,
            group_commit=self._group_commit,
            quotas=self.quotas,
            monotonic_clock=monotonic_clock,
            topic_prefix=topic_prefix,
            home_assistant=home_assistant or HomeAssistantTopics(),
            sweep_seconds=sweep_seconds,
        )
        self._packet_handler = PacketHandler(
            router=self._router,
            group_commit=self._group_commit,
            authenticator=authenticator,
            quotas=self.quotas,
            limits=limits,
            max_batch_bytes=max_batch_bytes,
        )
        self.read_buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        """Buffer into which all connections read, one connection after the other."""

    # Used by the service

    async def run(self, consumer: ReportConsumer) -> None:
        """Serve MQTT clients and pass reports to the consumer until canceled.

        When canceled, close all connections and commit the last batch.
        """
        commit_task = asyncio.create_task(self._group_commit.run(consumer), name="broker.group-commit")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.connect_handler.run(), name="broker.connect-handler")
                await asyncio.shield(commit_task)
        finally:
            for connection in self.connections:
                connection.close("the broker is stopping")
            self._group_commit.stop()
            await asyncio.wait([commit_task], timeout=_LAST_COMMIT_SECONDS)
            commit_task.cancel()

    @property
    def problem(self) -> ReadinessProblem | None:
        """Why the broker cannot acknowledge messages at present, or None."""
        return self._group_commit.problem

    @property
    def held_publishers(self) -> int:
        """Number of publishing clients that the broker does not read from until the next commit batch."""
        return self._group_commit.held_publishers

    @property
    def uncommitted_bytes(self) -> int:
        """Number of bytes received from clients in the current commit batch."""
        return self._group_commit.batch.received_bytes

    def apply_limits(self, limits: BrokerLimits) -> None:
        """Change the limits. Connections keep their packet size and rate until the client connects again.

        No session, message or connection beyond a lower limit is dropped: the limit holds for new ones.
        """
        self.limits = limits
        self.quotas.apply_limits(limits)
        self.connections.apply_limits(limits)
        self.sessions.limits = limits
        self._packet_handler.limits = limits
        self.retained.max_messages, self.retained.max_bytes = (
            limits.retained,
            _compute_max_retained_bytes(limits),
        )

    def set_request_max_age(self, seconds: float) -> None:
        """Change the maximum age of requests that are received from now on."""
        self._request_rules.set_max_age(seconds)

    def set_home_assistant_topics(self, topics: HomeAssistantTopics) -> None:
        """Change the topics of Home Assistant. Its clients are disconnected and connect again."""
        if topics == self.connect_handler.home_assistant:
            return
        self.connect_handler.home_assistant = topics
        for connection in self.connections:
            if connection.account is not None and connection.account.kind is AccountKind.HOME_ASSISTANT:
                connection.close("the topics of Home Assistant were changed")

    def create_connection(self, address: str = "") -> ServerConnection:
        """Create the asyncio protocol for a client that connects.

        A listener that reserved a connection slot passes the address of the client, because a socket that was
        reset no longer knows the address.
        """
        return ServerConnection(
            self.connect_handler, self._packet_handler, self.limits, self.read_buffer, address
        )

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish a message as the service. At QoS 1, return when the message is committed."""
        await self.publish_all((Publish(topic, payload, qos, retain),))

    async def publish_all(self, messages: Sequence[Publish]) -> None:
        """Publish messages as the service. Return when those with QoS 1 are committed."""
        self.publish_soon(*messages)
        if any(message.qos for message in messages):
            done = asyncio.get_running_loop().create_future()
            self._group_commit.call_after_commit(lambda: None if done.done() else done.set_result(None))
            await done

    def publish_soon(self, *messages: Publish) -> None:
        """Publish messages as the service without waiting for the commit."""
        for message in messages:
            self._router.route(message, SERVICE_ACCOUNT)

    def send(self, messages: Iterable[Publish]) -> None:
        """Send messages as the service to connected subscribers only; queue nothing for disconnected ones."""
        for message in messages:
            self._router.route_to_connected(message)

    async def send_urgent(self, message: Publish) -> None:
        """Send one message as the service at once; drop the message if its gateway is disconnected."""
        self._router.route_to_connected(message)

    @property
    def unavailable_reason(self) -> None:
        """Always None: the embedded broker is always available, because it runs in the same process."""
        return

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> CallbackSubscriber:
        """Subscribe a callback of the service. The callback gets the matching retained messages at once."""
        subscriber = CallbackSubscriber(callback)
        self._router.subscribe(subscriber, topic_filter, 1)
        return subscriber

    def unsubscribe(self, topic_filter: str, subscriber: CallbackSubscriber) -> None:
        """Remove the subscription of a callback of the service."""
        self._router.unsubscribe(subscriber, topic_filter)

    def connected_gateways(self) -> dict[str, int]:
        """Return the connection number of each connected gateway, by MAC.

        Every CONNECT gets a higher number than all CONNECTs before (broker-5).
        """
        return {
            connection.account.name: connection.number
            for connection in self.connections
            if connection.account is not None
            and connection.account.kind is AccountKind.GATEWAY
            and _is_gateway_connection(connection)
        }

    def connection_id(self, gateway: str) -> int:
        """Return the connection number of a gateway, or 0 if the gateway is disconnected."""
        return max((connection.number for connection in self._find_gateway_connections(gateway)), default=0)

    def hears_requests(self, gateway: str) -> bool:
        """Return whether a gateway is connected and has subscribed: it receives no request before."""
        sessions = (connection.session for connection in self._find_gateway_connections(gateway))
        return any(session is not None and session.subscriptions for session in sessions)

    def _find_gateway_connections(self, gateway: str) -> Iterable[ServerConnection]:
        """Return the connections of a gateway, without its diagnostics connections."""
        account = Account(kind=AccountKind.GATEWAY, name=gateway)
        return filter(_is_gateway_connection, self.connections.find_by_account(str(account)))

    def last_connection_id(self, gateway: str) -> int:
        """Return the number of a gateway's current or last connection; 0 if none since the start."""
        return self.connect_handler.last_connection_ids.get(gateway, 0)

    def accounts(self) -> list[Account]:
        """Return the accounts of all MQTT connections and sessions.

        An account without a connection has only its kind and name set.
        """
        # An account appears once per credential that its connections logged in with.
        connected = {connection.account for connection in self.connections if connection.account is not None}
        absent = {session.account for session in self.sessions} - self.connections.connected_accounts
        return [*connected, *map(Account.parse, absent)]

    def disconnect_account(self, account: Account, *, delete_sessions: bool = False) -> None:
        """Close the connections of an account that was changed or removed, without publishing will messages.

        If `account` has a credential digest, only connections with the same credentials and role are closed.
        `delete_sessions` also deletes the account's retained messages and the sessions of its disconnected
        clients.
        """
        for connection in self.connections.find_by_account(str(account)):
            if not account.credential_digest or connection.account == account:
                connection.will = None
                connection.close("the account was changed or removed")
        if delete_sessions:
            for session in self.sessions:
                if session.account == str(account) and session.connection is None:
                    self.sessions.delete(session)
            self._router.delete_retained(str(account))
            if account.kind is AccountKind.GATEWAY:
                self.connect_handler.last_connection_ids.pop(account.name, None)


def _compute_max_retained_bytes(limits: BrokerLimits) -> int:
    return min(limits.queue_bytes // 2, _MAX_RETAINED_BYTES)


def _is_gateway_connection(connection: ServerConnection) -> bool:
    """Return whether a connection is the main one of a gateway, not its diagnostics connection (broker-5)."""
    account, session = connection.account, connection.session
    return account is not None and session is not None and session.client_id == account.name
