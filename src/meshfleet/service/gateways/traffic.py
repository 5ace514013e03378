"""How much gateways report at the moment, and in which form. In memory: nobody asks for yesterday."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from meshfleet.service.gateways.modes import Modes

if TYPE_CHECKING:
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.modes import NewModes
    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes

_MINUTE: Final = 60_000

_HEARD: Final = 15
"""Minutes for which a gateway counts as heard."""


class Traffic:
    """Counts reports by the gateways that brought them, minute by minute; see `Follower`."""

    def __init__(self, steady: Now) -> None:
        """`steady` is a clock that is never set: minutes go by it."""
        self.modes = Modes()
        self._steady = steady
        self._began_at = steady()
        self._minute = self._began_at // _MINUTE
        self._counts: Counter[int] = Counter()
        """Of this minute."""
        self._before: Counter[int] = Counter()
        """Of the minute before it."""
        self._heard: dict[int, int] = {}
        """The last minute in which each gateway was heard, this one aside."""

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""
        self._turn(self._steady() // _MINUTE)
        self._counts.update(draft.gateways)
        self.modes.follow(draft)

    def collect(self, notes: Notes, now: int) -> NewModes:  # noqa: ARG002 # they say nothing of gateways
        """What is newly known of their modes."""
        return self.modes.collect(now)

    def rate(self, gateway: int) -> float:
        """Reports per minute of a gateway, over this minute and the one before it."""
        now = self._steady()
        self._turn(now // _MINUTE)
        since = max(self._began_at, (self._minute - 1) * _MINUTE)
        count = self._before[gateway] + self._counts[gateway]
        return round(count * _MINUTE / max(now - since, _MINUTE), 1)

    def heard(self) -> set[int]:
        """The gateways that were heard lately."""
        self._turn(self._steady() // _MINUTE)
        return {*self._heard, *self._counts}

    def _turn(self, minute: int) -> None:
        """Begin another minute, if it is another."""
        if minute == self._minute:
            return
        for gateway in self._counts:
            self._heard[gateway] = self._minute
        if min(self._heard.values(), default=minute) < minute - _HEARD:
            self._heard = {each: at for each, at in self._heard.items() if at >= minute - _HEARD}
        self._before = self._counts if minute == self._minute + 1 else Counter()
        self._counts = Counter()
        self._minute = minute
