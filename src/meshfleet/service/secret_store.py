"""Random secrets such as signing keys, created once and stored in the database (rest-174)."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final

from sqlalchemy import insert, select

from meshfleet.db.tables import secret

if TYPE_CHECKING:
    from sqlalchemy import Connection

INSTANCE_SECRET: Final = "instance"  # noqa: S105 # a name
"""Name of the secret from which the id of this installation is derived. Backups contain the id."""


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


def format_instance_id(value: bytes) -> str:
    """Return the id of an installation as text, by which its backups can be told from others."""
    return hashlib.sha256(value).hexdigest()[:32]
