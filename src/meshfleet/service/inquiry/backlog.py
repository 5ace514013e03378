"""Candidates that wait to be asked: a few of each gateway, so that none keeps the others waiting."""

from __future__ import annotations

from collections import Counter, deque
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

    def fitting(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return those that `add` would take now; choosing gateways for all others would be in vain."""
        lengths = Counter({gateway: len(line) for gateway, line in self._waiting.items()})
        room = _MOST - len(self)
        found: dict[int, Candidate] = {}
        for candidate in candidates:
            if len(found) >= room:
                break
            device, gateway, _ = candidate
            if device in self._devices or device in found or lengths[gateway] >= _OF_A_GATEWAY:
                continue
            lengths[gateway] += 1
            found[device] = candidate
        return list(found.values())

    def add(self, candidates: Iterable[Candidate]) -> None:
        """Let these wait, as far as there is room and they do not wait already."""
        for candidate in self.fitting(candidates):
            self._waiting.setdefault(candidate.gateway, deque()).append(candidate)
            self._devices.add(candidate.device)

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
