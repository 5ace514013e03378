"""What signs our tokens: made once, kept in the database, the same for every process (rest-174)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from meshfleet.db.tables import secret

if TYPE_CHECKING:
    from sqlalchemy import Connection


def load_or_create_secret(connection: Connection, name: str) -> bytes:
    """The secret of that name; a new one at the first time."""
    wanted = select(secret.c.value).where(secret.c.name == name)
    if connection.dialect.name == "postgresql":
        # Two processes that start at once must end up with one secret.
        connection.exec_driver_sql("LOCK TABLE secret IN SHARE ROW EXCLUSIVE MODE")
    found: bytes | None = connection.execute(wanted).scalar()
    if found is None:
        found = secrets.token_bytes(32)
        connection.execute(insert(secret).values(name=name, value=found))
    return found
