"""Authenticates clients of the embedded MQTT broker: gateways, users and API keys."""

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
from meshfleet.mqtt.codec.packets import Connect, ConnectReturnCode
from meshfleet.protocol.ids import Mac, parse_mac
from meshfleet.rest.accounts import ApiKeyKind
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.accounts.login import Logins, normalize_username
from meshfleet.service.accounts.throttle import LoginThrottle
from meshfleet.service.gateways import store as gateways

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest.accounts import Role
    from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog
    from meshfleet.service.metrics import Metrics


def _build_account(kind: AccountKind, name: str, credential: bytes, role: Role | None = None) -> Account:
    """Build an MQTT account from its stored credential: the hash of a password or of an API key."""
    return Account(kind=kind, name=name, role=role, credential_digest=hashlib.sha256(credential).digest())


def load_accounts(connection: Connection, accounts: Iterable[Account], *, now: int) -> dict[str, Account]:
    """Load the current state of MQTT accounts from the database, by `str(account)`.

    Accounts that no longer exist are left out.
    """
    names: dict[AccountKind, set[str]] = {kind: set() for kind in AccountKind}
    for account in accounts:
        names[account.kind].add(account.name)
    digests = gateways.load_password_digests(connection, map(Mac, names[AccountKind.GATEWAY]))
    users = user_store.load_user_credentials(connection, names[AccountKind.USER])
    key_names = names[AccountKind.API_KEY] | names[AccountKind.HOME_ASSISTANT]
    keys = api_key_store.load_api_key_credentials(connection, key_names, now=now)
    found = [
        *(_build_account(AccountKind.GATEWAY, mac, digest) for mac, digest in digests.items()),
        *(_build_user_account(name, each) for name, each in users.items()),
        *(
            _build_account(_KEY_ACCOUNT_KINDS[each.kind], name, each.hash, each.role)
            for name, each in keys.items()
        ),
    ]
    return {str(account): account for account in found}


def _build_user_account(name: str, credential: user_store.UserCredential) -> Account:
    return _build_account(AccountKind.USER, name, credential.password_hash.encode(), credential.role)


_KEY_ACCOUNT_KINDS: Final = {
    ApiKeyKind.PROGRAM: AccountKind.API_KEY,
    ApiKeyKind.HOMEASSISTANT: AccountKind.HOME_ASSISTANT,
}

_API_KEY_USERNAME: Final = "apikey"
"""MQTT user name of programs that authenticate with an API key (broker-11)."""


class _WrongGatewayPassword(Exception):
    """Raised when a gateway cannot log in. `is_known` is False if its MAC is not claimed."""

    def __init__(self, *, is_known: bool) -> None:
        super().__init__(is_known)
        self.is_known = is_known


class AccountAuthenticator:
    """Authenticates clients of the embedded MQTT broker; delays failed logins like REST (broker-18)."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        database: Database,
        *,
        logins: Logins,
        denied_access: DeniedAccessLog,
        metrics: Metrics,
        now: Callable[[], int],
        monotonic: Callable[[], int],
    ) -> None:
        """Create it. `now` is the wall clock for the expiry of API keys, `monotonic` the clock for delays.

        Both return milliseconds.
        """
        self._database = database
        self._logins = logins
        self._denied_access = denied_access
        self._metrics = metrics
        self._now = now
        self._monotonic = monotonic
        # Separate from the users' throttle: a gateway with an old password must not delay users of a network.
        self._throttle = LoginThrottle()
        # Counts unclaimed MACs per address; old passwords of claimed gateways must not add up here.
        self._unknown_macs = LoginThrottle()
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    async def authenticate(self, connect: Connect, address: str) -> Account:
        """Return the account of a connecting MQTT client. Raise `NotAdmitted` with the CONNACK code."""
        user, password = _parse_credentials(connect)
        if user == _API_KEY_USERNAME:
            key = api_key_store.hash_credential(password).hex()
            return await self._throttle_attempt(
                f"{AccountKind.API_KEY} {key}", address, lambda: self._authenticate_api_key(password)
            )
        if (mac := _parse_gateway_username(user)) is not None:
            return await self._throttle_attempt(
                f"{AccountKind.GATEWAY} {mac}", address, lambda: self._authenticate_gateway(mac, password)
            )
        return await self._authenticate_user(normalize_username(user), password, address)

    def on_access_denied(self, account: Account, address: str, action: str, topic: str) -> None:
        """Record for the audit log that an MQTT client tried to publish or subscribe without permission."""
        self._denied_access.add(account, address, action, topic)

    async def _authenticate_gateway(self, mac: Mac, password: str) -> Account:
        stored = (await self._database.read(gateways.load_password_digests, [mac])).get(mac)
        if stored is None or not hmac.compare_digest(stored, api_key_store.hash_credential(password)):
            raise _WrongGatewayPassword(is_known=stored is not None)
        return _build_account(AccountKind.GATEWAY, mac, stored)

    async def _authenticate_api_key(self, key: str) -> Account | None:
        holder = await self._database.read(api_key_store.find_api_key_holder, key, now=self._now())
        if holder is None:
            return None
        credential = api_key_store.hash_credential(key)
        kind = _KEY_ACCOUNT_KINDS[holder.kind]
        return _build_account(kind, holder.actor.name, credential, holder.actor.role)

    async def _authenticate_user(self, name: str, password: str, address: str) -> Account:
        try:
            hashed = await self._logins.check_password(name, password, address)
        except WrongCredentials:
            raise _build_credentials_error() from None
        except TooManyAttempts as exc:
            raise NotAdmitted(ConnectReturnCode.SERVER_UNAVAILABLE, str(exc)) from None
        credential = (await self._database.read(user_store.load_user_credentials, [name])).get(name)
        if credential is None or credential.password_hash != hashed:
            raise _build_credentials_error()
        return _build_user_account(name, credential)

    async def _throttle_attempt(
        self, name: str, address: str, authenticate: Callable[[], Awaitable[Account | None]]
    ) -> Account:
        """Call `authenticate`, unless earlier failed logins require a delay; then raise `NotAdmitted`."""
        network = to_network(address)
        # One at a time per name and network, so that parallel correct logins do not count as failures.
        lock = self._locks.setdefault((name, network), asyncio.Lock())
        async with lock:
            return await self._attempt_login(name, network, authenticate)

    async def _attempt_login(
        self, name: str, network: str | None, authenticate: Callable[[], Awaitable[Account | None]]
    ) -> Account:
        """Count a login attempt, call `authenticate`, and count the attempt as failed or succeeded."""
        wait = self._throttle.count_attempt(name, network, self._monotonic() / 1000).wait
        if wait:
            self._metrics.count_login("throttled")
            raise NotAdmitted(ConnectReturnCode.SERVER_UNAVAILABLE, str(TooManyAttempts(wait)))
        wait_after_failures = 0
        try:
            account = await authenticate()
        except _WrongGatewayPassword as exc:
            account = None
            wait_after_failures = self._compute_gateway_delay(name, network, is_claimed=exc.is_known)
        except FleetError:
            self._throttle.withdraw_attempt(name, network)
            raise
        if account is None:
            self._metrics.count_login("failed")
            if wait_after_failures:
                raise NotAdmitted(
                    ConnectReturnCode.SERVER_UNAVAILABLE, str(TooManyAttempts(wait_after_failures))
                )
            raise _build_credentials_error()
        self._throttle.clear_failures(name, network)
        self._metrics.count_login("succeeded")
        return account

    def _compute_gateway_delay(self, name: str, network: str | None, *, is_claimed: bool) -> int:
        """Return the seconds that a gateway must wait after a failed login from a client network.

        If the MAC of the gateway is not claimed, also count the failed login.
        A claimed MAC gets the delay too, so that the delay does not reveal which MACs are claimed.
        """
        now = self._monotonic() / 1000
        if is_claimed:
            return self._unknown_macs.delay_after_failure(network, now)
        return self._unknown_macs.count_attempt(name, network, now).wait_if_failed


def _parse_credentials(connect: Connect) -> tuple[str, str]:
    """Return user name and password in CONNECT. Raise `NotAdmitted` if one is missing."""
    if connect.user is None or connect.password is None:
        raise NotAdmitted(ConnectReturnCode.NOT_AUTHORIZED, "the user name or password is missing")
    try:
        return connect.user, connect.password.decode()
    except UnicodeDecodeError:
        raise _build_credentials_error() from None


def _parse_gateway_username(user: str) -> Mac | None:
    """Return the MAC of a gateway if the MQTT user name is a MAC in upper or lower case, else None."""
    try:
        return parse_mac(user.lower())
    except MalformedMac:
        return None


def _build_credentials_error() -> NotAdmitted:
    return NotAdmitted(ConnectReturnCode.BAD_CREDENTIALS, "wrong user name or password")
