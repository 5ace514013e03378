"""The table of API keys, with which programs come (auth-20, auth-24, auth-25)."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import delete, insert, or_, select
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import api_key
from meshfleet.errors import AlreadyExists, NotFound
from meshfleet.protocol.times import format_millis
from meshfleet.rest import ApiKey, IssuedApiKey, Role
from meshfleet.service.actor import Actor
from meshfleet.service.audit import log as audit

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection, Row

API_KEY_PREFIX: Final = "mfk_"
"""So that a key is recognised as one: here, and by programs that look for secrets in the wrong place."""


def hash_credential(credential: str) -> bytes:
    """What is stored of a key, or of a gateway's password (auth-20).

    Both are random and long: there is nothing to guess, so a fast hash will do.
    """
    return hashlib.sha256(credential.encode()).digest()


def insert_api_key(  # noqa: PLR0913 # by name
    connection: Connection, name: str, *, role: Role, expires_at: int | None, by: Actor, now: int
) -> IssuedApiKey:
    """Make a key; this is the only time that anybody sees it."""
    key = API_KEY_PREFIX + secrets.token_urlsafe(32)
    row = {
        "id": f"key-{secrets.token_hex(8)}",
        "name": name,
        "role": role.value,
        "hash": hash_credential(key),
        "created_by": by.display_name,
        "created_at": now,
        "expires_at": expires_at,
    }
    try:
        connection.execute(insert(api_key).values(row))
    except IntegrityError:
        raise AlreadyExists(f"there is an API key named {name} already") from None
    audit.record_change(connection, by, "api-key.create", name, now=now, role=role.value)
    return IssuedApiKey(
        id=str(row["id"]), name=name, role=role, expires_at=_format_optional_time(expires_at), key=key
    )


class ApiKeyHolder(NamedTuple):
    """Who comes with a key, and until when it holds."""

    actor: Actor
    expires_at: int | None


def find_api_key_holder(connection: Connection, key: str, *, now: int) -> ApiKeyHolder | None:
    """Who comes with this key, if it holds."""
    holds = or_(api_key.c.expires_at.is_(None), api_key.c.expires_at > now)
    query = select(api_key.c.name, api_key.c.role, api_key.c.expires_at).where(
        api_key.c.hash == hash_credential(key), holds
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    return ApiKeyHolder(Actor(name=row.name, role=Role(row.role), kind="api-key"), row.expires_at)


class ApiKeyCredential(NamedTuple):
    """A key that holds."""

    hash: bytes
    role: Role


def load_api_key_credentials(
    connection: Connection, names: Collection[str], *, now: int
) -> dict[str, ApiKeyCredential]:
    """The keys of these names that hold."""
    holds = or_(api_key.c.expires_at.is_(None), api_key.c.expires_at > now)
    query = select(api_key.c.name, api_key.c.hash, api_key.c.role).where(api_key.c.name.in_(names), holds)
    return {row.name: ApiKeyCredential(row.hash, Role(row.role)) for row in connection.execute(query)}


def list_api_keys(connection: Connection, *, after: str, limit: int) -> list[ApiKey]:
    """Some of them, by name, behind that name."""
    query = select(api_key).where(api_key.c.name > after).order_by(api_key.c.name).limit(limit)
    return [_api_key(row) for row in connection.execute(query)]


def delete_api_key(connection: Connection, identity: str, *, by: Actor, now: int) -> None:
    """Let nobody in with this key any more."""
    query = delete(api_key).where(api_key.c.id == identity).returning(api_key.c.name)
    name = connection.execute(query).scalar()
    if name is None:
        raise NotFound("there is no such API key")
    audit.record_change(connection, by, "api-key.revoke", name, now=now)


def _api_key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        created_by=row.created_by,
        created_at=format_millis(row.created_at),
        expires_at=_format_optional_time(row.expires_at),
    )


def _format_optional_time(millis: int | None) -> str | None:
    return None if millis is None else format_millis(millis)
