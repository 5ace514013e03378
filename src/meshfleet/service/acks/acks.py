"""Acknowledges samples end to end, after the commit (ack-7 to ack-17, ack-21).

A device keeps its samples until they are acknowledged, and sends what it still has when an ack asks for it.
So nothing is lost as long as the device has it, whatever fails on the way: the radio, the gateway, the
network, this service.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from meshfleet.service.acks.agenda import Agenda
from meshfleet.service.acks.entry import Ledgered
from meshfleet.service.acks.figures import AckCounts
from meshfleet.service.acks.holed import Holed
from meshfleet.service.acks.series import CYCLE, Series
from meshfleet.service.acks.strays import Strays
from meshfleet.wire.codes import AckType
from meshfleet.wire.mqtt.packets import Publish
from meshfleet.wire.times import from_millis

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.service.acks.series import Hole, Key
    from meshfleet.service.acks.store import HoleRow
    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes
    from meshfleet.service.mqtt.carrier import Carrier

_QOS: Final = 1
_PORTION: Final = 500
"""Samples that are acknowledged in one go."""
_WAITING: Final = 200
"""Portions that may wait; if there are more, the next batch has to."""
_NOTICED: Final = 1_000
"""Milliseconds after which a new connection is noticed. What begins in that time has missed nothing."""
_GATEWAYS: Final = 50_000
"""Gateways of which it is remembered when they connected; beyond that, those are forgotten that are there
the longest: they were asked long ago."""
_SECONDS: Final = 4096
"""How many seconds have their spelling remembered: most samples are of the last few."""


class Acks:
    """Acknowledges samples, and keeps the ledger of what is missing."""

    def __init__(self, carrier: Carrier, *, prefix: str, now: int) -> None:
        self._carrier = carrier
        self._front = f"{prefix}/mt/gateway/" if prefix else "mt/gateway/"
        self._began_at = self._collected_at = now
        self._back_at: dict[int, int] = {}
        """When gateways connected: what they had to say before may be lost."""
        self._seconds: dict[int, str] = {}
        self.series: dict[Key, Series] = {}
        self.holed = Holed()
        self.agenda = Agenda()
        """When their holes are to be looked at."""
        self._strays = Strays()
        self._changed: set[Key] = set()
        self._rewritten: set[Key] = set()
        self._gone: set[Key] = set()
        """Series, those whose holes, and those whose end are not written down yet."""
        self._due: deque[tuple[Draft, int]] = deque()
        """Portions of committed drafts that are to be acknowledged."""
        self._is_sending = False
        self.counts = AckCounts()

    def restore(self, ledger: Mapping[Key, Series]) -> None:
        """Go on with what was known before a start.

        Each hole is looked at soon: what filled it may not have been written down. And nobody could fill it
        while we were away, so it has its time from now on.
        """
        self.series.update(ledger)
        for key, series in ledger.items():
            series.sure = min(series.time, self._began_at)
            for hole in series.holes or ():
                hole.touched_at, hole.untold = self._began_at, 1
            self.holed.count(key, series)
            self.agenda.put(key, key[0], series.due_at)

    def come_back(self, gateway: int, now: int) -> None:
        """A gateway has a new connection, since a moment ago."""
        self._back_at.pop(gateway, None)
        self._back_at[gateway] = now - _NOTICED
        if len(self._back_at) > _GATEWAYS:
            del self._back_at[next(iter(self._back_at))]

    def follow(self, draft: Draft) -> None:
        """A draft is committed: its samples are acknowledged, many of them in portions."""
        if draft.acked:
            self._due.extend((draft, begin) for begin in range(0, len(draft.acked), _PORTION))
            if not self._is_sending:
                self._send_on()
            self._catch_up()

    @property
    def is_behind(self) -> bool:
        """Whether something is committed and not acknowledged yet."""
        return bool(self._due)

    def _send_on(self) -> None:
        """Acknowledge a portion; others have their turn before the next."""
        if self._due:
            self._acknowledge(*self._due.popleft())
        self._is_sending = bool(self._due)
        if self._is_sending:
            asyncio.get_running_loop().call_soon(self._send_on)

    def _catch_up(self) -> None:
        """Acknowledge those that are too many to wait."""
        while len(self._due) > _WAITING:
            self._acknowledge(*self._due.popleft())

    def _acknowledge(self, draft: Draft, begin: int) -> None:
        now, earliest, latest = draft.now, draft.earliest, draft.latest
        messages = []
        for device, path, row in draft.acked[begin : begin + _PORTION]:
            time, kind, identifier, seq, gateway, _, _, _ = row
            if earliest <= time <= latest:
                sort = self._note((device, kind, identifier), time, seq, gateway, now)
            else:  # nobody believes it, and it tells nothing of the series
                sort = self._note_stray((device, kind, identifier), seq, gateway, now)
            messages.append(self._ack(device, path, time, gateway, sort))
        self.counts.sent += len(messages)
        self._carrier.send(messages)

    def collect(self, notes: Notes, now: int) -> Ledgered:  # noqa: ARG002 # they tell nothing of series
        """Hand over the series that changed since the last time."""
        if now < self._collected_at:
            self._go_back_to(now)
        self._collected_at = now
        changed, self._changed = self._changed, set()
        rewritten, self._rewritten = self._rewritten, set()
        gone, self._gone = self._gone, set()
        return Ledgered(
            [(*key, each.time, each.seq, each.unfilled) for key in changed for each in (self.series[key],)],
            {key: [_row(hole) for hole in self.series[key].holes or ()] for key in rewritten},
            gone,
        )

    def settle(self, key: Key, hole: Hole, left: Iterable[tuple[int, int]], at: int) -> None:
        """What was left of a hole at a moment, by the samples that were stored."""
        series = self.series[key]
        if not any(each is hole for each in series.holes or ()):
            return  # it has become part of a larger one
        series.replace(hole, left, at)
        self._rewrite(key)

    def forget(self, key: Key, hole: Hole, now: int) -> None:
        """A hole is where nothing is kept any more."""
        self.series[key].forget(hole, now)
        self._rewrite(key)

    def end(self, key: Key) -> None:
        """A series is over: nothing of it is kept, and nothing comes."""
        del self.series[key]
        self.holed.count(key, None)
        self.agenda.drop(key)
        self._changed.discard(key)
        self._rewritten.discard(key)
        self._gone.add(key)

    def _rewrite(self, key: Key) -> None:
        """The holes of a series have changed."""
        self.holed.count(key, self.series[key])
        self._changed.add(key)
        self._rewritten.add(key)

    def _go_back_to(self, now: int) -> None:
        """Take nothing that we did for later than now: the clock of this machine was set back."""
        self._began_at = min(self._began_at, now)
        self._back_at = {gateway: min(at, now) for gateway, at in self._back_at.items()}
        self._strays.go_back_to(now)
        self.agenda.clear()
        for key, series in self.series.items():
            series.go_back_to(now)
            self.agenda.put(key, key[0], series.due_at)

    def _note(self, key: Key, time: int, seq: int, gateway: int, now: int) -> AckType:
        """Put a sample into the ledger, and tell how to acknowledge it."""
        series = self.series.get(key)
        if series is None:
            self.series[key] = Series(time, seq, asked_at=now, wait=0)  # it begins here (ack-13)
            self._changed.add(key)
            return AckType.ACK
        if time > series.time or (time == series.time and (seq - series.seq) % CYCLE == 1):
            if not series.is_checked and series.heal(seq, now):
                self._rewrite(key)
            missing = series.go_on(time, seq, now)
        elif series.is_set_back(time, seq, now):
            missing = series.go_back(time, seq, now)
        else:
            if series.holes and series.touch(time, now):
                self.agenda.put(key, gateway, series.due_at)
            return AckType.ACK  # of a backfill, or out of order, or once more (ack-21)
        if missing:
            self.counts.holes += 1
            self.agenda.put(key, gateway, series.due_at)
            self._rewrite(key)
        self._changed.add(key)
        outage = max(self._began_at, self._back_at.get(gateway, 0))
        if (series.asked_at < outage or series.holes) and series.wants_backfill(outage, now):
            series.ask(now)
            self.counts.backfills += 1
            return AckType.BACKFILL
        return AckType.ACK

    def _note_stray(self, key: Key, seq: int, gateway: int, now: int) -> AckType:
        """Tell how to acknowledge a sample whose clock nobody believes."""
        outage = max(self._began_at, self._back_at.get(gateway, 0))
        if self._strays.wants_backfill(key, seq, outage, now):
            self.counts.backfills += 1
            return AckType.BACKFILL
        return AckType.ACK

    def _ack(self, device: int, path: str, time: int, gateway: int, sort: AckType) -> Publish:
        topic = f"{self._front}{gateway:012x}/request/{device:012x}/{path}"
        seconds, millis = divmod(time, 1000)
        text = self._seconds.get(seconds) or self._spell(seconds)
        return Publish(topic, f'{{"time":"{text}.{millis:03d}Z","type":{sort:d}}}'.encode(), _QOS)

    def _spell(self, seconds: int) -> str:
        """A time without its milliseconds. The same ones come again and again."""
        if len(self._seconds) >= _SECONDS:
            self._seconds.clear()
        text = self._seconds[seconds] = from_millis(seconds * 1000).isoformat()[:19]
        return text


def _row(hole: Hole) -> HoleRow:
    return hole.since, hole.until, hole.found_at, hole.lost_at
