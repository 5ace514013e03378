"""Accounts as they stand now, as the broker knows them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from meshfleet.broker import Account, Kind
from meshfleet.service.accounts import keys, people
from meshfleet.service.gateways import store as gateways
from meshfleet.wire.ids import Mac

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from meshfleet.wire.rest import Role


def gateway(mac: Mac, password: bytes) -> Account:
    """A claimed gateway."""
    return Account(kind=Kind.GATEWAY, name=mac, proof=_proof(password))


def person(name: str, hashed: str, role: Role) -> Account:
    """A user."""
    return Account(kind=Kind.PERSON, name=name, role=role, proof=_proof(hashed.encode()))


def program(name: str, hashed: bytes, role: Role) -> Account:
    """An API key."""
    return Account(kind=Kind.PROGRAM, name=name, role=role, proof=_proof(hashed))


def standing(connection: Connection, accounts: Iterable[Account], *, now: int) -> dict[str, Account]:
    """Those of these accounts that there are, by their names, as they are at this moment."""
    names: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for account in accounts:
        names[account.kind].add(account.name)
    claimed = gateways.passwords(connection, map(Mac, names[Kind.GATEWAY]))
    users = people.known(connection, names[Kind.PERSON])
    holders = keys.known(connection, names[Kind.PROGRAM], now=now)
    found = [
        *(gateway(mac, password) for mac, password in claimed.items()),
        *(person(name, *each) for name, each in users.items()),
        *(program(name, *each) for name, each in holders.items()),
    ]
    return {str(account): account for account in found}


def _proof(stored: bytes) -> bytes:
    """What tells one password from another, and nothing more."""
    return hashlib.sha256(stored).digest()
