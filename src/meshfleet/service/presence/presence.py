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

from meshfleet.service.presence.entry import News, Presences
from meshfleet.service.presence.hearing import Hearing
from meshfleet.service.presence.model import Cause, Change
from meshfleet.service.presence.rhythm import PATIENCE, UNKNOWN
from meshfleet.service.presence.roster import Roster
from meshfleet.service.presence.wheel import Wheel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.presence.clocks import Clocks
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
        self._hearing = Hearing(self._roster, clocks, by_hearing=by_hearing)
        self._gateways = self._hearing.gateways
        self._present: dict[int, int] = {}
        """Gateways that are connected, each with the number of its connection."""
        self._arrived: dict[int, int] | None = None
        """Those that are connected by the last look, where a broker of ours knows."""
        self._learned: dict[int, int] = {}
        """Rhythms that are not written down yet."""
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
        self._hearing.follow(draft)

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
        news = News(changes, self._learned, self._hearing.in_dfu, outdated)
        self._learned, self._hearing.in_dfu = {}, {}
        return Presences(self, news, now)

    def hear(self, device: int, gateway: int, now: int) -> None:
        """A device is heard, by what the database knows."""
        self._hearing.hear(device, gateway, now)

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
        self._gateways.update(
            arrived
        )  # before anybody goes: these do not go with the gateway that hears them
        grace = now - self._awake_since < _GRACE
        gone = [
            each for each, number in self._present.items() if each not in arrived and (number or not grace)
        ]
        for gateway in self._some(gone):
            del self._present[gateway]
            yield from self._go(gateway, now, Cause.CONNECTION)
        for gateway in self._some([each for each in arrived if each not in self._present]):
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
        heard = self._hearing.back
        back = [*(heard & self._gateways), *islice(heard - self._gateways, _AT_ONCE)]
        heard.difference_update(back)
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
            self.clocks.drop_proof(gateway)
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
