"""Where a draft goes, and where notes do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import astuple

from meshfleet.db import bulk
from meshfleet.db.tables import device_state, foreign_name, reading_journal
from meshfleet.service.devices import registry, states
from meshfleet.service.devices.model import Sighting
from meshfleet.service.devices.states import State
from meshfleet.service.gateways import registering
from meshfleet.service.ingest import readings
from meshfleet.service.ingest.facts import BATTERY, SEEN
from meshfleet.service.ingest.notes import known
from meshfleet.service.ingest.rejects import KEPT
from meshfleet.wire.ids import number_mac

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Note, Notes
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import Reject

_KNOWN: Final = (
    "SELECT id, gateway, gateway_at, device_state.device IS NOT NULL FROM device"
    " LEFT JOIN device_state ON device_state.device = id WHERE id IN numbers"
)
_REJECT: Final = "INSERT INTO reject (time, gateway, topic, reason, payload) VALUES (?, ?, ?, ?, ?)"

_LOYAL_FOR: Final = 150_000
"""Milliseconds: a device that several gateways hear stays with one of them for as long as that hears it; most
report every minute."""


def write_draft(connection: Connection, draft: Draft, kept: Sequence[Reject]) -> int | None:
    """Write down all of a draft but its samples; gives the number of its readings, if it has any."""
    if draft.newcomers:
        registering.register(connection, draft.newcomers, draft.now)
    if draft.names:
        bulk.insert(connection, foreign_name, sorted(draft.names.items()))
    if kept:
        bulk.execute(connection, _REJECT, [(r.time, r.gateway, r.topic, r.reason, r.payload) for r in kept])
    if not draft.readings:
        return None
    return bulk.add(connection, reading_journal, readings.encode(draft.readings))


def journal(connection: Connection) -> list[tuple[int, list[Reading]]]:
    """Readings that are not in states and roll-ups yet."""
    rows = connection.exec_driver_sql("SELECT id, readings FROM reading_journal ORDER BY id")
    return [(number, readings.decode(data)) for number, data in rows]


def forget_readings(connection: Connection, before: int) -> None:
    """Drop those that are."""
    bulk.execute(connection, "DELETE FROM reading_journal WHERE id < ?", [(before,)])


def trim_rejects(connection: Connection) -> None:
    """Keep the newest."""
    connection.exec_driver_sql(f"DELETE FROM reject WHERE id <= (SELECT max(id) FROM reject) - {KEPT}")  # noqa: S608


def write_notes(connection: Connection, notes: Notes, now: int) -> Collection[int]:
    """Bring devices to what is newly known of them; those that are not known are added, and told."""
    wanted = {number for device, note in notes.items() for number in _numbers(device, note)}
    present = {row[0]: _Present(*row[1:]) for row in bulk.pick(connection, _KNOWN, sorted(wanted))}
    heard = {device: note for device, note in notes.items() if known(note.heard_at) is not None}
    owned = _by_owner(heard, present)
    met = {device: note for device, note in notes.items() if device not in heard and device not in present}
    registry.observe(connection, [*_sightings(owned, present), *_meetings(met, now)])
    bulk.insert(
        connection,
        device_state,
        [astuple(State(device)) for device in owned if not (device in present and present[device].has_state)],
    )
    _write_states(connection, owned, present)
    return (owned.keys() | met.keys()) - present.keys()


class _Present(NamedTuple):
    """What is known of a device before."""

    gateway: int | None
    gateway_at: int | None
    has_state: bool

    def is_loyal_to_another(self, note: Note) -> bool:
        """Whether a note came through a gateway to which the device does not belong."""
        if self.gateway in {None, note.gateway}:
            return False
        return note.heard_at - (self.gateway_at or 0) < _LOYAL_FOR


_NOBODY: Final = _Present(None, None, has_state=False)


def _sightings(notes: Notes, present: Mapping[int, _Present]) -> Iterator[Sighting]:
    """What changes seldom: new devices, their gateways, what they are."""
    for device, note in notes.items():
        before = present.get(device, _NOBODY)
        if before.gateway != note.gateway and not before.is_loyal_to_another(note):
            gateway = number_mac(note.gateway)
            yield Sighting(device=number_mac(device), at=note.heard_at, heard=False, gateway=gateway)
        if note.facts is not None:
            yield from _facts(device, note.facts)


def _meetings(notes: Notes, now: int) -> Iterator[Sighting]:
    """Devices that are known from now on, though nothing that they said is believed."""
    for device, note in notes.items():
        gateway = number_mac(note.gateway)
        yield Sighting(device=number_mac(device), at=now, heard=False, gateway=gateway)


def _write_states(connection: Connection, notes: Notes, present: Mapping[int, _Present]) -> None:
    """What changes often, part by part."""
    usual, others, belonging, statuses, radios, batteries = [], [], [], [], [], []
    for device, note in notes.items():
        at = note.heard_at
        is_here = not present.get(device, _NOBODY).is_loyal_to_another(note)
        is_in_dfu = note.dfu_at >= note.at
        if is_here and not is_in_dfu:
            usual.append((device, at, at))
        else:
            others.append((device, at, "dfu" if is_in_dfu else None))
            if is_here:
                belonging.append((device, at))
        if known(note.status_at) is not None:
            statuses.append((device, note.status_at, note.status))
        if known(note.radio_at) is not None:
            radios.append((device, note.radio_at, note.parent, note.rssi, note.radio_gateway))
        if note.facts is not None and BATTERY in note.facts:
            batteries.append((device, *note.facts[BATTERY]))
    states.update_heard(connection, usual)
    states.update(connection, "reported_at", others)
    states.update(connection, "gateway_at", belonging)
    states.update(connection, "status_at", statuses)
    states.update(connection, "radio_at", radios)
    states.update(connection, "battery_at", batteries)


def _numbers(device: int, note: Note) -> tuple[int, ...]:
    """The devices that a note may be about."""
    return (device,) if known(note.at) is not None else (device, device - 1)


def _by_owner(notes: Notes, present: Mapping[int, object]) -> Notes:
    """Notes by the devices that they are about. They may be needed again, so they stay as they are."""
    owned: Notes = {}
    for heard, note in sorted(notes.items()):
        device = _owner(heard, note, present)
        if device is not None:
            owned[device] = owned[device].in_dfu(note) if device in owned else note
    return owned


def _owner(device: int, note: Note, present: Mapping[int, object]) -> int | None:
    """Whose note it is: a device in DFU mode may have the address behind its own (report-46, report-47)."""
    if device in present or note.is_met or known(note.at) is not None:
        return device
    return device - 1 if device - 1 in present else None


def _facts(device: int, facts: Mapping[int, tuple[int, Any]]) -> Iterator[Sighting]:
    """What properties tell of a device."""
    for identifier, (at, value) in facts.items():
        if identifier in SEEN:
            yield Sighting(device=number_mac(device), at=at, heard=False, **SEEN[identifier](value))
