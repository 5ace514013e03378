"""SQL of ingest: writes parsed batches of reports, the journal of readings, and device states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import astuple
from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import device_state, foreign_name, reading_journal
from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.devices import registry, states
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.devices.states import DeviceState
from meshfleet.service.ingest import gateway_admission, readings
from meshfleet.service.ingest.device_facts import BATTERY, FACT_FIELD_BUILDERS
from meshfleet.service.ingest.pending_state import NEVER, PendingState, PendingStates
from meshfleet.service.ingest.rejects import MAX_REJECTS, RejectedReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.readings import Reading

_SELECT_DEVICES: Final = (
    "SELECT id, gateway, gateway_at, device_state.device IS NOT NULL FROM device"
    " LEFT JOIN device_state ON device_state.device = id WHERE id IN numbers"
)
_INSERT_REJECT: Final = "INSERT INTO reject (time, gateway, topic, reason, payload) VALUES (?, ?, ?, ?, ?)"

_GATEWAY_STICKINESS_MS: Final = 150_000
"""Milliseconds for which a device keeps its gateway after its last report through that gateway.

In this time, reports that arrive through other gateways do not change the device's gateway. Most devices
report every minute.
"""


def insert_batch(connection: Connection, batch: ParsedBatch, rejects: Sequence[RejectedReport]) -> int | None:
    """Write everything of a parsed batch except the samples.

    Return the id of the journal entry with the batch's readings, or None if the batch has no readings.
    """
    if batch.new_gateways:
        gateway_admission.register_gateways(connection, batch.new_gateways, batch.now)
    if batch.foreign_names:
        bulk.insert_rows(connection, foreign_name, sorted(batch.foreign_names.items()))
    if rejects:
        bulk.execute_many(
            connection,
            _INSERT_REJECT,
            [
                (reject.time, reject.gateway, reject.topic, reject.reason, reject.payload)
                for reject in rejects
            ],
        )
    if not batch.readings:
        return None
    batch.encoded_readings = readings.encode_readings(batch.readings)
    return bulk.insert_row(connection, reading_journal, batch.encoded_readings)


class JournalEntry(NamedTuple):
    """Readings of one committed batch; some are not yet written as device states or minute roll-ups."""

    id: int
    readings: list[Reading]


def load_next_journal_entry(connection: Connection, last_id: int) -> JournalEntry | None:
    """Load the first entry of the journal of readings after the one with `last_id`. Return None at the end.

    All entries together may take gigabytes when they are decoded.
    """
    columns = reading_journal.c
    query = select(columns.id, columns.readings).where(columns.id > last_id).order_by(columns.id)
    row = connection.execute(query.limit(1)).first()
    return None if row is None else JournalEntry(row.id, readings.decode_readings(row.readings))


def delete_journal_entries(connection: Connection, before: int) -> None:
    """Delete the entries of the journal of readings with an id below `before`."""
    bulk.execute_many(connection, "DELETE FROM reading_journal WHERE id < ?", [(before,)])


def delete_old_rejects(connection: Connection) -> None:
    """Delete all but the newest `MAX_REJECTS` rejected reports."""
    connection.exec_driver_sql(f"DELETE FROM reject WHERE id <= (SELECT max(id) FROM reject) - {MAX_REJECTS}")  # noqa: S608 # a constant number


def upsert_devices(connection: Connection, states: PendingStates, now: int) -> Collection[int]:
    """Write device states, and add the devices that are not in the database. Return the added devices."""
    candidates = {
        device for address, state in states.items() for device in state.list_possible_owners(address)
    }
    known = {
        row[0]: _KnownDevice(*row[1:])
        for row in bulk.query_in(connection, _SELECT_DEVICES, sorted(candidates))
    }
    reported = {device: state for device, state in states.items() if state.heard_at != NEVER}
    by_device = _merge_by_device(reported, known)
    unheard = {
        device: state for device, state in states.items() if device not in reported and device not in known
    }
    registry.record_observations(
        connection, [*_observe_changes(by_device, known), *_observe_implausible_devices(unheard, now)]
    )
    bulk.insert_rows(
        connection,
        device_state,
        [
            astuple(DeviceState(device))
            for device in by_device
            if not (device in known and known[device].has_state)
        ],
    )
    _write_states(connection, by_device, known)
    return (by_device.keys() | unheard.keys()) - known.keys()


class _KnownDevice(NamedTuple):
    """Columns of a device in the database before an update of device states."""

    gateway: int | None
    gateway_at: int | None
    """Unix time in milliseconds of the last report through `gateway`."""
    has_state: bool
    """Whether the table `device_state` has a row for the device."""

    def belongs_to_other_gateway(self, state: PendingState) -> bool:
        """Return whether a state came through another gateway too soon to change the device's gateway."""
        if self.gateway in {None, state.gateway}:
            return False
        return state.heard_at - (self.gateway_at or 0) < _GATEWAY_STICKINESS_MS


_UNKNOWN_DEVICE: Final = _KnownDevice(None, None, has_state=False)


def _observe_changes(states: PendingStates, known: Mapping[int, _KnownDevice]) -> Iterator[DeviceObservation]:
    """Yield the changes of the table `device`: new devices, changed gateways, and properties."""
    for device, state in states.items():
        stored = known.get(device, _UNKNOWN_DEVICE)
        if stored.gateway != state.gateway and not stored.belongs_to_other_gateway(state):
            gateway = mac_from_int(state.gateway)
            yield DeviceObservation(
                device=mac_from_int(device), at=state.heard_at, heard=False, gateway=gateway
            )
        if state.facts is not None:
            yield from _observe_facts(device, state.facts)


def _observe_implausible_devices(states: PendingStates, now: int) -> Iterator[DeviceObservation]:
    """Yield observations at `now` of new devices whose samples all have implausible times."""
    for device, state in states.items():
        gateway = mac_from_int(state.gateway)
        yield DeviceObservation(device=mac_from_int(device), at=now, heard=False, gateway=gateway)


def _write_states(connection: Connection, pending: PendingStates, known: Mapping[int, _KnownDevice]) -> None:
    """Write device states to the table `device_state`, with one statement for each group of columns."""
    usual, others, gateway_times, statuses, radios, batteries = [], [], [], [], [], []
    for device, state in pending.items():
        at = state.heard_at
        is_at_own_gateway = not known.get(device, _UNKNOWN_DEVICE).belongs_to_other_gateway(state)
        is_in_dfu = state.dfu_at >= state.reported_at
        if is_at_own_gateway and not is_in_dfu:
            usual.append((device, at, at))
        else:
            others.append((device, at, "dfu" if is_in_dfu else None))
            if is_at_own_gateway:
                gateway_times.append((device, at))
        if state.status_at != NEVER:
            statuses.append((device, state.status_at, state.status))
        if state.radio_at != NEVER:
            radios.append((device, state.radio_at, state.parent, state.rssi, state.radio_gateway))
        if state.facts is not None and BATTERY in state.facts:
            batteries.append((device, *state.facts[BATTERY]))
    states.update_heard_states(connection, usual)
    states.update_state_part(connection, "reported_at", others)
    states.update_state_part(connection, "gateway_at", gateway_times)
    states.update_state_part(connection, "status_at", statuses)
    states.update_state_part(connection, "radio_at", radios)
    states.update_state_part(connection, "battery_at", batteries)


def _merge_by_device(states: PendingStates, known: Mapping[int, object]) -> PendingStates:
    """Merge states of DFU addresses into the states of their devices. Return the states by device.

    `states` is not changed, because a retry needs it.
    """
    by_device: PendingStates = {}
    for address, state in sorted(states.items()):
        device = _find_owner(address, state, known)
        if device is not None:
            by_device[device] = by_device[device].merge_dfu_state(state) if device in by_device else state
    return by_device


def _find_owner(address: int, state: PendingState, known: Mapping[int, object]) -> int | None:
    """Return the device that reports with an address, or None for a DFU address of an unknown device.

    In DFU mode a device may use its own address + 1 (report-46, report-47).
    """
    if address in known or state.has_implausible_sample or state.reported_at != NEVER:
        return address
    return address - 1 if address - 1 in known else None


def _observe_facts(device: int, facts: Mapping[int, tuple[int, Any]]) -> Iterator[DeviceObservation]:
    """Yield the changes of a device by properties that describe it, such as its model."""
    for identifier, (at, value) in facts.items():
        if identifier in FACT_FIELD_BUILDERS:
            yield DeviceObservation(
                device=mac_from_int(device), at=at, heard=False, **FACT_FIELD_BUILDERS[identifier](value)
            )
