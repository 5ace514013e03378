"""The registry of devices: how they get into it, and how what is known of them changes.

Whatever is heard comes through `observe`, in batches. It reads what is known of the devices of a batch, lets
one sighting after another change it, and writes what differs: most reports change no more than the state of
a device, and a column that is not written is an index that is not touched.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import astuple
from sqlalchemy import delete, select

from meshfleet.db import bulk
from meshfleet.db.database import Overtaken
from meshfleet.db.tables import device, device_label, device_state, label
from meshfleet.service.devices.model import name_key, three_parts
from meshfleet.service.devices.names import kept_searchable
from meshfleet.service.devices.states import State, merge
from meshfleet.wire.ids import mac_number, model_number
from meshfleet.wire.products import product_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.devices.model import Sighting
    from meshfleet.wire.ids import Mac

_KNOWN: Final = (
    f"SELECT {', '.join(map(str, [*device.columns, *device_state.columns]))}"  # noqa: S608 # our own names
    " FROM device LEFT JOIN device_state ON device_state.device = device.id WHERE device.id IN numbers"
)

_NAME: Final = ("name", "name_key")

_Changes: TypeAlias = defaultdict[tuple[str, ...], list[tuple[Any, ...]]]
"""New values, and the id at the end, for the columns that change."""


_UNKNOWN: Final = 0
_NO_VERSION: Final = "0.0.0"


class _Facts(Struct):
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

    def learn(self, seen: Sighting, state: State) -> None:
        """Take over what is newly known, if it is newer than what is known already."""
        at = seen.at
        if seen.name is not UNSET and not self.named:
            self.name, self.name_key, self.named = seen.name, name_key(seen.name), True
        if seen.gateway is not UNSET and _is_news(at, state.gateway_at):
            self.gateway, state.gateway_at = mac_number(seen.gateway), at
        if seen.model is not UNSET and _is_news(at, state.model_at):
            self.model, state.model_at = int(seen.model, 16), at
        if seen.variant is not UNSET and _is_news(at, state.variant_at):
            self.variant, state.variant_at = seen.variant, at
        if seen.firmware is not UNSET and _is_news(at, state.firmware_at):
            self.firmware, self.beta, state.firmware_at = three_parts(seen.firmware), seen.firmware.beta, at
        if seen.hardware is not UNSET and _is_news(at, state.hardware_at):
            self.hardware, state.hardware_at = three_parts(seen.hardware), at
        if seen.imei is not UNSET and _is_news(at, state.reported_at):
            self.imei = seen.imei
        if seen.connected is not UNSET and seen.connected != self.connected and at >= self.connected_at:
            self.connected, self.connected_at = seen.connected, at

    def follow_model(self) -> None:
        """Until somebody names a device it is called after its product (rest-45)."""
        if not self.named:
            product = product_name(model_number(self.model), self.variant) or "Device"
            self.name = f"{product} {self.id & 0xFFFF:04x}"
            self.name_key = name_key(self.name)


def _is_news(at: int, known: int | None) -> bool:
    """Whether something is newer than what is known: reports out of order never move anything back."""
    return known is None or at >= known


def _learn_state(state: State, seen: Sighting) -> None:
    """Take over what is newly known of what changes often."""
    at = seen.at
    if seen.heard and _is_news(at, state.reported_at):
        state.reported_at = at
        state.boot_mode = state.boot_mode if seen.boot_mode is UNSET else seen.boot_mode
    if seen.status is not UNSET and _is_news(at, state.status_at):
        state.status, state.status_at = seen.status, at
    if seen.battery is not UNSET and _is_news(at, state.battery_at):
        state.battery, state.battery_at = seen.battery, at
    if _is_news(at, state.radio_at) and not (seen.parent is UNSET and seen.rssi is UNSET):
        state.radio_at = at
        state.parent = state.parent if seen.parent is UNSET else mac_number(seen.parent)
        state.rssi = state.rssi if seen.rssi is UNSET else seen.rssi
        state.radio_gateway = None if seen.gateway is UNSET else mac_number(seen.gateway)


def observe(connection: Connection, sightings: Sequence[Sighting]) -> None:
    """Take over what is newly known of devices, one sighting after another; unknown devices are added."""
    facts, states = _known(connection, {mac_number(seen.device) for seen in sightings})
    before = {number: astuple(each) for number, each in facts.items()}
    states_before = {number: astuple(each) for number, each in states.items()}
    for seen in sightings:
        number = mac_number(seen.device)
        if number not in facts:
            facts[number] = _newcomer(number, seen.at)
        state = states.setdefault(number, State(number))
        facts[number].learn(seen, state)
        _learn_state(state, seen)
    _write_facts(connection, facts, before)
    changed = (astuple(states[number]) for number in sorted(states))
    rows = [row for row in changed if row != states_before.get(row[0], astuple(State(row[0])))]
    merge(connection, rows)


def rename(connection: Connection, names: Iterable[tuple[Mac, str]]) -> None:
    """Give devices the names that people chose. Unknown devices are passed over."""
    rows = [(name, name_key(name), mac_number(mac)) for mac, name in names]
    with kept_searchable(connection, [number for _, _, number in rows]):
        bulk.execute(connection, "UPDATE device SET name = ?, name_key = ?, named = true WHERE id = ?", rows)


def forget(connection: Connection, mac: Mac) -> bool:
    """Remove a device with its labels; False: it is not known. It comes back when it is heard (rest-41)."""
    with kept_searchable(connection, [mac_number(mac)]):
        return connection.execute(delete(device).where(device.c.id == mac_number(mac))).rowcount > 0


def attach(connection: Connection, pairs: Collection[tuple[str, Mac]], *, at: int) -> None:
    """Attach labels to devices, which must be known; labels that are not known are made."""
    texts = sorted({text for text, _ in pairs})
    bulk.execute(
        connection,
        "INSERT INTO label (text, created_at) VALUES (?, ?) ON CONFLICT (text) DO NOTHING",
        [(text, at) for text in texts],
    )
    found = connection.execute(select(label.c.text, label.c.id).where(label.c.text.in_(texts)))
    numbers: dict[str, int] = dict(found.all())
    devices = {mac: mac_number(mac) for _, mac in pairs}
    rows = sorted({(numbers[text], devices[mac]) for text, mac in pairs})
    bulk.insert(connection, device_label, rows)


def _known(connection: Connection, wanted: set[int]) -> tuple[dict[int, _Facts], dict[int, State]]:
    facts: dict[int, _Facts] = {}
    states: dict[int, State] = {}
    width = len(device.columns)
    for row in bulk.pick(connection, _KNOWN, sorted(wanted)):
        facts[row[0]] = _Facts(*row[:width])
        if row[width] is not None:
            states[row[0]] = State(*row[width:])
    return facts, states


def _newcomer(number: int, at: int) -> _Facts:
    """A device of which nothing is known yet (rest-48)."""
    return _Facts(
        id=number,
        name="",
        name_key="",
        named=False,
        model=_UNKNOWN,
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


def _write_facts(
    connection: Connection, facts: dict[int, _Facts], before: dict[int, tuple[Any, ...]]
) -> None:
    new: list[tuple[Any, ...]] = []
    changes: _Changes = defaultdict(list)
    for number in sorted(facts):
        known, old = facts[number], before.get(number)
        if old is None:
            known.follow_model()
            new.append(astuple(known))
        elif old != astuple(known):
            _note_changes(changes, known, old)
    renamed = [row[-1] for columns, rows in changes.items() if "name" in columns for row in rows]
    with kept_searchable(connection, [row[0] for row in new] + renamed):
        if bulk.insert(connection, device, new) < len(new):
            raise Overtaken
        _update(connection, changes)


def _update(connection: Connection, changes: _Changes) -> None:
    for columns, rows in changes.items():
        assignments = ", ".join(f"{column} = ?" for column in columns)
        guard = " AND NOT named" if "name" in columns else ""
        bulk.execute(connection, f"UPDATE device SET {assignments} WHERE id = ?{guard}", rows)  # noqa: S608 # our own names


def _note_changes(changes: _Changes, known: _Facts, old: tuple[Any, ...]) -> None:
    """Sort what differs by its columns. The name is a change of its own: somebody may give one meanwhile."""
    columns = _Facts.__struct_fields__
    differing = [i for i, value in enumerate(astuple(known)) if value != old[i]]
    changes[tuple(columns[i] for i in differing)].append((*(astuple(known)[i] for i in differing), known.id))
    name = known.name
    known.follow_model()
    if known.name != name:
        changes[_NAME].append((known.name, known.name_key, known.id))
