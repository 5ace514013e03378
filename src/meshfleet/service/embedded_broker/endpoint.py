"""Embedded MQTT broker of a service, with accounts for logins and its state in the database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from meshfleet.mqtt.broker import Broker, HomeAssistantTopics, ReportConsumer, load_stored_state
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.embedded_broker.authentication import AccountAuthenticator
from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog
from meshfleet.service.embedded_broker.listeners import MqttListener, accept_clients
from meshfleet.service.embedded_broker.revocation import POLL_SECONDS, RevocationWatcher
from meshfleet.service.metric_table import add_broker_metrics
from meshfleet.settings.model import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.accounts.login import Logins
    from meshfleet.service.clock import Now
    from meshfleet.service.metrics import Metrics
    from meshfleet.service.transport import Transport
    from meshfleet.settings import Settings


class EmbeddedBroker:
    """MQTT broker of the service with its authenticator, revocation watcher and metrics."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        database: Database,
        settings: Settings,
        listeners: Sequence[MqttListener],
        *,
        owner: bytes,
        logins: Logins,
        metrics: Metrics,
        now: Now,
        monotonic: Now,
        poll_interval: float = POLL_SECONDS,
    ) -> None:
        """Create the broker. `now` is the wall clock; `monotonic` is the clock for waiting and expiry.

        `owner` is the token that proves that this process owns the stored broker state. `poll_interval` is
        the number of seconds between two checks for revoked accounts.
        """
        denied_access = DeniedAccessLog(now)
        authenticator = AccountAuthenticator(
            database,
            logins=logins,
            denied_access=denied_access,
            metrics=metrics,
            now=now,
            monotonic=monotonic,
        )
        self._listeners = listeners
        self.broker = Broker(
            authenticator=authenticator,
            consumed_filters=[TopicCodec(settings.topic_prefix).report_filter()],
            limits=settings.limits,
            owner_token=owner,
            stored_state=database.read_now(load_stored_state),
            monotonic_clock=monotonic,
            wall_clock=now,
            topic_prefix=settings.topic_prefix,
            home_assistant=_select_topics(settings),
            request_max_age=settings.requests_max_age,
        )
        self._revocation_watcher = RevocationWatcher(
            database, self.broker, denied_access, now, poll_interval=poll_interval
        )
        add_broker_metrics(metrics, self.broker)

    @property
    def transport(self) -> Transport:
        """The embedded broker itself, through which requests to gateways are sent."""
        return self.broker

    @property
    def problem(self) -> ReadinessProblem | None:
        """Problem that keeps the broker from accepting reports, or None."""
        return self.broker.problem

    def apply_home_assistant(self, settings: Settings) -> None:
        """Change which topics API keys for Home Assistant may use."""
        self.broker.set_home_assistant_topics(_select_topics(settings))

    async def publish_all(self, messages: Sequence[Publish]) -> None:
        """Publish messages as the service. Return when those with QoS 1 are committed."""
        await self.broker.publish_all(messages)

    def set_request_max_age(self, seconds: float) -> None:
        """Change after how many seconds a request to a disconnected gateway is dropped."""
        self.broker.set_request_max_age(seconds)

    async def run(self, consumer: ReportConsumer) -> None:
        """Serve MQTT clients and pass their reports to the consumer until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.broker.run(consumer), name="broker")
            tasks.create_task(self._revocation_watcher.run(), name="broker.revocation")
            # The sockets already listen: clients may be queued there before the broker can serve them.
            await self.broker.connect_handler.accepting.wait()
            await accept_clients(self.broker, self._listeners)


def _select_topics(settings: Settings) -> HomeAssistantTopics:
    """Return the topics of Home Assistant at the embedded broker."""
    chosen = settings.homeassistant
    has_commands = chosen.commands and chosen.broker == EMBEDDED
    return HomeAssistantTopics(chosen.discovery_prefix, chosen.topic, has_commands)
