"""Loads pages of the device list, and single devices.

A page takes two queries: the first finds the device ids, and the second loads the fields. The second query is
written as SQL, because building it with SQLAlchemy would take longer than running it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import Mac, format_model_number, mac_from_int, mac_to_int, to_device_id
from meshfleet.protocol.products import find_product_name
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.devices import Connectivity, Device, DeviceDetail, Live, Place
from meshfleet.rest.sites import format_site_id
from meshfleet.service.devices import page_query
from meshfleet.service.devices.filter_sql import resolve_filter
from meshfleet.service.devices.states import BEST_PARENT_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.devices.model import DeviceFilter, DevicePosition, SortOrder

    Row = Sequence[Any]

_COLUMNS: Final = (
    "SELECT id, name, model, connected, connected_at, firmware, hardware, imei, boot_mode, status,"  # noqa: S608 # constant column names
    " {labels}, gateway, parent, rssi, battery, reported_at, beta, variant, radio_gateway,"
    " radio_at, gateway_at,"
    " EXISTS (SELECT 1 FROM execution WHERE execution.device = device.id"
    f" AND {active_condition('execution.state')}), site, floor, x, y"
    " FROM device LEFT JOIN device_state ON device_state.device = id LEFT JOIN place ON place.device = id"
    " {joined} WHERE id IN numbers"
)
_LABELS: Final = "FROM device_label JOIN label ON label.id = device_label.label WHERE device_label.device"
_ROWS: Final = {
    "sqlite": _COLUMNS.format(
        labels=f"(SELECT json_group_array(text) FROM (SELECT text {_LABELS} = device.id ORDER BY text))",  # noqa: S608
        joined="",
    ),
    # One join for all devices: PostgreSQL would run a subquery again for each device.
    "postgresql": _COLUMNS.format(
        labels="coalesce(labels, '{}')",
        joined="LEFT JOIN (SELECT device_label.device AS labelled, array_agg(text ORDER BY text) AS labels"
        f" {_LABELS} IN numbers GROUP BY 1) AS l ON labelled = id",
    ),
}
_CLAIMED_AT: Final = "SELECT claimed_at FROM gateway WHERE device IN numbers"


class DeviceSlice(NamedTuple):
    """Page of the device list."""

    devices: list[Device]
    end: DevicePosition | None
    """Position of the last device of the page; None if no devices follow."""


def list_devices(  # noqa: PLR0913 # keyword-only page bounds
    connection: Connection,
    device_filter: DeviceFilter,
    order: SortOrder,
    *,
    after: DevicePosition | None,
    limit: int,
    live: bool = False,
) -> DeviceSlice:
    """Load up to `limit` devices that follow the position `after`.

    If `live` is True, include the live fields of devices, which change with every report (rest-38).
    """
    selection = resolve_filter(connection, device_filter)
    if selection is None:
        return DeviceSlice([], None)
    keys = page_query.find_page_keys(connection, selection, order, after=after, limit=limit + 1)
    rows = _load_rows(connection, [int(key[-1]) for key in keys[:limit]])
    devices = [
        Device(**_build_common_fields(row), live=_build_live_fields(row) if live else UNSET) for row in rows
    ]
    return DeviceSlice(devices, keys[limit - 1] if len(keys) > limit else None)


def load_device(connection: Connection, mac: Mac) -> Device:
    """Load a device with the fields of the device list. Raise `NotFound` if the device does not exist."""
    return Device(**_build_common_fields(_load_row(connection, mac)))


def load_device_detail(connection: Connection, mac: Mac) -> DeviceDetail:
    """Load a device with all its fields (rest-39). Raise `NotFound` if the device does not exist."""
    row = _load_row(connection, mac)
    firmware, beta, variant = row[5], row[16], row[17]
    claimed = bulk.query_in(connection, _CLAIMED_AT, [mac_to_int(mac)])
    return DeviceDetail(
        **_build_common_fields(row),
        live=_build_live_fields(row),
        firmware_version_text=f"{firmware}-beta.{beta}" if beta else firmware,
        product=find_product_name(format_model_number(row[2]), variant),
        claimed_at=format_millis(claimed[0][0]) if claimed else None,
    )


def build_device_not_found(mac: Mac) -> NotFound:
    """Return the error for a device that is not in the registry."""
    return NotFound(f"device {to_device_id(mac)} not found")


def _load_row(connection: Connection, mac: Mac) -> Row:
    rows = _load_rows(connection, [mac_to_int(mac)])
    if not rows:
        raise build_device_not_found(mac)
    return rows[0]


def _load_rows(connection: Connection, device_ids: Sequence[int]) -> list[Row]:
    """Load the rows of devices in the order of `device_ids`. Leave out devices that do not exist."""
    rows = {row[0]: row for row in bulk.query_in(connection, _ROWS[connection.dialect.name], device_ids)}
    return [rows[each] for each in device_ids if each in rows]


def _build_common_fields(row: Row) -> dict[str, Any]:
    """Return the ten fields that a device has in every list (rest-29)."""
    labels = row[10]
    return {
        "id": f"bmac-{row[0]:012x}",
        "friendly_name": row[1],
        "model_number": f"{row[2]:04X}",
        "labels": labels if isinstance(labels, list) else msgspec.json.decode(labels),
        "boot_mode": row[8],
        "connectivity": Connectivity(connected=bool(row[3]), timestamp=format_millis(row[4])),
        "firmware_version": row[5],
        "hardware_version": row[6],
        "imei": row[7],
        "status": row[9],
    }


def _build_live_fields(row: Row) -> Live:
    """Return the fields of a device that change with every report (rest-38)."""
    gateway, parent, rssi, battery, reported_at = row[11:16]
    radio_gateway, radio_at, gateway_at = row[18:21]
    site, floor, x, y = row[22:26]
    is_gateway = gateway == row[0]  # a gateway reports by itself, even if another gateway receives its radio
    is_outdated = None not in {radio_at, gateway_at} and gateway_at - radio_at > BEST_PARENT_MS
    if radio_gateway != gateway and (is_gateway or is_outdated):
        parent = rssi = None
    elif radio_gateway is not None:  # parent, RSSI and gateway are of one report
        gateway = radio_gateway
    return Live(
        gateway=None if gateway is None else mac_from_int(gateway),
        parent=None if parent is None else mac_from_int(parent),
        rssi=rssi,
        battery=battery,
        last_report_at=format_optional_millis(reported_at),
        updating=bool(row[21]),
        place=None if site is None else Place(site=format_site_id(site), floor=floor, x=x, y=y),
    )
