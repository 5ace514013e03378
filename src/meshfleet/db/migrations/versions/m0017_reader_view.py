"""Adds the view `meshfleet_read.sample` for SQL programs such as Grafana; on PostgreSQL only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from alembic import op

if TYPE_CHECKING:
    from sqlalchemy import Connection

revision = "0017"
down_revision = "0016"

# Above the 32 bits of a hex identifier is its length in bytes, if it has leading zero bytes.
_HEX: Final = "to_hex(s.identifier & 4294967295)"
_GIVEN_DIGITS: Final = "2 * (s.identifier >> 32)::integer"
_LEAST_DIGITS: Final = f"(length({_HEX}) + 1) / 2 * 2"

_STATEMENTS: Final = (
    # Names of identifiers by the number that samples contain. The service fills it at every start.
    "CREATE TABLE meshfleet_read.identifier_name (number bigint PRIMARY KEY, name text NOT NULL)",
    # With statistics of this expression the planner knows that a MAC selects one device, and uses the index
    # of the samples of that device.
    "CREATE STATISTICS meshfleet_read.device_mac ON (lpad(to_hex(id), 12, '0')) FROM device",
    # The MAC comes from `device`: a filter finds the row there, and its key in the index of the samples.
    # Text is not parsed as JSON: one value that PostgreSQL does not accept would make every query fail.
    rf"""CREATE VIEW meshfleet_read.sample AS SELECT
        to_timestamp(s.time::double precision / 1000) AS time,
        lpad(to_hex(device.id), 12, '0') AS device,
        device.name AS name,
        CASE s.kind WHEN 0 THEN 'property' WHEN 1 THEN 'measurement' WHEN 2 THEN 'measurement-error'
            WHEN 3 THEN 'event' END AS kind,
        coalesce(
            n.name,
            f.name,
            CASE WHEN s.identifier >= 0 THEN lpad({_HEX}, greatest({_GIVEN_DIGITS}, {_LEAST_DIGITS}), '0') END
        ) AS identifier,
        coalesce(s.number, CASE WHEN s.text ~ '^-?[0-9]+$' AND length(s.text) <= 300
            THEN s.text::double precision END) AS value,
        CASE
            WHEN s.text ~ '^"[^"\\]*"$' THEN substr(s.text, 2, length(s.text) - 2)
            WHEN s.text IS NOT NULL THEN nullif(s.text, 'null')
            WHEN s.number IS NULL THEN coalesce(encode(s.raw, 'hex'), s.error::text)
        END AS text,
        s.time AS unix_ms
    FROM sample_reported s
    JOIN device ON device.id = s.device
    LEFT JOIN meshfleet_read.identifier_name n ON n.number = s.identifier
    LEFT JOIN foreign_name f ON f.number = s.identifier""",  # noqa: S608 # constant expressions
    # The planner replaces a call by this query, so only the partitions of the time range are read. A filter
    # on the column `time` cannot select partitions, as they are by the integer that the service stores.
    """CREATE FUNCTION meshfleet_read.sample(since timestamptz, until timestamptz)
        RETURNS SETOF meshfleet_read.sample LANGUAGE sql STABLE PARALLEL SAFE
        AS $$
            SELECT * FROM meshfleet_read.sample
            WHERE unix_ms >= ceil(extract(epoch FROM since) * 1000)::bigint
                AND unix_ms < ceil(extract(epoch FROM until) * 1000)::bigint
        $$""",
    # Only roles that `meshfleet database grant-reader` names may use it.
    "REVOKE ALL ON FUNCTION meshfleet_read.sample(timestamptz, timestamptz) FROM PUBLIC",
)


def upgrade() -> None:
    """Create the view if the role of the service may create schemas; otherwise `grant-reader` does."""
    connection = op.get_bind()
    if connection.dialect.name == "postgresql" and may_create_view(connection):
        create_view(connection)


def may_create_view(connection: Connection) -> bool:
    """Return whether the role of a connection may create schemas in its database."""
    query = "SELECT has_database_privilege(current_database(), 'CREATE')"
    return bool(connection.exec_driver_sql(query).scalar())


def create_view(connection: Connection) -> None:
    """Create the schema `meshfleet_read`, unless it exists. It belongs to the owner of the other tables."""
    if connection.exec_driver_sql("SELECT to_regnamespace('meshfleet_read')").scalar() is not None:
        return
    owner = connection.exec_driver_sql(
        "SELECT quote_ident(tableowner) FROM pg_tables"
        " WHERE schemaname = current_schema() AND tablename = 'device'"
    ).scalar_one()
    connection.exec_driver_sql(f"CREATE SCHEMA meshfleet_read AUTHORIZATION {owner}")
    connection.exec_driver_sql(f"SET LOCAL ROLE {owner}")
    for statement in _STATEMENTS:
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql("RESET ROLE")
