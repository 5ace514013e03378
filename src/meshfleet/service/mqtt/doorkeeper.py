"""Lets MQTT clients in: gateways, people and programs, each with their own credentials."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.broker import Kind, NotAdmitted
from meshfleet.errors import FleetError, MalformedMac, TooManyAttempts, WrongCredentials
from meshfleet.link.networks import network_of
from meshfleet.service.accounts import keys, people
from meshfleet.service.accounts.login import possible_name
from meshfleet.service.accounts.throttle import Throttle
from meshfleet.service.gateways import store as gateways
from meshfleet.service.mqtt.standing import gateway, person, program
from meshfleet.wire.ids import parse_mac
from meshfleet.wire.mqtt.packets import Accept

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.broker import Account
    from meshfleet.db import Database
    from meshfleet.service.accounts.login import Reception
    from meshfleet.service.mqtt.complaints import Complaints
    from meshfleet.service.operations.figures import Figures
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.mqtt.packets import Connect

_PROGRAM: Final = "apikey"
"""The user name of all programs (broker-11)."""


class _WrongGateway(Exception):
    """A login of a gateway with a wrong password, or with a MAC that is not claimed."""

    def __init__(self, *, is_known: bool) -> None:
        super().__init__(is_known)
        self.is_known = is_known


class Doorkeeper:
    """Knows who comes with which credentials. Failures are counted as on REST (broker-18)."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        *,
        reception: Reception,
        complaints: Complaints,
        figures: Figures,
        now: Callable[[], int],
        steady: Callable[[], int],
    ) -> None:
        """`now` tells whether API keys have expired; `steady` never jumps, so delays go by it."""
        self._database = database
        self._reception = reception
        self._complaints = complaints
        self._figures = figures
        self._now = now
        self._steady = steady
        # Apart from that of people: a gateway with an old password must not slow down who logs in beside it.
        self._throttle = Throttle()
        # Unknown MACs, by address. Stale passwords of known ones do not count: they must not add up.
        self._unknown_macs = Throttle()
        self._turns: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    async def admit(self, connect: Connect, address: str) -> Account:
        """Whose client this is; or raise `NotAdmitted`."""
        user, password = _credentials(connect)
        if user == _PROGRAM:
            key = keys.digest(password).hex()
            return await self._try(f"{Kind.PROGRAM} {key}", address, lambda: self._program(password))
        if (mac := _mac(user)) is not None:
            return await self._try(f"{Kind.GATEWAY} {mac}", address, lambda: self._gateway(mac, password))
        return await self._person(possible_name(user), password, address)

    def forbidden(self, account: Account, address: str, deed: str, topic: str) -> None:
        """Take note of somebody who wanted more than the rules allow."""
        self._complaints.file(account, address, deed, topic)

    async def _gateway(self, mac: Mac, password: str) -> Account:
        stored = (await self._database.read(gateways.passwords, [mac])).get(mac)
        if stored is None or not hmac.compare_digest(stored, keys.digest(password)):
            raise _WrongGateway(is_known=stored is not None)
        return gateway(mac, stored)

    async def _program(self, key: str) -> Account | None:
        holder = await self._database.read(keys.find, key, now=self._now())
        if holder is None:
            return None
        return program(holder.actor.name, keys.digest(key), holder.actor.role)

    async def _person(self, name: str, password: str, address: str) -> Account:
        try:
            hashed = await self._reception.check_password(name, password, address)
        except WrongCredentials:
            raise _wrong() from None
        except TooManyAttempts as exc:
            raise NotAdmitted(Accept.SERVER_UNAVAILABLE, str(exc)) from None
        known = (await self._database.read(people.known, [name])).get(name)
        if known is None or known.password != hashed:
            raise _wrong()
        return person(name, *known)

    async def _try(self, name: str, address: str, look: Callable[[], Awaitable[Account | None]]) -> Account:
        """Let nobody guess: who fails again and again waits longer and longer."""
        place = network_of(address)
        # One after the other: many that know the password get in, many that do not have few tries.
        turn = self._turns.setdefault((name, place), asyncio.Lock())
        async with turn:
            return await self._try_in_turn(name, place, look)

    async def _try_in_turn(
        self, name: str, place: str | None, look: Callable[[], Awaitable[Account | None]]
    ) -> Account:
        wait = self._throttle.attempt(name, place, self._steady() / 1000).wait
        if wait:
            self._figures.count_login("throttled")
            raise NotAdmitted(Accept.SERVER_UNAVAILABLE, str(TooManyAttempts(wait)))
        wait_after_failures = 0
        try:
            account = await look()
        except _WrongGateway as exc:
            account = None
            wait_after_failures = self._count_unknown_mac(name, place, is_known=exc.is_known)
        except FleetError:
            self._throttle.withdraw(name, place)
            raise
        if account is None:
            self._figures.count_login("failed")
            if wait_after_failures:
                raise NotAdmitted(Accept.SERVER_UNAVAILABLE, str(TooManyAttempts(wait_after_failures)))
            raise _wrong()
        self._throttle.succeeded(name, place)
        self._figures.count_login("succeeded")
        return account

    def _count_unknown_mac(self, name: str, place: str | None, *, is_known: bool) -> int:
        """Count a failed login of a gateway. Return how long to wait: the same whether its MAC is claimed."""
        now = self._steady() / 1000
        if is_known:
            return self._unknown_macs.wait_after_failures(place, now)
        return self._unknown_macs.attempt(name, place, now).wait_if_failed


def _credentials(connect: Connect) -> tuple[str, str]:
    if connect.user is None or connect.password is None:
        raise NotAdmitted(Accept.NOT_AUTHORIZED, "it has no user name or no password")
    try:
        return connect.user, connect.password.decode()
    except UnicodeDecodeError:
        raise _wrong() from None


def _mac(user: str) -> Mac | None:
    """The gateway that a user name stands for, in whatever case it is written."""
    try:
        return parse_mac(user.lower())
    except MalformedMac:
        return None


def _wrong() -> NotAdmitted:
    return NotAdmitted(Accept.BAD_CREDENTIALS, "wrong user name or password")
