"""The hub: events come in one by one and go out to all who want them, many at a time.

While nobody listens it costs a look. An event is spelt once for each of the two doors. What goes out is
collected for a moment, and listeners who want the same get the same bytes. A listener that does not keep up
loses what waits for it and is told so (rest-156); nobody else waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.service.live.event import RESYNC, Event, without_odd_ends
from meshfleet.service.live.listener import STOPPED
from meshfleet.service.live.ring import Coverage, Ring
from meshfleet.service.live.want import Interest
from meshfleet.wire.rest.live import LIVE_TYPES, LiveEvent, Resync
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meshfleet.service.clock import Now
    from meshfleet.service.live.event import Form
    from meshfleet.service.live.listener import Listener
    from meshfleet.service.live.want import Want

_TICK: Final = 0.025
"""Seconds for which events are collected."""

_COMMENT: Final = 14.0
"""Seconds until the next comment is due; we look every second, so there is one every 15 (rest-150)."""

_PIECE: Final = 64 * 1024
"""Bytes of what is told again that wait as one."""

_encode = msgspec.json.Encoder().encode


class Hub:
    """Tells events to listeners. Lives in one event loop: nothing here may be called from another thread."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._run = f"{now():x}"
        self._number = 0
        self.interest = {about: Interest(about) for about in LIVE_TYPES}
        """By type: whose events anybody wants. Look here before anything is made."""
        self.listeners: set[Listener] = set()
        self._coverage = Coverage(self.interest.values())
        self.since: int | None = None
        """When events began to be published, in milliseconds; None: they are not."""
        self._ring = Ring()
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

    def publish(
        self, about: str, data: Any, *, device: int | None = None, gateway: int | None = None
    ) -> None:
        """Tell an event, if somebody wants it or may come back for it."""
        if self.interest[about]:
            self._add(about, about, data, device, gateway)

    def publish_loss(self, about: str, reason: str) -> None:
        """Tell that events of this type were not told."""
        if self.interest[about]:
            self._add(RESYNC, about, Resync(reason=reason), None, None)

    def _add(self, kind: str, about: str, data: Any, device: int | None, gateway: int | None) -> None:
        event = self._event(kind, about, data, device, gateway)
        self._ring.add(event)
        self._fresh.append(event)
        self.published[kind] += 1
        self.wake()

    def _event(self, kind: str, about: str, data: Any, device: int | None, gateway: int | None) -> Event:
        self._number += 1
        name = f"{self._run}-{self._number}"
        told = LiveEvent(id=name, type=kind, time=write_millis(self._now()), data=data)  # type: ignore[arg-type] # one of LIVE_TYPES
        return Event(
            number=self._number,
            id=name,
            type=kind,
            about=about,
            device=device,
            gateway=gateway,
            body=without_odd_ends(_encode(told)),
            at=asyncio.get_running_loop().time(),
        )

    # Listeners

    def join(self, listener: Listener) -> None:
        """Somebody is here, and wants nothing yet."""
        listener.commented = asyncio.get_running_loop().time()
        self.listeners.add(listener)
        if self._is_over:
            listener.end(STOPPED)

    def leave(self, listener: Listener) -> None:
        """Somebody is gone."""
        self.listeners.discard(listener)
        for want in listener.wants:
            self._coverage.end(want, asyncio.get_running_loop().time())
        listener.wants = frozenset()

    def subscribe(self, listener: Listener, want: Want, after: str | None = None) -> None:
        """Tell a listener what it wants from now on; behind `after` what was told before, too (rest-149)."""
        self._tell()  # what is on its way is not for this one
        missed = None if after is None else self._behind(after, want)
        if want not in listener.wants:
            self._coverage.begin(want, self._number)
            listener.wants |= {want}
            self.since = self._now() if self.since is None else self.since
        if after is None:
            return
        if missed is None or not self._give_again(listener, missed):
            self._lose(listener, "what came since then is not known any more")

    def unsubscribe(self, listener: Listener, want: Want) -> bool:
        """Tell it no more; False: it was not told."""
        if want not in listener.wants:
            return False
        self._tell()
        listener.wants -= {want}
        self._coverage.end(want, asyncio.get_running_loop().time())
        return True

    def _behind(self, after: str, want: Want) -> list[Event] | None:
        """What a listener missed; None: nobody knows."""
        run, _, text = after.partition("-")
        if (
            run != self._run
            or not text.isascii()
            or not text.isdecimal()
            or len(text) > len(str(self._number))
        ):
            return None
        number = int(text)
        if (
            number > self._number
            or not self._ring.reaches(number)
            or not self._coverage.reaches(want, number)
        ):
            return None
        return self._ring.behind(number, want)

    @staticmethod
    def _give_again(listener: Listener, missed: Iterable[Event]) -> bool:
        piece: list[bytes] = []
        size = 0
        for event in missed:
            piece.append(listener.form(event))
            size += len(piece[-1])
            if size > _PIECE:
                if not listener.give(b"".join(piece)):
                    return False
                piece, size = [], 0
        return not piece or listener.give(b"".join(piece))

    def _lose(self, listener: Listener, reason: str) -> None:
        """Instead of all that waits for it, tell a listener that it missed something (rest-156)."""
        self.resyncs += 1
        listener.drop()
        listener.give(listener.form(self._event(RESYNC, RESYNC, Resync(reason=reason), None, None)))

    # Telling

    def _tick(self) -> None:
        self._timer = None
        self._ticked = asyncio.get_running_loop().time()
        more = [feeder() for feeder in self._feeders]
        self._tell()
        if any(more):
            self.wake()

    def _tell(self) -> None:
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        spelt: dict[Form, list[bytes]] = {}
        chunks: dict[tuple[Form, frozenset[Want]], bytes] = {}
        for listener in self.listeners:
            key = (listener.form, listener.wants)
            chunk = chunks.get(key)
            if chunk is None:
                if listener.form not in spelt:
                    spelt[listener.form] = [listener.form(event) for event in fresh]
                chunk = chunks[key] = _chosen(fresh, spelt[listener.form], listener.wants)
            if chunk and not listener.give(chunk):
                self._lose(listener, "you did not keep up")

    # Time

    async def run(self) -> None:
        """Forget what is old, and show listeners that the connection lives, until cancelled."""
        while True:
            await asyncio.sleep(1)
            now = asyncio.get_running_loop().time()
            self._ring.age(now)
            self._coverage.age(now)
            self.since = self.since if self._coverage else None
            for listener in self.listeners:
                if listener.comment and now >= listener.commented + _COMMENT:
                    listener.commented = now
                    listener.give(listener.comment)

    def end(self) -> None:
        """Let all listeners go, and those who still come: the service stops."""
        self._is_over = True
        for listener in self.listeners:
            listener.end(STOPPED)
            listener.cut()


def _chosen(events: list[Event], spelt: list[bytes], wants: frozenset[Want]) -> bytes:
    return b"".join(
        [text for event, text in zip(events, spelt, strict=True) if any(want.takes(event) for want in wants)]
    )
