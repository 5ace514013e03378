"""Who is asked again when: the less there is to hope for, the later."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE

_STEPS: Final = (_MINUTE, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 12 * _HOUR)
"""Milliseconds after each failure in turn."""

_SETTLED: Final = 24 * _HOUR
"""Milliseconds after an answer: what was told, or refused, hardly changes."""

_REMEMBERED: Final = 20_000
"""Questions; those that nobody asked for longest are forgotten, and may be asked again."""


class Question(NamedTuple):
    """What a device is asked; or, without an identifier, whether a gateway answers at all."""

    device: int
    identifier: int | None = None


class _Pause(NamedTuple):
    until: int
    tries: int


class Backoff:
    """Knows no clock itself: every call brings the time."""

    def __init__(self) -> None:
        self._pauses: OrderedDict[Question, _Pause] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pauses)

    def may_ask(self, question: Question, now: int) -> bool:
        """Whether it may be asked again."""
        pause = self._pauses.get(question)
        return pause is None or pause.until <= now

    def fail(self, question: Question, now: int) -> None:
        """There was no answer, or none that helps; a later try may."""
        tries = self._pauses[question].tries if question in self._pauses else 0
        self._put(question, _Pause(now + _STEPS[min(tries, len(_STEPS) - 1)], tries + 1))

    def settle(self, question: Question, now: int) -> None:
        """There was an answer, and the next would be the same."""
        self._put(question, _Pause(now + _SETTLED, 0))

    def forget(self, question: Question) -> None:
        """All is well with it again."""
        self._pauses.pop(question, None)

    def _put(self, question: Question, pause: _Pause) -> None:
        self._pauses[question] = pause
        self._pauses.move_to_end(question)
        if len(self._pauses) > _REMEMBERED:
            self._pauses.popitem(last=False)
