"""The embedded broker of a service as MQTT clients find it, with all that the service gives it."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Self

from meshfleet.broker import own
from meshfleet.service.mqtt.endpoint import Endpoint
from meshfleet.service.mqtt.listeners import Entrance
from meshfleet.settings import Settings
from meshfleet.wire.mqtt.packets import Accept, Connack, Connect, Suback, Subscribe
from tests.broker.raw import Raw
from tests.eventually import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.broker import Batch
    from meshfleet.db import Database
    from tests.service.mqtt.house import Credentials, House


_PERIOD = 0.05
"""Seconds between two looks at accounts: tests wait for them."""


class Recorder:
    """A consumer that forgets reports, and writes down what the broker has to remember."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, batch: Batch) -> None:
        """Commit a batch."""
        if batch.has_news:
            await self._database.write(batch.record)


class Site:
    """A broker that runs on the accounts of a house."""

    def __init__(self, house: House, settings: Settings | None = None, *, scheme: str = "mqtt") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._scheme = scheme
        self._endpoint = Endpoint(
            house.database,
            settings or Settings(),
            consumer=Recorder(house.database),
            owner=house.database.write_now(own),
            reception=house.reception,
            figures=house.figures,
            now=house.clock,
            steady=house.clock.steady,
            period=_PERIOD,
        )
        self.broker = self._endpoint.broker
        self._clients: list[Raw] = []

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._endpoint.run([Entrance(self._listener, self._scheme)]))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        self._running.cancel()
        await asyncio.wait([self._running])
        self._listener.close()
        assert self._running.cancelled(), self._running.exception()

    async def client(self, who: Credentials, **options: object) -> tuple[Raw, Connack]:
        """Somebody who connects, and what the broker says to it. `options` are those of a CONNECT."""
        client = await self.stranger()
        client.send(connect(who, **options))
        return client, await client.expect(Connack)

    async def guest(self, who: Credentials, **options: object) -> Raw:
        """Somebody who is let in."""
        client, answer = await self.client(who, **options)
        assert answer.code == Accept.ACCEPTED, answer
        return client

    async def stranger(self) -> Raw:
        """Somebody who is connected and has said nothing."""
        client = await Raw.open(self.port)
        self._clients.append(client)
        return client

    async def subscriber(self, who: Credentials, wanted: str, **options: object) -> Raw:
        """Somebody who is let in and subscribed."""
        client = await self.guest(who, **options)
        client.send(Subscribe(1, ((wanted, 1),)))
        assert await client.expect(Suback) == Suback(1, (1,))
        return client


def connect(who: Credentials, **options: object) -> Connect:
    """The CONNECT of somebody."""
    given = {"client_id": who.user, "user": who.user, "password": who.password.encode(), **options}
    return Connect(**given)  # type: ignore[arg-type] # by the names of its fields


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds that the service does by itself."""
    await eventually_async(lambda: bool(holds()), "what the service does by itself")
