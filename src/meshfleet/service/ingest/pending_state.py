"""What reports tell of the present state of a device, until it is written down.

Devices report more often than anybody looks: notes on the same device are put together, and what is newest
counts, in whatever order it came (report-50).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from meshfleet.service.devices.states import BEST_PARENT_MS
from meshfleet.service.ingest.readings import ReadingKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.db.samples import SampleRows
    from meshfleet.service.ingest.readings import Reading

_NEVER: Final = -(2**62)
"""Before any time that a report may have."""


class PendingState(Struct, gc=False):
    """The newest that is known of a device."""

    gateway: int
    """The one that brought its newest report."""
    reported_at: int = _NEVER
    status: int = 0
    status_at: int = _NEVER
    parent: int = 0
    rssi: int = 0
    radio_gateway: int = 0
    """The one that brought this reading of the radio."""
    radio_at: int = _NEVER
    dfu_at: int = _NEVER
    """When it was last heard in DFU mode."""
    has_implausible_sample: bool = False
    """Whether it sent a sample whose time is not believed, and so is a device of its own."""
    facts: dict[int, tuple[int, Any]] | None = None
    """Values of properties that tell what it is, by identifier, each with its time."""

    @property
    def heard_at(self) -> int:
        """When it was last heard in whatever mode."""
        return max(self.reported_at, self.dfu_at)

    def record_report(self, gateway: int, at: int) -> None:
        """It reported something."""
        if at >= self.reported_at:
            self.reported_at = at
            if at >= self.dfu_at:
                self.gateway = gateway

    def update_status(self, status: int, at: int) -> None:
        """Take over the status of a heartbeat."""
        if at >= self.status_at:
            self.status, self.status_at = status, at

    def update_radio(self, gateway: int, parent: int, rssi: int, at: int) -> None:
        """Take over a reading of the radio, with all its parts.

        The parent that hears the device best counts, for as long as it does.
        """
        if at >= self.radio_at and (
            parent == self.parent or rssi >= self.rssi or self.radio_at < at - BEST_PARENT_MS
        ):
            self.parent, self.rssi, self.radio_at = parent, rssi, at
            self.radio_gateway = gateway

    def record_dfu(self, gateway: int, at: int) -> None:
        """It advertises in DFU mode."""
        if at >= self.heard_at:
            self.gateway = gateway
        self.dfu_at = max(self.dfu_at, at)

    def merge_dfu(self, other: PendingState) -> PendingState:
        """This note with one of the same device that was made while it was in DFU mode."""
        both = replace(self)
        both.record_dfu(other.gateway, other.dfu_at)
        both.update_radio(other.radio_gateway, other.parent, other.rssi, other.radio_at)
        return both

    def update_fact(self, identifier: int, at: int, value: Any) -> None:
        """Take over the value of a property."""
        if self.facts is None:
            self.facts = {}
        if identifier not in self.facts or at >= self.facts[identifier][0]:
            self.facts[identifier] = (at, value)


def time_or_none(time: int) -> int | None:
    """A time of a note; None: it has not happened."""
    return None if time == _NEVER else time


PendingStates = dict[int, PendingState]
"""Notes by device."""


def apply_readings(states: PendingStates, readings: Iterable[Reading], now: int) -> None:
    """Note what readings tell. A time ahead of ours counts as now: nothing happens later than that."""
    for kind, device, gateway, time, value, other, unreachable in readings:
        at = min(time, now)
        note = states.get(device)
        if note is None:
            note = states[device] = PendingState(gateway)
        if kind == ReadingKind.FIRST_SAMPLE_IMPLAUSIBLE:
            note.has_implausible_sample = True
            continue
        if kind == ReadingKind.DFU:
            note.record_dfu(gateway, at)
            note.update_radio(gateway, other, value, at)
            continue
        note.record_report(gateway, at)
        if kind == ReadingKind.HEARTBEAT:
            note.update_status(value, at)
        elif kind == ReadingKind.FACT:
            note.update_fact(other, at, value)
        elif kind == ReadingKind.LINK and not unreachable:
            note.update_radio(gateway, other, value, at)


def apply_samples(states: PendingStates, rows: SampleRows, now: int) -> None:
    """Note what samples tell, which is that their devices were heard."""
    for device, samples in rows.items():
        for time, _, _, _, gateway, _, _, more in samples:
            if more is None or more.has_plausible_time:
                if more is not None and more.shift is not None:
                    time += more.shift  # noqa: PLW2901 # as our clock would have it
                note = states.get(device)
                if note is None:
                    states[device] = PendingState(gateway, min(time, now))
                elif time >= note.reported_at:
                    note.record_report(gateway, min(time, now))
