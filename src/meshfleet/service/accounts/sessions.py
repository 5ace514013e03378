"""The table of logins: a token holds as long as the row of its login is there (auth-9, auth-10)."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import delete, insert, select, update

from meshfleet.db.tables import account, session
from meshfleet.errors import NotLoggedIn, WrongCredentials
from meshfleet.service.audit import log as audit
from meshfleet.wire.rest import TOKEN_LIFETIME, Role

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.accounts.model import Actor

LONGEST: Final = 12 * 3600 * 1000
"""Milliseconds for which a login can be refreshed."""

_TOKEN: Final = TOKEN_LIFETIME // timedelta(milliseconds=1)
"""Milliseconds for which the last token of a login still holds."""


class Session(NamedTuple):
    """A login that holds."""

    username: str
    role: Role
    is_refreshable: bool


def begin(connection: Connection, by: Actor, *, knowing: str, now: int) -> str:
    """Log somebody in who knows the password with this hash; ended logins are swept out on the way."""
    mine = (account.c.username == by.name) & (account.c.password == knowing)
    if not connection.execute(update(account).where(mine).values(last_login_at=now)).rowcount:
        raise WrongCredentials("the user was removed, or the password changed, a moment ago")
    # Accounts before logins, as everybody locks them.
    connection.execute(delete(session).where(session.c.expires_at <= now))
    new = secrets.token_urlsafe(16)
    connection.execute(
        insert(session).values(id=new, username=by.name, created_at=now, expires_at=now + LONGEST + _TOKEN)
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
    return None if row is None else Session(row.username, Role(row.role), now < row.expires_at - _TOKEN)


def end(connection: Connection, identity: str, *, by: Actor, now: int) -> None:
    """Log somebody out."""
    if not connection.execute(delete(session).where(session.c.id == identity)).rowcount:
        raise NotLoggedIn("the login has ended already")
    audit.record(connection, by, "auth.logout", by.name, now=now)
