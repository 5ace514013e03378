"""Where a draft goes, and where notes do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import astuple

from meshfleet.db import bulk
from meshfleet.db.tables import device_state, foreign_name, reading_journal
from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.devices import registry, states
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.devices.states import DeviceState
from meshfleet.service.ingest import gateway_admission, readings
from meshfleet.service.ingest.device_facts import BATTERY, FACT_SIGHTINGS
from meshfleet.service.ingest.pending_state import time_or_none
from meshfleet.service.ingest.rejects import MAX_REJECTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingState, PendingStates
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import RejectedReport

_SELECT_DEVICES: Final = (
    "SELECT id, gateway, gateway_at, device_state.device IS NOT NULL FROM device"
    " LEFT JOIN device_state ON device_state.device = id WHERE id IN numbers"
)
_INSERT_REJECT: Final = "INSERT INTO reject (time, gateway, topic, reason, payload) VALUES (?, ?, ?, ?, ?)"

_GATEWAY_STICKINESS_MS: Final = 150_000
"""Milliseconds: a device that several gateways hear stays with one of them for as long as that hears it; most
report every minute."""


def insert_batch(connection: Connection, batch: ParsedBatch, rejects: Sequence[RejectedReport]) -> int | None:
    """Write down all of a draft but its samples; gives the number of its readings, if it has any."""
    if batch.new_gateways:
        gateway_admission.register_gateways(connection, batch.new_gateways, batch.now)
    if batch.foreign_names:
        bulk.insert_rows(connection, foreign_name, sorted(batch.foreign_names.items()))
    if rejects:
        bulk.execute_many(
            connection, _INSERT_REJECT, [(r.time, r.gateway, r.topic, r.reason, r.payload) for r in rejects]
        )
    if not batch.readings:
        return None
    return bulk.insert_row(connection, reading_journal, readings.encode_readings(batch.readings))


def load_readings(connection: Connection) -> list[tuple[int, list[Reading]]]:
    """Readings that are not in states and roll-ups yet."""
    rows = connection.exec_driver_sql("SELECT id, readings FROM reading_journal ORDER BY id")
    return [(number, readings.decode_readings(data)) for number, data in rows]


def delete_readings(connection: Connection, before: int) -> None:
    """Drop those that are."""
    bulk.execute_many(connection, "DELETE FROM reading_journal WHERE id < ?", [(before,)])


def delete_old_rejects(connection: Connection) -> None:
    """Keep the newest."""
    connection.exec_driver_sql(f"DELETE FROM reject WHERE id <= (SELECT max(id) FROM reject) - {MAX_REJECTS}")  # noqa: S608


def upsert_devices(connection: Connection, states: PendingStates, now: int) -> Collection[int]:
    """Bring devices to what is newly known of them; those that are not known are added, and told."""
    wanted = {number for device, note in states.items() for number in _candidate_devices(device, note)}
    present = {
        row[0]: _KnownDevice(*row[1:]) for row in bulk.query_in(connection, _SELECT_DEVICES, sorted(wanted))
    }
    heard = {device: note for device, note in states.items() if time_or_none(note.heard_at) is not None}
    owned = _by_owner(heard, present)
    met = {device: note for device, note in states.items() if device not in heard and device not in present}
    registry.record_observations(connection, [*_sightings(owned, present), *_first_sightings(met, now)])
    bulk.insert_rows(
        connection,
        device_state,
        [
            astuple(DeviceState(device))
            for device in owned
            if not (device in present and present[device].has_state)
        ],
    )
    _write_states(connection, owned, present)
    return (owned.keys() | met.keys()) - present.keys()


class _KnownDevice(NamedTuple):
    """What is known of a device before."""

    gateway: int | None
    gateway_at: int | None
    has_state: bool

    def belongs_to_other_gateway(self, note: PendingState) -> bool:
        """Whether a note came through a gateway to which the device does not belong."""
        if self.gateway in {None, note.gateway}:
            return False
        return note.heard_at - (self.gateway_at or 0) < _GATEWAY_STICKINESS_MS


_UNKNOWN_DEVICE: Final = _KnownDevice(None, None, has_state=False)


def _sightings(notes: PendingStates, present: Mapping[int, _KnownDevice]) -> Iterator[DeviceObservation]:
    """What changes seldom: new devices, their gateways, what they are."""
    for device, note in notes.items():
        before = present.get(device, _UNKNOWN_DEVICE)
        if before.gateway != note.gateway and not before.belongs_to_other_gateway(note):
            gateway = mac_from_int(note.gateway)
            yield DeviceObservation(
                device=mac_from_int(device), at=note.heard_at, heard=False, gateway=gateway
            )
        if note.facts is not None:
            yield from _fact_sightings(device, note.facts)


def _first_sightings(notes: PendingStates, now: int) -> Iterator[DeviceObservation]:
    """Devices that are known from now on, though nothing that they said is believed."""
    for device, note in notes.items():
        gateway = mac_from_int(note.gateway)
        yield DeviceObservation(device=mac_from_int(device), at=now, heard=False, gateway=gateway)


def _write_states(connection: Connection, notes: PendingStates, present: Mapping[int, _KnownDevice]) -> None:
    """What changes often, part by part."""
    usual, others, belonging, statuses, radios, batteries = [], [], [], [], [], []
    for device, note in notes.items():
        at = note.heard_at
        is_here = not present.get(device, _UNKNOWN_DEVICE).belongs_to_other_gateway(note)
        is_in_dfu = note.dfu_at >= note.reported_at
        if is_here and not is_in_dfu:
            usual.append((device, at, at))
        else:
            others.append((device, at, "dfu" if is_in_dfu else None))
            if is_here:
                belonging.append((device, at))
        if time_or_none(note.status_at) is not None:
            statuses.append((device, note.status_at, note.status))
        if time_or_none(note.radio_at) is not None:
            radios.append((device, note.radio_at, note.parent, note.rssi, note.radio_gateway))
        if note.facts is not None and BATTERY in note.facts:
            batteries.append((device, *note.facts[BATTERY]))
    states.update_heard_states(connection, usual)
    states.update_state_part(connection, "reported_at", others)
    states.update_state_part(connection, "gateway_at", belonging)
    states.update_state_part(connection, "status_at", statuses)
    states.update_state_part(connection, "radio_at", radios)
    states.update_state_part(connection, "battery_at", batteries)


def _candidate_devices(device: int, note: PendingState) -> tuple[int, ...]:
    """The devices that a note may be about."""
    return (device,) if time_or_none(note.reported_at) is not None else (device, device - 1)


def _by_owner(notes: PendingStates, present: Mapping[int, object]) -> PendingStates:
    """Notes by the devices that they are about. They may be needed again, so they stay as they are."""
    owned: PendingStates = {}
    for heard, note in sorted(notes.items()):
        device = _find_owner(heard, note, present)
        if device is not None:
            owned[device] = owned[device].merge_dfu(note) if device in owned else note
    return owned


def _find_owner(device: int, note: PendingState, present: Mapping[int, object]) -> int | None:
    """Whose note it is: a device in DFU mode may have the address behind its own (report-46, report-47)."""
    if device in present or note.has_implausible_sample or time_or_none(note.reported_at) is not None:
        return device
    return device - 1 if device - 1 in present else None


def _fact_sightings(device: int, facts: Mapping[int, tuple[int, Any]]) -> Iterator[DeviceObservation]:
    """What properties tell of a device."""
    for identifier, (at, value) in facts.items():
        if identifier in FACT_SIGHTINGS:
            yield DeviceObservation(
                device=mac_from_int(device), at=at, heard=False, **FACT_SIGHTINGS[identifier](value)
            )
