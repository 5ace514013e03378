"""PostgreSQL, for more than one machine."""

from __future__ import annotations

from typing import Final

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from meshfleet.db.database import Engines
from meshfleet.errors import Fault
from meshfleet.errors.startup import WrongSettings

_CONNECTIONS: Final = 8

_SESSION_OPTIONS: Final = {
    "timezone": "UTC",
    # A plan made for any value is slow for most: a filter may select ten devices or a million.
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",  # compiling takes longer than our queries, and so does starting helpers
    "max_parallel_workers_per_gather": "0",
    "random_page_cost": "1.1",  # what is asked for often is in memory, or on a disk without a head
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}

_KEEPALIVE_OPTIONS: Final = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""A server whose machine vanished is noticed within a minute, not within hours."""


def create_postgresql_engines(address: str) -> Engines:
    """Prepare connections to a server; nobody is asked yet."""
    try:
        engine = _engine(make_url(address).set(drivername="postgresql+psycopg"))
    except (ArgumentError, ValueError):
        # Without its cause: the address may hold a password.
        raise WrongSettings([Fault("database", "is not a URL such as postgresql://user@host/name")]) from None
    # Readers see one moment, as on SQLite: a page is found by one query and fetched by another.
    readers = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Engines(readers=readers, writers=engine, reader_threads=_CONNECTIONS, writer_threads=_CONNECTIONS)


def _engine(url: URL) -> Engine:
    options = " ".join(f"-c {name}={value}" for name, value in _SESSION_OPTIONS.items())
    return create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=10,
        pool_pre_ping=True,  # a server that was restarted is noticed before, not by, a query
        hide_parameters=True,  # hashes and secrets are among them, and no log may hold those
        connect_args={
            "options": options,
            "connect_timeout": 10,
            "client_encoding": "utf8",  # else texts come in the database's own encoding, or as bytes
            "application_name": "meshfleet",
            **_KEEPALIVE_OPTIONS,
        },
    )
