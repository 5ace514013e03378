"""Gateways that report without a rest, and say again what was not acknowledged when they are back."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING, Self

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions
from tests.scenarios.report_source import ReportSource
from tests.service.embedded_broker.running_broker import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests import servers
    from tests.service.embedded_broker.mqtt_accounts import Credentials

_REPORTERS_PER_GATEWAY = 4
"""Reporters of one gateway, each of which waits for acknowledgements before it goes on."""
_REPORTS_AT_ONCE = 9
"""Reports that it publishes at once."""
_MAX_AHEAD = 1000
"""Messages that may be acknowledged before anybody asks for them: a broker that nothing holds up is fast."""

_MAX_MESSAGES = 3000
"""Messages that a gateway with paho-mqtt publishes."""

_RECONNECT_OPTIONS = MqttOptions(
    backoff=ExponentialBackoff(initial=0.01, maximum=0.2), retry_first_connect=True
)
"""Gateways come back soon: tests do not wait for them."""


class ReportLoad:
    """Gateways with our own MQTT client. Who leaves the block has all of it acknowledged."""

    def __init__(self, place: servers.ServerAddress, gateways: Sequence[Credentials]) -> None:
        self.sources = [ReportSource(who.user) for who in gateways]
        self._links = [
            MqttClient(
                BrokerAddress(host=place.host, port=place.port, user=who.user, password=who.password),
                who.user,
                options=_RECONNECT_OPTIONS,
            )
            for who in gateways
        ]
        self._is_over = False
        self._enough = 0
        self._wanted = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for link, ledger in zip(self._links, self.sources, strict=True):
            self._running.append(asyncio.create_task(self._report(link, ledger)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over = True
        self._wanted.set()
        if kind is not None:
            for task in self._running:
                task.cancel()
        await asyncio.gather(*self._running, return_exceptions=kind is not None)

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return sum(ledger.acknowledged for ledger in self.sources)

    async def wait_for_acks(self, messages: int = 400) -> None:
        """Wait until so many more are acknowledged."""
        self._enough = self.acknowledged + messages
        self._wanted.set()
        await until(lambda: self.acknowledged >= self._enough or any(task.done() for task in self._running))
        assert self.acknowledged >= self._enough

    async def _report(self, link: MqttClient, ledger: ReportSource) -> None:
        async with link, asyncio.TaskGroup() as voices:
            for _ in range(_REPORTERS_PER_GATEWAY):
                voices.create_task(self._publish(link, ledger))

    async def _publish(self, link: MqttClient, ledger: ReportSource) -> None:
        while not self._is_over:
            messages = ledger.next_messages(_REPORTS_AT_ONCE)
            await link.publish_all(messages)
            ledger.acknowledged += len(messages)
            if self.acknowledged >= self._enough + _MAX_AHEAD and not self._is_over:
                self._wanted.clear()
            await self._wanted.wait()


class PahoGateway:
    """A gateway with paho-mqtt, which publishes the next report whenever one is acknowledged."""

    def __init__(self, place: servers.ServerAddress, who: Credentials) -> None:
        self.source = ReportSource(who.user)
        self._place = place
        self._client = Client(CallbackAPIVersion.VERSION2, who.user, clean_session=False)
        self._client.username_pw_set(*who)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_publish = lambda *_: self._on_acknowledged()
        self._turn = Lock()
        self._is_over = False

    async def __aenter__(self) -> Self:
        self._client.connect(*self._place)
        self._client.loop_start()
        for _ in range(_REPORTERS_PER_GATEWAY * _REPORTS_AT_ONCE):
            self._publish()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over = True
        if kind is None:
            await until(lambda: self.source.unacknowledged == 0)
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def _publish(self) -> None:
        with self._turn:
            messages = self.source.next_messages(1)
        for message in messages:
            self._client.publish(message.topic, message.payload, 1)

    def _on_acknowledged(self) -> None:
        with self._turn:
            self.source.acknowledged += 1
        if not self._is_over and self.source.published < _MAX_MESSAGES:
            self._publish()
