"""The way on which a gateway asks the service and hears its answers, there only while somebody uses it.

It is a connection of its own (gateway-5), whose client id is the MAC in upper case. Hardly one of the
thousands of gateways in a process has a question, so none keeps that connection for nothing. A MAC without
letters would be the client id of both connections, and they would push each other off the broker; such a
gateway asks over the link that it has.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.errors.mqtt import LinkError
from meshfleet.mqtt.client import MqttClient
from meshfleet.protocol.diagnostics import format_answer_topic

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import AsyncIterator, Callable

    from meshfleet.mqtt.client import BrokerAddress, MqttOptions
    from meshfleet.protocol.ids import Mac

_log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS: Final = 15
"""Seconds (gateway-5)."""


class DiagnosticsConnection:
    """A link with a subscription to the answers, shared by everybody who has a question.

    `shared` is the gateway's own link. When the MAC makes it needed, its owner brings the answers itself.
    """

    def __init__(
        self,
        address: BrokerAddress,
        gateway: Mac,
        *,
        shared: MqttClient | None,
        on_answer: Callable[[bytes], None],
        options: MqttOptions,
    ) -> None:
        alike = gateway.upper() == gateway
        if alike and shared is None:
            raise ValueError(f"{gateway} has no letters: it can only ask over its own link")
        self._address = address
        self._gateway = gateway
        self._shared = shared if alike else None
        self._options = replace(options, keep_alive=_KEEP_ALIVE_SECONDS, retry_first_connect=True)
        self._on_answer = on_answer
        self._link = self._shared
        self._users = 0
        self._ready: Future[MqttClient] | None = None
        self._task: Task[None] | None = None

    @property
    def problem(self) -> LinkError | None:
        """Why there is no connection now."""
        return None if self._link is None else self._link.connection_error

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Future[MqttClient]]:
        """The link, as soon as answers can be heard on it. Shield it: others wait for it too.

        The last to leave waits until connection and subscription are gone.
        """
        ready = self._ready = self._ready or self._start()
        self._users += 1
        try:
            yield ready
        finally:
            self._users -= 1
            if not self._users:
                await self._stop()

    def _start(self) -> Future[MqttClient]:
        loop = asyncio.get_running_loop()
        ready: Future[MqttClient] = loop.create_future()
        self._task = loop.create_task(
            self._serve(ready, after=self._task), name=f"diagnostics of {self._gateway}"
        )
        return ready

    async def _stop(self) -> None:
        self._ready = None
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _serve(self, ready: Future[MqttClient], after: Task[None] | None) -> None:
        """Hold the line until cancelled. The one before may be taking its leave, under the same client id."""
        if after is not None:
            await asyncio.wait((after,))
        try:
            if self._shared is None:
                await self._connect(ready)
            else:
                await self._use_shared_link(self._shared, ready)
        except LinkError as problem:
            if not ready.done():
                ready.set_exception(problem)
                ready.exception()  # whoever asked may have gone meanwhile, which is no reason to complain
            _log.debug("%s cannot ask: %s", self._gateway, problem)

    async def _connect(self, ready: Future[MqttClient]) -> None:
        self._link = MqttClient(self._address, self._gateway.upper(), clean=True, options=self._options)
        async with self._link as link:
            await link.subscribe(format_answer_topic(self._gateway))
            ready.set_result(link)
            async for batch in link:
                for message in batch.messages:
                    self._on_answer(message.payload)
                batch.acknowledge()

    async def _use_shared_link(self, link: MqttClient, ready: Future[MqttClient]) -> None:
        topic = format_answer_topic(self._gateway)
        try:
            await link.subscribe(topic)
            ready.set_result(link)
            await asyncio.Event().wait()  # until cancelled
        finally:
            with suppress(LinkError, TimeoutError):
                async with asyncio.timeout(self._options.timeout):
                    await link.unsubscribe(topic)
