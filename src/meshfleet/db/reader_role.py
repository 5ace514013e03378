"""Creates PostgreSQL roles that may only read samples, through the view `meshfleet_read.sample`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy.exc import ProgrammingError

from meshfleet.db.database import describe_driver_error
from meshfleet.db.tables import metadata
from meshfleet.errors.startup import ReaderRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

_ROLE_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_-]{0,62}")
_RESERVED_NAMES: Final = {"public", "none"}

_CONNECTION_LIMIT: Final = 20
"""Maximum number of connections of a new role, so that enough remain for the service."""

_ROLE_SETTINGS: Final = {
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    # A transaction that stays open keeps the service from deleting expired samples.
    "idle_in_transaction_session_timeout": "60s",
    # Samples of other devices or days are rarely in the same query twice: a generic plan reads all days.
    "plan_cache_mode": "force_custom_plan",
    "jit": "off",
}
"""PostgreSQL settings that sessions of a new role have by default."""

_MIGRATION: Final = "meshfleet.db.migrations.versions.m0017_reader_view"


class ReaderGrant(NamedTuple):
    """Result of `grant_reader`."""

    is_new: bool
    """Whether the role was created."""
    password_changed: bool
    """Whether the role got the given password, also as a new role."""
    other_table: str | None
    """Name of a table of Meshfleet that the role may read too, for example as a superuser; else None."""


def check_role_name(name: str) -> None:
    """Raise `ReaderRefused` if a role name is reserved, too long, or has characters that are not allowed."""
    if not _ROLE_NAME.fullmatch(name) or name in _RESERVED_NAMES:
        raise ReaderRefused(
            "a role name has 1 to 63 lowercase letters, digits, _ and -, does not begin with a digit, - or "
            "pg_, and is not public or none"
        )


def grant_reader(
    connection: Connection, name: str, password: str, *, change_password: bool, names: Mapping[int, str]
) -> ReaderGrant:
    """Grant a PostgreSQL role the right to read the view `meshfleet_read.sample`, and no other right.

    If the role does not exist, create it with `password`. If the role exists, set its password only if
    `change_password` is set. `names` maps the stored number of each identifier to its name, for the view.
    Raise `ReaderRefused` if the role of the service lacks a right for this, or if `name` is that role.
    """
    check_role_name(name)
    _ensure_view(connection)
    update_identifier_names(connection, names)
    role = connection.exec_driver_sql(
        # With the URL of an administrator, the service has another role: that of the tables.
        "SELECT rolname = current_user"
        " OR oid = (SELECT relowner FROM pg_class WHERE oid = 'device'::regclass) AS is_own,"
        " rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication"
        " OR rolbypassrls AS is_privileged FROM pg_roles WHERE rolname = %s",
        (name,),
    ).first()
    if role is None:
        _create_role(connection, name, password)
    elif role.is_own:
        raise ReaderRefused(f"{name} is the role of the service itself: choose another name")
    elif change_password:
        if role.is_privileged:
            raise ReaderRefused(f"{name} is an administrator of the server: its password is not changed")
        _run_role_statement(connection, "ALTER ROLE {name} PASSWORD {password}", name, password)
    _run_role_statement(connection, "GRANT USAGE ON SCHEMA meshfleet_read TO {name}", name)
    _run_role_statement(connection, "GRANT SELECT ON meshfleet_read.sample TO {name}", name)
    _run_role_statement(
        connection,
        "GRANT EXECUTE ON FUNCTION meshfleet_read.sample(timestamptz, timestamptz) TO {name}",
        name,
    )
    return ReaderGrant(role is None, role is None or change_password, _find_other_table(connection, name))


def update_identifier_names(connection: Connection, names: Mapping[int, str]) -> None:
    """Store the names of identifiers (by stored number) in the table that the view reads.

    Do nothing if the database has no view, as with SQLite.
    """
    if not _has_view(connection):
        return
    query = "SELECT number, name FROM meshfleet_read.identifier_name"
    stored: dict[int, str] = dict(connection.exec_driver_sql(query).all())
    changed = [(number, name) for number, name in sorted(names.items()) if stored.get(number) != name]
    if changed:
        connection.exec_driver_sql(
            "INSERT INTO meshfleet_read.identifier_name VALUES (%s, %s)"
            " ON CONFLICT (number) DO UPDATE SET name = excluded.name",
            changed,
        )


def _has_view(connection: Connection) -> bool:
    """Return whether the view `meshfleet_read.sample` exists; False for SQLite."""
    return (
        connection.dialect.name == "postgresql"
        and connection.exec_driver_sql("SELECT to_regclass('meshfleet_read.sample')").scalar() is not None
    )


def _ensure_view(connection: Connection) -> None:
    """Create the view if it is missing, because the migration had no right to create schemas.

    Raise `ReaderRefused` if the role of the service still lacks that right.
    """
    if _has_view(connection):
        return
    migration = import_module(_MIGRATION)
    if not migration.may_create_view(connection):
        role, database = connection.exec_driver_sql("SELECT current_user, current_database()").one()
        raise ReaderRefused(
            f"the role {role} may not create schemas; run as the owner of the database: "
            f'GRANT CREATE ON DATABASE "{database}" TO "{role}"'
        )
    migration.create_view(connection)


def _create_role(connection: Connection, name: str, password: str) -> None:
    statement = f"CREATE ROLE {{name}} LOGIN PASSWORD {{password}} CONNECTION LIMIT {_CONNECTION_LIMIT}"
    _run_role_statement(connection, statement, name, password)
    for setting, value in _ROLE_SETTINGS.items():
        _run_role_statement(connection, f"ALTER ROLE {{name}} SET {setting} = '{value}'", name)


def _run_role_statement(
    connection: Connection, statement: str, name: str, password: str | None = None
) -> None:
    """Insert a role name, and the hash of a password if given, into an SQL statement, and run it.

    The password is hashed here because servers may log statements.
    """
    from psycopg import sql  # noqa: PLC0415 # not loaded with SQLite

    driver: Any = connection.connection.driver_connection
    values: dict[str, sql.Composable] = {"name": sql.Identifier(name)}
    if password is not None:
        hashed = driver.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
        values["password"] = sql.Literal(hashed.decode())
    try:
        connection.exec_driver_sql(sql.SQL(statement).format(**values).as_string(driver))
    except ProgrammingError as exc:
        raise ReaderRefused(
            f"the database role of the service may not do this: {describe_driver_error(exc)}; let an "
            f'administrator run CREATE ROLE "{name}" LOGIN, and run this command again, or give the URL of '
            "an administrator with --database"
        ) from None


def _find_other_table(connection: Connection, name: str) -> str | None:
    """Return the first table of Meshfleet that a role may read; None if there is none."""
    tables = connection.exec_driver_sql(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        " AND relname = ANY(%s) AND has_table_privilege(%s, oid, 'SELECT') ORDER BY relname",
        (list(metadata.tables), name),
    )
    found: str | None = tables.scalar()
    return found
