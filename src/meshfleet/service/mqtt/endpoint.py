"""The embedded broker inside the service: it asks our accounts, and keeps its memory in our database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from meshfleet.broker import Broker, load
from meshfleet.service.mqtt.accepting import accept_clients
from meshfleet.service.mqtt.complaints import Complaints
from meshfleet.service.mqtt.doorkeeper import Doorkeeper
from meshfleet.service.mqtt.figures import BrokerFigures
from meshfleet.service.mqtt.watch import PERIOD, Watch
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.broker import Consumer
    from meshfleet.db import Database
    from meshfleet.errors import Trouble
    from meshfleet.service.accounts.login import Reception
    from meshfleet.service.clock import Now
    from meshfleet.service.mqtt.listeners import Entrance
    from meshfleet.service.operations.figures import Figures
    from meshfleet.settings import Settings


class Endpoint:
    """A broker and all that it needs of the service."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        database: Database,
        settings: Settings,
        *,
        consumer: Consumer,
        owner: bytes,
        reception: Reception,
        figures: Figures,
        now: Now,
        steady: Now,
        period: float = PERIOD,
    ) -> None:
        """`now` is the time that people read; `steady` never jumps, so what waits or expires goes by it.

        So many seconds pass between two looks at accounts: `period`.
        """
        complaints = Complaints(now)
        door = Doorkeeper(
            database, reception=reception, complaints=complaints, figures=figures, now=now, steady=steady
        )
        self._settings = settings
        self.broker = Broker(
            door=door,
            consumer=consumer,
            consumed=[Topics(settings.topic_prefix).reports()],
            limits=settings.limits,
            owner=owner,
            saved=database.read_now(load),
            now=steady,
            wall=now,
            prefix=settings.topic_prefix,
            max_age=settings.requests_max_age,
        )
        self._watch = Watch(database, self.broker, complaints, now, period=period)
        figures.show(BrokerFigures(self.broker))

    @property
    def trouble(self) -> Trouble | None:
        """Why no reports are taken at the moment; None: all is well."""
        return self.broker.trouble

    async def run(self, entrances: Sequence[Entrance]) -> None:
        """Serve MQTT clients until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.broker.run(), name="broker")
            tasks.create_task(self._watch.run(), name="broker.watch")
            await self.broker.lobby.is_open.wait()  # some may have been at the entrance since it was made
            await accept_clients(self.broker, entrances, self._settings)
