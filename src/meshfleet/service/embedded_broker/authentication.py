"""Lets MQTT clients in: gateways, people and programs, each with their own credentials."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.errors import FleetError, TooManyAttempts, WrongCredentials
from meshfleet.errors.protocol import MalformedMac
from meshfleet.ip_networks import to_network
from meshfleet.mqtt.broker import Account, AccountKind, NotAdmitted
from meshfleet.mqtt.codec.packets import ConnectReturnCode
from meshfleet.protocol.ids import Mac, parse_mac
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.accounts.login import normalize_username
from meshfleet.service.accounts.throttle import LoginThrottle
from meshfleet.service.gateways import store as gateways

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Connect
    from meshfleet.rest import Role
    from meshfleet.service.accounts.login import Logins
    from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog
    from meshfleet.service.metrics import Metrics


# Accounts as they stand now, as the broker knows them.


def build_gateway_account(mac: Mac, password: bytes) -> Account:
    """A claimed gateway."""
    return Account(kind=AccountKind.GATEWAY, name=mac, credential_digest=_hash_proof(password))


def build_user_account(name: str, hashed: str, role: Role) -> Account:
    """A user."""
    return Account(
        kind=AccountKind.USER, name=name, role=role, credential_digest=_hash_proof(hashed.encode())
    )


def build_api_key_account(name: str, hashed: bytes, role: Role) -> Account:
    """An API key."""
    return Account(kind=AccountKind.API_KEY, name=name, role=role, credential_digest=_hash_proof(hashed))


def load_accounts(connection: Connection, accounts: Iterable[Account], *, now: int) -> dict[str, Account]:
    """Those of these accounts that there are, by their names, as they are at this moment."""
    names: dict[AccountKind, set[str]] = {kind: set() for kind in AccountKind}
    for account in accounts:
        names[account.kind].add(account.name)
    claimed = gateways.load_password_digests(connection, map(Mac, names[AccountKind.GATEWAY]))
    users = user_store.load_user_credentials(connection, names[AccountKind.USER])
    holders = api_key_store.load_api_key_credentials(connection, names[AccountKind.API_KEY], now=now)
    found = [
        *(build_gateway_account(mac, password) for mac, password in claimed.items()),
        *(build_user_account(name, *each) for name, each in users.items()),
        *(build_api_key_account(name, *each) for name, each in holders.items()),
    ]
    return {str(account): account for account in found}


def _hash_proof(stored: bytes) -> bytes:
    """What tells one password from another, and nothing more."""
    return hashlib.sha256(stored).digest()


_API_KEY_USERNAME: Final = "apikey"
"""The user name of all programs (broker-11)."""


class _WrongGatewayPassword(Exception):
    """A login of a gateway with a wrong password, or with a MAC that is not claimed."""

    def __init__(self, *, is_known: bool) -> None:
        super().__init__(is_known)
        self.is_known = is_known


class AccountAuthenticator:
    """Knows who comes with which credentials. Failures are counted as on REST (broker-18)."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        *,
        logins: Logins,
        denied_access: DeniedAccessLog,
        metrics: Metrics,
        now: Callable[[], int],
        steady: Callable[[], int],
    ) -> None:
        """`now` tells whether API keys have expired; `steady` never jumps, so delays go by it."""
        self._database = database
        self._logins = logins
        self._denied_access = denied_access
        self._metrics = metrics
        self._now = now
        self._steady = steady
        # Apart from that of people: a gateway with an old password must not slow down who logs in beside it.
        self._throttle = LoginThrottle()
        # Unknown MACs, by address. Stale passwords of known ones do not count: they must not add up.
        self._unknown_macs = LoginThrottle()
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    async def authenticate(self, connect: Connect, address: str) -> Account:
        """Whose client this is; or raise `NotAdmitted`."""
        user, password = _parse_credentials(connect)
        if user == _API_KEY_USERNAME:
            key = api_key_store.hash_credential(password).hex()
            return await self._attempt(
                f"{AccountKind.API_KEY} {key}", address, lambda: self._authenticate_api_key(password)
            )
        if (mac := _parse_gateway_username(user)) is not None:
            return await self._attempt(
                f"{AccountKind.GATEWAY} {mac}", address, lambda: self._authenticate_gateway(mac, password)
            )
        return await self._authenticate_user(normalize_username(user), password, address)

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        """Take note of somebody who wanted more than the rules allow."""
        self._denied_access.add(account, address, action, topic)

    async def _authenticate_gateway(self, mac: Mac, password: str) -> Account:
        stored = (await self._database.read(gateways.load_password_digests, [mac])).get(mac)
        if stored is None or not hmac.compare_digest(stored, api_key_store.hash_credential(password)):
            raise _WrongGatewayPassword(is_known=stored is not None)
        return build_gateway_account(mac, stored)

    async def _authenticate_api_key(self, key: str) -> Account | None:
        holder = await self._database.read(api_key_store.find_api_key_holder, key, now=self._now())
        if holder is None:
            return None
        return build_api_key_account(holder.actor.name, api_key_store.hash_credential(key), holder.actor.role)

    async def _authenticate_user(self, name: str, password: str, address: str) -> Account:
        try:
            hashed = await self._logins.check_password(name, password, address)
        except WrongCredentials:
            raise _wrong_credentials() from None
        except TooManyAttempts as exc:
            raise NotAdmitted(ConnectReturnCode.SERVER_UNAVAILABLE, str(exc)) from None
        known = (await self._database.read(user_store.load_user_credentials, [name])).get(name)
        if known is None or known.password_hash != hashed:
            raise _wrong_credentials()
        return build_user_account(name, *known)

    async def _attempt(
        self, name: str, address: str, look: Callable[[], Awaitable[Account | None]]
    ) -> Account:
        """Let nobody guess: who fails again and again waits longer and longer."""
        place = to_network(address)
        # One after the other: many that know the password get in, many that do not have few tries.
        turn = self._locks.setdefault((name, place), asyncio.Lock())
        async with turn:
            return await self._attempt_locked(name, place, look)

    async def _attempt_locked(
        self, name: str, place: str | None, look: Callable[[], Awaitable[Account | None]]
    ) -> Account:
        wait = self._throttle.count_attempt(name, place, self._steady() / 1000).wait
        if wait:
            self._metrics.count_login("throttled")
            raise NotAdmitted(ConnectReturnCode.SERVER_UNAVAILABLE, str(TooManyAttempts(wait)))
        wait_after_failures = 0
        try:
            account = await look()
        except _WrongGatewayPassword as exc:
            account = None
            wait_after_failures = self._count_unknown_mac(name, place, is_known=exc.is_known)
        except FleetError:
            self._throttle.withdraw_attempt(name, place)
            raise
        if account is None:
            self._metrics.count_login("failed")
            if wait_after_failures:
                raise NotAdmitted(
                    ConnectReturnCode.SERVER_UNAVAILABLE, str(TooManyAttempts(wait_after_failures))
                )
            raise _wrong_credentials()
        self._throttle.clear_failures(name, place)
        self._metrics.count_login("succeeded")
        return account

    def _count_unknown_mac(self, name: str, place: str | None, *, is_known: bool) -> int:
        """Count a failed login of a gateway. Return how long to wait: the same whether its MAC is claimed."""
        now = self._steady() / 1000
        if is_known:
            return self._unknown_macs.delay_after_failure(place, now)
        return self._unknown_macs.count_attempt(name, place, now).wait_if_failed


def _parse_credentials(connect: Connect) -> tuple[str, str]:
    if connect.user is None or connect.password is None:
        raise NotAdmitted(ConnectReturnCode.NOT_AUTHORIZED, "it has no user name or no password")
    try:
        return connect.user, connect.password.decode()
    except UnicodeDecodeError:
        raise _wrong_credentials() from None


def _parse_gateway_username(user: str) -> Mac | None:
    """The gateway that a user name stands for, in whatever case it is written."""
    try:
        return parse_mac(user.lower())
    except MalformedMac:
        return None


def _wrong_credentials() -> NotAdmitted:
    return NotAdmitted(ConnectReturnCode.BAD_CREDENTIALS, "wrong user name or password")
