"""Claims many gateways in one transaction: all gateways of a batch, or none (rest-226 to rest-228)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from meshfleet.db import bulk
from meshfleet.db.database import is_duplicate_error
from meshfleet.db.tables import audit as audit_table
from meshfleet.db.tables import gateway
from meshfleet.errors import AlreadyExists, Fault, InvalidRequest, KeyReused
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.ids import mac_from_int, mac_to_int, to_device_id
from meshfleet.rest.gateways import MAX_BATCH, MAX_BATCH_LABELS
from meshfleet.rest.inputs import parse_friendly_name, parse_new_label
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.devices.parameters import parse_new_gateway_mac
from meshfleet.service.gateways.store import build_password_columns, generate_password
from meshfleet.service.labels import store as labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.gateways import BatchGateway
    from meshfleet.service.actor import Actor
    from meshfleet.service.requests.idempotency import IdempotencyKey

_MAX_NAMED: Final = 5
"""Maximum number of gateways that an error message names."""

_BATCH_ACTION: Final = "gateway.batch"
_KEY_CHARACTERS: Final = 32
"""Characters of the hash of an idempotency key in the audit log: 128 bits."""


class GatewayToClaim(NamedTuple):
    """Gateway to claim, as parsed from a batch."""

    mac: Mac
    name: str | None
    """New name; None to keep the present or default name."""
    labels: tuple[str, ...]


def parse_gateways(gateways: Sequence[BatchGateway]) -> list[GatewayToClaim]:
    """Parse the gateways of a batch. Raise `InvalidRequest` with the mistakes of all gateways, if any."""
    if not 1 <= len(gateways) <= MAX_BATCH:
        raise InvalidRequest([Fault("gateways", f"must have 1 to {MAX_BATCH} gateways")])
    faults: list[Fault] = []
    parsed: list[GatewayToClaim] = []
    first_index: dict[Mac, int] = {}
    for index, each in enumerate(gateways):
        field = f"gateways[{index}]"
        try:
            found = _parse_gateway(each, field)
        except MalformedInput as exc:
            faults.append(Fault(exc.field, exc.reason))
            continue
        first = first_index.setdefault(found.mac, index)
        if first != index:
            faults.append(Fault(f"{field}.mac", f"{found.mac} is also in gateways[{first}]"))
        parsed.append(found)
    if faults:
        raise InvalidRequest(faults)
    return parsed


def _parse_gateway(body: BatchGateway, field: str) -> GatewayToClaim:
    mac = parse_new_gateway_mac(body.mac, f"{field}.mac")
    name = body.friendly_name
    if len(body.labels) > MAX_BATCH_LABELS:
        raise MalformedInput(f"{field}.labels", f"must have at most {MAX_BATCH_LABELS} labels")
    parsed_labels = [
        parse_new_label(each, f"{field}.labels[{index}]") for index, each in enumerate(body.labels)
    ]
    return GatewayToClaim(
        mac,
        None if name is None else parse_friendly_name(name, f"{field}.friendlyName"),
        tuple(parsed_labels),
    )


def claim_gateways(
    connection: Connection,
    gateways: Sequence[GatewayToClaim],
    *,
    key: IdempotencyKey | None,
    by: Actor,
    now: int,
) -> dict[Mac, str]:
    """Claim gateways, set their names, add their labels, and return their new MQTT passwords by MAC.

    Raise `AlreadyExists` if one of the gateways is claimed already, or if an earlier request with the same
    idempotency key claimed this batch: passwords cannot be returned twice. Raise `KeyReused` if an earlier
    request with the key had another batch.
    """
    if key is not None:
        _check_key(connection, key, len(gateways))
    macs = [each.mac for each in gateways]
    _check_none_claimed(_load_claimed(connection, macs))
    observations = [DeviceObservation(device=mac, at=now, heard=False) for mac in sorted(macs)]
    registry.record_observations(connection, observations)
    names_before = _load_names(connection, macs)
    registry.set_device_names(connection, [(mac, name) for mac, name, _ in gateways if name is not None])
    passwords = {mac: generate_password() for mac in macs}
    _insert_claims(connection, passwords, now)
    _label_gateways(connection, gateways, by=by, now=now)
    details: list[tuple[str, dict[str, Any]]] = [
        (
            to_device_id(mac),
            {} if name in {None, names_before[mac]} else {"before": names_before[mac], "after": name},
        )
        for mac, name, _ in gateways
    ]
    audit.record_details(connection, by, "gateway.claim", details, now=now)
    if key is not None:
        detail = {"gateways": len(gateways), "digest": key.digest}
        audit.record_change(connection, by, _BATCH_ACTION, _build_target(key), now=now, **detail)
    return passwords


def _check_key(connection: Connection, key: IdempotencyKey, count: int) -> None:
    """Raise an error if an earlier batch had the same idempotency key. `count` is for the error text.

    Keys are looked up in the audit log, whose rows are never deleted.
    """
    query = select(audit_table.c.detail).where(
        audit_table.c.target == _build_target(key), audit_table.c.action == _BATCH_ACTION
    )
    detail = connection.execute(query).scalar()
    if detail is None:
        return
    if msgspec.json.decode(detail)["digest"] != key.digest:
        raise KeyReused("this Idempotency-Key was already used for a different batch of gateways")
    raise AlreadyExists(
        f"an earlier request with this Idempotency-Key claimed these {count} gateways; its passwords are not "
        "stored and cannot be shown again: create new ones"
    )


def _build_target(key: IdempotencyKey) -> str:
    """Return the target of the audit log row that records a batch with this idempotency key."""
    return f"batch-{key.name[:_KEY_CHARACTERS]}"


def _load_claimed(connection: Connection, macs: Sequence[Mac]) -> list[Mac]:
    query = "SELECT device FROM gateway WHERE device IN numbers ORDER BY device"
    return [mac_from_int(number) for (number,) in bulk.query_in(connection, query, _to_numbers(macs))]


def _check_none_claimed(claimed: list[Mac]) -> None:
    """Raise `AlreadyExists` with the first claimed gateways of a batch, unless `claimed` is empty."""
    if not claimed:
        return
    shown = ", ".join(claimed[:_MAX_NAMED])
    more = f" and {len(claimed) - _MAX_NAMED} others" if len(claimed) > _MAX_NAMED else ""
    verb = "is" if len(claimed) == 1 else "are"
    raise AlreadyExists(f"no gateway of the batch was claimed: {shown}{more} {verb} already claimed")


def _load_names(connection: Connection, macs: Sequence[Mac]) -> dict[Mac, str]:
    query = "SELECT id, name FROM device WHERE id IN numbers"
    return {
        mac_from_int(number): name for number, name in bulk.query_in(connection, query, _to_numbers(macs))
    }


def _insert_claims(connection: Connection, passwords: dict[Mac, str], now: int) -> None:
    rows = [
        {"device": mac_to_int(mac), "claimed_at": now, **build_password_columns(password)}
        for mac, password in sorted(passwords.items())
    ]
    try:
        connection.execute(insert(gateway), rows)
    except IntegrityError as exc:
        if not is_duplicate_error(exc):
            raise
        raise AlreadyExists(
            "no gateway of the batch was claimed: another request has just claimed some of them"
        ) from None


def _label_gateways(
    connection: Connection, gateways: Sequence[GatewayToClaim], *, by: Actor, now: int
) -> None:
    macs_by_label: dict[str, list[Mac]] = defaultdict(list)
    for each in gateways:
        for text in each.labels:
            macs_by_label[text].append(each.mac)
    labels.add_labels(connection, macs_by_label, by=by, now=now)


def _to_numbers(macs: Sequence[Mac]) -> list[int]:
    return [mac_to_int(mac) for mac in macs]
