"""Answers whose status says no, as errors, for those who want that."""

from __future__ import annotations

from typing import Protocol, TypeVar

from meshfleet.errors import Declined
from meshfleet.wire.codes import Status


class _Answer(Protocol):
    @property
    def status(self) -> int:
        """How it went."""


AnswerT = TypeVar("AnswerT", bound=_Answer)


def check(answer: AnswerT) -> AnswerT:
    """The same answer, if it says yes; else Declined, with the name of its status (response-20)."""
    if answer.status != Status.OK:
        raise Declined(answer.status, status_words(answer.status))
    return answer


def status_words(status: int) -> str:
    """A status as people read it (response-20)."""
    try:
        return Status(status).name.lower().replace("_", "-")
    except ValueError:
        return "a status without a name"
