"""MQTT accounts for tests: create, change and remove them, with a clock to move."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from argon2 import PasswordHasher
from sqlalchemy import Connection, text

from meshfleet.protocol.ids import Mac
from meshfleet.rest.accounts import ApiKeyKind, AuditRow, Role
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
    from collections.abc import Iterator, Sequence

    from meshfleet.db import Database

PASSWORD = "correct-horse-battery"  # noqa: S105 # a password of the tests
WEAK_HASHER = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
"""Hasher for tests: fast and weak."""


class Credentials(NamedTuple):
    """Credentials of an MQTT client. The user name of a gateway is also its client id."""

    user: str
    password: str


class MqttAccounts:
    """Accounts in a database, with the login service."""

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
            monotonic=self.clock.monotonic,
        )

    def close(self) -> None:
        """Stop the threads of the password verifier."""
        self._passwords.close()

    # Create accounts

    def gateway(self) -> Credentials:
        """Claim a new gateway."""
        return self.claim(f"{0x02005E000000 + next(self._numbers):012x}")

    def person(self, role: Role = Role.OPERATOR) -> Credentials:
        """Create a user."""
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

    def home_assistant(self, role: Role = Role.VIEWER, *, seconds: int | None = None) -> Credentials:
        """Create an API key for Home Assistant that expires after this time; None: never."""
        return self.program(role, seconds=seconds, kind=ApiKeyKind.HOMEASSISTANT)

    def program(
        self,
        role: Role = Role.OPERATOR,
        *,
        seconds: int | None = None,
        kind: ApiKeyKind = ApiKeyKind.PROGRAM,
    ) -> Credentials:
        """Create an API key that expires after this time; None: never."""
        issued = self.database.write_now(
            api_key_store.insert_api_key,
            f"key {next(self._numbers)}",
            role=role,
            kind=kind,
            expires_at=None if seconds is None else self.clock() + seconds * 1000,
            by=COMMAND_LINE,
            now=self.clock(),
        )
        return Credentials("apikey", issued.key)

    # Change and remove accounts

    def claim(self, mac: str) -> Credentials:
        """Claim a gateway."""
        password = self.database.write_now(
            gateways.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=self.clock()
        )
        return Credentials(mac, password)

    def rotate(self, gateway: Credentials) -> Credentials:
        """Rotate the password of a gateway."""
        mac, now = Mac(gateway.user), self.clock()
        password = self.database.write_now(gateways.rotate_password, mac, by=COMMAND_LINE, now=now)
        return gateway._replace(password=password)

    def release(self, gateway: Credentials) -> None:
        """Release a gateway."""
        self.database.write_now(
            gateways.release_gateway, Mac(gateway.user), by=COMMAND_LINE, now=self.clock()
        )

    def remove(self, person: Credentials) -> None:
        """Remove a user."""
        self.database.write_now(user_store.delete_user, person.user, by=COMMAND_LINE, now=self.clock())

    def change_role(self, person: Credentials, role: Role = Role.VIEWER) -> None:
        """Change the role of a user."""
        self.database.write_now(
            user_store.update_user, person.user, role=role, hashed=None, by=COMMAND_LINE, now=self.clock()
        )

    def change_password(self, person: Credentials) -> Credentials:
        """Change the password of a user."""
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
        """Revoke an API key."""
        self.database.write_now(_revoke_key, program.password, now=self.clock())

    def denied_access_rows(self) -> list[AuditRow]:
        """Return the denied accesses in the audit log, the oldest first."""
        rows = self.database.read_now(audit.list_entries, audit.AuditFilter(), before=None, limit=1000)
        return [row for row in reversed(rows) if row.action.startswith("mqtt.")]


def _revoke_key(connection: Connection, key: str, *, now: int) -> None:
    holder = api_key_store.find_api_key_holder(connection, key, now=now)
    assert holder is not None
    (found,) = [
        each
        for each in api_key_store.list_api_keys(connection, after="", limit=100)
        if each.name == holder.actor.name
    ]
    api_key_store.delete_api_key(connection, found.id, by=COMMAND_LINE, now=now)


@contextmanager
def database_outage(database: Database, *, tables: Sequence[str] = ("audit", "gateway")) -> Iterator[None]:
    """Make queries of a database fail while the block runs: with SQLite, only those of some tables."""
    with _break_sqlite(database, tables) if database.is_sqlite else _break_postgresql(database):
        yield


@contextmanager
def _break_sqlite(database: Database, tables: Sequence[str]) -> Iterator[None]:
    file = database.read_now(lambda connection: connection.engine.url.database)
    assert file is not None

    def rename(before: str, after: str) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            for name in tables:
                other.execute(f"ALTER TABLE {before.format(name)} RENAME TO {after.format(name)}")

    rename("{}", "{}_hidden")
    yield
    rename("{}_hidden", "{}")


@contextmanager
def _break_postgresql(database: Database) -> Iterator[None]:
    name = database.read_now(
        lambda connection: connection.execute(text("SELECT current_database()")).scalar()
    )
    url = database.read_now(lambda connection: connection.engine.url)
    with psycopg.connect(host=url.host, port=url.port, user=url.username, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        terminate = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = %s"
        server.execute(terminate.encode(), [name])
        yield
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
