"""Lets changes of accounts take effect on who is connected, within a second (broker-19).

Every change of an account is a row of the audit log, whichever process made it. So one small query tells
whether there is anything to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
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

PERIOD: Final = 0.4
"""Seconds between two looks."""


class Watch:
    """Looks again and again whether those who are connected still may be."""

    def __init__(
        self,
        database: Database,
        broker: Broker,
        complaints: Complaints,
        now: Callable[[], int],
        *,
        period: float = PERIOD,
    ) -> None:
        self._database = database
        self._broker = broker
        self._complaints = complaints
        self._now = now
        self._period = period
        self._mark: audit.Mark | None = None
        self._admitted = -1
        self._sure: set[Account] = set()
        """Those that stood at the mark."""

    async def run(self) -> None:
        """Look until cancelled."""
        is_blind = False
        try:
            while True:
                try:
                    await self._look()
                    await self._write_complaints()  # only then: who writes may have to wait
                    is_blind = False
                except DatabaseUnavailable as exc:
                    if not is_blind:  # say it once, not at every look
                        _log.warning("cannot see whether accounts have changed: %s", exc)
                    is_blind = True
                await asyncio.sleep(self._period)
        finally:
            with contextlib.suppress(DatabaseUnavailable):
                await self._write_complaints()

    async def _write_complaints(self) -> None:
        if new := self._complaints.take():
            try:
                await self._database.write(complaining.write, new)
            except DatabaseUnavailable:
                self._complaints.put_back(new)
                raise

    async def _look(self) -> None:
        admitted, accounts = self._broker.lobby.admitted, set(self._sure)
        mark = await self._database.read(audit.mark)
        if mark != self._mark or admitted != self._admitted:
            accounts = set(self._broker.accounts())
        # Who stood at this mark still does; only keys also expire, which is no change.
        doubtful = accounts if mark != self._mark else accounts - self._sure
        doubtful |= {each for each in accounts if each.kind is Kind.PROGRAM}
        fallen = await self._see_off(doubtful) if doubtful else set()
        self._mark, self._admitted, self._sure = mark, admitted, accounts - fallen

    async def _see_off(self, doubtful: set[Account]) -> set[Account]:
        """End what no longer holds. Who has other rights or credentials now has to come back with them."""
        now = await self._database.read(standing, doubtful, now=self._now())
        fallen = {each for each in doubtful if not _stands(each, now.get(str(each)))}
        for account in fallen:
            self._broker.expel(account, forget=str(account) not in now)
        return fallen


def _stands(account: Account, now: Account | None) -> bool:
    """Whether an account is as it was; of who is absent nothing but the name counts."""
    return now is not None and (not account.proof or account == now)
