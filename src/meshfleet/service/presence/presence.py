"""Who is there (rest-51, rest-77, rest-78).

A device is connected when it was heard within three of its usual intervals, through a gateway that is
connected itself. Those that may be silent are found by a wheel: each lies in the slot of the moment at which
it is to be looked at again, and what is heard meanwhile moves nothing. So a device costs one look in three
minutes, however often it reports.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.presence.clocks import FRESH, Clocks
from meshfleet.service.presence.entry import News, Presences
from meshfleet.service.presence.model import Cause, Change
from meshfleet.service.presence.rhythm import OTHERS, PATIENCE, UNKNOWN, WIDEST, pack_gap
from meshfleet.service.presence.roster import Roster
from meshfleet.service.presence.wheel import Wheel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from meshfleet.db.samples import Row
    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.presence.rhythm import Rhythm
    from meshfleet.service.presence.store import Known

    class Audience(Protocol):
        """Who is told of changes."""

        def devices_changed(self, devices: Collection[int]) -> None:
            """These came, or went, each by itself."""

        def gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
            """A gateway came or went, and these devices with it."""


_LOOK: Final = 180_000
"""Milliseconds after which a device is looked at again, however patient we are with it: its rhythm may be
another by then."""

_AT_ONCE: Final = 10_000
"""Devices that change in one look; all others wait, and not the event loop for them."""

_SELDOM: Final = 8
"""Looks at a device that is heard all the time, of which one is for its rhythm."""

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
        self._awake_since = now
        """Since when we listen without a pause: nobody is silent whom we could not hear."""
        self._looked_at = now
        self._roster = Roster()
        self._wheel = Wheel()
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
        same = {each: each for each in known.gateways}  # one number for all devices behind it
        for device, gateway, usual in known.devices:
            is_gateway = device in known.gateways
            behind = same.get(gateway or 0, gateway or 0)
            rhythm = self._roster.meet(device, device if is_gateway else behind, self._looked_at)
            rhythm.connected, rhythm.usual = True, usual or UNKNOWN
            if is_gateway:
                self._present[device] = 0
            # Not all at once: in three minutes everybody is looked at, and somebody in every second.
            self._wheel.put(device, rhythm, self._looked_at + device % _LOOK)

    def arrive(self, gateways: dict[int, int]) -> None:
        """Which gateways have a connection now, each with its number."""
        self._arrived = gateways

    @property
    def gateways_connected(self) -> int:
        """How many gateways are there."""
        return len(self._present)

    def miss_out(self, now: int) -> None:
        """We cannot hear anybody at this moment, and gateways that lose us cannot come back."""
        self._awake_since = now
        self._present = dict.fromkeys(self._present, 0)

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""
        fresh: set[int] = set()
        self._follow_samples(draft, fresh)
        self._follow_readings(draft, fresh)
        if self._by_hearing:
            self._gateways.update(draft.gateways)
            for gateway in fresh:
                self.hear(gateway, gateway, draft.now)

    def _follow_samples(self, draft: Draft, fresh: set[int]) -> None:
        """Hear devices by their samples, and add the gateways that brought what is fresh."""
        now, off, rhythms, doubts = draft.now, self.clocks.off, self._roster.rhythms, self.clocks.doubts
        for device, rows in draft.rows.items():
            time, _, _, _, gateway, _, _, _ = rows[-1]
            # As `is_fresh`, written out: of nearly all reports this is all that there is to do.
            if -FRESH < now - time < FRESH and gateway not in off and gateway not in doubts:
                fresh.add(gateway)
                rhythm = rhythms.get(device)
                if rhythm is not None and rhythm.gateway == gateway and rhythm.connected:
                    rhythm.at = now
                else:
                    self.hear(device, gateway, now)
            else:
                fresh |= self._follow_doubtful(device, rows, now)

    def _follow_doubtful(self, device: int, rows: Sequence[Row], now: int) -> set[int]:
        """Clocks that are far off make samples even of heartbeats."""
        fresh: set[int] = set()
        for time, kind, _, _, gateway, _, _, _ in rows:
            if self.clocks.is_fresh(gateway, time, now, self._roster.witness(device, gateway)):
                fresh.add(gateway)
                rhythm = self.hear(device, gateway, now)
                if kind == SampleKind.HEARTBEAT:
                    rhythm.beat(gateway, time + self.clocks.off.get(gateway, 0))
        return fresh

    def _follow_readings(self, draft: Draft, fresh: set[int]) -> None:
        """The same by readings."""
        link, heard, by_hearing = ReadingKind.LINK, ReadingKind.HEARD, self._by_hearing
        now, off, doubts, find = draft.now, self.clocks.off, self.clocks.doubts, self._roster.rhythms.get
        for kind, device, gateway, time, _, _, _ in draft.readings:
            rhythm = find(device)
            if (
                rhythm is None
                or not rhythm.connected
                or rhythm.gateway != gateway
                or kind > link
                or not -FRESH < now - time < FRESH
                or gateway in off
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
        """The careful way."""
        if not self.clocks.is_fresh(gateway, time, now, self._roster.witness(device, gateway)):
            return
        fresh.add(gateway)
        if kind == ReadingKind.DFU and device not in self._roster.rhythms:
            if len(self._in_dfu) < _STRANGERS:  # perhaps of somebody whom the database knows (report-46)
                self._in_dfu[device] = gateway
            return
        rhythm = self.hear(device, gateway, now)
        if kind == ReadingKind.HEARTBEAT:
            rhythm.beat(gateway, time + self.clocks.off.get(gateway, 0))

    def collect(self, notes: Notes, now: int) -> Presences:  # noqa: ARG002 # they change nobody's presence
        """All changes since the last time."""
        if not 0 <= now - self._looked_at < _ASLEEP:
            self.miss_out(now)
        if now < self._looked_at:
            self._go_back_to(now)
        self._looked_at = now
        changes = []
        for change in chain(self._arrivals(now), self._returns(now), self._silences(now)):
            self.take_over(change, now)  # before the next is looked for, so nobody changes twice
            changes.append(change)
        outdated = None if self._retention is None else now - self._retention
        news = News(changes, self._learned, self._in_dfu, outdated)
        self._learned, self._in_dfu = {}, {}
        return Presences(self, news, now)

    def hear(self, device: int, gateway: int, now: int) -> Rhythm:
        """The way for a device that is new, or was away, or has another gateway than before."""
        rhythm = self._roster.rhythms.get(device)
        if rhythm is None:
            rhythm = self._roster.meet(device, gateway, now)
        if device != gateway and self._by_hearing and device in self._gateways:
            return rhythm  # others hear its radio, which does not say that it reaches us
        self._roster.hear(device, gateway, now)
        if not rhythm.connected or (device == gateway and device not in self._present):
            self._back.add(device)
        return rhythm

    # What is written

    def take_over(self, change: Change, now: int) -> None:
        """A device is connected from now on, or no longer."""
        rhythm = self._roster.rhythms.get(change.device) or self._roster.meet(
            change.device, change.gateway, now
        )
        rhythm.connected = change.connected
        if change.connected:
            silent_at = max(rhythm.at, self._awake_since) + rhythm.patience
            self._watch(change.device, rhythm, max(silent_at, now), now)

    def forget(self, device: int) -> None:
        """Nobody knows it any more. If it is heard again, it is new."""
        self._present.pop(device, None)
        self._roster.forget(device)

    def believes_in(self, device: int) -> Rhythm | None:
        """A device that is connected, as far as we know."""
        rhythm = self._roster.rhythms.get(device)
        return rhythm if rhythm is not None and rhythm.connected else None

    # Gateways

    def _arrivals(self, now: int) -> Iterator[Change]:
        if self._arrived is None:
            return
        arrived, self._arrived = self._arrived, None
        grace = now - self._awake_since < _GRACE
        gone = [
            each for each, number in self._present.items() if each not in arrived and (number or not grace)
        ]
        for gateway in self._some(gone):
            del self._present[gateway]
            yield from self._go(gateway, now, Cause.CONNECTION)
        for gateway in self._some([each for each in arrived if each not in self._present]):
            self._gateways.add(gateway)
            self._present[gateway] = arrived[gateway]
            yield from self._come(gateway, now, Cause.CONNECTION)
        self._present.update((each, number) for each, number in arrived.items() if each in self._present)

    def _some(self, gateways: list[int]) -> Iterator[int]:
        """Gateways with as many devices as can change at once; the next look finds the others."""
        count = 0
        for gateway in gateways:
            count += len(self._roster.behind(gateway))
            yield gateway
            if count > _AT_ONCE:
                return

    def _come(self, gateway: int, now: int, cause: Cause) -> Iterator[Change]:
        """A gateway is there, and with it all devices behind it that are not silent themselves."""
        yield Change.came(gateway, now, cause, gateway)
        for device in self._roster.behind(gateway):
            rhythm = self._roster.rhythms[device]
            if device not in self._gateways and not rhythm.connected and now - rhythm.at < rhythm.patience:
                yield Change.came(device, now, Cause.GATEWAY, gateway)

    def _go(self, gateway: int, now: int, cause: Cause) -> Iterator[Change]:
        """A gateway is gone, and with it all devices that nobody else hears."""
        yield Change.went(gateway, now, cause, gateway)
        for device in self._roster.behind(gateway):
            rhythm = self._roster.rhythms[device]
            if not rhythm.connected or device in self._gateways:
                continue
            rhythm.at = max(rhythm.at, self._awake_since)  # before that we could not hear it
            if not self._roster.fall_back(device, self._present, now):
                yield Change.went(device, now, Cause.GATEWAY, gateway)

    # Devices

    def _returns(self, now: int) -> Iterator[Change]:
        gateways, others = self._back & self._gateways, self._back - self._gateways
        back = [*gateways, *islice(others, _AT_ONCE)]
        self._back.difference_update(back)
        for device in back:
            rhythm = self._roster.rhythms.get(device)
            if device in self._gateways:
                if self._by_hearing and device not in self._present:
                    self._present[device] = 1
                    yield from self._come(device, now, Cause.HEARD)
            elif rhythm is not None and not rhythm.connected and rhythm.gateway in self._present:
                yield Change.came(device, now, Cause.HEARD, rhythm.gateway)  # else it comes with its gateway

    def _silences(self, now: int) -> Iterator[Change]:
        count = 0
        for device, rhythm in self._wheel.due(self._roster.rhythms, now):
            if now - rhythm.at < _LOOK and rhythm.usual != UNKNOWN and (rhythm.due + device) % _SELDOM:
                self._wheel.put(device, rhythm, rhythm.at + _LOOK)  # nobody is silent so soon
                continue
            interval = rhythm.interval
            silent_at = max(rhythm.at, self._awake_since) + PATIENCE * interval
            if now < silent_at:
                self._learn(device, rhythm, interval)
                self._watch(device, rhythm, silent_at, now)
            elif device in self._gateways:
                yield from self._miss(device, now)
            elif self._is_missed(rhythm.gateway, now):
                self._watch(device, rhythm, now, now)  # it may not be the device that is silent
            else:
                yield Change.went(device, now, Cause.SILENT, rhythm.gateway)
                count += 1
            if count >= _AT_ONCE:
                return

    def _miss(self, gateway: int, now: int) -> Iterator[Change]:
        """A gateway is not heard any more, which matters only where nobody knows its connection."""
        if self._by_hearing:
            self._present.pop(gateway, None)
            yield from self._go(gateway, now, Cause.SILENT)

    def _is_missed(self, gateway: int, now: int) -> bool:
        """Whether a gateway should have been heard for a while: then it may go soon, with its devices."""
        rhythm = self._roster.rhythms.get(gateway)
        if not self._by_hearing or rhythm is None or gateway not in self._present:
            return False
        return 2 * (now - max(rhythm.at, self._awake_since)) > 3 * rhythm.interval

    def _learn(self, device: int, rhythm: Rhythm, interval: int) -> None:
        """Let its rhythm be remembered, if it is another than before."""
        if abs(interval - rhythm.usual) > rhythm.usual // 10:
            rhythm.usual = interval
            self._learned[device] = interval

    def _watch(self, device: int, rhythm: Rhythm, silent_at: int, now: int) -> None:
        """Look at a device again when it may be silent, and before that now and then."""
        self._wheel.put(device, rhythm, min(silent_at, now + _LOOK))

    def _go_back_to(self, now: int) -> None:
        """Our clock was set back: nobody was heard later than now, and all are looked at again."""
        self._wheel.clear()
        for device, rhythm in self._roster.rhythms.items():
            rhythm.at, rhythm.other_at = min(rhythm.at, now), min(rhythm.other_at, now)
            if rhythm.connected:
                self._watch(device, rhythm, now + _LOOK, now)
