"""Lets changes of accounts take effect on who is connected, within a second (broker-19).

Every change of an account is a row of the audit log, whichever process made it. So one small query tells
whether there is anything to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker import AccountKind
from meshfleet.service.audit import log as audit
from meshfleet.service.embedded_broker import denied_access as complaining
from meshfleet.service.embedded_broker.authentication import load_accounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.mqtt.broker import Account, Broker
    from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog

_log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.4
"""Seconds between two looks."""


class RevocationWatcher:
    """Looks again and again whether those who are connected still may be."""

    def __init__(
        self,
        database: Database,
        broker: Broker,
        denied_access: DeniedAccessLog,
        now: Callable[[], int],
        *,
        poll_interval: float = POLL_SECONDS,
    ) -> None:
        self._database = database
        self._broker = broker
        self._denied_access = denied_access
        self._now = now
        self._poll_interval = poll_interval
        self._mark: audit.AuditMark | None = None
        self._admitted = -1
        self._verified: set[Account] = set()
        """Those that stood at the mark."""

    async def run(self) -> None:
        """Look until cancelled."""
        is_blind = False
        try:
            while True:
                try:
                    await self._check_accounts()
                    await self._write_denied_access()  # only then: who writes may have to wait
                    is_blind = False
                except DatabaseUnavailable as exc:
                    if not is_blind:  # say it once, not at every look
                        _log.warning("cannot see whether accounts have changed: %s", exc)
                    is_blind = True
                await asyncio.sleep(self._poll_interval)
        finally:
            with contextlib.suppress(DatabaseUnavailable):
                await self._write_denied_access()

    async def _write_denied_access(self) -> None:
        if new := self._denied_access.drain():
            try:
                await self._database.write(complaining.insert_denied_access, new)
            except DatabaseUnavailable:
                self._denied_access.requeue(new)
                raise

    async def _check_accounts(self) -> None:
        admitted, accounts = self._broker.connect_handler.admitted_count, set(self._verified)
        mark = await self._database.read(audit.load_mark)
        if mark != self._mark or admitted != self._admitted:
            accounts = set(self._broker.accounts())
        # Who stood at this mark still does; only keys also expire, which is no change.
        doubtful = accounts if mark != self._mark else accounts - self._verified
        doubtful |= {each for each in accounts if each.kind is AccountKind.API_KEY}
        fallen = await self._disconnect_revoked(doubtful) if doubtful else set()
        self._mark, self._admitted, self._verified = mark, admitted, accounts - fallen

    async def _disconnect_revoked(self, doubtful: set[Account]) -> set[Account]:
        """End what no longer holds. Who has other rights or credentials now has to come back with them."""
        now = await self._database.read(load_accounts, doubtful, now=self._now())
        fallen = {each for each in doubtful if not _is_unchanged(each, now.get(str(each)))}
        for account in fallen:
            self._broker.disconnect_account(account, delete_sessions=str(account) not in now)
        return fallen


def _is_unchanged(account: Account, now: Account | None) -> bool:
    """Whether an account is as it was; of who is absent nothing but the name counts."""
    return now is not None and (not account.credential_digest or account == now)
