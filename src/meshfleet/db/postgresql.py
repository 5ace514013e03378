"""SQLAlchemy engines for a PostgreSQL server, which several machines can share."""

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
    # A generic plan is slow for most values: a filter may select ten devices or a million.
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",  # compiling takes longer than the queries, and so does starting parallel workers
    "max_parallel_workers_per_gather": "0",
    "random_page_cost": "1.1",  # frequently used pages are in memory, or on an SSD
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
"""TCP settings that detect within a minute, instead of hours, that the server's machine is unreachable."""


def create_postgresql_engines(address: str) -> Engines:
    """Create the connection pool of a PostgreSQL server without connecting yet."""
    try:
        engine = _create_engine(make_url(address).set(drivername="postgresql+psycopg"))
    except (ArgumentError, ValueError):
        # Without its cause: the address may hold a password.
        raise WrongSettings([Fault("database", "is not a URL such as postgresql://user@host/name")]) from None
    # All queries of a reader see one snapshot, as on SQLite: one query finds the ids of a page, the next
    # loads the rows with these ids.
    readers = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Engines(readers=readers, writers=engine, reader_threads=_CONNECTIONS, writer_threads=_CONNECTIONS)


def _create_engine(url: URL) -> Engine:
    """Create the engine for a server, with a pool of `_CONNECTIONS` connections."""
    options = " ".join(f"-c {name}={value}" for name, value in _SESSION_OPTIONS.items())
    return create_engine(
        url,
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=10,
        pool_pre_ping=True,  # detects a restarted server before a query fails
        hide_parameters=True,  # they include hashes and secrets, which must not be logged
        connect_args={
            "options": options,
            "connect_timeout": 10,
            "client_encoding": "utf8",  # otherwise texts arrive in the encoding of the database, or as bytes
            "application_name": "meshfleet",
            **_KEEPALIVE_OPTIONS,
        },
    )
