"""Running embedded broker with the accounts of the service, for tests."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Self

from meshfleet.mqtt.broker import ReportBatch, take_ownership
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode, Suback, Subscribe
from meshfleet.service.embedded_broker.endpoint import EmbeddedBroker
from meshfleet.service.embedded_broker.listeners import MqttListener
from meshfleet.service.server_certificate import load_server_certificate
from meshfleet.settings import Settings
from tests.eventually import eventually_async
from tests.mqtt.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from tests.service.embedded_broker.mqtt_accounts import Credentials, MqttAccounts


_POLL_SECONDS = 0.05
"""Seconds between two checks of accounts: tests wait for them."""


class Recorder:
    """Consumer that discards reports and stores the changes of the broker's state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, batch: ReportBatch) -> None:
        """Commit a batch."""
        if batch.has_changes:
            await self._database.write(batch.write_changes)


class RunningBroker:
    """Broker that runs with these accounts."""

    def __init__(
        self, accounts: MqttAccounts, settings: Settings | None = None, *, scheme: str = "mqtt"
    ) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        certificate = load_server_certificate(settings or Settings())
        tls = certificate.context if certificate is not None and scheme in {"mqtts", "wss"} else None
        self.port = self._listener.getsockname()[1]
        self.endpoint = EmbeddedBroker(
            accounts.database,
            settings or Settings(),
            [MqttListener(self._listener, scheme, tls)],
            owner=accounts.database.write_now(take_ownership),
            logins=accounts.logins,
            metrics=accounts.metrics,
            now=accounts.clock,
            monotonic=accounts.clock.monotonic,
            poll_interval=_POLL_SECONDS,
        )
        self.broker = self.endpoint.broker
        self._consumer = Recorder(accounts.database)
        self._clients: list[RawClient] = []

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.endpoint.run(self._consumer))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        self._running.cancel()
        await asyncio.wait([self._running])
        self._listener.close()
        assert self._running.cancelled(), self._running.exception()

    async def client(self, credentials: Credentials, **options: object) -> tuple[RawClient, Connack]:
        """Connect and return the client with its CONNACK. `options` are fields of the CONNECT."""
        client = await self.open_unauthenticated()
        client.send(build_connect(credentials, **options))
        return client, await client.expect(Connack)

    async def connect(self, credentials: Credentials, **options: object) -> RawClient:
        """Connect a client, which must be accepted."""
        client, connack = await self.client(credentials, **options)
        assert connack.code == ConnectReturnCode.ACCEPTED, connack
        return client

    async def open_unauthenticated(self) -> RawClient:
        """Open a connection without sending a CONNECT."""
        client = await RawClient.open(self.port)
        self._clients.append(client)
        return client

    async def subscriber(self, credentials: Credentials, topic_filter: str, **options: object) -> RawClient:
        """Connect a client and subscribe."""
        client = await self.connect(credentials, **options)
        client.send(Subscribe(1, ((topic_filter, 1),)))
        assert await client.expect(Suback) == Suback(1, (1,))
        return client


def build_connect(credentials: Credentials, **options: object) -> Connect:
    """Return a CONNECT packet with these credentials."""
    fields = {
        "client_id": credentials.user,
        "user": credentials.user,
        "password": credentials.password.encode(),
        **options,
    }
    return Connect(**fields)  # type: ignore[arg-type] # fields by name


async def until(condition: Callable[[], object]) -> None:
    """Wait until a background task of the service has made a condition true."""
    await eventually_async(lambda: bool(condition()), "the expected state of the service")
