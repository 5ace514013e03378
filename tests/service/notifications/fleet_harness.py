"""Fleets on a moved clock whose alarms are told to channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import commands
from tests.service.alarms.alarm_harness import AlarmHarness
from tests.service.alarms.presence_log import START, PresenceLog
from tests.service.notifications.notifier_harness import Killed, NotifierHarness

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Executable

    from meshfleet.db import Database


class NotifiedFleet(AlarmHarness):
    """Fleet that sends reports, with a channel `hook` for programs and a channel `mail` for people."""

    def __init__(self, database: Database, directory: Path) -> None:
        super().__init__(database, directory)
        self.notifications = NotifierHarness(database, lambda: self.now)
        self.recorder = self.notifications.recorder
        self.hook = self.notifications.add_hook()
        self.mail = self.notifications.add_mail()

    async def step(self, *, evaluates: bool = True) -> None:
        """Advance the clock by a step, evaluate the rules, and send what is due."""
        await super().step(evaluates=evaluates)
        await self.notifications.notifier.run_once()


class NotifiedLog(PresenceLog):
    """Fleet whose connections change as a test says, with the channels `hook` and `mail`."""

    def __init__(self, database: Database, now: int = START) -> None:
        super().__init__(database, now)
        self.notifications = NotifierHarness(database, lambda: self.now)
        self.recorder = self.notifications.recorder
        self.hook = self.notifications.add_hook()
        self.mail = self.notifications.add_mail()

    async def pass_time(self, seconds: int, *, step: int = 30) -> None:
        """Advance the clock. Evaluate the rules and send what is due after each step."""
        for start in range(0, seconds, step):
            self.run(min(step, seconds - start), step=step)
            try:
                await self.notifications.notifier.run_once()
            except Killed:
                self.notifications.start()

    def silence(self, number: int, seconds: int) -> None:
        """Silence an alarm for some time, as a user does."""
        until = self.now + seconds * 1000
        self.database.write_now(
            commands.silence_alarm, number, until=until, note=None, by=SERVICE, now=self.now
        )

    def execute(self, statement: Executable) -> None:
        """Change the database."""
        self.database.write_now(lambda connection: connection.execute(statement).close())
