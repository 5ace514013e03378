"""Device registry: adds, updates, renames and deletes devices.

`record_observations` loads the devices of a batch of observations, applies the observations one after
another, and writes only the columns that changed. Most reports change only the row in
`device_state`, so the indexes of the table `device` are rarely updated.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, delete, select, update

from meshfleet.db import bulk
from meshfleet.db.database import WriteConflict
from meshfleet.db.tables import device, device_label, device_state, gateway, label, place, site
from meshfleet.errors import StillClaimed
from meshfleet.protocol.ids import Mac, format_model_number, mac_to_int, to_device_id
from meshfleet.protocol.products import find_product_name
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import listing
from meshfleet.service.devices.fleet_count import add_to_count
from meshfleet.service.devices.listing import build_device_not_found
from meshfleet.service.devices.model import DeviceObservation, format_base_version, normalize_name
from meshfleet.service.devices.states import DeviceState, merge_states

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from meshfleet.rest.devices import Device
    from meshfleet.service.actor import Actor


# Search in names: SQLite has a separate trigram index, which is updated here.

_REMOVE_NAMES: Final = (
    "INSERT INTO device_name (device_name, rowid, name_key)"
    " SELECT 'delete', id, name_key FROM device WHERE id IN numbers ORDER BY id"
)
_ADD_NAMES: Final = (
    "INSERT INTO device_name (rowid, name_key)"
    " SELECT id, name_key FROM device WHERE id IN numbers ORDER BY id"
)


@contextmanager
def update_name_index(connection: Connection, devices: Sequence[int]) -> Iterator[None]:
    """Update SQLite's index of device names for devices that the `with` block adds, renames or deletes."""
    if connection.dialect.name == "sqlite" and devices:
        bulk.execute_in(connection, _REMOVE_NAMES, devices)
        yield
        bulk.execute_in(connection, _ADD_NAMES, devices)
    else:
        yield


_SELECT_DEVICES: Final = (
    f"SELECT {', '.join(map(str, [*device.columns, *device_state.columns]))}"  # noqa: S608 # constant column names
    " FROM device LEFT JOIN device_state ON device_state.device = device.id WHERE device.id IN numbers"
)

_NAME_COLUMNS: Final = ("name", "name_key")
_CONNECTED: Final = device.columns.keys().index("connected")

_Changes: TypeAlias = defaultdict[tuple[str, ...], list[tuple[Any, ...]]]
"""Device rows to update, by changed columns. Each row has the new values, followed by the device id."""


class _DeviceRow(Struct):
    """Row of the table `device`. The defaults apply to a device that has reported nothing yet (rest-48)."""

    id: int
    name: str = ""
    name_key: str = ""
    named: bool = False
    """Whether a user has named the device."""
    model: int = 0
    variant: int = 0
    firmware: str = "0.0.0"
    beta: int = 0
    hardware: str = "0.0.0"
    imei: str | None = None
    gateway: int | None = None
    connected: bool = False
    connected_at: int = 0
    created_at: int = 0

    def apply_observation(self, observation: DeviceObservation, state: DeviceState) -> None:
        """Set the observed fields of the row. Ignore fields for which `state` has a newer time."""
        at = observation.at
        if observation.name is not UNSET and not self.named:
            self.name, self.name_key, self.named = observation.name, normalize_name(observation.name), True
        if observation.gateway is not UNSET and _is_not_older(at, state.gateway_at):
            self.gateway, state.gateway_at = mac_to_int(observation.gateway), at
        if observation.model is not UNSET and _is_not_older(at, state.model_at):
            self.model, state.model_at = int(observation.model, 16), at
        if observation.variant is not UNSET and _is_not_older(at, state.variant_at):
            self.variant, state.variant_at = observation.variant, at
        if observation.firmware is not UNSET and _is_not_older(at, state.firmware_at):
            self.firmware, state.firmware_at = format_base_version(observation.firmware), at
            self.beta = observation.firmware.beta
        if observation.hardware is not UNSET and _is_not_older(at, state.hardware_at):
            self.hardware, state.hardware_at = format_base_version(observation.hardware), at
        if observation.imei is not UNSET and _is_not_older(at, state.reported_at):
            self.imei = observation.imei
        if (
            observation.connected is not UNSET
            and observation.connected != self.connected
            and at >= self.connected_at
        ):
            self.connected, self.connected_at = observation.connected, at

    def set_default_name(self) -> None:
        """Set the name from the product and the MAC, unless a user has named the device (rest-45)."""
        if not self.named:
            product = find_product_name(format_model_number(self.model), self.variant) or "Device"
            self.name = f"{product} {self.id & 0xFFFF:04x}"
            self.name_key = normalize_name(self.name)


def _is_not_older(time: int, stored_time: int | None) -> bool:
    """Return whether a time is not before the stored time, or there is no stored time (None)."""
    return stored_time is None or time >= stored_time


def _apply_observation_to_state(state: DeviceState, observation: DeviceObservation) -> None:
    """Set the observed fields of a device state. Ignore fields for which the state has a newer time."""
    at = observation.at
    if observation.heard and _is_not_older(at, state.reported_at):
        state.reported_at = at
        state.boot_mode = state.boot_mode if observation.boot_mode is UNSET else observation.boot_mode
    if observation.status is not UNSET and _is_not_older(at, state.status_at):
        state.status, state.status_at = observation.status, at
    if observation.battery is not UNSET and _is_not_older(at, state.battery_at):
        state.battery, state.battery_at = observation.battery, at
    if _is_not_older(at, state.radio_at) and not (observation.parent is UNSET and observation.rssi is UNSET):
        state.radio_at = at
        state.parent = state.parent if observation.parent is UNSET else mac_to_int(observation.parent)
        state.rssi = state.rssi if observation.rssi is UNSET else observation.rssi
        state.radio_gateway = None if observation.gateway is UNSET else mac_to_int(observation.gateway)


def record_observations(connection: Connection, observations: Sequence[DeviceObservation]) -> None:
    """Apply observations to devices, one after another. Add devices that are not in the registry.

    Raise `WriteConflict` if another transaction adds one of the devices at the same time.
    """
    devices, states = _load_devices(
        connection, {mac_to_int(observation.device) for observation in observations}
    )
    devices_before = {device_id: astuple(each) for device_id, each in devices.items()}
    states_before = {device_id: astuple(each) for device_id, each in states.items()}
    for observation in observations:
        device_id = mac_to_int(observation.device)
        if device_id not in devices:
            at = observation.at
            devices[device_id] = _DeviceRow(device_id, connected_at=at, created_at=at)
        state = states.setdefault(device_id, DeviceState(device_id))
        devices[device_id].apply_observation(observation, state)
        _apply_observation_to_state(state, observation)
    _write_devices(connection, devices, devices_before)
    all_rows = (astuple(states[device_id]) for device_id in sorted(states))
    rows = [row for row in all_rows if row != states_before.get(row[0], astuple(DeviceState(row[0])))]
    merge_states(connection, rows)


def set_device_names(connection: Connection, names: Iterable[tuple[Mac, str]]) -> None:
    """Set device names that users have chosen. Ignore devices that are not in the registry."""
    rows = [(name, normalize_name(name), mac_to_int(mac)) for mac, name in names]
    with update_name_index(connection, [device_id for _, _, device_id in rows]):
        bulk.execute_many(
            connection, "UPDATE device SET name = ?, name_key = ?, named = true WHERE id = ?", rows
        )


def delete_device(connection: Connection, mac: Mac) -> bool:
    """Delete a device, its labels and its place. The next report of the device adds it again (rest-41).

    Return False if the device is not in the registry.
    """
    site_of_device = select(place.c.site).where(place.c.device == mac_to_int(mac)).scalar_subquery()
    connection.execute(update(site).where(site.c.id == site_of_device).values(revision=site.c.revision + 1))
    with update_name_index(connection, [mac_to_int(mac)]):
        deletion = delete(device).where(device.c.id == mac_to_int(mac)).returning(device.c.connected)
        connected = connection.execute(deletion).scalar()
    if connected is None:
        return False
    add_to_count(connection, devices=-1, connected=-int(connected))
    return True


def attach_labels(connection: Connection, pairs: Collection[tuple[str, Mac]], *, at: int) -> None:
    """Attach labels to devices, given as pairs of label and MAC. Create labels that do not exist."""
    texts = sorted({text for text, _ in pairs})
    bulk.execute_many(
        connection,
        "INSERT INTO label (text, created_at) VALUES (?, ?) ON CONFLICT (text) DO NOTHING",
        [(text, at) for text in texts],
    )
    found = connection.execute(select(label.c.text, label.c.id).where(label.c.text.in_(texts)))
    label_ids: dict[str, int] = dict(found.all())
    device_ids = {mac: mac_to_int(mac) for _, mac in pairs}
    rows = sorted({(label_ids[text], device_ids[mac]) for text, mac in pairs})
    bulk.insert_rows(connection, device_label, rows)


def _load_devices(
    connection: Connection, device_ids: set[int]
) -> tuple[dict[int, _DeviceRow], dict[int, DeviceState]]:
    """Load the rows of devices, and their rows in the table `device_state`, by device id."""
    devices: dict[int, _DeviceRow] = {}
    states: dict[int, DeviceState] = {}
    width = len(device.columns)
    for row in bulk.query_in(connection, _SELECT_DEVICES, sorted(device_ids)):
        devices[row[0]] = _DeviceRow(*row[:width])
        if row[width] is not None:
            states[row[0]] = DeviceState(*row[width:])
    return devices, states


def _write_devices(
    connection: Connection, devices: dict[int, _DeviceRow], before: dict[int, tuple[Any, ...]]
) -> None:
    """Insert the new rows of devices, and update the rows that differ from `before`, the stored rows."""
    new: list[tuple[Any, ...]] = []
    changes: _Changes = defaultdict(list)
    connected = 0
    for device_id in sorted(devices):
        row, old = devices[device_id], before.get(device_id)
        connected += row.connected - (old is not None and old[_CONNECTED])
        if old is None:
            row.set_default_name()
            new.append(astuple(row))
        elif old != astuple(row):
            _collect_changes(changes, row, old)
    renamed = [row[-1] for columns, rows in changes.items() if "name" in columns for row in rows]
    with update_name_index(connection, [row[0] for row in new] + renamed):
        if bulk.insert_rows(connection, device, new) < len(new):
            raise WriteConflict
        _update_devices(connection, changes)
    add_to_count(connection, devices=len(new), connected=connected)


def _update_devices(connection: Connection, changes: _Changes) -> None:
    """Write the changed columns of device rows."""
    for columns, rows in changes.items():
        assignments = ", ".join(f"{column} = ?" for column in columns)
        guard = " AND NOT named" if "name" in columns else ""
        bulk.execute_many(connection, f"UPDATE device SET {assignments} WHERE id = ?{guard}", rows)  # noqa: S608 # constant column names


def _collect_changes(changes: _Changes, row: _DeviceRow, old: tuple[Any, ...]) -> None:
    """Add the changed columns of a device row to `changes`. `old` are the stored values of the row.

    A new default name is a separate change, which is not written if a user has named the device meanwhile.
    """
    columns = _DeviceRow.__struct_fields__
    differing = [i for i, value in enumerate(astuple(row)) if value != old[i]]
    changes[tuple(columns[i] for i in differing)].append((*(astuple(row)[i] for i in differing), row.id))
    name = row.name
    row.set_default_name()
    if row.name != name:
        changes[_NAME_COLUMNS].append((row.name, row.name_key, row.id))


# Changes by users.


def rename_device(connection: Connection, mac: Mac, name: str, *, by: Actor, now: int) -> Device:
    """Set the name of a device. Record a changed name in the audit log (rest-43).

    Raise `NotFound` if the device does not exist.
    """
    query = select(device.c.name, device.c.named).where(device.c.id == mac_to_int(mac))
    before = connection.execute(query.with_for_update()).first()
    if before is None:
        raise build_device_not_found(mac)
    if tuple(before) != (name, True):
        set_device_names(connection, [(mac, name)])
        audit.record_change(
            connection, by, "device.rename", to_device_id(mac), now=now, before=before.name, after=name
        )
    return listing.load_device(connection, mac)


def forget_device(connection: Connection, mac: Mac, *, by: Actor, now: int) -> None:
    """Delete a device, but keep its history. A later report adds the device again (rest-40, rest-41).

    Raise `StillClaimed` for a claimed gateway, and `NotFound` if the device does not exist.
    """
    if connection.execute(select(gateway.c.device).where(gateway.c.device == mac_to_int(mac))).first():
        raise StillClaimed(f"gateway {mac} is claimed; release it first")
    name = connection.execute(select(device.c.name).where(device.c.id == mac_to_int(mac))).scalar()
    if not delete_device(connection, mac):
        raise build_device_not_found(mac)
    audit.record_change(connection, by, "device.forget", to_device_id(mac), now=now, name=name)
