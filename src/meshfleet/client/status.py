"""Answers whose status says no, as errors, for those who want that."""

from __future__ import annotations

from typing import Protocol, TypeVar

from meshfleet.errors import Declined
from meshfleet.protocol.codes import Status


class _HasStatus(Protocol):
    @property
    def status(self) -> int:
        """How it went."""


ResponseT = TypeVar("ResponseT", bound=_HasStatus)


def check(response: ResponseT) -> ResponseT:
    """The same answer, if it says yes; else Declined, with the name of its status (response-20)."""
    if response.status != Status.OK:
        raise Declined(response.status, format_status_name(response.status))
    return response


def format_status_name(status: int) -> str:
    """A status as people read it (response-20)."""
    try:
        return Status(status).name.lower().replace("_", "-")
    except ValueError:
        return "a status without a name"
