"""The hub: events come in one by one and go out to all who want them, many at a time.

While nobody listens it costs a look. An event is spelt once for each of the two doors. What goes out is
collected for a moment, and listeners who want the same get the same bytes; who wants it is looked up, so
that listeners cost nothing while nothing of theirs happens. A listener that does not keep up loses what waits
for it and is told so (rest-156); nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.service.live.event import RESYNC, Event, without_odd_ends
from meshfleet.service.live.index import Index
from meshfleet.service.live.listener import STOPPED
from meshfleet.service.live.replay import Replay, Replays
from meshfleet.service.live.ring import Coverage, Ring
from meshfleet.service.live.want import Interest
from meshfleet.wire.rest.live import LIVE_TYPES, LiveEvent, Resync
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from meshfleet.service.clock import Now
    from meshfleet.service.live.event import Form
    from meshfleet.service.live.listener import Listener
    from meshfleet.service.live.want import Want

_TICK: Final = 0.025
"""Seconds for which events are collected."""

_LOOK: Final = 1.0
COMMENT: Final = 15.0
"""Seconds between two comments (rest-150)."""

BUDGET: Final = 64 * 1024 * 1024
BUDGET_OF_ACCOUNT: Final = 16 * 1024 * 1024
"""Bytes that may wait for all listeners together, and for those of one account."""

_BEHIND: Final = "you did not keep up"
_UNKNOWN: Final = "what came since then is not known any more"

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class Hub:
    """Tells events to listeners. Lives in one event loop: nothing here may be called from another thread."""

    def __init__(self, now: Now, *, comment: float = COMMENT) -> None:
        """Begin without listeners. `comment` is how often a stream shows that it lives, in seconds."""
        self._now = now
        self._comment = comment - _LOOK / 2  # it comes with the nearest look
        self._run = f"{now():x}"
        self._number = 0
        self.interest = {about: Interest(about) for about in LIVE_TYPES}
        """By type: whose events anybody wants. Look here before anything is made."""
        self.listeners: set[Listener] = set()
        self._coverage = Coverage(self.interest.values())
        self.since: int | None = None
        """When events began to be published, in milliseconds; None: they are not."""
        self._ring = Ring()
        self._index = Index()
        self._replays = Replays(self._ring, self._coverage, self._miss)
        self._fresh: list[Event] = []
        self._feeders: list[Callable[[], bool]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ticked = 0.0
        self._is_over = False
        self.published: Counter[str] = Counter()
        self.resyncs = 0

    # Events

    def feed(self, feeder: Callable[[], bool]) -> None:
        """Let somebody publish when it is time; it tells whether there is more."""
        self._feeders.append(feeder)

    def wake(self) -> None:
        """See to it that feeders are asked, and listeners are told, in a moment."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._ticked + _TICK, loop.time()), self._tick)

    def publish(self, about: str, data: Any, **whose: int | None) -> None:
        """Tell an event, if somebody wants it or may come back for it.

        `device`, `gateway`, `former` and `job` tell whose it is; see `Event`.
        """
        if self.interest[about]:
            self._add(self._event(about, about, data, **whose))

    def publish_loss(self, about: str, reason: str) -> None:
        """Tell that events of this type were not told."""
        if self.interest[about] or self.interest[RESYNC]:
            self._add(self._event(RESYNC, about, Resync(reason=reason)))

    def _add(self, event: Event) -> None:
        self._ring.add(event)
        self._fresh.append(event)
        self.published[event.type] += 1
        self.wake()

    def _event(self, kind: str, about: str, data: Any, **whose: int | None) -> Event:
        self._number += 1
        name = f"{self._run}-{self._number}"
        told = LiveEvent(id=name, type=kind, time=write_millis(self._now()), data=data)  # type: ignore[arg-type] # one of LIVE_TYPES
        return Event(
            number=self._number,
            id=name,
            type=kind,
            about=about,
            body=without_odd_ends(_encode(told)),
            at=asyncio.get_running_loop().time(),
            **whose,
        )

    # Listeners

    def join(self, listener: Listener) -> None:
        """Somebody is here, and wants nothing yet."""
        listener.commented = asyncio.get_running_loop().time() - _LOOK / 2
        self.listeners.add(listener)
        if self._is_over:
            listener.end(STOPPED)

    def leave(self, listener: Listener) -> None:
        """Somebody is gone."""
        self.listeners.discard(listener)
        for want in list(listener.since):
            self._end(listener, want)
        listener.drop()

    def subscribe(self, listener: Listener, want: Want, after: str | None = None) -> None:
        """Tell a listener what it wants from now on; behind `after` what was told before, too (rest-149).

        May raise TooManySubscriptions.
        """
        self._tell()  # what is on its way is not for this one
        is_new = want not in listener.since
        if is_new:
            self._begin(listener, want)
        if after is None:
            return
        number = self._number_of(after)
        if number is None:
            self._lose(listener, _UNKNOWN)
        elif is_new and listener.ending is None:
            listener.since[want] = number
            self._replays.begin(Replay(listener, want, number, self._number))

    def unsubscribe(self, listener: Listener, want: Want) -> bool:
        """Tell it no more; False: it was not told."""
        if want not in listener.since:
            return False
        self._tell()
        self._end(listener, want)
        listener.catch_up(want)
        return True

    def _begin(self, listener: Listener, want: Want) -> None:
        self._index.add(listener, want)
        if want not in self._coverage:
            self._number += 1  # who heard the last event cannot know what nobody wanted since then
        self._coverage.begin(want, self._number)
        listener.since[want] = self._number
        self.since = self._now() if self.since is None else self.since

    def _end(self, listener: Listener, want: Want) -> None:
        del listener.since[want]
        self._index.remove(listener, want)
        self._coverage.end(want, listener.account, asyncio.get_running_loop().time())

    def _number_of(self, name: str) -> int | None:
        """The number of an event behind which all may be known; None: it is not."""
        run, _, text = name.partition("-")
        if (
            run != self._run
            or not text.isascii()
            or not text.isdecimal()
            or len(text) > len(str(self._number))
        ):
            return None
        number = int(text)
        return number if number <= self._number and self._ring.reaches(number) else None

    def _lose(self, listener: Listener, reason: str) -> None:
        """Instead of all that waits for it, tell a listener that it missed something (rest-156)."""
        listener.drop()
        listener.give(self._resync(listener, reason))

    def _miss(self, listener: Listener, want: Want) -> None:
        """Instead of what cannot be told again tell that; what came meanwhile waits behind it."""
        if not listener.catch_up(want, [self._resync(listener, _UNKNOWN)]):
            self._lose(listener, _UNKNOWN)

    def _resync(self, listener: Listener, reason: str) -> bytes:
        self.resyncs += 1
        return listener.form(self._event(RESYNC, RESYNC, Resync(reason=reason)))

    # Telling

    def _tick(self) -> None:
        self._timer = None
        self._ticked = asyncio.get_running_loop().time()
        more = [self._ask(feeder) for feeder in self._feeders]
        self._tell()
        if any(more):
            self.wake()

    def _ask(self, feeder: Callable[[], bool]) -> bool:
        try:
            return feeder()
        except Exception:  # noqa: BLE001 # whatever it is, others have something to tell
            _log.exception("events cannot be told")
            self.publish_loss("report", "something went wrong here")
            return True

    def _tell(self) -> None:
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        chosen: dict[Want, list[int]] = {}
        for place, event in enumerate(fresh):
            for want in self._index.takers(event):
                chosen.setdefault(want, []).append(place)
        concerned: dict[Listener, list[Want]] = {}
        for want in chosen:
            for listener in self._index.holders(want):
                concerned.setdefault(listener, []).append(want)
        chunks: dict[tuple[Any, ...], bytes] = {}
        spelling = _Spelling(fresh)
        for listener, wants in concerned.items():
            key = (listener.form, *wants)
            chunk = chunks.get(key)
            if chunk is None:
                chunk = chunks[key] = spelling.spell(listener.form, [chosen[want] for want in wants])
            if not listener.give(chunk):
                self._lose(listener, _BEHIND)
        self._relieve()

    def _relieve(self) -> None:
        """If too much waits for all listeners, or for those of one account, those with the most lose it."""
        if sum(listener.waiting for listener in self.listeners) <= BUDGET_OF_ACCOUNT:
            return
        accounts: dict[tuple[str, str], list[Listener]] = {}
        for listener in self.listeners:
            accounts.setdefault(listener.account, []).append(listener)
        for listeners in accounts.values():
            self._relieve_of(listeners, BUDGET_OF_ACCOUNT)
        self._relieve_of(self.listeners, BUDGET)

    def _relieve_of(self, listeners: Collection[Listener], budget: int) -> None:
        excess = sum(listener.waiting for listener in listeners) - budget
        if excess <= 0:
            return
        for listener in sorted(listeners, key=lambda each: each.waiting, reverse=True):
            before = listener.waiting
            self._lose(listener, _BEHIND)
            excess -= before - listener.waiting
            if excess <= 0:
                return

    # Time

    async def run(self) -> None:
        """Forget what is old, and show listeners that the connection lives, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            now = asyncio.get_running_loop().time()
            self._ring.age(now)
            self._coverage.age(now)
            self.since = self.since if self._coverage else None
            for listener in self.listeners:
                if listener.comment and now >= listener.commented + self._comment:
                    listener.commented = now
                    listener.give_ahead(listener.comment)

    def end(self) -> None:
        """Let all listeners go, and those who still come: the service stops."""
        self._is_over = True
        self._replays.end()
        for listener in self.listeners:
            listener.end(STOPPED)
            listener.cut()


class _Spelling:
    """Some events, each spelt once for each door, and only if somebody there wants it."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._spelt: dict[tuple[Form, int], bytes] = {}

    def spell(self, form: Form, places: list[list[int]]) -> bytes:
        """Those at any of these places, in their order."""
        chosen = places[0] if len(places) == 1 else sorted(set().union(*places))
        return b"".join([self._at(form, place) for place in chosen])

    def _at(self, form: Form, place: int) -> bytes:
        text = self._spelt.get((form, place))
        if text is None:
            text = self._spelt[form, place] = form(self._events[place])
        return text
