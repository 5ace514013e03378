"""The table of claimed gateways."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db import bulk
from meshfleet.db.database import is_duplicate
from meshfleet.db.tables import device, gateway
from meshfleet.errors import AlreadyExists, NotFound
from meshfleet.service.accounts.keys import digest
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.gateways.hashes import hash_for_mosquitto
from meshfleet.wire.ids import device_id, mac_number, number_mac
from meshfleet.wire.rest import Gateway
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection, Row

    from meshfleet.service.accounts.model import Actor
    from meshfleet.wire.ids import Mac


def claim(connection: Connection, mac: Mac, *, name: str | None, by: Actor, now: int) -> str:
    """Make a gateway ours, and tell the password it gets (rest-69 to rest-72)."""
    registry.observe(connection, [Sighting(device=mac, at=now, heard=False)])
    before = connection.execute(select(device.c.name).where(device.c.id == mac_number(mac))).scalar()
    if name is not None:
        registry.rename(connection, [(mac, name)])
    password = _new_password()
    row = {"device": mac_number(mac), "claimed_at": now, **_kept(password)}
    try:
        connection.execute(insert(gateway).values(row))
    except IntegrityError as exc:
        if not is_duplicate(exc):
            raise
        raise AlreadyExists(f"gateway {mac} is claimed already") from None
    renamed = {} if name in {None, before} else {"before": before, "after": name}
    audit.record(connection, by, "gateway.claim", device_id(mac), now=now, **renamed)
    return password


def rotate(connection: Connection, mac: Mac, *, by: Actor, now: int) -> str:
    """Give a gateway another password; the old one holds no longer (rest-73)."""
    password = _new_password()
    mine = gateway.c.device == mac_number(mac)
    if not connection.execute(update(gateway).where(mine).values(_kept(password))).rowcount:
        raise _unclaimed(mac)
    audit.record(connection, by, "gateway.rotate", device_id(mac), now=now)
    return password


def release(connection: Connection, mac: Mac, *, by: Actor, now: int) -> None:
    """Give a gateway up. It stays a device, with its history (rest-74)."""
    if not connection.execute(delete(gateway).where(gateway.c.device == mac_number(mac))).rowcount:
        raise _unclaimed(mac)
    audit.record(connection, by, "gateway.release", device_id(mac), now=now)


def passwords(connection: Connection, macs: Iterable[Mac]) -> dict[Mac, bytes]:
    """The digests of the passwords of those that are claimed."""
    query = "SELECT device, password FROM gateway WHERE password IS NOT NULL AND device IN numbers"
    rows = bulk.pick(connection, query, [mac_number(mac) for mac in macs])
    return {number_mac(number): password for number, password in rows}


def broker_hashes(connection: Connection) -> dict[Mac, str | None]:
    """All that are claimed, by MAC, with the password as another broker checks it; None: it has none yet."""
    query = select(gateway.c.device, gateway.c.broker_hash).order_by(gateway.c.device)
    return {number_mac(number): hashed for number, hashed in connection.execute(query)}


class GatewayFacts(NamedTuple):
    """The version and the clock of a gateway; None: not known yet."""

    api_version: str | None
    clock_offset: int | None
    """Milliseconds that its clock is ahead of ours."""


def load_gateway_facts(connection: Connection) -> dict[int, GatewayFacts]:
    """Load the versions and clock offsets of all claimed gateways, by number."""
    query = select(gateway.c.device, gateway.c.api_version, gateway.c.clock_offset)
    return {number: GatewayFacts(*each) for number, *each in connection.execute(query)}


def set_api_versions(connection: Connection, versions: Mapping[int, str]) -> None:
    """Take over the versions that gateways told. Those that are not claimed are passed over."""
    rows = [(version, number) for number, version in sorted(versions.items())]
    bulk.execute(connection, "UPDATE gateway SET api_version = ? WHERE device = ?", rows)


def set_clock_offsets(connection: Connection, offsets: Mapping[int, int]) -> None:
    """Write how many milliseconds clocks are ahead of ours. Gateways that are not claimed are passed over."""
    rows = [(ahead, number) for number, ahead in sorted(offsets.items())]
    bulk.execute(connection, "UPDATE gateway SET clock_offset = ? WHERE device = ?", rows)


def modes(connection: Connection) -> dict[int, str]:
    """The modes of those that are claimed, as far as they are known."""
    query = select(gateway.c.device, gateway.c.mode).where(gateway.c.mode.is_not(None))
    known: dict[int, str] = dict(connection.execute(query).all())
    return known


def set_modes(connection: Connection, modes: Mapping[int, str]) -> None:
    """Take over modes. Those that are not claimed are passed over, and what is known is not written again."""
    rows = [(mode, number, mode) for number, mode in sorted(modes.items())]
    statement = "UPDATE gateway SET mode = ? WHERE device = ? AND (mode IS NULL OR mode <> ?)"
    bulk.execute(connection, statement, rows)


def page(connection: Connection, *, after: int, limit: int) -> list[Gateway]:
    """Some of them, by MAC, behind that one."""
    query = _SHOWN.where(gateway.c.device > after).order_by(gateway.c.device).limit(limit)
    return [_gateway(row) for row in connection.execute(query)]


def show(connection: Connection, mac: Mac) -> Gateway:
    """One of them."""
    row = connection.execute(_SHOWN.where(gateway.c.device == mac_number(mac))).first()
    if row is None:
        raise _unclaimed(mac)
    return _gateway(row)


_behind = device.alias("behind")
_SHOWN: Final = select(
    gateway,
    device.c.name,
    device.c.connected,
    device.c.connected_at,
    select(func.count()).where(_behind.c.gateway == gateway.c.device).scalar_subquery().label("device_count"),
).join(device, device.c.id == gateway.c.device)


def _gateway(row: Row[Any]) -> Gateway:
    mac = number_mac(row.device)
    return Gateway(
        mac=mac,
        device_id=device_id(mac),
        friendly_name=row.name,
        connected=row.connected,
        since=write_millis(row.connected_at),
        api_version=row.api_version,
        mode=row.mode,
        device_count=row.device_count,
        reports_per_minute=0.0,  # whoever takes reports knows it
        clock_offset=None if row.clock_offset is None else _seconds(row.clock_offset),
    )


def _seconds(millis: int) -> float:
    return round(millis / 1000, 1) or 0.0  # not -0.0


def _new_password() -> str:
    return secrets.token_urlsafe(32)


def _kept(password: str) -> dict[str, Any]:
    """What is stored of a password: for our own broker, and for another one that comes one day."""
    return {"password": digest(password), "broker_hash": hash_for_mosquitto(password)}


def _unclaimed(mac: Mac) -> NotFound:
    return NotFound(f"gateway {mac} is not claimed")
