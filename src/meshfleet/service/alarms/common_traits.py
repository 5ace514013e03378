"""Common traits of the devices of an alarm: a label or a model that most others do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.protocol.ids import format_model_number
from meshfleet.protocol.products import find_product_name
from meshfleet.service.alarms.rules import Rule

if TYPE_CHECKING:
    from sqlalchemy import Connection

COMPARED_RULES: Final = frozenset({Rule.RELAY_LOST, Rule.DEVICE_OFFLINE})
"""Rules of alarms whose devices are compared."""

_MIN_DEVICES: Final = 5
_COMMON_PERCENT: Final = 90
_RARE_FACTOR: Final = 3
"""A trait is worth a sentence if nine of ten devices have it, but less than a third of those behind the
gateway, and if there are at least five devices."""

# The values are the alarm, and the extender that cuts the devices off, or 0.
_MEMBERS: Final = (
    "FROM alarm_condition AS member {join}"
    " WHERE member.alarm = ? AND member.rule = 'device-offline' AND member.state = 'active'"
    " AND member.subject <> ?"
)
_COUNT_MEMBERS: Final = f"SELECT count(*) {_MEMBERS.format(join='')}"
_COUNT_LABELS: Final = (
    "SELECT device_label.label, count(*) "
    + _MEMBERS.format(join="JOIN device_label ON device_label.device = member.subject")
    + " GROUP BY device_label.label ORDER BY count(*) DESC, device_label.label LIMIT 1"
)
_COUNT_MODELS: Final = (
    "SELECT device.model, count(*) "
    + _MEMBERS.format(join="JOIN device ON device.id = member.subject")
    + " GROUP BY device.model ORDER BY count(*) DESC, device.model LIMIT 1"
)
_COUNT_FLEET: Final = "SELECT count(*) FROM device WHERE gateway = ? AND id <> ?"
_COUNT_FLEET_LABEL: Final = (
    "SELECT count(*) FROM device JOIN device_label ON device_label.device = device.id"
    " WHERE device_label.label = ? AND device.gateway = ?"
)
_COUNT_FLEET_MODEL: Final = "SELECT count(*) FROM device WHERE device.model = ? AND device.gateway = ?"
_SELECT_LABEL: Final = "SELECT text FROM label WHERE id = ?"


class _Share(NamedTuple):
    value: int
    devices: int


def find_common_trait(
    connection: Connection, alarm: int, gateway: int | None, relay: int | None
) -> dict[str, Any]:
    """Return the facts `label` or `model` and `all` about an alarm; None for those that it does not have."""
    facts: dict[str, Any] = {"label": None, "model": None, "all": None}
    devices = _count(connection, _COUNT_MEMBERS, alarm, relay or 0)
    if gateway is None or devices < _MIN_DEVICES:
        return facts
    fleet = _count(connection, _COUNT_FLEET, gateway, gateway)
    label = _find_most(connection, _COUNT_LABELS, alarm, relay)
    if _is_common(label, devices) and _is_rare(
        _count(connection, _COUNT_FLEET_LABEL, label.value, gateway), fleet
    ):
        text = bulk.query_rows(connection, _SELECT_LABEL, (label.value,))[0][0]
        return facts | {"label": text, "all": label.devices == devices}
    model = _find_most(connection, _COUNT_MODELS, alarm, relay)
    if (
        model.value
        and _is_common(model, devices)
        and _is_rare(_count(connection, _COUNT_FLEET_MODEL, model.value, gateway), fleet)
    ):
        number = format_model_number(model.value)
        return facts | {"model": find_product_name(number) or number, "all": model.devices == devices}
    return facts


def _find_most(connection: Connection, query: str, alarm: int, relay: int | None) -> _Share:
    rows = bulk.query_rows(connection, query, (alarm, relay or 0))
    return _Share(*rows[0]) if rows else _Share(0, 0)


def _count(connection: Connection, query: str, *values: int) -> int:
    return int(bulk.query_rows(connection, query, values)[0][0])


def _is_common(share: _Share, devices: int) -> bool:
    return 100 * share.devices >= _COMMON_PERCENT * devices


def _is_rare(devices: int, fleet: int) -> bool:
    return _RARE_FACTOR * devices < fleet
