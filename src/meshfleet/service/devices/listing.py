"""The list of devices, page by page, and one device alone.

A page takes two queries: one finds the ids, one fetches what is shown of them. The second is always the
same, so it is written as SQL: composing it would take longer than running it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from meshfleet.db import bulk
from meshfleet.db.tables import is_active
from meshfleet.errors import NotFound
from meshfleet.service.devices import keys
from meshfleet.service.devices.selection import select_by
from meshfleet.service.devices.states import BEST_FOR
from meshfleet.wire.ids import device_id, mac_number, model_number, number_mac
from meshfleet.wire.products import product_name
from meshfleet.wire.rest.devices import Connectivity, Device, DeviceDetail, Live
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.devices.model import Filter, Order, Position
    from meshfleet.wire.ids import Mac

    Row = Sequence[Any]

_COLUMNS: Final = (
    "SELECT id, name, model, connected, connected_at, firmware, hardware, imei, boot_mode, status,"  # noqa: S608 # our own names
    " {labels}, gateway, parent, rssi, battery, reported_at, beta, variant, radio_gateway,"
    " radio_at, gateway_at,"
    f" EXISTS (SELECT 1 FROM execution WHERE execution.device = device.id AND {is_active('execution.state')})"
    " FROM device LEFT JOIN device_state ON device_state.device = id {joined} WHERE id IN numbers"
)
_LABELS: Final = "FROM device_label JOIN label ON label.id = device_label.label WHERE device_label.device"
_ROWS: Final = {
    "sqlite": _COLUMNS.format(
        labels=f"(SELECT json_group_array(text) FROM (SELECT text {_LABELS} = device.id ORDER BY text))",  # noqa: S608
        joined="",
    ),
    # All at once: for each device alone, PostgreSQL would begin anew.
    "postgresql": _COLUMNS.format(
        labels="coalesce(labels, '{}')",
        joined="LEFT JOIN (SELECT device_label.device AS labelled, array_agg(text ORDER BY text) AS labels"
        f" {_LABELS} IN numbers GROUP BY 1) AS l ON labelled = id",
    ),
}
_CLAIMED_AT: Final = "SELECT claimed_at FROM gateway WHERE device IN numbers"


def page(  # noqa: PLR0913 # by name
    connection: Connection,
    chosen: Filter,
    order: Order,
    *,
    after: Position | None,
    limit: int,
    live: bool = False,
) -> tuple[list[Device], Position | None]:
    """Devices that follow a position, and where the page ended; None: nothing follows.

    With `live`, also what changes with every report (rest-38).
    """
    found, end = _find(connection, chosen, order, after=after, limit=limit)
    rows = _rows(connection, found)
    return [Device(**_shown(row), live=_live(row) if live else UNSET) for row in rows], end


def device(connection: Connection, mac: Mac) -> Device:
    """A device as it is listed."""
    return Device(**_shown(_row(connection, mac)))


def detail(connection: Connection, mac: Mac) -> DeviceDetail:
    """All that is told of a device (rest-39)."""
    row = _row(connection, mac)
    firmware, beta, variant = row[5], row[16], row[17]
    claimed = bulk.pick(connection, _CLAIMED_AT, [mac_number(mac)])
    return DeviceDetail(
        **_shown(row),
        live=_live(row),
        firmware_version_text=f"{firmware}-beta.{beta}" if beta else firmware,
        product=product_name(model_number(row[2]), variant),
        claimed_at=write_millis(claimed[0][0]) if claimed else None,
    )


def unknown(mac: Mac) -> NotFound:
    """There is no such device."""
    return NotFound(f"there is no device {device_id(mac)}")


def _row(connection: Connection, mac: Mac) -> Row:
    rows = _rows(connection, [mac_number(mac)])
    if not rows:
        raise unknown(mac)
    return rows[0]


def _find(
    connection: Connection, chosen: Filter, order: Order, *, after: Position | None, limit: int
) -> tuple[list[int], Position | None]:
    """The ids of a page, and where it ends."""
    selection = select_by(connection, chosen)
    if selection is None:
        return [], None
    found = keys.find(connection, selection, order, after=after, limit=limit + 1)
    end = found[limit - 1] if len(found) > limit else None
    return [int(key[-1]) for key in found[:limit]], end


def _rows(connection: Connection, numbers: Sequence[int]) -> list[Row]:
    """What is shown of devices, in this order. One that has just been forgotten is missing."""
    rows = {row[0]: row for row in bulk.pick(connection, _ROWS[connection.dialect.name], numbers)}
    return [rows[number] for number in numbers if number in rows]


def _shown(row: Row) -> dict[str, Any]:
    """The ten fields of every list (rest-29)."""
    labels = row[10]
    return {
        "id": f"bmac-{row[0]:012x}",
        "friendly_name": row[1],
        "model_number": f"{row[2]:04X}",
        "labels": labels if isinstance(labels, list) else msgspec.json.decode(labels),
        "boot_mode": row[8],
        "connectivity": Connectivity(connected=bool(row[3]), timestamp=write_millis(row[4])),
        "firmware_version": row[5],
        "hardware_version": row[6],
        "imei": row[7],
        "status": row[9],
    }


def _live(row: Row) -> Live:
    gateway, parent, rssi, battery, reported_at = row[11:16]
    radio_gateway, radio_at, gateway_at = row[18:21]
    is_gateway = gateway == row[0]  # it reaches us by itself, whichever other one hears its radio
    is_outdated = None not in {radio_at, gateway_at} and gateway_at - radio_at > BEST_FOR
    if radio_gateway != gateway and (is_gateway or is_outdated):
        parent = rssi = None
    elif radio_gateway is not None:  # the three are of one reading
        gateway = radio_gateway
    return Live(
        gateway=None if gateway is None else number_mac(gateway),
        parent=None if parent is None else number_mac(parent),
        rssi=rssi,
        battery=battery,
        last_report_at=None if reported_at is None else write_millis(reported_at),
        updating=bool(row[21]),
        place=None,
    )
