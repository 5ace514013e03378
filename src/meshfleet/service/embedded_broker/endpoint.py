"""The embedded broker inside the service: it asks our accounts, and keeps its memory in our database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from meshfleet.mqtt.broker import Broker, load_stored_state
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.embedded_broker.authentication import AccountAuthenticator
from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog
from meshfleet.service.embedded_broker.listeners import accept_clients
from meshfleet.service.embedded_broker.metrics import BrokerMetrics
from meshfleet.service.embedded_broker.revocation import POLL_SECONDS, RevocationWatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.broker import ReportConsumer
    from meshfleet.service.accounts.login import Logins
    from meshfleet.service.clock import Now
    from meshfleet.service.embedded_broker.listeners import MqttListener
    from meshfleet.service.metrics import Metrics
    from meshfleet.settings import Settings


class EmbeddedBroker:
    """A broker and all that it needs of the service."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        database: Database,
        settings: Settings,
        *,
        consumer: ReportConsumer,
        owner: bytes,
        logins: Logins,
        metrics: Metrics,
        now: Now,
        steady: Now,
        poll_interval: float = POLL_SECONDS,
    ) -> None:
        """`now` is the time that people read; `steady` never jumps, so what waits or expires goes by it.

        So many seconds pass between two looks at accounts: `period`.
        """
        complaints = DeniedAccessLog(now)
        door = AccountAuthenticator(
            database, logins=logins, denied_access=complaints, metrics=metrics, now=now, steady=steady
        )
        self._settings = settings
        self.broker = Broker(
            authenticator=door,
            consumer=consumer,
            consumed_filters=[TopicCodec(settings.topic_prefix).report_filter()],
            limits=settings.limits,
            owner_token=owner,
            stored_state=database.read_now(load_stored_state),
            steady_clock=steady,
            wall_clock=now,
            topic_prefix=settings.topic_prefix,
            request_max_age=settings.requests_max_age,
        )
        self._revocation_watcher = RevocationWatcher(
            database, self.broker, complaints, now, poll_interval=poll_interval
        )
        metrics.register(BrokerMetrics(self.broker))

    @property
    def trouble(self) -> ReadinessProblem | None:
        """Why no reports are taken at the moment; None: all is well."""
        return self.broker.trouble

    async def run(self, listeners: Sequence[MqttListener]) -> None:
        """Serve MQTT clients until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.broker.run(), name="broker")
            tasks.create_task(self._revocation_watcher.run(), name="broker.watch")
            await (
                self.broker.connect_handler.accepting.wait()
            )  # some may have been at the entrance since it was made
            await accept_clients(self.broker, listeners, self._settings)
