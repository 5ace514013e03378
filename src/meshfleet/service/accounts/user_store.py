"""The table of people."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import account, session
from meshfleet.errors import AlreadyExists, LastAdmin, NotFound, NotLoggedIn, WrongCredentials
from meshfleet.protocol.times import format_millis
from meshfleet.rest import TOKEN_LIFETIME, Role, User
from meshfleet.service.audit import log as audit

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor


# The table of logins: a token holds as long as the row of its login is there (auth-9, auth-10).

MAX_SESSION_MS: Final = 12 * 3600 * 1000
"""Milliseconds for which a login can be refreshed."""

_TOKEN_MS: Final = TOKEN_LIFETIME // timedelta(milliseconds=1)
"""Milliseconds for which the last token of a login still holds."""


class LoginSession(NamedTuple):
    """A login that holds."""

    username: str
    role: Role
    is_refreshable: bool


def insert_session(connection: Connection, by: Actor, *, knowing: str, now: int) -> str:
    """Log somebody in who knows the password with this hash; ended logins are swept out on the way."""
    mine = (account.c.username == by.name) & (account.c.password == knowing)
    if not connection.execute(update(account).where(mine).values(last_login_at=now)).rowcount:
        raise WrongCredentials("the user was removed, or the password changed, a moment ago")
    # Accounts before logins, as everybody locks them.
    connection.execute(delete(session).where(session.c.expires_at <= now))
    new = secrets.token_urlsafe(16)
    connection.execute(
        insert(session).values(
            id=new, username=by.name, created_at=now, expires_at=now + MAX_SESSION_MS + _TOKEN_MS
        )
    )
    audit.record_change(connection, by, "auth.login", by.name, now=now)
    return new


def find_session(connection: Connection, identity: str, *, now: int) -> LoginSession | None:
    """A login, if it holds, with what its owner may do at this moment."""
    query = (
        select(session.c.username, account.c.role, session.c.expires_at)
        .join(account)
        .where(session.c.id == identity, session.c.expires_at > now)
    )
    row = connection.execute(query).first()
    return (
        None if row is None else LoginSession(row.username, Role(row.role), now < row.expires_at - _TOKEN_MS)
    )


def delete_session(connection: Connection, identity: str, *, by: Actor, now: int) -> None:
    """Log somebody out."""
    if not connection.execute(delete(session).where(session.c.id == identity)).rowcount:
        raise NotLoggedIn("the login has ended already")
    audit.record_change(connection, by, "auth.logout", by.name, now=now)


def insert_user(  # noqa: PLR0913 # by name
    connection: Connection, username: str, *, hashed: str, role: Role, by: Actor, now: int
) -> User:
    """Let somebody in from now on."""
    row = {"username": username, "password": hashed, "role": role.value, "created_at": now}
    try:
        connection.execute(insert(account).values(row))
    except IntegrityError:
        raise AlreadyExists(f"there is a user {username} already") from None
    audit.record_change(connection, by, "user.create", username, now=now, role=role.value)
    return load_user(connection, username)


def insert_first_admin(connection: Connection, username: str, *, hashed: str, by: Actor, now: int) -> bool:
    """Make the first admin; False: there is somebody already, maybe since a moment ago (auth-28)."""
    if connection.dialect.name == "postgresql":
        # Two services that start at once make one.
        connection.exec_driver_sql("LOCK TABLE account IN SHARE ROW EXCLUSIVE MODE")
    if not has_no_users(connection):
        return False
    insert_user(connection, username, hashed=hashed, role=Role.ADMIN, by=by, now=now)
    return True


def has_no_users(connection: Connection) -> bool:
    """Whether nobody could log in."""
    return connection.execute(select(account.c.username).limit(1)).first() is None


def load_user(connection: Connection, username: str) -> User:
    """One of them."""
    row = connection.execute(select(account).where(account.c.username == username)).first()
    if row is None:
        raise _no_such_user(username)
    return _to_user(row)


def list_users(connection: Connection, *, after: str, limit: int) -> list[User]:
    """Some of them, by name, behind that name."""
    query = select(account).where(account.c.username > after).order_by(account.c.username).limit(limit)
    return [_to_user(row) for row in connection.execute(query)]


def find_password_hash(connection: Connection, username: str) -> str | None:
    """The hash of somebody's password; None: there is no such user."""
    return connection.execute(select(account.c.password).where(account.c.username == username)).scalar()


class UserCredential(NamedTuple):
    """Somebody who may log in."""

    password_hash: str
    """Its hash."""
    role: Role


def load_user_credentials(connection: Connection, usernames: Collection[str]) -> dict[str, UserCredential]:
    """Those of these users that there are."""
    query = select(account.c.username, account.c.password, account.c.role)
    rows = connection.execute(query.where(account.c.username.in_(usernames)))
    return {row.username: UserCredential(row.password, Role(row.role)) for row in rows}


def update_user(  # noqa: PLR0913 # by name
    connection: Connection, username: str, *, role: Role | None, hashed: str | None, by: Actor, now: int
) -> User:
    """Let somebody do more or less, or give them another password; None leaves it as it is."""
    if role is not None:
        _update_role(connection, username, role, by=by, now=now)
    if hashed is not None:
        update_password(connection, username, hashed, by=by, now=now)
    return load_user(connection, username)


def _update_role(connection: Connection, username: str, role: Role, *, by: Actor, now: int) -> None:
    before = _lock_role(connection, username)
    if before == role:
        return
    if before == Role.ADMIN:
        _require_other_admin(connection, username)
    connection.execute(update(account).where(account.c.username == username).values(role=role.value))
    audit.record_change(
        connection, by, "user.change-role", username, now=now, before=before, after=role.value
    )


def update_password(connection: Connection, username: str, hashed: str, *, by: Actor, now: int) -> None:
    """Give somebody another password; all their logins end."""
    _set_password(connection, username, hashed, by=by, now=now)
    connection.execute(delete(session).where(session.c.username == username))


def update_own_password(connection: Connection, hashed: str, *, knowing: str, by: Actor, now: int) -> None:
    """Give somebody, who knows the password with that hash, another one; all their other logins end."""
    mine = (account.c.username == by.name) & (account.c.password == knowing)
    if connection.execute(select(account.c.username).where(mine).with_for_update()).first() is None:
        raise WrongCredentials("the password was changed a moment ago")
    _set_password(connection, by.name, hashed, by=by, now=now)
    others = (session.c.username == by.name) & (session.c.id != by.session)
    connection.execute(delete(session).where(others))


def _set_password(connection: Connection, username: str, hashed: str, *, by: Actor, now: int) -> None:
    mine = account.c.username == username
    if not connection.execute(update(account).where(mine).values(password=hashed)).rowcount:
        raise _no_such_user(username)
    audit.record_change(connection, by, "user.change-password", username, now=now)


def update_password_hash(connection: Connection, username: str, *, before: str, after: str) -> None:
    """Store the same password with more effort, unless it was changed meanwhile."""
    mine = (account.c.username == username) & (account.c.password == before)
    connection.execute(update(account).where(mine).values(password=after))


def delete_user(connection: Connection, username: str, *, by: Actor, now: int) -> None:
    """Let somebody in no longer; their logins end."""
    if _lock_role(connection, username) == Role.ADMIN:
        _require_other_admin(connection, username)
    connection.execute(delete(account).where(account.c.username == username))
    audit.record_change(connection, by, "user.remove", username, now=now)


def _lock_role(connection: Connection, username: str) -> str:
    """The role of somebody. They and all admins stay as they are until we are done.

    Everybody locks in one order: of two admins who remove each other one comes after the other.
    """
    concerned = (account.c.username == username) | (account.c.role == Role.ADMIN.value)
    query = select(account.c.username, account.c.role).where(concerned).order_by(account.c.username)
    roles: dict[str, str] = {row.username: row.role for row in connection.execute(query.with_for_update())}
    if username not in roles:
        raise _no_such_user(username)
    return roles[username]


def _require_other_admin(connection: Connection, leaving: str) -> None:
    others = (account.c.role == Role.ADMIN.value) & (account.c.username != leaving)
    # Locked as well: who became an admin a moment ago is not among those that stay as they are.
    query = select(account.c.username).where(others).order_by(account.c.username).limit(1)
    if connection.execute(query.with_for_update()).first() is None:
        raise LastAdmin(f"{leaving} is the last admin; make somebody else one first")


def _no_such_user(username: str) -> NotFound:
    return NotFound(f"there is no user {username}")


def _to_user(row: Row[Any]) -> User:
    seen = row.last_login_at
    return User(
        username=row.username,
        role=Role(row.role),
        created_at=format_millis(row.created_at),
        last_login_at=None if seen is None else format_millis(seen),
    )
