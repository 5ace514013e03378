"""The embedded broker of a service as MQTT clients find it, with all that the service gives it."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Self

from meshfleet.mqtt.broker import take_ownership
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode, Suback, Subscribe
from meshfleet.service.embedded_broker.endpoint import EmbeddedBroker
from meshfleet.service.embedded_broker.listeners import MqttListener
from meshfleet.settings import Settings
from tests.eventually import eventually_async
from tests.mqtt.broker.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import ReportBatch
    from tests.service.embedded_broker.mqtt_accounts import Credentials, MqttAccounts


_PERIOD = 0.05
"""Seconds between two looks at accounts: tests wait for them."""


class Recorder:
    """A consumer that forgets reports, and writes down what the broker has to remember."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, batch: ReportBatch) -> None:
        """Commit a batch."""
        if batch.has_changes:
            await self._database.write(batch.write_changes)


class RunningBroker:
    """A broker that runs on the accounts of a house."""

    def __init__(
        self, house: MqttAccounts, settings: Settings | None = None, *, scheme: str = "mqtt"
    ) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._scheme = scheme
        self._endpoint = EmbeddedBroker(
            house.database,
            settings or Settings(),
            consumer=Recorder(house.database),
            owner=house.database.write_now(take_ownership),
            logins=house.logins,
            metrics=house.metrics,
            now=house.clock,
            steady=house.clock.steady,
            poll_interval=_PERIOD,
        )
        self.broker = self._endpoint.broker
        self._clients: list[RawClient] = []

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._endpoint.run([MqttListener(self._listener, self._scheme)]))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        self._running.cancel()
        await asyncio.wait([self._running])
        self._listener.close()
        assert self._running.cancelled(), self._running.exception()

    async def client(self, who: Credentials, **options: object) -> tuple[RawClient, Connack]:
        """Somebody who connects, and what the broker says to it. `options` are those of a CONNECT."""
        client = await self.open_unauthenticated()
        client.send(build_connect(who, **options))
        return client, await client.expect(Connack)

    async def connect(self, who: Credentials, **options: object) -> RawClient:
        """Somebody who is let in."""
        client, answer = await self.client(who, **options)
        assert answer.code == ConnectReturnCode.ACCEPTED, answer
        return client

    async def open_unauthenticated(self) -> RawClient:
        """Somebody who is connected and has said nothing."""
        client = await RawClient.open(self.port)
        self._clients.append(client)
        return client

    async def subscriber(self, who: Credentials, wanted: str, **options: object) -> RawClient:
        """Somebody who is let in and subscribed."""
        client = await self.connect(who, **options)
        client.send(Subscribe(1, ((wanted, 1),)))
        assert await client.expect(Suback) == Suback(1, (1,))
        return client


def build_connect(who: Credentials, **options: object) -> Connect:
    """The CONNECT of somebody."""
    given = {"client_id": who.user, "user": who.user, "password": who.password.encode(), **options}
    return Connect(**given)  # type: ignore[arg-type] # by the names of its fields


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds that the service does by itself."""
    await eventually_async(lambda: bool(holds()), "what the service does by itself")
