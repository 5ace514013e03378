"""Stores users and their login sessions in the database."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import account, session
from meshfleet.errors import AlreadyExists, LastAdmin, NotFound, NotLoggedIn, WrongCredentials
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.accounts import TOKEN_LIFETIME, Role, User
from meshfleet.service.audit import log as audit

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor


# Sessions: an access token is valid only while the row of its session exists (auth-9, auth-10).

MAX_SESSION_MS: Final = 12 * 3600 * 1000
"""Milliseconds after the login for which access tokens of a session can be refreshed."""

_TOKEN_MS: Final = TOKEN_LIFETIME // timedelta(milliseconds=1)
"""Milliseconds for which an access token is valid."""


class LoginSession(NamedTuple):
    """Login session that has not expired."""

    username: str
    role: Role
    """Current role of the user, which may have changed since the login."""
    is_refreshable: bool


def insert_session(connection: Connection, by: Actor, *, checked_hash: str, now: int) -> str:
    """Create a session for the actor and return the session id. Also delete expired sessions of all users.

    `checked_hash` is the password hash with which the login was checked. Raise `WrongCredentials` if the
    user was removed or the password was changed since that check.
    """
    is_unchanged = (account.c.username == by.name) & (account.c.password == checked_hash)
    if not connection.execute(update(account).where(is_unchanged).values(last_login_at=now)).rowcount:
        raise WrongCredentials(
            "the user was removed or the password was changed during the login; log in again"
        )
    # Accounts before sessions: every transaction locks them in this order.
    connection.execute(delete(session).where(session.c.expires_at <= now))
    session_id = secrets.token_urlsafe(16)
    connection.execute(
        insert(session).values(
            id=session_id, username=by.name, created_at=now, expires_at=now + MAX_SESSION_MS + _TOKEN_MS
        )
    )
    audit.record_change(connection, by, "auth.login", by.name, now=now)
    return session_id


def find_session(connection: Connection, identity: str, *, now: int) -> LoginSession | None:
    """Return a login session with the current role of its user, or None if it has ended or expired."""
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
    """Delete a login session (logout). Raise `NotLoggedIn` if the session does not exist."""
    if not connection.execute(delete(session).where(session.c.id == identity)).rowcount:
        raise NotLoggedIn("the session has already ended")
    audit.record_change(connection, by, "auth.logout", by.name, now=now)


def insert_user(  # noqa: PLR0913 # keyword-only after the key
    connection: Connection, username: str, *, hashed: str, role: Role, by: Actor, now: int
) -> User:
    """Create a user. Raise `AlreadyExists` if another user has this name."""
    row = {"username": username, "password": hashed, "role": role.value, "created_at": now}
    try:
        connection.execute(insert(account).values(row))
    except IntegrityError:
        raise AlreadyExists(f"user {username} already exists") from None
    audit.record_change(connection, by, "user.create", username, now=now, role=role.value)
    return load_user(connection, username)


def insert_first_admin(connection: Connection, username: str, *, hashed: str, by: Actor, now: int) -> bool:
    """Create the first admin. Return False if any user exists (auth-28)."""
    if connection.dialect.name == "postgresql":
        # Two services that start at the same time create one admin.
        connection.exec_driver_sql("LOCK TABLE account IN SHARE ROW EXCLUSIVE MODE")
    if not has_no_users(connection):
        return False
    insert_user(connection, username, hashed=hashed, role=Role.ADMIN, by=by, now=now)
    return True


def has_no_users(connection: Connection) -> bool:
    """Return whether the table of users is empty."""
    return connection.execute(select(account.c.username).limit(1)).first() is None


def load_user(connection: Connection, username: str) -> User:
    """Return a user. Raise `NotFound` if no user has this name."""
    row = connection.execute(select(account).where(account.c.username == username)).first()
    if row is None:
        raise _build_not_found(username)
    return _to_user(row)


def list_users(connection: Connection, *, after: str, limit: int) -> list[User]:
    """Return up to `limit` users ordered by name, starting after the name `after`."""
    query = select(account).where(account.c.username > after).order_by(account.c.username).limit(limit)
    return [_to_user(row) for row in connection.execute(query)]


def find_password_hash(connection: Connection, username: str) -> str | None:
    """Return the password hash of a user, or None if the user does not exist."""
    return connection.execute(select(account.c.password).where(account.c.username == username)).scalar()


class UserCredential(NamedTuple):
    """Password hash and role of a user."""

    password_hash: str
    role: Role


def load_user_credentials(connection: Connection, usernames: Collection[str]) -> dict[str, UserCredential]:
    """Return password hash and role of users by name. Users that do not exist are left out."""
    query = select(account.c.username, account.c.password, account.c.role)
    rows = connection.execute(query.where(account.c.username.in_(usernames)))
    return {row.username: UserCredential(row.password, Role(row.role)) for row in rows}


def update_user(  # noqa: PLR0913 # keyword-only after the key
    connection: Connection, username: str, *, role: Role | None, hashed: str | None, by: Actor, now: int
) -> User:
    """Change the role or the password of a user, or both; None means unchanged.

    Raise `LastAdmin` if no admin would be left.
    """
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
    """Set the password of a user and end all sessions of that user."""
    _set_password(connection, username, hashed, by=by, now=now)
    connection.execute(delete(session).where(session.c.username == username))


def update_own_password(
    connection: Connection, hashed: str, *, checked_hash: str, by: Actor, now: int
) -> None:
    """Set the actor's own password and end all sessions of the actor except the current session.

    `checked_hash` is the hash with which the old password was checked. Raise `WrongCredentials` if the
    password was changed since that check.
    """
    is_unchanged = (account.c.username == by.name) & (account.c.password == checked_hash)
    if connection.execute(select(account.c.username).where(is_unchanged).with_for_update()).first() is None:
        raise WrongCredentials("the password was changed by another request; log in again")
    _set_password(connection, by.name, hashed, by=by, now=now)
    others = (session.c.username == by.name) & (session.c.id != by.session)
    connection.execute(delete(session).where(others))


def _set_password(connection: Connection, username: str, hashed: str, *, by: Actor, now: int) -> None:
    is_user = account.c.username == username
    if not connection.execute(update(account).where(is_user).values(password=hashed)).rowcount:
        raise _build_not_found(username)
    audit.record_change(connection, by, "user.change-password", username, now=now)


def update_password_hash(connection: Connection, username: str, *, before: str, after: str) -> None:
    """Replace the password hash of a user by a new hash of the same password.

    Do nothing if the password was changed meanwhile.
    """
    is_unchanged = (account.c.username == username) & (account.c.password == before)
    connection.execute(update(account).where(is_unchanged).values(password=after))


def delete_user(connection: Connection, username: str, *, by: Actor, now: int) -> None:
    """Delete a user together with the user's sessions. Raise `LastAdmin` if no admin would be left."""
    if _lock_role(connection, username) == Role.ADMIN:
        _require_other_admin(connection, username)
    connection.execute(delete(account).where(account.c.username == username))
    audit.record_change(connection, by, "user.remove", username, now=now)


def _lock_role(connection: Connection, username: str) -> str:
    """Return the role of a user. Lock the rows of the user and of all admins until the transaction ends.

    Rows are locked in the order of user names, so that two admins who remove each other do not deadlock.
    """
    is_locked = (account.c.username == username) | (account.c.role == Role.ADMIN.value)
    query = select(account.c.username, account.c.role).where(is_locked).order_by(account.c.username)
    roles: dict[str, str] = {row.username: row.role for row in connection.execute(query.with_for_update())}
    if username not in roles:
        raise _build_not_found(username)
    return roles[username]


def _require_other_admin(connection: Connection, username: str) -> None:
    others = (account.c.role == Role.ADMIN.value) & (account.c.username != username)
    # Locked as well: a user who has just become an admin is not among the rows of `_lock_role`.
    query = select(account.c.username).where(others).order_by(account.c.username).limit(1)
    if connection.execute(query.with_for_update()).first() is None:
        raise LastAdmin(f"{username} is the last admin; make another user an admin first")


def _build_not_found(username: str) -> NotFound:
    return NotFound(f"user {username} not found")


def _to_user(row: Row[Any]) -> User:
    last_login = row.last_login_at
    return User(
        username=row.username,
        role=Role(row.role),
        created_at=format_millis(row.created_at),
        last_login_at=format_optional_millis(last_login),
    )
