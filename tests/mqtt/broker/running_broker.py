"""A broker on the loopback interface with accounts of the test's choosing, on a real database."""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from sqlalchemy import delete

from meshfleet.db.tables import broker_retained, broker_session
from meshfleet.mqtt.broker import Account, AccountKind, Broker, NotAdmitted, load_stored_state, take_ownership
from meshfleet.mqtt.broker.broker import MAX_BATCH_BYTES
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode, Publish, Suback, Subscribe
from meshfleet.rest import Role
from tests.eventually import eventually_async
from tests.mqtt.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch

PASSWORD = b"correct"
"""Of everybody."""

G = "02005e000001"
"""A gateway. The MAC of another is made by counting up."""
D = "02005e0000aa"
"""A device."""

REPORTS = "mt/gateway/+/device/#"


def report(gateway: str = G, device: str = D, kind: str = "measurement/8100") -> str:
    """The topic of a report."""
    return f"mt/gateway/{gateway}/device/{device}/{kind}"


def request(gateway: str = G, device: str = D, what: str = "read/8000") -> str:
    """The topic of a request."""
    return f"mt/gateway/{gateway}/request/{device}/{what}"


def response(gateway: str = G, device: str = D, what: str = "read/8000") -> str:
    """The topic of a response."""
    return f"mt/gateway/{gateway}/response/{device}/{what}"


class Clock:
    """The time of the wall, and as much more as a test wants; `steady` is a clock that nobody sets."""

    def __init__(self) -> None:
        self._passed = 0
        self._ahead = 0
        self._epoch = 0

    def __call__(self) -> int:
        return self.steady() - self._epoch + self._ahead

    def steady(self) -> int:
        """Tell the time that passes however the clock on the wall is set."""
        return time.time_ns() // 1_000_000 + self._passed + self._epoch

    def move(self, *, seconds: float) -> None:
        """Let so much time pass."""
        self._passed += round(seconds * 1000)

    def set(self, *, seconds: float) -> None:
        """Set the clock on the wall, and that alone, ahead by so much."""
        self._ahead += round(seconds * 1000)

    def start_again(self, *, seconds: float) -> None:
        """Let the steady clock, and that alone, be ahead by so much: each process has one of its own."""
        self._epoch += round(seconds * 1000)


class Denial(NamedTuple):
    """Somebody wanted more than the rules allow."""

    account: str
    action: str
    topic: str


class PasswordAuthenticator:
    """Lets in whoever knows PASSWORD: gateways by their MAC, people by a name that begins with their role."""

    def __init__(self) -> None:
        self.denials: list[Denial] = []
        self.holds = False
        """Whether whoever comes has to wait, each for an event of its own in `waiting`."""
        self.waiting: list[asyncio.Event] = []
        self.failures: list[Exception] = []
        """Raised one after the other instead of an answer."""
        self.credential_digest = b""
        """Of the credentials of whoever comes."""

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
    """Commits batches to the database, one at a time; a test may hold it, or let it fail."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.batches: list[list[Publish]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        """Raised one after the other instead of a commit."""

    @property
    def messages(self) -> list[Publish]:
        """All that was committed."""
        return [message for batch in self.batches for message in batch]

    async def commit(self, batch: ReportBatch) -> None:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        await self._database.write(batch.write_changes)
        if batch.messages:
            self.batches.append(list(batch.messages))


class RunningBroker:
    """A broker that runs. `restart` stops it in an orderly way and runs another on the same database."""

    def __init__(  # noqa: PLR0913 # by name, each may be left out
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
        """Whether a row of a table was tried on it."""
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
        """Run a broker on what the database has."""
        self.broker = Broker(
            authenticator=self.authenticator,
            consumer=self.consumer,
            consumed_filters=[f"{self.prefix}/{REPORTS}" if self.prefix else REPORTS],
            limits=self.limits,
            owner_token=await self.database.write(take_ownership),
            stored_state=await self.database.read(load_stored_state),
            steady_clock=self.clock.steady,
            wall_clock=self.clock,
            topic_prefix=self.prefix,
            slow_seconds=self.slow_seconds,
            sweep_seconds=self.sweep_seconds,
            max_batch_bytes=self.max_batch_bytes,
        )
        self._running = asyncio.create_task(self.broker.run())
        await asyncio.sleep(0)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self._server = await asyncio.get_running_loop().create_server(
            self.broker.create_connection, sock=listener
        )
        self.port = listener.getsockname()[1]

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        self._server.close()
        for client in self._clients:
            client.abort()
        self._running.cancel()
        await asyncio.wait([self._running])
        if not self._running.cancelled() and (problem := self._running.exception()) is not None:
            raise problem

    async def restart(self) -> None:
        """Stop it, and run another on the same database, at another port."""
        await self.stop()
        await self.start()

    async def renew(self) -> None:
        """Stop it, and run another as if nothing had happened before."""
        await self.stop()
        self._clients.clear()
        await self.database.write(_forget)
        self.clock, self.authenticator, self.consumer = (
            Clock(),
            PasswordAuthenticator(),
            Consumer(self.database),
        )
        await self.start()

    async def gateway(self, mac: str = G, **options: object) -> RawClient:
        """A gateway that is let in. `options` are those of a CONNECT."""
        return await self.client(mac, client_id=mac, **options)

    async def client(self, user: str, **options: object) -> RawClient:
        """Somebody who is let in: a gateway by its MAC, or a person such as `viewer`, `operator-2`."""
        client = await self.raw_client()
        client.send(connect(user, **options))
        answer = await client.expect(Connack)
        assert answer.code == ConnectReturnCode.ACCEPTED, answer
        return client

    async def raw_client(self) -> RawClient:
        """Somebody who is connected and has said nothing."""
        client = await RawClient.open(self.port)
        self._clients.append(client)
        return client

    async def subscriber(self, user: str, *filters: str, qos: int = 1, **options: object) -> RawClient:
        """Somebody who is let in and subscribed."""
        client = await self.client(user, **options)
        client.send(Subscribe(1, tuple((wanted, qos) for wanted in filters)))
        answer = await client.expect(Suback)
        assert set(answer.codes) == {min(qos, 1)}, answer
        return client

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the broker does by itself."""
        await eventually_async(holds)


def _forget(connection: Connection) -> None:
    for table in (broker_session, broker_retained):  # with a session goes all that belongs to it
        connection.execute(delete(table))


def with_fresh_broker(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let each row of a table find its stage as if it were the first one."""

    @functools.wraps(test)
    async def renewed(stage: RunningBroker, **others: object) -> None:
        if stage.is_used:
            await stage.renew()
        stage.is_used = True
        await test(stage=stage, **others)

    return renewed


def connect(user: str, **options: object) -> Connect:
    """A CONNECT of somebody who knows the password."""
    given = {"client_id": user, "user": user, "password": PASSWORD, **options}
    return Connect(**given)  # type: ignore[arg-type] # by the names of its fields
