"""Stores the API keys of programs in the database (auth-20, auth-24, auth-25)."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import delete, insert, or_, select
from sqlalchemy.exc import IntegrityError

from meshfleet.db.tables import api_key
from meshfleet.errors import AlreadyExists, NotFound
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.accounts import ApiKey, ApiKeyKind, IssuedApiKey, Role
from meshfleet.service.actor import Actor
from meshfleet.service.audit import log as audit

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import ColumnElement, Connection, Row

API_KEY_PREFIX: Final = "mfk_"
"""Prefix of every API key, by which this service and secret scanners recognize keys."""


def hash_credential(credential: str) -> bytes:
    """Return the SHA-256 hash that is stored for an API key or a gateway's password (auth-20).

    Both secrets are long random values that cannot be guessed, so a fast hash is enough.
    """
    return hashlib.sha256(credential.encode()).digest()


def insert_api_key(  # noqa: PLR0913 # keyword-only after the name
    connection: Connection,
    name: str,
    *,
    role: Role,
    expires_at: int | None,
    by: Actor,
    now: int,
    kind: ApiKeyKind = ApiKeyKind.PROGRAM,
) -> IssuedApiKey:
    """Create an API key and return the key in plain text. Only a hash of the key is stored.

    Raise `AlreadyExists` if another key has this name.
    """
    key = API_KEY_PREFIX + secrets.token_urlsafe(32)
    row = {
        "id": f"key-{secrets.token_hex(8)}",
        "name": name,
        "role": role.value,
        "hash": hash_credential(key),
        "created_by": by.display_name,
        "created_at": now,
        "expires_at": expires_at,
        "kind": kind.value,
    }
    try:
        connection.execute(insert(api_key).values(row))
    except IntegrityError:
        raise AlreadyExists(f"an API key named {name} already exists") from None
    detail = {} if kind is ApiKeyKind.PROGRAM else {"kind": kind.value}
    audit.record_change(connection, by, "api-key.create", name, now=now, role=role.value, **detail)
    return IssuedApiKey(
        id=str(row["id"]),
        name=name,
        role=role,
        kind=kind,
        expires_at=format_optional_millis(expires_at),
        key=key,
    )


class ApiKeyHolder(NamedTuple):
    """Actor that an API key authenticates, with the kind and the expiry of the key."""

    actor: Actor
    kind: ApiKeyKind
    expires_at: int | None
    """Expiry as Unix time in milliseconds; None if the key does not expire."""


def find_api_key_holder(connection: Connection, key: str, *, now: int) -> ApiKeyHolder | None:
    """Return the actor and expiry of an API key, or None if the key does not exist or has expired."""
    query = select(api_key.c.name, api_key.c.role, api_key.c.kind, api_key.c.expires_at).where(
        api_key.c.hash == hash_credential(key), _build_validity_condition(now)
    )
    row = connection.execute(query).first()
    if row is None:
        return None
    actor = Actor(name=row.name, role=Role(row.role), kind="api-key")
    return ApiKeyHolder(actor, ApiKeyKind(row.kind), row.expires_at)


class ApiKeyCredential(NamedTuple):
    """Hash, role and kind of a valid API key."""

    hash: bytes
    role: Role
    kind: ApiKeyKind


def load_api_key_credentials(
    connection: Connection, names: Collection[str], *, now: int
) -> dict[str, ApiKeyCredential]:
    """Return hash, role and kind of API keys by name. Expired keys are left out."""
    query = select(api_key.c.name, api_key.c.hash, api_key.c.role, api_key.c.kind).where(
        api_key.c.name.in_(names), _build_validity_condition(now)
    )
    return {
        row.name: ApiKeyCredential(row.hash, Role(row.role), ApiKeyKind(row.kind))
        for row in connection.execute(query)
    }


def list_api_keys(connection: Connection, *, after: str, limit: int) -> list[ApiKey]:
    """Return up to `limit` API keys ordered by name, starting after the name `after`."""
    query = select(api_key).where(api_key.c.name > after).order_by(api_key.c.name).limit(limit)
    return [_to_api_key(row) for row in connection.execute(query)]


def delete_api_key(connection: Connection, identity: str, *, by: Actor, now: int) -> None:
    """Revoke an API key. Raise `NotFound` if no key has this id."""
    query = delete(api_key).where(api_key.c.id == identity).returning(api_key.c.name)
    name = connection.execute(query).scalar()
    if name is None:
        raise NotFound("API key not found")
    audit.record_change(connection, by, "api-key.revoke", name, now=now)


def _build_validity_condition(now: int) -> ColumnElement[bool]:
    """Return the SQL condition that an API key has not expired."""
    return or_(api_key.c.expires_at.is_(None), api_key.c.expires_at > now)


def _to_api_key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        kind=ApiKeyKind(row.kind),
        created_by=row.created_by,
        created_at=format_millis(row.created_at),
        expires_at=format_optional_millis(row.expires_at),
    )
