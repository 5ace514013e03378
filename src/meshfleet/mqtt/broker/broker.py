"""The broker as the service sees it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.mqtt.broker.auth import Account, AccountKind
from meshfleet.mqtt.broker.connection import ServerConnection
from meshfleet.mqtt.broker.connections import ConnectionRegistry
from meshfleet.mqtt.broker.group_commit import GroupCommit
from meshfleet.mqtt.broker.handshake import ConnectHandler
from meshfleet.mqtt.broker.packet_handler import PacketHandler
from meshfleet.mqtt.broker.quotas import QueueQuotas
from meshfleet.mqtt.broker.request_expiry import RequestTopicRules
from meshfleet.mqtt.broker.retained_messages import RetainedMessageStore
from meshfleet.mqtt.broker.router import CallbackSubscriber, MessageRouter
from meshfleet.mqtt.broker.session_registry import SessionRegistry
from meshfleet.mqtt.broker.wall_clock import WallClockConverter
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.broker.auth import Authenticator
    from meshfleet.mqtt.broker.group_commit import ReportConsumer
    from meshfleet.mqtt.broker.store import StoredState
    from meshfleet.mqtt.broker_limits import BrokerLimits

_SERVICE_ACCOUNT: Final = "service"
"""Who publishes without a connection."""

_READ_BUFFER_BYTES: Final = 64 * 1024
"""Bytes that are read at once."""

_MAX_RETAINED_BYTES: Final = 2 * 1024 * 1024
"""Bytes of all retained messages, which a subscription may bring at once; half a queue where that is less."""

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes in a round after which publishers wait for the next one."""

_LAST_COMMIT_SECONDS: Final = 10.0
"""Seconds that the last round has when the broker stops."""


class Broker:
    """An MQTT 3.1.1 broker without listeners: whoever listens makes a `connection` for each client."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        *,
        authenticator: Authenticator,
        consumer: ReportConsumer,
        consumed_filters: Sequence[str],
        limits: BrokerLimits,
        stored_state: StoredState,
        owner_token: bytes,
        steady_clock: Callable[[], int],
        wall_clock: Callable[[], int],
        topic_prefix: str = "",
        request_max_age: float = 60.0,
        slow_seconds: float = 10.0,
        sweep_seconds: float = 1.0,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        """`now` is a clock that is never set, by which all waits; `wall` is for what is written down.

        All connections are looked at every `sweep_seconds`. Who finds more than `round_bytes` in a round
        waits for the next one.
        """
        self._limits = limits
        self.quotas = QueueQuotas(limits, slow_seconds)
        self.connections = ConnectionRegistry(limits)
        self.retained = RetainedMessageStore(
            limits.retained, min(limits.queue_bytes // 2, _MAX_RETAINED_BYTES)
        )
        self.retained.restore(stored_state.retained)
        times = WallClockConverter(
            steady_clock=steady_clock, wall_clock=wall_clock, request_max_age=request_max_age
        )
        self._group_commit = GroupCommit(consumer, owner_token=owner_token, wall_clock=times)
        self._router = MessageRouter(
            self._group_commit,
            self.retained,
            consumed_filters=consumed_filters,
            request_rules=RequestTopicRules(topic_prefix, request_max_age),
            steady_clock=steady_clock,
        )
        self.sessions = SessionRegistry(
            self._group_commit, self._router, self.quotas, limits, times, steady_clock()
        )
        self.sessions.restore(stored_state)
        self.connect_handler = ConnectHandler(
            authenticator=authenticator,
            connections=self.connections,
            sessions=self.sessions,
            router=self._router,
            group_commit=self._group_commit,
            quotas=self.quotas,
            steady_clock=steady_clock,
            topic_prefix=topic_prefix,
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
        """Which all connections read into, one after the other."""

    # For the service

    async def run(self) -> None:
        """Work until cancelled; then everybody is sent away, and what they are owed is written down."""
        writing = asyncio.create_task(self._group_commit.run(), name="broker.journal")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.connect_handler.run(), name="broker.lobby")
                await asyncio.shield(writing)
        finally:
            for connection in self.connections:
                connection.close("the broker stops")
            self._group_commit.stop()
            await asyncio.wait([writing], timeout=_LAST_COMMIT_SECONDS)
            writing.cancel()

    @property
    def trouble(self) -> ReadinessProblem | None:
        """Why nothing is acknowledged at the moment; None: all is well."""
        return self._group_commit.trouble

    @property
    def held_publishers(self) -> int:
        """How many publishers are not read from until a round is written."""
        return self._group_commit.held_publishers

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes in the present round."""
        return self._group_commit.batch.received_bytes

    def create_connection(self, address: str = "") -> ServerConnection:
        """Make the other end for a client that connects.

        Whoever has reserved a slot gives its address: a socket that was reset does not know it any more.
        """
        return ServerConnection(
            self.connect_handler, self._packet_handler, self._limits, self.read_buffer, address
        )

    async def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """Publish as the service. At QoS 1 it is written down for all who are owed it when this returns."""
        self._router.route(Publish(topic, payload, qos, retain), _SERVICE_ACCOUNT)
        if qos:
            done = asyncio.get_running_loop().create_future()
            self._group_commit.call_after_commit(lambda: None if done.done() else done.set_result(None))
            await done

    def send(self, messages: Iterable[Publish]) -> None:
        """Send messages as the service to those who are connected; nothing is written down for others."""
        for message in messages:
            self._router.route_to_connected(message)

    async def send_urgent(self, message: Publish) -> None:
        """Send one message as `send` does: it leaves at once, or its gateway is away."""
        self._router.route_to_connected(message)

    @property
    def unavailable_reason(self) -> None:
        """Nothing is between us and those who are connected."""
        return

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> CallbackSubscriber:
        """Let the service hear what a filter matches, beginning with what is retained there."""
        listener = CallbackSubscriber(callback)
        self._router.subscribe(listener, topic_filter, 1)
        return listener

    def unsubscribe(self, topic_filter: str, subscriber: CallbackSubscriber) -> None:
        """Take that back."""
        self._router.unsubscribe(subscriber, topic_filter)

    def connected_gateways(self) -> dict[str, int]:
        """The gateways that are connected, by MAC, each with the number of its connection (broker-5)."""
        return {
            each.account.name: each.number
            for each in self.connections
            if each.account is not None
            and each.account.kind is AccountKind.GATEWAY
            and _is_gateway_connection(each)
        }

    def connection_number(self, gateway: str) -> int:
        """The number of a gateway's connection, 0 without one: `gateways` without a look at the others."""
        own = filter(
            _is_gateway_connection,
            self.connections.of_account(str(Account(kind=AccountKind.GATEWAY, name=gateway))),
        )
        return max((each.number for each in own), default=0)

    def last_connection_number(self, gateway: str) -> int:
        """Return the number of a gateway's present or last connection, 0 if it had none since the start."""
        return self.connect_handler.last_connection_numbers.get(gateway, 0)

    def accounts(self) -> list[Account]:
        """Whose connections and sessions there are. Of who is absent nothing is known but the name."""
        present = {
            each.account for each in self.connections if each.account is not None
        }  # with each of its proofs
        absent = {session.account for session in self.sessions} - self.connections.connected_accounts
        return [*present, *map(Account.parse, absent)]

    def disconnect_account(self, account: Account, *, delete_sessions: bool = False) -> None:
        """End all connections of an account, whose word no longer counts; if asked, forget all of it.

        Who came with other credentials or rights than these, because the account has changed since, stays.
        """
        for connection in self.connections.of_account(str(account)):
            if not account.credential_digest or connection.account == account:
                connection.will = None
                connection.close("its account has changed")
        if delete_sessions:
            for session in self.sessions:
                if session.account == str(account) and session.connection is None:
                    self.sessions.delete(session)
            self._router.delete_retained(str(account))
            if account.kind is AccountKind.GATEWAY:
                self.connect_handler.last_connection_numbers.pop(account.name, None)


def _is_gateway_connection(connection: ServerConnection) -> bool:
    """Whether this is the connection of a gateway itself, not that of its diagnostics (broker-5)."""
    account, session = connection.account, connection.session
    return account is not None and session is not None and session.client_id == account.name
