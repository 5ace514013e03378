"""Database functions for claimed gateways: MQTT credentials, API versions, clock offsets and modes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db import bulk
from meshfleet.db.database import is_duplicate_error
from meshfleet.db.tables import device, device_state, gateway
from meshfleet.errors import AlreadyExists, NotFound
from meshfleet.protocol.ids import mac_from_int, mac_to_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.gateways import Gateway
from meshfleet.service.accounts.api_key_store import hash_credential
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways.password_hash import hash_mosquitto_password

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection, Row

    from meshfleet.protocol.ids import Mac
    from meshfleet.service.actor import Actor

IS_UNSEEN: Final = (
    ~device.c.connected
    & (device.c.connected_at <= gateway.c.claimed_at)
    & device_state.c.reported_at.is_(None)
)
"""Condition that a claimed gateway never connected or reported, in queries that outer join `device_state`."""


def claim_gateway(connection: Connection, mac: Mac, *, name: str | None, by: Actor, now: int) -> str:
    """Claim a gateway, and return its new MQTT password (rest-69 to rest-72).

    Raise `AlreadyExists` if the gateway is already claimed.
    """
    registry.record_observations(connection, [DeviceObservation(device=mac, at=now, heard=False)])
    name_before = connection.execute(select(device.c.name).where(device.c.id == mac_to_int(mac))).scalar()
    if name is not None:
        registry.set_device_names(connection, [(mac, name)])
    password = generate_password()
    row = {"device": mac_to_int(mac), "claimed_at": now, **build_password_columns(password)}
    try:
        connection.execute(insert(gateway).values(row))
    except IntegrityError as exc:
        if not is_duplicate_error(exc):
            raise
        raise AlreadyExists(f"gateway {mac} is already claimed") from None
    audit_fields = {} if name in {None, name_before} else {"before": name_before, "after": name}
    audit.record_change(connection, by, "gateway.claim", to_device_id(mac), now=now, **audit_fields)
    return password


def rotate_password(connection: Connection, mac: Mac, *, by: Actor, now: int) -> str:
    """Set and return a new MQTT password of a gateway. The old password becomes invalid (rest-73)."""
    password = generate_password()
    is_gateway = gateway.c.device == mac_to_int(mac)
    if not connection.execute(
        update(gateway).where(is_gateway).values(build_password_columns(password))
    ).rowcount:
        raise _build_not_claimed_error(mac)
    audit.record_change(connection, by, "gateway.rotate", to_device_id(mac), now=now)
    return password


def release_gateway(connection: Connection, mac: Mac, *, by: Actor, now: int) -> None:
    """Release a claimed gateway. Keep the device of the gateway and its history (rest-74)."""
    if not connection.execute(delete(gateway).where(gateway.c.device == mac_to_int(mac))).rowcount:
        raise _build_not_claimed_error(mac)
    audit.record_change(connection, by, "gateway.release", to_device_id(mac), now=now)


def load_password_digests(connection: Connection, macs: Iterable[Mac]) -> dict[Mac, bytes]:
    """Load the MQTT password digests of the gateways in `macs` that are claimed with a password, by MAC."""
    query = "SELECT device, password FROM gateway WHERE password IS NOT NULL AND device IN numbers"
    rows = bulk.query_in(connection, query, [mac_to_int(mac) for mac in macs])
    return {mac_from_int(number): password for number, password in rows}


def load_broker_hashes(connection: Connection) -> dict[Mac, str | None]:
    """Load the password hashes for an external broker, by MAC of the claimed gateway.

    The hash is None if the gateway was claimed automatically.
    """
    query = select(gateway.c.device, gateway.c.broker_hash).order_by(gateway.c.device)
    return {mac_from_int(number): broker_hash for number, broker_hash in connection.execute(query)}


class GatewayFacts(NamedTuple):
    """API version and clock offset of a gateway; each is None if unknown."""

    api_version: str | None
    clock_offset: int | None
    """Milliseconds by which the gateway's clock is ahead of the local clock; negative if it is behind."""


def load_gateway_facts(connection: Connection) -> dict[int, GatewayFacts]:
    """Load API versions and clock offsets of all claimed gateways, by MAC as an integer."""
    query = select(gateway.c.device, gateway.c.api_version, gateway.c.clock_offset)
    return {number: GatewayFacts(*each) for number, *each in connection.execute(query)}


def update_api_versions(connection: Connection, versions: Mapping[int, str]) -> None:
    """Store API versions of gateways, by MAC as an integer. Ignore gateways that are not claimed."""
    rows = [(version, number) for number, version in sorted(versions.items())]
    bulk.execute_many(connection, "UPDATE gateway SET api_version = ? WHERE device = ?", rows)


def update_clock_offsets(connection: Connection, offsets: Mapping[int, int]) -> None:
    """Store clock offsets of gateways in milliseconds, by MAC as an integer.

    Ignore gateways that are not claimed.
    """
    rows = [(ahead, number) for number, ahead in sorted(offsets.items())]
    bulk.execute_many(connection, "UPDATE gateway SET clock_offset = ? WHERE device = ?", rows)


def load_gateway_modes(connection: Connection) -> dict[int, str]:
    """Load the known modes of claimed gateways, by MAC as an integer.

    The mode is `raw` (the gateway sends values as hex bytes) or `decoded` (as JSON).
    """
    query = select(gateway.c.device, gateway.c.mode).where(gateway.c.mode.is_not(None))
    modes: dict[int, str] = dict(connection.execute(query).all())
    return modes


def update_gateway_modes(connection: Connection, modes: Mapping[int, str]) -> None:
    """Store the changed modes of gateways (`raw` or `decoded`), by MAC as an integer.

    Ignore gateways that are not claimed.
    """
    rows = [(mode, number, mode) for number, mode in sorted(modes.items())]
    statement = "UPDATE gateway SET mode = ? WHERE device = ? AND (mode IS NULL OR mode <> ?)"
    bulk.execute_many(connection, statement, rows)


def list_gateways(
    connection: Connection, *, connected: bool | None = None, after: int, limit: int
) -> list[Gateway]:
    """List claimed gateways sorted by MAC, starting after the MAC `after`, which is an integer.

    `connected` limits the list to those that are connected, or are not.
    """
    query = _SELECT_GATEWAYS.where(gateway.c.device > after).order_by(gateway.c.device).limit(limit)
    if connected is not None:
        query = query.where(device.c.connected == connected)
    return [_build_gateway(row) for row in connection.execute(query)]


def load_gateway(connection: Connection, mac: Mac) -> Gateway:
    """Load a claimed gateway. Raise `NotFound` if the gateway is not claimed."""
    row = connection.execute(_SELECT_GATEWAYS.where(gateway.c.device == mac_to_int(mac))).first()
    if row is None:
        raise _build_not_claimed_error(mac)
    return _build_gateway(row)


_behind = device.alias("behind")
_SELECT_GATEWAYS: Final = select(
    gateway,
    device.c.name,
    device.c.connected,
    device.c.connected_at,
    select(func.count()).where(_behind.c.gateway == gateway.c.device).scalar_subquery().label("device_count"),
).join(device, device.c.id == gateway.c.device)


def _build_gateway(row: Row[Any]) -> Gateway:
    mac = mac_from_int(row.device)
    return Gateway(
        mac=mac,
        device_id=to_device_id(mac),
        friendly_name=row.name,
        connected=row.connected,
        since=format_millis(row.connected_at),
        api_version=row.api_version,
        mode=row.mode,
        device_count=row.device_count,
        reports_per_minute=0.0,  # set by the caller, which knows the traffic
        clock_offset=None if row.clock_offset is None else _round_to_seconds(row.clock_offset),
    )


def _round_to_seconds(millis: int) -> float:
    """Convert milliseconds to seconds with one decimal place."""
    return round(millis / 1000, 1) or 0.0  # not -0.0


def generate_password() -> str:
    """Generate an MQTT password of at least 256 random bits (auth-20). It does not begin with a hyphen.

    Spreadsheet programs would take a cell that begins with a hyphen for a formula.
    """
    while (password := secrets.token_urlsafe(33)).startswith("-"):
        pass
    return password


def build_password_columns(password: str) -> dict[str, Any]:
    """Return the columns that store a password: its hash for the embedded and for an external broker."""
    return {"password": hash_credential(password), "broker_hash": hash_mosquitto_password(password)}


def _build_not_claimed_error(mac: Mac) -> NotFound:
    return NotFound(f"gateway {mac} is not claimed")
