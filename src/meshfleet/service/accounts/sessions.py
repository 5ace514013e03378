"""The table of logins: a token holds as long as the row of its login is there (auth-9, auth-10)."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import delete, insert, select, update

from meshfleet.db.tables import account, session
from meshfleet.errors import NotLoggedIn
from meshfleet.service.audit import log as audit
from meshfleet.wire.rest import Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.accounts.model import Actor

LONGEST: Final = 12 * 3600 * 1000
"""Milliseconds for which a login can be refreshed."""


class Session(NamedTuple):
    """A login that holds."""

    username: str
    role: Role
    expires_at: int


def begin(connection: Connection, by: Actor, *, now: int) -> str:
    """Log somebody in; the logins that have ended are swept out on the way."""
    connection.execute(delete(session).where(session.c.expires_at <= now))
    mine = account.c.username == by.name
    if not connection.execute(update(account).where(mine).values(last_login_at=now)).rowcount:
        raise NotLoggedIn("the user was removed a moment ago")
    new = secrets.token_urlsafe(16)
    connection.execute(
        insert(session).values(id=new, username=by.name, created_at=now, expires_at=now + LONGEST)
    )
    audit.record(connection, by, "auth.login", by.name, now=now)
    return new


def find(connection: Connection, identity: str, *, now: int) -> Session | None:
    """A login, if it holds, with what its owner may do at this moment."""
    query = (
        select(session.c.username, account.c.role, session.c.expires_at)
        .join(account)
        .where(session.c.id == identity, session.c.expires_at > now)
    )
    row = connection.execute(query).first()
    return None if row is None else Session(row.username, Role(row.role), row.expires_at)


def end(connection: Connection, identity: str, *, by: Actor, now: int) -> None:
    """Log somebody out."""
    connection.execute(delete(session).where(session.c.id == identity))
    audit.record(connection, by, "auth.logout", by.name, now=now)
