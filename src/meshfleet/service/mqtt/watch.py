"""Lets changes of accounts take effect on who is connected, within a second (broker-19).

Every change of an account is a row of the audit log, whichever process made it. So one small query tells
whether there is anything to look at.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.broker import Kind
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.audit import log as audit
from meshfleet.service.mqtt import complaints as complaining
from meshfleet.service.mqtt.standing import standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.broker import Account, Broker
    from meshfleet.db import Database
    from meshfleet.service.mqtt.complaints import Complaints

_log = logging.getLogger(__name__)

_PERIOD: Final = 0.4
"""Seconds between two looks."""


class Watch:
    """Looks again and again whether those who are connected still may be."""

    def __init__(
        self, database: Database, broker: Broker, complaints: Complaints, now: Callable[[], int]
    ) -> None:
        self._database = database
        self._broker = broker
        self._complaints = complaints
        self._now = now
        self._mark: audit.Mark | None = None
        self._admitted = -1

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self._look()
            except DatabaseUnavailable as exc:
                _log.warning("cannot see whether accounts have changed: %s", exc)
            await asyncio.sleep(_PERIOD)

    async def _look(self) -> None:
        if new := self._complaints.take():
            await self._database.write(complaining.write, new)
        accounts, admitted = self._broker.accounts(), self._broker.lobby.admitted
        mark = await self._database.read(audit.mark)
        # Keys also expire, which is no change; and who came in meanwhile may have been overtaken by one.
        expires = any(account.kind is Kind.PROGRAM for account in accounts)
        if mark != self._mark or admitted != self._admitted or expires:
            self._apply(accounts, await self._database.read(standing, accounts, now=self._now()))
            self._mark, self._admitted = mark, admitted

    def _apply(self, accounts: list[Account], now: dict[str, Account]) -> None:
        """End what no longer holds. Who has other rights or credentials now has to come back with them."""
        for account in accounts:
            after = now.get(str(account))
            if after is None:
                self._broker.expel(account, forget=True)
            elif account.proof and after != account:
                self._broker.expel(account)
