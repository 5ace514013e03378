"""A draft: all that a batch of messages means, before anything of it is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.service.ingest.notes import Note
from meshfleet.service.ingest.readings import ReadingKind

if TYPE_CHECKING:
    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.ingest.rejects import Reject

_AHEAD: Final = 600_000
"""Milliseconds that a report's time may be ahead of ours; clocks differ, but not by more."""

_BEHIND: Final = 30 * 86_400_000
"""Milliseconds that it may be behind: no device keeps samples for longer."""


class Draft:
    """What a batch means. Nobody has seen it yet: it can be thrown away and made again."""

    __slots__ = (
        "counts",
        "earliest",
        "latest",
        "names",
        "newcomers",
        "notes",
        "now",
        "readings",
        "rejects",
        "rows",
    )

    def __init__(self, now: int) -> None:
        self.now = now
        self.earliest = now - _BEHIND
        self.latest = now + _AHEAD
        """What is not between these is kept, and not believed."""
        self.rows: dict[int, list[Row]] = {}
        self.notes: Notes = {}
        self.readings: list[Reading] = []
        self.rejects: list[Reject] = []
        self.names: dict[int, str] = {}
        """Names that the catalogue does not know."""
        self.newcomers: set[int] = set()
        """Gateways that were not known before."""
        self.counts: dict[str, int] = {}
        """Reports by kind."""

    def keep(self, device: int, row: Row) -> None:
        """Keep a sample."""
        rows = self.rows.get(device)
        if rows is None:
            self.rows[device] = [row]
        else:
            rows.append(row)

    def note(self, device: int, gateway: int, time: int) -> Note:
        """A device was heard. A time ahead of ours counts as now: nothing happens later than that."""
        at = min(time, self.now)
        note = self.notes.get(device)
        if note is None:
            note = self.notes[device] = Note(gateway, at)
        elif at >= note.at:
            note.gateway, note.at = gateway, at
        return note

    def read(self, reading: Reading) -> None:
        """Something was read that must be written down before it is forgotten."""
        self.readings.append(reading)
        self.learn(reading)

    def learn(self, reading: Reading) -> None:
        """What a reading tells of the device."""
        kind, device, gateway, time, value, other, unreachable = reading
        at = min(time, self.now)
        if kind == ReadingKind.DFU:
            self.notes.setdefault(device, Note(gateway)).hear_in_dfu(gateway, at, value, other)
            return
        note = self.note(device, gateway, time)
        if kind == ReadingKind.HEARTBEAT:
            note.learn_status(value, at)
        elif kind == ReadingKind.FACT:
            note.learn_fact(other, at, value)
        elif not unreachable:
            note.hear(other, value, at)
