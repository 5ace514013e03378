"""Random secrets such as signing keys, created once and stored in the database (rest-174)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from meshfleet.db.tables import secret

if TYPE_CHECKING:
    from sqlalchemy import Connection


def load_or_create_secret(connection: Connection, name: str) -> bytes:
    """Return the secret with this name; create a secret of 32 random bytes on first use."""
    query = select(secret.c.value).where(secret.c.name == name)
    if connection.dialect.name == "postgresql":
        # Two processes that start at the same time must get the same secret.
        connection.exec_driver_sql("LOCK TABLE secret IN SHARE ROW EXCLUSIVE MODE")
    found: bytes | None = connection.execute(query).scalar()
    if found is None:
        found = secrets.token_bytes(32)
        connection.execute(insert(secret).values(name=name, value=found))
    return found
