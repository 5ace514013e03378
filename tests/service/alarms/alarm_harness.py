"""Fleet of gateways and devices whose reports reach the real ingest, presence and rules on a moved clock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select

from meshfleet.db.tables import alarm, alarm_condition, alarm_event
from meshfleet.protocol.ids import Mac, mac_from_int
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import commands, engine
from meshfleet.service.alarms.rules import AlarmTimes
from meshfleet.service.alarms.watches.registry import WatchSchedule
from meshfleet.service.gateways import store as gateway_store
from tests.service.ingest.messages import heartbeat
from tests.service.presence.stored_presence_harness import StoredPresenceHarness

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sqlalchemy import Select

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.alarms.watches.watch import ServiceFacts

STEP = 10
"""Seconds of a step of the clock."""
MINUTE = 60
HOUR = 3600

TOLD = {"opened", "reopened", "cleared"}
"""Events of an alarm that people are told."""


class StoredAlarms:
    """Evaluation of the rules on a database, and queries of what it has stored."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.times = AlarmTimes()
        self.now = 0
        """Unix time in milliseconds."""
        self.service: ServiceFacts | None = None
        """Facts about the service itself."""
        self.is_receiving = True
        self._schedule = WatchSchedule()

    def evaluate(self) -> set[int]:
        """Evaluate the rules now."""
        watches = self._schedule.list_due(self.now)
        changed = self.database.write_now(
            engine.evaluate,
            self.now,
            self.times,
            is_receiving=self.is_receiving,
            watches=watches,
            service=self.service,
        )
        self._schedule.record_looks(watches, self.now)
        return changed

    # What is stored

    def alarms(self, *, state: str | None = None) -> list[Any]:
        """Return the alarms, oldest first."""
        query = select(alarm).order_by(alarm.c.id)
        if state is not None:
            query = query.where(alarm.c.state == state)
        return self._select(query)

    def summarize(self) -> list[tuple[str, str, str, int]]:
        """Return rule, cause, state and number of affected devices of all alarms."""
        return [(each.rule, each.cause, each.state, each.affected) for each in self.alarms()]

    def told(self) -> list[tuple[str, str]]:
        """Return rule and kind of all events that people are told, oldest first."""
        query = (
            select(alarm.c.rule, alarm_event.c.kind)
            .join(alarm, alarm.c.id == alarm_event.c.alarm)
            .where(alarm_event.c.kind.in_(TOLD))
            .order_by(alarm_event.c.id)
        )
        return [(row.rule, row.kind) for row in self._select(query)]

    def details(self, kind: str) -> list[dict[str, Any]]:
        """Return the details of all events of a kind."""
        query = select(alarm_event.c.detail).where(alarm_event.c.kind == kind).order_by(alarm_event.c.id)
        return [msgspec.json.decode(row.detail) for row in self._select(query)]

    def members(self, number: int) -> list[str]:
        """Return the MACs of the members of an alarm."""
        query = select(alarm_condition.c.subject).where(alarm_condition.c.alarm == number)
        return sorted({mac_from_int(row.subject) for row in self._select(query)})

    def acknowledge(self, number: int) -> None:
        """Acknowledge an alarm, as a user does."""
        self.database.write_now(commands.acknowledge_alarm, number, by=SERVICE, now=self.now)

    def conditions(self) -> Counter[tuple[str, str]]:
        """Count the conditions by rule and state."""
        rows = self._select(select(alarm_condition))
        return Counter((row.rule, row.state) for row in rows)

    def _select(self, query: Select[Any]) -> list[Any]:
        return self.database.read_now(lambda connection: list(connection.execute(query)))


class AlarmHarness(StoredAlarms):
    """Fleet whose devices send heartbeats, and an evaluation of the rules after each step of the clock."""

    def __init__(self, database: Database, directory: Path, *, interval: int = MINUTE) -> None:
        """Create a fleet without gateways. All devices send a heartbeat every `interval` seconds."""
        super().__init__(database)
        self.presence = StoredPresenceHarness(database, directory)
        self.now = self.presence.ingest_harness.now
        self._interval = interval
        self._devices: dict[str, list[str]] = {}
        self.disconnected: set[str] = set()
        """Gateways without a connection."""
        self.off: set[str] = set()
        """Devices that are switched off."""

    def add_gateway(self, number: int, devices: int) -> tuple[str, list[str]]:
        """Claim a gateway with devices behind it. Return their MACs."""
        gateway = f"02005e{number:06x}"
        self.database.write_now(
            gateway_store.claim_gateway, Mac(gateway), name=f"Gateway {number}", by=SERVICE, now=self.now
        )
        self._devices[gateway] = [f"ca{number:04x}{each:06x}" for each in range(devices)]
        return gateway, self._devices[gateway]

    def close(self) -> None:
        """Wait for running work and close."""
        self.presence.close()

    async def run(self, seconds: int) -> None:
        """Let the fleet report and evaluate the rules for some time."""
        for _ in range(0, seconds, STEP):
            await self.step()

    async def step(self, *, evaluates: bool = True) -> None:
        """Advance the clock by a step, commit what is due, and evaluate the rules."""
        harness = self.presence.ingest_harness
        connected = [each for each in self._devices if each not in self.disconnected]
        self.presence.connect_only(*connected)
        end = self.now + STEP * 1000
        slot = (end // 1000) % self._interval // STEP
        slots = self._interval // STEP
        messages = [
            message
            for gateway in connected
            for number, device in enumerate(self._devices[gateway])
            if number % slots == slot and device not in self.off
            for message in self.build_reports(device, gateway, end)
        ]
        self.now = harness.now = end
        await harness.commit_flushed(*messages)
        if evaluates:
            self.evaluate()

    def build_reports(self, device: str, gateway: str, at: int) -> list[Publish]:
        """Build what a device sends in its turn."""
        return [heartbeat(at, device=device, gateway=gateway)]

    def switch_off(self, devices: Iterable[str]) -> None:
        """Switch devices off, so that they report no more."""
        self.off |= set(devices)
