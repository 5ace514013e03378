"""Checks the login at Home Assistant's broker, and removes all devices there, while no service runs."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.errors.mqtt import ConnectionLost
from meshfleet.mqtt.client import BrokerAddress, MqttClient
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.service.homeassistant.discovery import DiscoveryOptions
from meshfleet.service.homeassistant.link import ClientLink, build_options, collect_retained
from meshfleet.service.homeassistant.plan import PublicationPlan
from meshfleet.service.homeassistant.state import ShownIdentifiers
from meshfleet.service.homeassistant.topics import IntegrationTopics

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.settings.model import HomeAssistantSettings

_TIMEOUT_SECONDS: Final = 5.0
_BATCH: Final = 20
"""Number of messages that are published at once."""
_BATCH_PAUSE_SECONDS: Final = 0.1
"""Seconds between two batches of messages, so that Home Assistant is not overloaded."""


async def check_login(address: BrokerAddress, authorities: Path | None) -> None:
    """Connect to a broker and disconnect. Raise `MqttError` if the broker is away or refuses the login."""
    options = replace(build_options(authorities, retry_first_connect=False), timeout=_TIMEOUT_SECONDS)
    async with MqttClient(address, f"meshfleet{secrets.token_hex(7)}", clean=True, options=options):
        pass


async def remove_published(settings: HomeAssistantSettings, address: BrokerAddress) -> int:
    """Delete all messages from a broker that a service with the topics of `settings` published.

    Return the number of removed devices. Raise `MqttError` if the broker cannot be reached, or
    `ConnectionLost` if the broker does not allow the login to read the topics.
    """
    await check_login(address, settings.broker_ca)  # `ClientLink` would wait for a broker that is away
    topics = IntegrationTopics(settings.discovery_prefix, settings.topic)
    options = DiscoveryOptions(topics, "", settings.form)
    plan = PublicationPlan(options, ShownIdentifiers(BUILTIN_CATALOGUE), with_commands=False)
    async with ClientLink(address, settings.broker_ca, will=None).open() as link:
        await link.wait_connected()
        refused = await collect_retained(
            link,
            topics.published_filters,
            topics.sync,
            lambda message: plan.record_published(message.topic, message.payload),
        )
        if refused:
            raise ConnectionLost(f"the broker does not let this login read {', '.join(refused)}")
        plan.remove_all()
        count = plan.pending_count
        while plan.has_queue:
            await link.publish(plan.take_queued(_BATCH))
            await asyncio.sleep(_BATCH_PAUSE_SECONDS)
        await link.publish([Publish(topics.status, b"", 1, retain=True)])
    return count
