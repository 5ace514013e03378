"""Device states from committed reports that wait in memory for the next flush to the database.

Devices report more often than states are written, so the updates of a device are combined. Of each value, the
one with the newest time is kept, in whatever order reports arrive (report-50).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from meshfleet.service.devices.states import BEST_PARENT_MS
from meshfleet.service.ingest.readings import UNREACHABLE, Reading, ReadingKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.db.samples import SampleRows

NEVER: Final = -(2**62)
"""Value of a time field of `PendingState` that was never set; earlier than the time of any report."""


class PendingState(Struct, gc=False):
    """Newest reported state of a device (or DFU address) since the last write to the database.

    Times are Unix times in milliseconds.
    """

    gateway: int
    """Gateway that sent the device's newest report."""
    reported_at: int = NEVER
    status: int = 0
    """Status in the newest heartbeat."""
    status_at: int = NEVER
    parent: int = 0
    """Parent of the device; 0 if no radio reading has arrived."""
    rssi: int = 0
    """RSSI in dBm of the link to `parent`."""
    radio_gateway: int = 0
    """Gateway that reported `parent` and `rssi`."""
    radio_at: int = NEVER
    dfu_at: int = NEVER
    """Time of the device's last report in DFU mode."""
    has_implausible_sample: bool = False
    """Whether the address sent a sample with an implausible time.

    A device in DFU mode sends no samples, so such an address is not the DFU address of another device.
    """
    facts: dict[int, tuple[int, Any]] | None = None
    """Properties that describe the device, such as its model: report time and value by identifier."""

    @property
    def heard_at(self) -> int:
        """Time of the device's last report, in DFU mode or not."""
        return max(self.reported_at, self.dfu_at)

    def list_possible_owners(self, address: int) -> tuple[int, ...]:
        """Return the devices that may have sent the reports of this state, as MACs in integer form.

        `address` is the MAC from which the reports came, also as an integer. It may be the MAC of the device
        + 1 in DFU mode (report-46).
        """
        return (address, address - 1) if self.reported_at == NEVER else (address,)

    def record_report(self, gateway: int, at: int) -> None:
        """Store the time and gateway of a report, unless a newer report is stored."""
        if at >= self.reported_at:
            self.reported_at = at
            if at >= self.dfu_at:
                self.gateway = gateway

    def update_status(self, status: int, at: int) -> None:
        """Store the status of a heartbeat, unless a newer heartbeat is stored."""
        if at >= self.status_at:
            self.status, self.status_at = status, at

    def update_radio(self, gateway: int, parent: int, rssi: int, at: int) -> None:
        """Store the parent and RSSI of a radio reading, unless a newer reading is stored.

        The parent with the strongest signal is kept as long as readings of that parent arrive.
        """
        if at >= self.radio_at and (
            parent == self.parent or rssi >= self.rssi or self.radio_at < at - BEST_PARENT_MS
        ):
            self.parent, self.rssi, self.radio_at = parent, rssi, at
            self.radio_gateway = gateway

    def record_dfu_report(self, gateway: int, at: int) -> None:
        """Store the time of a report in DFU mode, unless a newer one in DFU mode is stored.

        Store its gateway if the report is the newest of all reports.
        """
        if at >= self.heard_at:
            self.gateway = gateway
        self.dfu_at = max(self.dfu_at, at)

    def merge_dfu_state(self, other: PendingState) -> PendingState:
        """Return a copy of this state, merged with `other`, the state of the same device in DFU mode."""
        merged = replace(self)
        merged.record_dfu_report(other.gateway, other.dfu_at)
        merged.update_radio(other.radio_gateway, other.parent, other.rssi, other.radio_at)
        return merged

    def update_fact(self, identifier: int, at: int, value: Any) -> None:
        """Store the value of a property such as the model, unless a newer value is stored."""
        if self.facts is None:
            self.facts = {}
        if identifier not in self.facts or at >= self.facts[identifier][0]:
            self.facts[identifier] = (at, value)


PendingStates = dict[int, PendingState]
"""Device states not yet written to the database, by the device's MAC as an integer."""


def apply_readings(states: PendingStates, readings: Iterable[Reading], now: int) -> None:
    """Update the states of devices in memory by readings. A reading in the future counts as of now."""
    for kind, device, gateway, time, value, other, flags in readings:
        at = min(time, now)
        state = states.get(device)
        if state is None:
            state = states[device] = PendingState(gateway)
        if kind == ReadingKind.FIRST_SAMPLE_IMPLAUSIBLE:
            state.has_implausible_sample = True
            continue
        if kind == ReadingKind.DFU:
            state.record_dfu_report(gateway, at)
            state.update_radio(gateway, other, value, at)
            continue
        state.record_report(gateway, at)
        if kind == ReadingKind.HEARTBEAT:
            state.update_status(value, at)
        elif kind == ReadingKind.FACT:
            state.update_fact(other, at, value)
        elif kind == ReadingKind.LINK and not flags & UNREACHABLE:
            state.update_radio(gateway, other, value, at)


def apply_samples(states: PendingStates, rows: SampleRows, now: int) -> None:
    """Update the time and gateway of each device's last report by samples with plausible times.

    A sample in the future counts as of now.
    """
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
