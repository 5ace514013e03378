"""Broker on the loopback interface with accounts that a test chooses, on a real database."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from sqlalchemy import Connection, delete

from meshfleet.db.tables import broker_retained, broker_session
from meshfleet.mqtt.broker import Account, AccountKind, Broker, NotAdmitted, load_stored_state, take_ownership
from meshfleet.mqtt.broker.broker import MAX_BATCH_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode, Publish, Suback, Subscribe
from meshfleet.rest.accounts import Role
from tests.eventually import eventually_async
from tests.mqtt.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch

PASSWORD = b"correct"
"""Password of every account."""

G = "02005e000001"
"""MAC of a gateway. Tests count up for others."""
D = "02005e0000aa"
"""MAC of a device."""

REPORTS = "mt/gateway/+/device/#"


def report(gateway: str = G, device: str = D, kind: str = "measurement/8100") -> str:
    """Return the topic of a report."""
    return f"mt/gateway/{gateway}/device/{device}/{kind}"


def request(gateway: str = G, device: str = D, what: str = "read/8000") -> str:
    """Return the topic of a request."""
    return f"mt/gateway/{gateway}/request/{device}/{what}"


def response(gateway: str = G, device: str = D, what: str = "read/8000") -> str:
    """Return the topic of a response."""
    return f"mt/gateway/{gateway}/response/{device}/{what}"


class Clock:
    """Wall clock that a test can set and advance; `monotonic` is the monotonic clock."""

    def __init__(self) -> None:
        self._passed = 0
        self._ahead = 0
        self._epoch = 0

    def __call__(self) -> int:
        return self.monotonic() - self._epoch + self._ahead

    def monotonic(self) -> int:
        """Return the monotonic time, which setting the wall clock does not change."""
        return time.time_ns() // 1_000_000 + self._passed + self._epoch

    def move(self, *, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._passed += round(seconds * 1000)

    def set(self, *, seconds: float) -> None:
        """Set the wall clock, and only that, ahead by this many seconds."""
        self._ahead += round(seconds * 1000)

    def start_again(self, *, seconds: float) -> None:
        """Move the monotonic clock, and only that: each process has one of its own."""
        self._epoch += round(seconds * 1000)


class Denial(NamedTuple):
    """Attempt of an account to do more than the rules allow."""

    account: str
    action: str
    topic: str


class PasswordAuthenticator:
    """Authenticator that accepts PASSWORD: gateways by MAC, users by a name that begins with their role."""

    def __init__(self) -> None:
        self.denials: list[Denial] = []
        self.holds = False
        """Whether each CONNECT has to wait for an event of its own in `waiting`."""
        self.waiting: list[asyncio.Event] = []
        self.failures: list[Exception] = []
        """Errors to raise, one for each CONNECT."""
        self.credential_digest = b""
        """Digest of the credentials of later clients."""

    async def authenticate(self, connect: Connect, address: str) -> Account:
        assert address == "127.0.0.1"
        if self.holds:
            self.waiting.append(turn := asyncio.Event())
            await turn.wait()
        if self.failures:
            raise self.failures.pop(0)
        user = connect.user or ""
        if connect.password != PASSWORD:
            raise NotAdmitted(ConnectReturnCode.BAD_CREDENTIALS, "wrong password")
        for role in Role:
            if user.startswith(role):
                return Account(
                    kind=AccountKind.USER, name=user, role=role, credential_digest=self.credential_digest
                )
        return Account(kind=AccountKind.GATEWAY, name=user, credential_digest=self.credential_digest)

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        assert address == "127.0.0.1"
        self.denials.append(Denial(str(account), action, topic))


class Consumer:
    """Consumer that commits batches to the database, one at a time; a test may block it or let it fail."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.batches: list[list[Publish]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        """Errors to raise, one for each commit."""

    @property
    def messages(self) -> list[Publish]:
        """All committed messages."""
        return [message for batch in self.batches for message in batch]

    async def commit(self, batch: ReportBatch) -> None:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        await self._database.write(batch.write_changes)
        if batch.messages:
            self.batches.append(list(batch.messages))


class RunningBroker:
    """Broker that runs. `restart` stops it in an orderly way and runs another on the same database."""

    def __init__(  # noqa: PLR0913 # optional settings
        self,
        database: Database,
        limits: BrokerLimits | None = None,
        *,
        prefix: str = "",
        slow_seconds: float = 10.0,
        sweep_seconds: float = 1.0,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self.database = database
        self.limits = limits or BrokerLimits()
        self.prefix = prefix
        self.slow_seconds = slow_seconds
        self.sweep_seconds = sweep_seconds
        self.max_batch_bytes = max_batch_bytes
        self.clock = Clock()
        self.authenticator = PasswordAuthenticator()
        self.consumer = Consumer(database)
        self.port = 0
        self.is_used = False
        """Whether a row of a table of test cases has run on it."""
        self._clients: list[RawClient] = []
        self.broker: Broker
        self._running: asyncio.Task[None]
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Run a broker on the present content of the database."""
        self.broker = Broker(
            authenticator=self.authenticator,
            consumed_filters=[f"{self.prefix}/{REPORTS}" if self.prefix else REPORTS],
            limits=self.limits,
            owner_token=await self.database.write(take_ownership),
            stored_state=await self.database.read(load_stored_state),
            monotonic_clock=self.clock.monotonic,
            wall_clock=self.clock,
            topic_prefix=self.prefix,
            slow_seconds=self.slow_seconds,
            sweep_seconds=self.sweep_seconds,
            max_batch_bytes=self.max_batch_bytes,
        )
        self._running = asyncio.create_task(self.broker.run(self.consumer))
        await asyncio.sleep(0)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self._server = await asyncio.get_running_loop().create_server(
            self.broker.create_connection, sock=listener
        )
        self.port = listener.getsockname()[1]

    async def stop(self) -> None:
        """Stop the broker in an orderly way. Raise its error if it had failed."""
        await self._stop_listening()
        for client in self._clients:
            client.abort()
        self._running.cancel()
        await asyncio.wait([self._running])
        if not self._running.cancelled() and (problem := self._running.exception()) is not None:
            raise problem

    async def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.SelectorEventLoop):
            # It would leave a connection open that it has just accepted: let it start that connection first.
            for each in self._server.sockets:
                loop.remove_reader(each.fileno())
            await asyncio.sleep(0)
        self._server.close()

    async def restart(self) -> None:
        """Stop the broker, and run another on the same database, at another port."""
        await self.stop()
        await self.start()

    async def renew(self) -> None:
        """Stop the broker, and run another on an empty database."""
        await self.stop()
        self._clients.clear()
        await self.database.write(_delete_broker_state)
        self.clock, self.authenticator, self.consumer = (
            Clock(),
            PasswordAuthenticator(),
            Consumer(self.database),
        )
        await self.start()

    async def gateway(self, mac: str = G, **options: object) -> RawClient:
        """Connect a gateway. `options` are those of a CONNECT."""
        return await self.client(mac, client_id=mac, **options)

    async def client(self, user: str, **options: object) -> RawClient:
        """Connect a client: a gateway by its MAC, or a user such as `viewer`, `operator-2`."""
        client = await self.raw_client()
        client.send(connect(user, **options))
        connack = await client.expect(Connack)
        assert connack.code == ConnectReturnCode.ACCEPTED, connack
        return client

    async def raw_client(self) -> RawClient:
        """Open a connection that has sent nothing."""
        client = await RawClient.open(self.port)
        self._clients.append(client)
        return client

    async def subscriber(self, user: str, *filters: str, qos: int = 1, **options: object) -> RawClient:
        """Connect a client and subscribe it."""
        client = await self.client(user, **options)
        client.send(Subscribe(1, tuple((topic_filter, qos) for topic_filter in filters)))
        suback = await client.expect(Suback)
        assert set(suback.codes) == {min(qos, 1)}, suback
        return client

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition is true that the broker brings about by itself."""
        await eventually_async(holds)


def _delete_broker_state(connection: Connection) -> None:
    # Deleting a session deletes everything that belongs to it.
    for table in (
        broker_session,
        broker_retained,
    ):
        connection.execute(delete(table))


def with_fresh_broker(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Give each row of a table of test cases a broker without state."""

    @functools.wraps(test)
    async def run_with_fresh_broker(server: RunningBroker, **others: object) -> None:
        if server.is_used:
            await server.renew()
        server.is_used = True
        await test(server=server, **others)

    return run_with_fresh_broker


def connect(user: str, **options: object) -> Connect:
    """Return a CONNECT with the right password."""
    fields = {"client_id": user, "user": user, "password": PASSWORD, **options}
    return Connect(**fields)  # type: ignore[arg-type] # values of different types
