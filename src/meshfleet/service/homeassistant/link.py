"""Connections to the broker that Home Assistant uses: the embedded broker, or another one over MQTT."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.errors.mqtt import ConnectionLost, MqttError, SubscriptionRefused
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions
from meshfleet.mqtt.codec.packets import Publish, Will
from meshfleet.service.homeassistant.plan import OFFLINE
from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from meshfleet.mqtt.broker import Broker
    from meshfleet.mqtt.client import MessageBatch
    from meshfleet.service.homeassistant.topics import IntegrationTopics

_RECONNECT_DELAYS: Final = ExponentialBackoff(maximum=30.0)
_SYNC_SECONDS: Final = 30.0
"""Maximum seconds to wait until the broker has sent all retained messages."""


class BrokerLink(Protocol):
    """Connection to a broker. A lost connection is opened again."""

    on_message: Callable[[Publish], None]
    """Called for every received message."""

    @property
    def connection_number(self) -> int:
        """Number that is higher after each new connection."""

    async def wait_connected(self) -> None:
        """Wait until the broker is connected."""

    async def subscribe(self, topic_filter: str, *, qos: int = 1) -> None:
        """Subscribe to a filter now and after each reconnect. Raise `SubscriptionRefused` if not allowed."""

    async def unsubscribe(self, topic_filter: str) -> None:
        """Remove a subscription."""

    async def publish(self, messages: Sequence[Publish]) -> None:
        """Publish messages. Raise `ConnectionLost` if the connection breaks before they are acknowledged."""

    def publish_last(self, message: Publish) -> None:
        """Publish a message without waiting, because the integration stops."""


class EmbeddedLink:
    """Link to the embedded broker, in the same process. This link is always connected."""

    connection_number = 1

    def __init__(self, broker: Broker) -> None:
        self.on_message: Callable[[Publish], None] = _ignore_message
        self._broker = broker
        self._subscribers: dict[str, object] = {}

    async def wait_connected(self) -> None:
        """Return at once: the broker is in the same process."""

    async def subscribe(self, topic_filter: str, *, qos: int = 1) -> None:  # noqa: ARG002 # as of a client
        """Subscribe to a filter. The retained messages that match are delivered before this returns."""
        if topic_filter not in self._subscribers:
            subscriber = self._broker.subscribe(topic_filter, self._receive)
            self._subscribers[topic_filter] = subscriber

    async def unsubscribe(self, topic_filter: str) -> None:
        """Remove a subscription."""
        subscriber = self._subscribers.pop(topic_filter, None)
        if subscriber is not None:
            self._broker.unsubscribe(topic_filter, subscriber)  # type: ignore[arg-type] # `subscribe` returned it

    async def publish(self, messages: Sequence[Publish]) -> None:
        """Publish messages, and return when the broker has committed them to the database."""
        await self._broker.publish_all(messages)

    def publish_last(self, message: Publish) -> None:
        """Publish a message without waiting until the broker has committed the message."""
        self._broker.publish_soon(message)

    def _receive(self, message: Publish) -> None:
        self.on_message(message)

    async def close(self) -> None:
        """Remove all subscriptions."""
        for topic_filter in list(self._subscribers):
            await self.unsubscribe(topic_filter)


class ClientLink:
    """Link to a broker at an address, as an MQTT client."""

    def __init__(self, address: BrokerAddress, authorities: Path | None, *, will: Will | None) -> None:
        self.on_message: Callable[[Publish], None] = _ignore_message
        self.connection_number = 1
        self._client = MqttClient(
            address,
            f"meshfleet{secrets.token_hex(7)}",
            clean=True,
            will=will,
            options=build_options(authorities, retry_first_connect=True),
            on_connection_lost=self._count_connection,
        )

    @property
    def connection_error(self) -> MqttError | None:
        """Why there is no connection at present; None if there is one."""
        return self._client.connection_error

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ClientLink]:
        """Connect to the broker, and pass received messages to `on_message`, during the context."""
        async with self._client:
            receiving = asyncio.create_task(self._receive(), name="homeassistant.receive")
            try:
                yield self
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)

    async def wait_connected(self) -> None:
        """Wait until there is a connection that accepts messages."""
        await self._client.wait_writable()

    async def subscribe(self, topic_filter: str, *, qos: int = 1) -> None:
        """Subscribe to a filter now and after each reconnect. Raise `SubscriptionRefused` if not allowed."""
        await self._client.subscribe(topic_filter, qos=qos)

    async def unsubscribe(self, topic_filter: str) -> None:
        """Remove a subscription."""
        await self._client.unsubscribe(topic_filter)

    async def publish(self, messages: Sequence[Publish]) -> None:
        """Publish messages, and return when the broker has acknowledged them."""
        await self._client.publish_all(messages)

    def publish_last(self, message: Publish) -> None:
        """Send a message if the broker is connected, else drop it. Closing the link waits for the PUBACK."""
        self._client.try_publish([message])

    def _count_connection(self, _: ConnectionLost) -> None:
        """Increase the connection number after a lost connection."""
        self.connection_number += 1

    async def _receive(self) -> None:
        async for batch in self._client:
            self._handle(batch)

    def _handle(self, batch: MessageBatch) -> None:
        for message in batch.messages:
            self.on_message(message)
        batch.acknowledge()


def build_options(authorities: Path | None, *, retry_first_connect: bool) -> MqttOptions:
    """Return the options of the MQTT client for the broker of Home Assistant.

    Messages without PUBACK are not resent on the next connection, because newer messages replace them.
    """
    return MqttOptions(
        tls=None if authorities is None else create_tls_context(authorities=authorities),
        retry_first_connect=retry_first_connect,
        backoff=_RECONNECT_DELAYS,
        discard_on_disconnect=True,
    )


def build_will(topics: IntegrationTopics) -> Will:
    """Return the will of the MQTT client, with which the broker publishes that the service is offline."""
    return Will(topics.status, OFFLINE, 1, retain=True)


async def collect_retained(
    link: BrokerLink, filters: Iterable[str], sync_topic: str, found: Callable[[Publish], None]
) -> list[str]:
    """Call `found` for each retained message on the broker that matches one of the topic filters.

    Return the filters that the broker refused; also `sync_topic` if the broker did not send all messages in
    time. A message that the service publishes to itself on `sync_topic` marks the end: a broker sends that
    message after the retained messages of earlier subscriptions.
    """
    is_complete = asyncio.Event()
    token = secrets.token_bytes(8)

    def handle(message: Publish) -> None:
        if message.topic != sync_topic:
            found(message)
        elif message.payload == token:
            is_complete.set()

    before, link.on_message = link.on_message, handle
    subscribed: list[str] = []
    refused: list[str] = []
    try:
        for topic_filter in (*filters, sync_topic):
            try:
                await link.subscribe(topic_filter, qos=0)  # brokers limit queues of QoS 1
            except SubscriptionRefused:
                refused.append(topic_filter)
            else:
                subscribed.append(topic_filter)
        await link.publish([Publish(sync_topic, token, 1)])
        async with asyncio.timeout(_SYNC_SECONDS):
            await is_complete.wait()
    except TimeoutError:
        refused.append(sync_topic)
    finally:
        link.on_message = before
    for topic_filter in subscribed:
        await link.unsubscribe(topic_filter)
    return refused


def _ignore_message(_: Publish) -> None:
    """Do nothing with a message, as long as no other function is set."""
