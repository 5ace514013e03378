"""The registry of devices: how they get into it, and how what is known of them changes.

Whatever is heard comes through `observe`, in batches. It reads what is known of the devices of a batch, lets
one sighting after another change it, and writes what differs: most reports change no more than the state of
a device, and a column that is not written is an index that is not touched.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import astuple
from sqlalchemy import delete, select

from meshfleet.db import bulk
from meshfleet.db.database import WriteConflict
from meshfleet.db.tables import device, device_label, device_state, gateway, label
from meshfleet.errors import StillClaimed
from meshfleet.protocol.ids import format_model_number, mac_to_int, to_device_id
from meshfleet.protocol.products import find_product_name
from meshfleet.service.audit import log as audit
from meshfleet.service.devices import listing
from meshfleet.service.devices.listing import device_not_found
from meshfleet.service.devices.model import format_base_version, normalize_name
from meshfleet.service.devices.states import DeviceState, merge_states

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.protocol.ids import Mac
    from meshfleet.rest import Device
    from meshfleet.service.actor import Actor
    from meshfleet.service.devices.model import DeviceObservation


# Names that can be searched: on SQLite their parts are in an index of its own, which is kept here.

_REMOVE_NAMES: Final = (
    "INSERT INTO device_name (device_name, rowid, name_key)"
    " SELECT 'delete', id, name_key FROM device WHERE id IN numbers ORDER BY id"
)
_ADD_NAMES: Final = (
    "INSERT INTO device_name (rowid, name_key)"
    " SELECT id, name_key FROM device WHERE id IN numbers ORDER BY id"
)


@contextmanager
def update_name_index(connection: Connection, numbers: Sequence[int]) -> Iterator[None]:
    """Around whatever adds these devices, changes their names, or removes them."""
    if connection.dialect.name == "sqlite" and numbers:
        bulk.execute_in(connection, _REMOVE_NAMES, numbers)
        yield
        bulk.execute_in(connection, _ADD_NAMES, numbers)
    else:
        yield


_SELECT_DEVICES: Final = (
    f"SELECT {', '.join(map(str, [*device.columns, *device_state.columns]))}"  # noqa: S608 # our own names
    " FROM device LEFT JOIN device_state ON device_state.device = device.id WHERE device.id IN numbers"
)

_NAME_COLUMNS: Final = ("name", "name_key")

_Changes: TypeAlias = defaultdict[tuple[str, ...], list[tuple[Any, ...]]]
"""New values, and the id at the end, for the columns that change."""


_NO_MODEL: Final = 0
_NO_VERSION: Final = "0.0.0"


class _DeviceRow(Struct):
    """A row of `device`."""

    id: int
    name: str
    name_key: str
    named: bool
    model: int
    variant: int
    firmware: str
    beta: int
    hardware: str
    imei: str | None
    gateway: int | None
    connected: bool
    connected_at: int
    created_at: int

    def apply(self, seen: DeviceObservation, state: DeviceState) -> None:
        """Take over what is newly known, if it is newer than what is known already."""
        at = seen.at
        if seen.name is not UNSET and not self.named:
            self.name, self.name_key, self.named = seen.name, normalize_name(seen.name), True
        if seen.gateway is not UNSET and _is_newer(at, state.gateway_at):
            self.gateway, state.gateway_at = mac_to_int(seen.gateway), at
        if seen.model is not UNSET and _is_newer(at, state.model_at):
            self.model, state.model_at = int(seen.model, 16), at
        if seen.variant is not UNSET and _is_newer(at, state.variant_at):
            self.variant, state.variant_at = seen.variant, at
        if seen.firmware is not UNSET and _is_newer(at, state.firmware_at):
            self.firmware, self.beta, state.firmware_at = (
                format_base_version(seen.firmware),
                seen.firmware.beta,
                at,
            )
        if seen.hardware is not UNSET and _is_newer(at, state.hardware_at):
            self.hardware, state.hardware_at = format_base_version(seen.hardware), at
        if seen.imei is not UNSET and _is_newer(at, state.reported_at):
            self.imei = seen.imei
        if seen.connected is not UNSET and seen.connected != self.connected and at >= self.connected_at:
            self.connected, self.connected_at = seen.connected, at

    def set_default_name(self) -> None:
        """Until somebody names a device it is called after its product (rest-45)."""
        if not self.named:
            product = find_product_name(format_model_number(self.model), self.variant) or "Device"
            self.name = f"{product} {self.id & 0xFFFF:04x}"
            self.name_key = normalize_name(self.name)


def _is_newer(at: int, known: int | None) -> bool:
    """Whether something is newer than what is known: reports out of order never move anything back."""
    return known is None or at >= known


def _apply_to_state(state: DeviceState, seen: DeviceObservation) -> None:
    """Take over what is newly known of what changes often."""
    at = seen.at
    if seen.heard and _is_newer(at, state.reported_at):
        state.reported_at = at
        state.boot_mode = state.boot_mode if seen.boot_mode is UNSET else seen.boot_mode
    if seen.status is not UNSET and _is_newer(at, state.status_at):
        state.status, state.status_at = seen.status, at
    if seen.battery is not UNSET and _is_newer(at, state.battery_at):
        state.battery, state.battery_at = seen.battery, at
    if _is_newer(at, state.radio_at) and not (seen.parent is UNSET and seen.rssi is UNSET):
        state.radio_at = at
        state.parent = state.parent if seen.parent is UNSET else mac_to_int(seen.parent)
        state.rssi = state.rssi if seen.rssi is UNSET else seen.rssi
        state.radio_gateway = None if seen.gateway is UNSET else mac_to_int(seen.gateway)


def record_observations(connection: Connection, observations: Sequence[DeviceObservation]) -> None:
    """Take over what is newly known of devices, one sighting after another; unknown devices are added."""
    facts, states = _load_known(connection, {mac_to_int(seen.device) for seen in observations})
    before = {number: astuple(each) for number, each in facts.items()}
    states_before = {number: astuple(each) for number, each in states.items()}
    for seen in observations:
        number = mac_to_int(seen.device)
        if number not in facts:
            facts[number] = _new_device(number, seen.at)
        state = states.setdefault(number, DeviceState(number))
        facts[number].apply(seen, state)
        _apply_to_state(state, seen)
    _write_devices(connection, facts, before)
    changed = (astuple(states[number]) for number in sorted(states))
    rows = [row for row in changed if row != states_before.get(row[0], astuple(DeviceState(row[0])))]
    merge_states(connection, rows)


def set_device_names(connection: Connection, names: Iterable[tuple[Mac, str]]) -> None:
    """Give devices the names that people chose. Unknown devices are passed over."""
    rows = [(name, normalize_name(name), mac_to_int(mac)) for mac, name in names]
    with update_name_index(connection, [number for _, _, number in rows]):
        bulk.execute_many(
            connection, "UPDATE device SET name = ?, name_key = ?, named = true WHERE id = ?", rows
        )


def delete_device(connection: Connection, mac: Mac) -> bool:
    """Remove a device with its labels; False: it is not known. It comes back when it is heard (rest-41)."""
    with update_name_index(connection, [mac_to_int(mac)]):
        return connection.execute(delete(device).where(device.c.id == mac_to_int(mac))).rowcount > 0


def attach_labels(connection: Connection, pairs: Collection[tuple[str, Mac]], *, at: int) -> None:
    """Attach labels to devices, which must be known; labels that are not known are made."""
    texts = sorted({text for text, _ in pairs})
    bulk.execute_many(
        connection,
        "INSERT INTO label (text, created_at) VALUES (?, ?) ON CONFLICT (text) DO NOTHING",
        [(text, at) for text in texts],
    )
    found = connection.execute(select(label.c.text, label.c.id).where(label.c.text.in_(texts)))
    numbers: dict[str, int] = dict(found.all())
    devices = {mac: mac_to_int(mac) for _, mac in pairs}
    rows = sorted({(numbers[text], devices[mac]) for text, mac in pairs})
    bulk.insert_rows(connection, device_label, rows)


def _load_known(
    connection: Connection, wanted: set[int]
) -> tuple[dict[int, _DeviceRow], dict[int, DeviceState]]:
    facts: dict[int, _DeviceRow] = {}
    states: dict[int, DeviceState] = {}
    width = len(device.columns)
    for row in bulk.query_in(connection, _SELECT_DEVICES, sorted(wanted)):
        facts[row[0]] = _DeviceRow(*row[:width])
        if row[width] is not None:
            states[row[0]] = DeviceState(*row[width:])
    return facts, states


def _new_device(number: int, at: int) -> _DeviceRow:
    """A device of which nothing is known yet (rest-48)."""
    return _DeviceRow(
        id=number,
        name="",
        name_key="",
        named=False,
        model=_NO_MODEL,
        variant=0,
        firmware=_NO_VERSION,
        beta=0,
        hardware=_NO_VERSION,
        imei=None,
        gateway=None,
        connected=False,
        connected_at=at,
        created_at=at,
    )


def _write_devices(
    connection: Connection, facts: dict[int, _DeviceRow], before: dict[int, tuple[Any, ...]]
) -> None:
    new: list[tuple[Any, ...]] = []
    changes: _Changes = defaultdict(list)
    for number in sorted(facts):
        known, old = facts[number], before.get(number)
        if old is None:
            known.set_default_name()
            new.append(astuple(known))
        elif old != astuple(known):
            _collect_changes(changes, known, old)
    renamed = [row[-1] for columns, rows in changes.items() if "name" in columns for row in rows]
    with update_name_index(connection, [row[0] for row in new] + renamed):
        if bulk.insert_rows(connection, device, new) < len(new):
            raise WriteConflict
        _update_devices(connection, changes)


def _update_devices(connection: Connection, changes: _Changes) -> None:
    for columns, rows in changes.items():
        assignments = ", ".join(f"{column} = ?" for column in columns)
        guard = " AND NOT named" if "name" in columns else ""
        bulk.execute_many(connection, f"UPDATE device SET {assignments} WHERE id = ?{guard}", rows)  # noqa: S608 # our own names


def _collect_changes(changes: _Changes, known: _DeviceRow, old: tuple[Any, ...]) -> None:
    """Sort what differs by its columns. The name is a change of its own: somebody may give one meanwhile."""
    columns = _DeviceRow.__struct_fields__
    differing = [i for i, value in enumerate(astuple(known)) if value != old[i]]
    changes[tuple(columns[i] for i in differing)].append((*(astuple(known)[i] for i in differing), known.id))
    name = known.name
    known.set_default_name()
    if known.name != name:
        changes[_NAME_COLUMNS].append((known.name, known.name_key, known.id))


# What people change about devices.


def rename_device(connection: Connection, mac: Mac, name: str, *, by: Actor, now: int) -> Device:
    """Give a device the name that somebody chose (rest-43)."""
    query = select(device.c.name, device.c.named).where(device.c.id == mac_to_int(mac))
    before = connection.execute(query.with_for_update()).first()
    if before is None:
        raise device_not_found(mac)
    if tuple(before) != (name, True):
        set_device_names(connection, [(mac, name)])
        audit.record_change(
            connection, by, "device.rename", to_device_id(mac), now=now, before=before.name, after=name
        )
    return listing.load_device(connection, mac)


def forget_device(connection: Connection, mac: Mac, *, by: Actor, now: int) -> None:
    """Remove a device; its history stays, and it comes back when it is heard (rest-40, rest-41)."""
    if connection.execute(select(gateway.c.device).where(gateway.c.device == mac_to_int(mac))).first():
        raise StillClaimed(f"gateway {mac} is claimed; release it first")
    name = connection.execute(select(device.c.name).where(device.c.id == mac_to_int(mac))).scalar()
    if not delete_device(connection, mac):
        raise device_not_found(mac)
    audit.record_change(connection, by, "device.forget", to_device_id(mac), now=now, name=name)
