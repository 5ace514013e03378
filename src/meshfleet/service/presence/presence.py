"""Who is there (rest-51, rest-77, rest-78).

A device is connected when it was heard within three of its usual intervals, through a gateway that is
connected itself. Those that may be silent are found by a wheel: each lies in the slot of the moment at which
it is to be looked at again, and what is heard meanwhile moves nothing. So a device costs one look in three
intervals, however often it reports.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.presence.clocks import FRESH, Clocks
from meshfleet.service.presence.entry import News, Presences
from meshfleet.service.presence.model import Cause, Change
from meshfleet.service.presence.rhythm import UNKNOWN, Rhythm

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.presence.store import Known

    class Audience(Protocol):
        """Who is told of changes."""

        def devices_changed(self, devices: Collection[int]) -> None:
            """These came, or went, each by itself."""

        def gateway_changed(self, gateway: int, *, devices: int) -> None:
            """A gateway came or went, and so many devices with it."""


_SLOT: Final = 5_000
"""Milliseconds that lie in one slot of the wheel."""

_ASLEEP: Final = 30_000
"""Milliseconds between two looks after which we cannot have listened: the database was away, the machine
slept, or our own clock was set."""

_GRACE: Final = 60_000
"""Milliseconds that gateways have to come back after a start of ours: it was not they who were away."""


_STRANGERS: Final = 10_000
"""Unknown addresses in DFU mode that are looked up at once."""


class Presence:
    """Follows what is heard, and finds out what is not."""

    def __init__(self, clocks: Clocks, *, by_hearing: bool, retention: int | None = None, now: int) -> None:
        """`by_hearing`: gateways are on another broker, and connected when they are heard.

        `retention` tells for how many milliseconds the history is kept.
        """
        self.clocks = clocks
        self._by_hearing = by_hearing
        self._retention = retention
        self._began_at = now
        self._awake_since = now
        """Since when we listen without a pause: nobody is silent whom we could not hear."""
        self._looked_at = now
        self._rhythms: dict[int, Rhythm] = {}
        self._behind: dict[int, set[int]] = {}
        """Devices by the gateway through which they were last heard."""
        self._wheel: dict[int, list[int]] = {}
        self._back: set[int] = set()
        """Devices that are heard and were not connected."""
        self._present: dict[int, int] = {}
        """Gateways that are connected, each with the number of its connection."""
        self._arrived: dict[int, int] | None = None
        """Those that are connected by the last look, where a broker of ours knows."""
        self._gateways: set[int] = set()
        """All that are connected, or were."""
        self._learned: dict[int, int] = {}
        """Rhythms that are not written down yet."""
        self._in_dfu: dict[int, int] = {}
        """Unknown addresses that advertise in DFU mode, each with the gateway that hears it."""
        self.audience: Audience | None = None
        self.changes: Counter[str] = Counter()
        """What was written so far, by cause."""

    # What it is told

    def restore(self, known: Known) -> None:
        """Go on with what was connected before a start. Its silence begins with us."""
        self._gateways |= known.gateways
        for device, gateway, usual in known.devices:
            rhythm = self._meet(device, gateway or 0, self._began_at)
            rhythm.connected, rhythm.usual = True, usual or UNKNOWN
            if device in known.gateways:
                self._present[device] = 0
            self._watch(device, rhythm, self._began_at)

    def arrive(self, gateways: dict[int, int]) -> None:
        """Which gateways have a connection now, each with its number."""
        self._arrived = gateways

    @property
    def gateways_connected(self) -> int:
        """How many gateways are there."""
        return len(self._present)

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""
        self._follow_samples(draft)
        self._follow_readings(draft)
        if self._by_hearing:
            self._hear_gateways(draft)

    def _follow_samples(self, draft: Draft) -> None:
        now, off, rhythms = draft.now, self.clocks.off, self._rhythms
        fresh, doubts = self.clocks.is_fresh, self.clocks.doubts
        for device, rows in draft.rows.items():
            time, _, _, _, gateway, _, _, _ = rows[-1]
            # As `is_fresh`, written out: of nearly all reports this is all that there is to do.
            is_sure = not doubts and -FRESH < now - time - off.get(gateway, 0) < FRESH
            if not is_sure and not sum([fresh(row[4], row[0], now) for row in rows]):
                continue
            rhythm = rhythms.get(device)
            if rhythm is not None and rhythm.gateway == gateway and rhythm.connected:
                rhythm.at = now
            else:
                rhythm = self._hear(device, gateway, now)
            if rows[-1][1] == SampleKind.HEARTBEAT:  # of a clock that is wrong
                rhythm.beat(gateway, time)

    def _follow_readings(self, draft: Draft) -> None:
        now, off, rhythms = draft.now, self.clocks.off, self._rhythms
        fresh, doubts = self.clocks.is_fresh, self.clocks.doubts
        for kind, device, gateway, time, _, _, _ in draft.readings:
            is_sure = not doubts and -FRESH < now - time - off.get(gateway, 0) < FRESH
            if not is_sure and not fresh(gateway, time, now):
                continue
            rhythm = rhythms.get(device)
            if rhythm is None and kind == ReadingKind.DFU:
                self._hear_in_dfu(device, gateway, now)
                continue
            if rhythm is None or rhythm.gateway != gateway or not rhythm.connected:
                rhythm = self._hear(device, gateway, now)
            rhythm.at = now
            if kind == ReadingKind.HEARTBEAT:
                rhythm.beat(gateway, time)

    def collect(self, notes: Notes, now: int) -> Presences:  # noqa: ARG002 # they change nobody's presence
        """All changes since the last time."""
        if not 0 <= now - self._looked_at < _ASLEEP:
            self._awake_since = now
        self._looked_at = now
        changes = []
        for change in chain(self._returns(now), self._arrivals(now), self._silences(now)):
            self.take_over(change, now)  # before the next is looked for, so nobody changes twice
            changes.append(change)
        outdated = None if self._retention is None else now - self._retention
        news = News(changes, self._learned, self._in_dfu, outdated)
        self._learned, self._in_dfu = {}, {}
        return Presences(self, news, now)

    # What is written

    def take_over(self, change: Change, now: int) -> None:
        """A device is connected from now on, or no longer."""
        rhythm = self._rhythms.get(change.device) or self._meet(change.device, change.gateway, now)
        rhythm.connected = change.connected
        if change.connected:
            self._watch(change.device, rhythm, now)

    def forget(self, device: int) -> None:
        """Nobody knows it any more. If it is heard again, it is new."""
        self._present.pop(device, None)
        rhythm = self._rhythms.pop(device, None)
        if rhythm is not None:
            self._leave(device, rhythm.gateway)

    def believes_in(self, device: int) -> Rhythm | None:
        """A device that is connected, as far as we know."""
        rhythm = self._rhythms.get(device)
        return rhythm if rhythm is not None and rhythm.connected else None

    # Gateways

    def _hear_gateways(self, draft: Draft) -> None:
        """Whoever brings a report that is fresh is there."""
        gateways = set(draft.gateways)
        self._gateways |= gateways
        for gateway in gateways - self.clocks.doubts.keys():
            self._hear(gateway, gateway, draft.now)

    def _arrivals(self, now: int) -> Iterator[Change]:
        if self._arrived is None:
            return
        arrived, self._arrived = self._arrived, None
        came = [gateway for gateway in arrived if gateway not in self._present]
        gone = [gateway for gateway in self._present if gateway not in arrived]
        if now - self._began_at < _GRACE:
            gone = [gateway for gateway in gone if self._present[gateway]]
        self._gateways.update(came)
        self._present = {each: self._present[each] for each in self._present if each not in gone} | arrived
        for gateway in came:
            yield from self._come(gateway, now, Cause.CONNECTION)
        for gateway in gone:
            yield from self._go(gateway, now, Cause.CONNECTION)

    def _come(self, gateway: int, now: int, cause: Cause) -> Iterator[Change]:
        """A gateway is there, and with it all devices behind it that are not silent themselves."""
        yield Change.came(gateway, now, cause, gateway)
        for device in self._behind.get(gateway, ()):
            rhythm = self._rhythms[device]
            if device not in self._gateways and not rhythm.connected and now - rhythm.at < rhythm.patience:
                yield Change.came(device, now, Cause.GATEWAY, gateway)

    def _go(self, gateway: int, now: int, cause: Cause) -> Iterator[Change]:
        """A gateway is gone, and with it all devices that nobody else hears."""
        yield Change.went(gateway, now, cause, gateway)
        for device in list(self._behind.get(gateway, ())):
            rhythm = self._rhythms[device]
            if not rhythm.connected or device in self._gateways:
                continue
            if rhythm.fall_back(self._present, now):
                self._move(device, gateway, rhythm.gateway)
            else:
                yield Change.went(device, now, Cause.GATEWAY, gateway)

    # Devices

    def _hear(self, device: int, gateway: int, now: int) -> Rhythm:
        """The way for a device that is new, or was away, or has another gateway than before."""
        rhythm = self._rhythms.get(device)
        if rhythm is None:
            rhythm = self._meet(device, gateway, now)
        elif rhythm.gateway != gateway:
            self._move(device, rhythm.gateway, gateway)
        rhythm.hear(gateway, now)
        if not rhythm.connected:
            self._back.add(device)
        return rhythm

    def _hear_in_dfu(self, device: int, gateway: int, now: int) -> None:
        """Somebody whom we do not know by this address advertises in DFU mode (report-46, report-47)."""
        if device - 1 in self._rhythms:
            self._hear(device - 1, gateway, now)
        elif len(self._in_dfu) < _STRANGERS:
            self._in_dfu[device] = gateway

    def _meet(self, device: int, gateway: int, now: int) -> Rhythm:
        rhythm = self._rhythms[device] = Rhythm(now, gateway, connected=False)
        self._behind.setdefault(gateway, set()).add(device)
        return rhythm

    def _move(self, device: int, before: int, after: int) -> None:
        self._leave(device, before)
        self._behind.setdefault(after, set()).add(device)

    def _leave(self, device: int, gateway: int) -> None:
        behind = self._behind[gateway]
        behind.discard(device)
        if not behind:
            del self._behind[gateway]

    def _returns(self, now: int) -> Iterator[Change]:
        back, self._back = self._back, set()
        for device in back:
            rhythm = self._rhythms.get(device)
            if rhythm is None or rhythm.connected:
                continue
            if device not in self._gateways:
                yield Change.came(device, now, Cause.HEARD, rhythm.gateway)
            elif self._by_hearing:
                self._present[device] = 1
                yield from self._come(device, now, Cause.HEARD)

    def _silences(self, now: int) -> Iterator[Change]:
        for slot in sorted(slot for slot in self._wheel if slot * _SLOT <= now):
            for device in self._wheel.pop(slot):
                rhythm = self._rhythms.get(device)
                if rhythm is None or not rhythm.connected or rhythm.due != slot:
                    continue
                heard_at = max(rhythm.at, self._awake_since)
                if now - heard_at < rhythm.patience:
                    self._learn(device, rhythm)
                    self._watch(device, rhythm, heard_at)
                elif device not in self._gateways:
                    yield Change.went(device, now, Cause.SILENT, rhythm.gateway)
                elif self._by_hearing:
                    self._present.pop(device, None)
                    yield from self._go(device, now, Cause.SILENT)

    def _learn(self, device: int, rhythm: Rhythm) -> None:
        """Let its rhythm be remembered, if it is another than before."""
        interval = rhythm.interval
        if abs(interval - rhythm.usual) > rhythm.usual // 10:
            rhythm.usual = interval
            self._learned[device] = interval

    def _watch(self, device: int, rhythm: Rhythm, heard_at: int) -> None:
        """Look at a device again when it may be silent."""
        rhythm.due = (heard_at + rhythm.patience) // _SLOT + 1
        self._wheel.setdefault(rhythm.due, []).append(device)
