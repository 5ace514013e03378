"""What tests of MQTT accounts need: somebody who has one, what may become of it, and a clock to move."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from argon2 import PasswordHasher
from sqlalchemy import text

from meshfleet.protocol.ids import Mac
from meshfleet.rest import Role
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.accounts.bearer import BearerAuthenticator, TokenSigner
from meshfleet.service.accounts.login import Logins
from meshfleet.service.accounts.passwords import PasswordVerifier
from meshfleet.service.accounts.throttle import LoginThrottle
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.audit import log as audit
from meshfleet.service.gateways import store as gateways
from meshfleet.service.metrics import Metrics
from tests.mqtt.broker.running_broker import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest import AuditRow

PASSWORD = "correct-horse-battery"  # noqa: S105 # of these tests
WEAK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
"""Hashes in no time."""


class Credentials(NamedTuple):
    """With what somebody comes. The user name of a gateway is its client id too."""

    user: str
    password: str


class MqttAccounts:
    """A database with accounts, and the reception of the service."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = Clock()
        self.metrics = Metrics()
        self._passwords = PasswordVerifier()
        self._numbers = count(1)
        tokens = TokenSigner(bytes(32))
        self.logins = Logins(
            database,
            verifier=self._passwords,
            throttle=LoginThrottle(),
            signer=tokens,
            authenticator=BearerAuthenticator(database, tokens, self.clock),
            metrics=self.metrics,
            now=self.clock,
            steady=self.clock.steady,
        )

    def close(self) -> None:
        """Let go of threads."""
        self._passwords.close()

    # Who has an account

    def gateway(self) -> Credentials:
        """A gateway that was just claimed."""
        return self.claim(f"{0x02005E000000 + next(self._numbers):012x}")

    def person(self, role: Role = Role.OPERATOR) -> Credentials:
        """Somebody who was just let in."""
        name = f"person-{next(self._numbers)}"
        self.database.write_now(
            user_store.insert_user,
            name,
            hashed=WEAK_HASHER.hash(PASSWORD),
            role=role,
            by=COMMAND_LINE,
            now=self.clock(),
        )
        return Credentials(name, PASSWORD)

    def program(self, role: Role = Role.OPERATOR, *, seconds: int | None = None) -> Credentials:
        """A program that just got its key, which holds so long."""
        issued = self.database.write_now(
            api_key_store.insert_api_key,
            f"key {next(self._numbers)}",
            role=role,
            expires_at=None if seconds is None else self.clock() + seconds * 1000,
            by=COMMAND_LINE,
            now=self.clock(),
        )
        return Credentials("apikey", issued.key)

    # What becomes of it

    def claim(self, mac: str) -> Credentials:
        """Claim a gateway."""
        password = self.database.write_now(
            gateways.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=self.clock()
        )
        return Credentials(mac, password)

    def rotate(self, gateway: Credentials) -> Credentials:
        """Give a gateway another password."""
        mac, now = Mac(gateway.user), self.clock()
        password = self.database.write_now(gateways.rotate_password, mac, by=COMMAND_LINE, now=now)
        return gateway._replace(password=password)

    def release(self, gateway: Credentials) -> None:
        """Give a gateway up."""
        self.database.write_now(
            gateways.release_gateway, Mac(gateway.user), by=COMMAND_LINE, now=self.clock()
        )

    def remove(self, person: Credentials) -> None:
        """Let somebody in no longer."""
        self.database.write_now(user_store.delete_user, person.user, by=COMMAND_LINE, now=self.clock())

    def change_role(self, person: Credentials, role: Role = Role.VIEWER) -> None:
        """Let somebody do more or less."""
        self.database.write_now(
            user_store.update_user, person.user, role=role, hashed=None, by=COMMAND_LINE, now=self.clock()
        )

    def change_password(self, person: Credentials) -> Credentials:
        """Give somebody another password."""
        new = person._replace(password=f"{person.password}-2")
        self.database.write_now(
            user_store.update_password,
            person.user,
            WEAK_HASHER.hash(new.password),
            by=COMMAND_LINE,
            now=self.clock(),
        )
        return new

    def revoke(self, program: Credentials) -> None:
        """Take a key back."""
        self.database.write_now(_revoke, program.password, now=self.clock())

    def denied_access_rows(self) -> list[AuditRow]:
        """What clients wanted and may not have, as the audit log has it, oldest first."""
        rows = self.database.read_now(audit.list_entries, audit.AuditFilter(), before=None, limit=1000)
        return [row for row in reversed(rows) if row.action.startswith("mqtt.")]


def _revoke(connection: Connection, key: str, *, now: int) -> None:
    holder = api_key_store.find_api_key_holder(connection, key, now=now)
    assert holder is not None
    (found,) = [
        each
        for each in api_key_store.list_api_keys(connection, after="", limit=100)
        if each.name == holder.actor.name
    ]
    api_key_store.delete_api_key(connection, found.id, by=COMMAND_LINE, now=now)


@contextmanager
def database_outage(database: Database) -> Iterator[None]:
    """Let a database fail whoever asks, for a while."""
    with _sqlite_away(database) if database.is_sqlite else _postgresql_away(database):
        yield


_TABLES = ("audit", "gateway")


@contextmanager
def _sqlite_away(database: Database) -> Iterator[None]:
    file = database.read_now(lambda connection: connection.engine.url.database)
    assert file is not None

    def rename(before: str, after: str) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            for name in _TABLES:
                other.execute(f"ALTER TABLE {before.format(name)} RENAME TO {after.format(name)}")

    rename("{}", "{}_away")
    yield
    rename("{}_away", "{}")


@contextmanager
def _postgresql_away(database: Database) -> Iterator[None]:
    name = database.read_now(
        lambda connection: connection.execute(text("SELECT current_database()")).scalar()
    )
    url = database.read_now(lambda connection: connection.engine.url)
    with psycopg.connect(host=url.host, port=url.port, user=url.username, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        ended = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = %s"
        server.execute(ended.encode(), [name])
        yield
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
