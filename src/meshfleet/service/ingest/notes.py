"""What reports tell of the present state of a device, until it is written down.

Devices report more often than anybody looks: notes on the same device are put together, and what is newest
counts, in whatever order it came (report-50).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from meshfleet.service.devices.states import BEST_FOR

_NEVER: Final = -(2**62)
"""Before any time that a report may have."""


class Note(Struct, gc=False):
    """The newest that is known of a device."""

    gateway: int
    """The one that brought its newest report."""
    at: int = _NEVER
    status: int = 0
    status_at: int = _NEVER
    parent: int = 0
    rssi: int = 0
    radio_at: int = _NEVER
    dfu_at: int = _NEVER
    """When it was last heard in DFU mode."""
    facts: dict[int, tuple[int, Any]] | None = None
    """Values of properties that tell what it is, by identifier, each with its time."""

    @property
    def heard_at(self) -> int:
        """When it was last heard in whatever mode."""
        return max(self.at, self.dfu_at)

    def learn_status(self, status: int, at: int) -> None:
        """Take over the status of a heartbeat."""
        if at >= self.status_at:
            self.status, self.status_at = status, at

    def hear(self, parent: int, rssi: int, at: int) -> None:
        """Take over how a parent hears it. The one that hears it best counts, for as long as it does."""
        if at >= self.radio_at and (
            parent == self.parent or rssi >= self.rssi or self.radio_at < at - BEST_FOR
        ):
            self.parent, self.rssi, self.radio_at = parent, rssi, at

    def hear_in_dfu(self, gateway: int, at: int, rssi: int, parent: int) -> None:
        """It advertises in DFU mode."""
        if at >= self.heard_at:
            self.gateway = gateway
        self.dfu_at = max(self.dfu_at, at)
        self.hear(parent, rssi, at)

    def learn_fact(self, identifier: int, at: int, value: Any) -> None:
        """Take over the value of a property."""
        if self.facts is None:
            self.facts = {}
        if identifier not in self.facts or at >= self.facts[identifier][0]:
            self.facts[identifier] = (at, value)

    def join(self, newer: Note) -> None:
        """Take over what another note knows better."""
        if newer.heard_at >= self.heard_at:
            self.gateway = newer.gateway
        self.at = max(self.at, newer.at)
        self.dfu_at = max(self.dfu_at, newer.dfu_at)
        self.learn_status(newer.status, newer.status_at)
        self.hear(newer.parent, newer.rssi, newer.radio_at)
        for identifier, (at, value) in (newer.facts or {}).items():
            self.learn_fact(identifier, at, value)


def known(moment: int) -> int | None:
    """A time of a note; None: it has not happened."""
    return None if moment == _NEVER else moment


Notes = dict[int, Note]
"""Notes by device."""


def join(into: Notes, newer: Notes) -> None:
    """Put notes together with others that came later."""
    for device, note in newer.items():
        before = into.get(device)
        if before is None:
            into[device] = note
        else:
            before.join(note)
