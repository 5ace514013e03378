"""Signs of life: what reports tell of who is there (report-48, report-49)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.draft import FRESH
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.presence.clocks import EXACT
from meshfleet.service.presence.rhythm import OTHERS, WIDEST, pack_gap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.presence.clocks import Clocks
    from meshfleet.service.presence.rhythm import Rhythm
    from meshfleet.service.presence.roster import Roster

_STRANGERS: Final = 10_000
"""Unknown addresses in DFU mode that are looked up at once."""


class Hearing:
    """Hears devices in committed drafts. The hottest part of presence: it is there for every report."""

    def __init__(self, roster: Roster, clocks: Clocks, *, by_hearing: bool) -> None:
        """`by_hearing`: gateways are on another broker, and connected when they are heard."""
        self._roster = roster
        self.clocks = clocks
        self._by_hearing = by_hearing
        self.back: set[int] = set()
        """Devices that are heard and were not connected."""
        self.gateways: set[int] = set()
        """All that are connected, or were."""
        self.in_dfu: dict[int, int] = {}
        """Unknown addresses that advertise in DFU mode, each with the gateway that hears it."""

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""
        for gateway, holds in draft.offset_checks.items():
            self.clocks.check_offset(gateway, draft.now, holds=holds)
        fresh: set[int] = set()
        self._follow_samples(draft, fresh)
        self._follow_readings(draft, fresh)
        if self._by_hearing:
            self.gateways.update(draft.gateways)
            for gateway in fresh:
                self.hear(gateway, gateway, draft.now)

    def _follow_samples(self, draft: Draft, fresh: set[int]) -> None:
        """Hear devices by their samples, and add the gateways that brought what is fresh."""
        now, rhythms, doubts = draft.now, self._roster.rhythms, self.clocks.doubts
        for device, rows in draft.rows.items():
            time, _, _, _, gateway, _, _, more = rows[-1]
            # As `is_fresh`, written out: of nearly all reports this is all that there is to do.
            if -EXACT < now - time < FRESH and (more is None or more.shift is None) and gateway not in doubts:
                fresh.add(gateway)
                rhythm = rhythms.get(device)
                if rhythm is not None and rhythm.gateway == gateway and rhythm.connected:
                    rhythm.at = now
                else:
                    self.hear(device, gateway, now)
            else:
                fresh |= self._follow_doubtful(device, rows, now)

    def _follow_doubtful(self, device: int, rows: Sequence[Row], now: int) -> set[int]:
        """Hear a device by samples of a clock that is wrong or in doubt. Some may be heartbeats."""
        fresh: set[int] = set()
        for time, kind, _, _, gateway, _, _, more in rows:
            at = time if more is None or more.shift is None else time + more.shift
            if self.clocks.is_fresh(gateway, at, now, self._roster.witness(device, gateway)):
                fresh.add(gateway)
                rhythm = self.hear(device, gateway, now)
                if kind == SampleKind.HEARTBEAT:
                    rhythm.beat(gateway, at)
        return fresh

    def _follow_readings(self, draft: Draft, fresh: set[int]) -> None:
        """Hear devices by their readings, whose times are corrected already."""
        link, heard, by_hearing = ReadingKind.LINK, ReadingKind.HEARD, self._by_hearing
        now, doubts, find = draft.now, self.clocks.doubts, self._roster.rhythms.get
        for kind, device, gateway, time, _, _, _ in draft.readings:
            rhythm = find(device)
            if (
                rhythm is None
                or not rhythm.connected
                or rhythm.gateway != gateway
                or kind > link
                or not -EXACT < now - time < FRESH
                or gateway in doubts
                or by_hearing
            ):
                if kind < heard:  # else of a sample, which has been followed, by its own time
                    self._follow_reading(kind, device, gateway, time, now, fresh)
                continue
            # Of nearly all readings this is all that there is to do; `hear` and `beat` are written out.
            rhythm.at = now
            if not kind:
                gap = time - rhythm.beat_at
                if 0 < gap <= WIDEST and gateway == rhythm.beat_gateway:
                    rhythm.beat_at = time
                    rhythm.gaps = pack_gap(gap) + rhythm.gaps[:OTHERS]
                else:
                    rhythm.beat(gateway, time)

    def _follow_reading(  # noqa: PLR0913, PLR0917 # the parts of a reading
        self, kind: int, device: int, gateway: int, time: int, now: int, fresh: set[int]
    ) -> None:
        """Hear a device by a reading that needs a closer look."""
        if not self.clocks.is_fresh(gateway, time, now, self._roster.witness(device, gateway)):
            return
        fresh.add(gateway)
        if kind == ReadingKind.DFU and device not in self._roster.rhythms:
            if len(self.in_dfu) < _STRANGERS:  # perhaps of somebody whom the database knows (report-46)
                self.in_dfu[device] = gateway
            return
        rhythm = self.hear(device, gateway, now)
        if kind == ReadingKind.HEARTBEAT:
            rhythm.beat(gateway, time)

    def hear(self, device: int, gateway: int, now: int) -> Rhythm:
        """The way for a device that is new, or was away, or has another gateway than before."""
        rhythm = self._roster.rhythms.get(device)
        if rhythm is None:
            rhythm = self._roster.meet(device, gateway, now)
        if device != gateway and self._by_hearing and device in self.gateways:
            return rhythm  # others hear its radio, which does not say that it reaches us
        self._roster.hear(device, gateway, now)
        if not rhythm.connected or device == gateway:
            self.back.add(device)
        return rhythm
