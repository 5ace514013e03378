"""Candidates that wait to be asked: a few of each gateway, so that none keeps the others waiting."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.service.inquiry.candidates import Candidate

_MOST: Final = 1000
_OF_A_GATEWAY: Final = 20
"""What does not fit is found again by a later walk."""


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

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Let these wait, as far as there is room and they do not wait already."""
        room = _MOST - len(self)
        for candidate in candidates:
            line = self._waiting.get(candidate.gateway, ())
            if room <= 0:
                return
            if candidate.device in self._devices or len(line) >= _OF_A_GATEWAY:
                continue
            self._waiting.setdefault(candidate.gateway, deque()).append(candidate)
            self._devices.add(candidate.device)
            room -= 1

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
