"""Rules of users whose samples come through the real ingest, on a moved clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from meshfleet.protocol.ids import Mac
from meshfleet.rest.alarm_rules import NewAlarmRule
from meshfleet.rest.bodies import decode_body
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import rule_store
from meshfleet.service.alarms.rules import AlarmTimes
from meshfleet.service.alarms.runner import AlarmRunner
from meshfleet.service.alarms.user_rules.evaluator import UserRules
from meshfleet.service.alarms.views import AlarmListing, list_alarms
from meshfleet.service.labels import store as label_store
from meshfleet.service.presence import store as presence_store
from meshfleet.service.presence.changes import PresenceCause, PresenceChange
from tests.service.alarms.alarm_harness import StoredAlarms
from tests.service.ingest.ingest_harness import MINUTE, IngestHarness
from tests.service.ingest.messages import A, D, mac_to_number, temperature

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.rest.alarm_rules import AlarmRuleBody

WARM: dict[str, Any] = {
    "name": "Freezers too warm",
    "kind": "measurement",
    "severity": "critical",
    "when": {"identifier": "temperature", "operator": "above", "value": -15, "clearValue": -17},
    "forSeconds": 900,
    "clearSeconds": 300,
}


class RuleHarness(StoredAlarms):
    """Ingest with rules of users, evaluated after each commit."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(database)
        self.ingest = IngestHarness(database, folder)
        self.now = self.ingest.now
        self._start()

    def _start(self) -> None:
        self.user_rules = UserRules(self.database, self.ingest.store, now=lambda: self.ingest.now)
        self.ingest.ingest.subscribe(self.user_rules.tracker)
        self.runner = AlarmRunner(
            self.database,
            lambda _: None,
            is_receiving=lambda: True,
            owner=None,
            retention_ms=None,
            times=AlarmTimes(settling=0, outage=1 << 60),
            user_rules=self.user_rules,
            now=lambda: self.ingest.now,
        )

    async def restart(self) -> None:
        """Forget what is only in memory, as a crash does."""
        await self.ingest.restart()
        self._start()
        await self.runner.evaluate()

    async def send(self, *messages: Publish, minutes: float = 0) -> None:
        """Advance the clock, commit messages, and evaluate the rules."""
        self.ingest.now += int(minutes * MINUTE)
        self.now = self.ingest.now
        await self.ingest.commit_flushed(*messages)
        for _ in range(2):  # the second one writes what the first has looked up
            await self.runner.evaluate()

    async def report(self, *values: Any, device: str = D, every: float = 5) -> None:
        """Let a device report temperatures, one every some minutes."""
        for each in values:
            at = self.ingest.now + int(every * MINUTE)
            await self.send(temperature(at, each, device=device, seq=at // 60_000 % 200), minutes=every)

    def close(self) -> None:
        """Wait for running work and close."""
        self.ingest.close()

    # Rules, labels and devices

    async def add_rule(self, **changes: Any) -> AlarmRuleBody:
        """Create a rule, and evaluate it."""
        rule = build_rule(**changes)
        created = self.database.write_now(rule_store.create_rule, rule, by=SERVICE, now=self.now)
        await self.runner.evaluate()
        return created

    async def change_rule(self, identity: str, **changes: Any) -> None:
        """Replace a rule, and evaluate it."""
        rule = build_rule(**changes)
        self.database.write_now(rule_store.replace_rule, identity, rule, by=SERVICE, now=self.now)
        await self.runner.evaluate()

    def delete_rule(self, identity: str) -> None:
        """Delete a rule."""
        self.database.write_now(rule_store.delete_rule, identity, by=SERVICE, now=self.now)

    def attach(self, label: str, *devices: str) -> None:
        """Attach a label to devices."""
        macs = [Mac(each) for each in devices]
        self.database.write_now(label_store.add_label, label, macs, by=SERVICE, now=self.now)

    def detach(self, label: str, device: str) -> None:
        """Remove a label from a device."""
        self.database.write_now(label_store.detach_label, label, Mac(device), by=SERVICE, now=self.now)

    def connect(self, *devices: str, connected: bool = True) -> None:
        """Store that devices connected or disconnected now."""
        cause = PresenceCause.HEARD if connected else PresenceCause.SILENT
        changes = [
            PresenceChange(mac_to_number(each), connected, self.now, cause, mac_to_number(A))
            for each in devices
        ]
        self.database.write_now(presence_store.update_presence, changes)

    # What is stored

    def sentences(self, *states: str) -> list[str]:
        """Return the sentences of alarms, by default of those that are open."""
        query = AlarmListing(states=states or ("open",))
        found = self.database.read_now(list_alarms, query, after=None, limit=100, now=self.now)
        return [each.body.sentence for each in found]

    def end_reasons(self) -> list[str | None]:
        """Return why alarms ended, oldest first."""
        return [each.end_reason for each in self.alarms()]


def build_rule(**changes: Any) -> NewAlarmRule:
    """Build a rule from that of freezers; None leaves a field out."""
    body = {key: value for key, value in (WARM | changes).items() if value is not None}
    return decode_body(NewAlarmRule, msgspec.json.encode(body))
