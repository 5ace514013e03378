"""Gateways that report continuously, and resend unacknowledged reports after a reconnect."""

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
"""Concurrent publishers of one gateway, each of which waits for acknowledgments before it continues."""
_REPORTS_PER_BATCH = 9
"""Reports that a publisher sends at a time."""
_MAX_AHEAD = 1000
"""Messages that may be acknowledged in advance: an undisturbed broker is fast."""

_MAX_MESSAGES = 3000
"""Messages that a gateway with paho-mqtt publishes."""

_RECONNECT_OPTIONS = MqttOptions(
    backoff=ExponentialBackoff(initial=0.01, maximum=0.2), retry_first_connect=True
)
"""Short backoff, so that tests do not wait for gateways."""


class ReportLoad:
    """Gateways with our own MQTT client. Leaving the block waits until all messages are acknowledged."""

    def __init__(self, address: servers.ServerAddress, gateways: Sequence[Credentials]) -> None:
        self.sources = [ReportSource(gateway.user) for gateway in gateways]
        self._clients = [
            MqttClient(
                BrokerAddress(
                    host=address.host, port=address.port, user=gateway.user, password=gateway.password
                ),
                gateway.user,
                options=_RECONNECT_OPTIONS,
            )
            for gateway in gateways
        ]
        self._is_stopping = False
        self._target = 0
        self._may_publish = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for client, source in zip(self._clients, self.sources, strict=True):
            self._tasks.append(asyncio.create_task(self._report(client, source)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_stopping = True
        self._may_publish.set()
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=kind is not None)

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged messages."""
        return sum(source.acknowledged for source in self.sources)

    async def wait_for_acks(self, messages: int = 400) -> None:
        """Wait until this number of further messages is acknowledged."""
        self._target = self.acknowledged + messages
        self._may_publish.set()
        await until(lambda: self.acknowledged >= self._target or any(task.done() for task in self._tasks))
        assert self.acknowledged >= self._target

    async def _report(self, client: MqttClient, source: ReportSource) -> None:
        async with client, asyncio.TaskGroup() as publishers:
            for _ in range(_REPORTERS_PER_GATEWAY):
                publishers.create_task(self._publish(client, source))

    async def _publish(self, client: MqttClient, source: ReportSource) -> None:
        while not self._is_stopping:
            messages = source.next_messages(_REPORTS_PER_BATCH)
            await client.publish_all(messages)
            source.acknowledged += len(messages)
            if self.acknowledged >= self._target + _MAX_AHEAD and not self._is_stopping:
                self._may_publish.clear()
            await self._may_publish.wait()


class PahoGateway:
    """Gateway with paho-mqtt, which publishes the next report whenever one is acknowledged."""

    def __init__(self, address: servers.ServerAddress, credentials: Credentials) -> None:
        self.source = ReportSource(credentials.user)
        self._address = address
        self._client = Client(CallbackAPIVersion.VERSION2, credentials.user, clean_session=False)
        self._client.username_pw_set(*credentials)
        self._client.reconnect_delay_set(min_delay=1, max_delay=1)
        self._client.on_publish = lambda *_: self._on_acknowledged()
        self._lock = Lock()
        self._is_stopping = False

    async def __aenter__(self) -> Self:
        self._client.connect(*self._address)
        self._client.loop_start()
        for _ in range(_REPORTERS_PER_GATEWAY * _REPORTS_PER_BATCH):
            self._publish()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_stopping = True
        if kind is None:
            await until(lambda: self.source.unacknowledged == 0)
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def _publish(self) -> None:
        with self._lock:
            messages = self.source.next_messages(1)
        for message in messages:
            self._client.publish(message.topic, message.payload, 1)

    def _on_acknowledged(self) -> None:
        with self._lock:
            self.source.acknowledged += 1
        if not self._is_stopping and self.source.published < _MAX_MESSAGES:
            self._publish()
