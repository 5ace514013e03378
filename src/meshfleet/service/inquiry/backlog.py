"""Candidates that wait to be asked: a few of each gateway, so that none keeps the others waiting."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from meshfleet.service.inquiry.candidates import Candidate

_MOST: Final = 1000
_OF_A_GATEWAY: Final = 20
"""What does not fit is found again by a later walk."""
_BY_LOT: Final = 20
"""Candidates per look for which a gateway is chosen though the line of their own is full."""


class Backlog:
    """Gives one candidate of a gateway at a time, one gateway after the other."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Candidate]] = {}
        """By gateway; whose turn is next is in front."""
        self._devices: set[int] = set()
        """Who waits, or is being asked."""
        self._busy: set[int] = set()
        """Gateways through which somebody is being asked."""

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def asked(self) -> int:
        """How many are being asked."""
        return len(self._busy)

    def preselect(self, candidates: Iterable[Candidate], random: Random) -> list[Candidate]:
        """Return candidates for which it is worth while to choose gateways, which costs a read for each.

        Most are asked through the gateway that they belong to: those that fit in its line come first. Of the
        others any may be asked through another gateway, so some are drawn by lot.
        """
        waiting = [each for each in candidates if each.device not in self._devices]
        random.shuffle(waiting)
        fitting = _limit(waiting, self._lengths, self._room)
        taken = {each.device for each in fitting}
        others = [each for each in waiting if each.device not in taken]
        return fitting + _limit(others, Counter(), min(_BY_LOT, self._room - len(fitting)))

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Let these wait, as far as there is room and they do not wait already."""
        new = (each for each in candidates if each.device not in self._devices)
        for candidate in _limit(new, self._lengths, self._room):
            self._waiting.setdefault(candidate.gateway, deque()).append(candidate)
            self._devices.add(candidate.device)

    @property
    def _lengths(self) -> Counter[int]:
        """How many wait for each gateway."""
        return Counter({gateway: len(line) for gateway, line in self._waiting.items()})

    @property
    def _room(self) -> int:
        """How many more may wait."""
        return _MOST - len(self)

    def take(self) -> Candidate | None:
        """The next, who is being asked from now on; None: there is nobody, or all gateways are busy."""
        gateway = next((each for each in self._waiting if each not in self._busy), None)
        if gateway is None:
            return None
        line = self._waiting.pop(gateway)
        candidate = line.popleft()
        if line:
            self._waiting[gateway] = line  # behind all others
        self._busy.add(gateway)
        return candidate

    def done(self, candidate: Candidate) -> None:
        """It was asked."""
        self._busy.discard(candidate.gateway)
        self._devices.discard(candidate.device)

    def drop(self, gateway: int) -> None:
        """Let nobody wait for a gateway that does not answer."""
        for candidate in self._waiting.pop(gateway, ()):
            self._devices.discard(candidate.device)


def _limit(candidates: Iterable[Candidate], lengths: Counter[int], room: int) -> list[Candidate]:
    """Return as many candidates as there is room for, each device once. `lengths` are those of the lines."""
    found: dict[int, Candidate] = {}
    for candidate in candidates:
        if len(found) >= room:
            break
        if candidate.device in found or lengths[candidate.gateway] >= _OF_A_GATEWAY:
            continue
        lengths[candidate.gateway] += 1
        found[candidate.device] = candidate
    return list(found.values())
