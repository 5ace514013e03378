"""The table of people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import account, session
from meshfleet.errors import AlreadyExists, LastAdmin, NotFound, WrongCredentials
from meshfleet.service.audit import log as audit
from meshfleet.wire.rest import Role, User
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection, Row

    from meshfleet.service.accounts.model import Actor


def create(  # noqa: PLR0913 # by name
    connection: Connection, username: str, *, hashed: str, role: Role, by: Actor, now: int
) -> User:
    """Let somebody in from now on."""
    row = {"username": username, "password": hashed, "role": role.value, "created_at": now}
    try:
        connection.execute(insert(account).values(row))
    except IntegrityError:
        raise AlreadyExists(f"there is a user {username} already") from None
    audit.record(connection, by, "user.create", username, now=now, role=role.value)
    return user(connection, username)


def create_first(connection: Connection, username: str, *, hashed: str, by: Actor, now: int) -> bool:
    """Make the first admin; False: there is somebody already, maybe since a moment ago (auth-28)."""
    if connection.dialect.name == "postgresql":
        # Two services that start at once make one.
        connection.exec_driver_sql("LOCK TABLE account IN SHARE ROW EXCLUSIVE MODE")
    if not is_empty(connection):
        return False
    create(connection, username, hashed=hashed, role=Role.ADMIN, by=by, now=now)
    return True


def is_empty(connection: Connection) -> bool:
    """Whether nobody could log in."""
    return connection.execute(select(account.c.username).limit(1)).first() is None


def user(connection: Connection, username: str) -> User:
    """One of them."""
    row = connection.execute(select(account).where(account.c.username == username)).first()
    if row is None:
        raise _nobody(username)
    return _user(row)


def users(connection: Connection, *, after: str, limit: int) -> list[User]:
    """Some of them, by name, behind that name."""
    query = select(account).where(account.c.username > after).order_by(account.c.username).limit(limit)
    return [_user(row) for row in connection.execute(query)]


def password_of(connection: Connection, username: str) -> str | None:
    """The hash of somebody's password; None: there is no such user."""
    return connection.execute(select(account.c.password).where(account.c.username == username)).scalar()


class Known(NamedTuple):
    """Somebody who may log in."""

    password: str
    """Its hash."""
    role: Role


def known(connection: Connection, usernames: Collection[str]) -> dict[str, Known]:
    """Those of these users that there are."""
    query = select(account.c.username, account.c.password, account.c.role)
    rows = connection.execute(query.where(account.c.username.in_(usernames)))
    return {row.username: Known(row.password, Role(row.role)) for row in rows}


def change(  # noqa: PLR0913 # by name
    connection: Connection, username: str, *, role: Role | None, hashed: str | None, by: Actor, now: int
) -> User:
    """Let somebody do more or less, or give them another password; None leaves it as it is."""
    if role is not None:
        _change_role(connection, username, role, by=by, now=now)
    if hashed is not None:
        change_password(connection, username, hashed, by=by, now=now)
    return user(connection, username)


def _change_role(connection: Connection, username: str, role: Role, *, by: Actor, now: int) -> None:
    before = _locked_role(connection, username)
    if before == role:
        return
    if before == Role.ADMIN:
        _keep_an_admin(connection, username)
    connection.execute(update(account).where(account.c.username == username).values(role=role.value))
    audit.record(connection, by, "user.change-role", username, now=now, before=before, after=role.value)


def change_password(connection: Connection, username: str, hashed: str, *, by: Actor, now: int) -> None:
    """Give somebody another password; all their logins end."""
    _set_password(connection, username, hashed, by=by, now=now)
    connection.execute(delete(session).where(session.c.username == username))


def change_own_password(connection: Connection, hashed: str, *, knowing: str, by: Actor, now: int) -> None:
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
        raise _nobody(username)
    audit.record(connection, by, "user.change-password", username, now=now)


def renew_hash(connection: Connection, username: str, *, before: str, after: str) -> None:
    """Store the same password with more effort, unless it was changed meanwhile."""
    mine = (account.c.username == username) & (account.c.password == before)
    connection.execute(update(account).where(mine).values(password=after))


def remove(connection: Connection, username: str, *, by: Actor, now: int) -> None:
    """Let somebody in no longer; their logins end."""
    if _locked_role(connection, username) == Role.ADMIN:
        _keep_an_admin(connection, username)
    connection.execute(delete(account).where(account.c.username == username))
    audit.record(connection, by, "user.remove", username, now=now)


def _locked_role(connection: Connection, username: str) -> str:
    """The role of somebody. They and all admins stay as they are until we are done.

    Everybody locks in one order: of two admins who remove each other one comes after the other.
    """
    concerned = (account.c.username == username) | (account.c.role == Role.ADMIN.value)
    query = select(account.c.username, account.c.role).where(concerned).order_by(account.c.username)
    roles: dict[str, str] = {row.username: row.role for row in connection.execute(query.with_for_update())}
    if username not in roles:
        raise _nobody(username)
    return roles[username]


def _keep_an_admin(connection: Connection, leaving: str) -> None:
    others = (account.c.role == Role.ADMIN.value) & (account.c.username != leaving)
    # Locked as well: who became an admin a moment ago is not among those that stay as they are.
    query = select(account.c.username).where(others).order_by(account.c.username).limit(1)
    if connection.execute(query.with_for_update()).first() is None:
        raise LastAdmin(f"{leaving} is the last admin; make somebody else one first")


def _nobody(username: str) -> NotFound:
    return NotFound(f"there is no user {username}")


def _user(row: Row[Any]) -> User:
    seen = row.last_login_at
    return User(
        username=row.username,
        role=Role(row.role),
        created_at=write_millis(row.created_at),
        last_login_at=None if seen is None else write_millis(seen),
    )
