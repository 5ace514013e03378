"""Revocation: disconnects MQTT clients within a second after their account was changed (broker-19).

Every change of an account adds a row to the audit log, whichever process makes the change. So one small query
of the audit log shows whether accounts must be checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker import Account, AccountKind, Broker
from meshfleet.service.audit import log as audit
from meshfleet.service.embedded_broker import denied_access
from meshfleet.service.embedded_broker.authentication import load_accounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog

_log = logging.getLogger(__name__)

_EXPIRING_KINDS: Final = frozenset({AccountKind.API_KEY, AccountKind.HOME_ASSISTANT})
"""Kinds of accounts that may expire without a row in the audit log."""

POLL_SECONDS: Final = 0.4
"""Seconds between two checks for revoked accounts of MQTT clients."""


class RevocationWatcher:
    """Checks periodically for revoked or changed accounts, and disconnects their MQTT clients.

    The watcher also writes denied publishes and subscriptions to the audit log.
    """

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
        self._revision: audit.AuditLogState | None = None
        self._admitted = -1
        self._verified: set[Account] = set()
        """Accounts of MQTT clients that were valid at the last check (audit log revision `_revision`)."""

    async def run(self) -> None:
        """Check accounts of MQTT clients and write denied accesses to the audit log until canceled."""
        has_failed = False
        try:
            while True:
                try:
                    await self._check_accounts()
                    await self._write_denied_access()  # after the check: a write may have to wait
                    has_failed = False
                except DatabaseUnavailable as exc:
                    if not has_failed:  # log it once, not at every check
                        _log.warning(
                            "cannot check for revoked accounts, their clients stay connected: %s", exc
                        )
                    has_failed = True
                await asyncio.sleep(self._poll_interval)
        finally:
            with contextlib.suppress(DatabaseUnavailable):
                await self._write_denied_access()

    async def _write_denied_access(self) -> None:
        if entries := self._denied_access.drain():
            try:
                await self._database.write(denied_access.insert_denied_access, entries)
            except DatabaseUnavailable:
                self._denied_access.requeue(entries)
                raise

    async def _check_accounts(self) -> None:
        """Disconnect the MQTT clients of accounts that changed or expired since the last check."""
        admitted, accounts = self._broker.connect_handler.admitted_count, set(self._verified)
        revision = await self._database.read(audit.load_log_state)
        if revision != self._revision or admitted != self._admitted:
            accounts = set(self._broker.accounts())
        # While the audit log is unchanged, verified accounts are still valid, except API keys that expire.
        unverified = accounts if revision != self._revision else accounts - self._verified
        unverified |= {each for each in accounts if each.kind in _EXPIRING_KINDS}
        revoked = await self._disconnect_revoked(unverified) if unverified else set()
        self._revision, self._admitted, self._verified = revision, admitted, accounts - revoked

    async def _disconnect_revoked(self, unverified: set[Account]) -> set[Account]:
        """Disconnect the MQTT clients of accounts that were deleted, expired, or got a new role or password.

        Delete the MQTT sessions of deleted and expired accounts only; clients of the others can log in again
        and resume their sessions. Return all accounts whose clients were disconnected.
        """
        current = await self._database.read(load_accounts, unverified, now=self._now())
        revoked = {each for each in unverified if not _is_unchanged(each, current.get(str(each)))}
        for account in revoked:
            self._broker.disconnect_account(account, delete_sessions=str(account) not in current)
        return revoked


def _is_unchanged(account: Account, current: Account | None) -> bool:
    """Return whether an account still exists and has not changed. `current` is the stored account.

    An account without a credential digest has no connected MQTT client, so only its existence is checked.
    """
    return current is not None and (not account.credential_digest or account == current)
