"""Current state of devices according to reports, until it is written to the database.

Devices report more often than the state is needed: updates of a device are combined, and the newest value
wins in whatever order reports arrive (report-50).
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
"""Time before that of any report."""


class PendingState(Struct, gc=False):
    """Newest known state of a device."""

    gateway: int
    """Gateway of its newest report."""
    reported_at: int = _NEVER
    status: int = 0
    status_at: int = _NEVER
    parent: int = 0
    rssi: int = 0
    radio_gateway: int = 0
    """Gateway of this radio reading."""
    radio_at: int = _NEVER
    dfu_at: int = _NEVER
    """Time of its last report in DFU mode."""
    has_implausible_sample: bool = False
    """Whether it sent a sample with an implausible time, and so is a device, not the DFU address of one."""
    facts: dict[int, tuple[int, Any]] | None = None
    """Values of the properties that describe it, by identifier, each with its time."""

    @property
    def heard_at(self) -> int:
        """Time of its last report in any mode."""
        return max(self.reported_at, self.dfu_at)

    def record_report(self, gateway: int, at: int) -> None:
        """Apply the time and gateway of a report."""
        if at >= self.reported_at:
            self.reported_at = at
            if at >= self.dfu_at:
                self.gateway = gateway

    def update_status(self, status: int, at: int) -> None:
        """Apply the status of a heartbeat."""
        if at >= self.status_at:
            self.status, self.status_at = status, at

    def update_radio(self, gateway: int, parent: int, rssi: int, at: int) -> None:
        """Apply all parts of a radio reading.

        The parent with the strongest signal is kept as long as it keeps reporting.
        """
        if at >= self.radio_at and (
            parent == self.parent or rssi >= self.rssi or self.radio_at < at - BEST_PARENT_MS
        ):
            self.parent, self.rssi, self.radio_at = parent, rssi, at
            self.radio_gateway = gateway

    def record_dfu(self, gateway: int, at: int) -> None:
        """Apply a report in DFU mode."""
        if at >= self.heard_at:
            self.gateway = gateway
        self.dfu_at = max(self.dfu_at, at)

    def merge_dfu(self, other: PendingState) -> PendingState:
        """Return a copy of this state merged with that of the same device in DFU mode."""
        merged = replace(self)
        merged.record_dfu(other.gateway, other.dfu_at)
        merged.update_radio(other.radio_gateway, other.parent, other.rssi, other.radio_at)
        return merged

    def update_fact(self, identifier: int, at: int, value: Any) -> None:
        """Apply the value of a property."""
        if self.facts is None:
            self.facts = {}
        if identifier not in self.facts or at >= self.facts[identifier][0]:
            self.facts[identifier] = (at, value)


def time_or_none(time: int) -> int | None:
    """Return a time of a pending state; None if it was never set."""
    return None if time == _NEVER else time


PendingStates = dict[int, PendingState]
"""Pending states by device."""


def apply_readings(states: PendingStates, readings: Iterable[Reading], now: int) -> None:
    """Apply readings to the pending states. A time in the future counts as now."""
    for kind, device, gateway, time, value, other, unreachable in readings:
        at = min(time, now)
        state = states.get(device)
        if state is None:
            state = states[device] = PendingState(gateway)
        if kind == ReadingKind.FIRST_SAMPLE_IMPLAUSIBLE:
            state.has_implausible_sample = True
            continue
        if kind == ReadingKind.DFU:
            state.record_dfu(gateway, at)
            state.update_radio(gateway, other, value, at)
            continue
        state.record_report(gateway, at)
        if kind == ReadingKind.HEARTBEAT:
            state.update_status(value, at)
        elif kind == ReadingKind.FACT:
            state.update_fact(other, at, value)
        elif kind == ReadingKind.LINK and not unreachable:
            state.update_radio(gateway, other, value, at)


def apply_samples(states: PendingStates, rows: SampleRows, now: int) -> None:
    """Apply samples to the pending states: their devices have reported."""
    for device, samples in rows.items():
        for time, _, _, _, gateway, _, _, extras in samples:
            if extras is None or extras.has_plausible_time:
                if extras is not None and extras.shift is not None:
                    time += extras.shift  # noqa: PLW2901 # converted to the service's clock
                state = states.get(device)
                if state is None:
                    states[device] = PendingState(gateway, min(time, now))
                elif time >= state.reported_at:
                    state.record_report(gateway, min(time, now))
