"""Raises an error for a device's response with an error status."""

from __future__ import annotations

from typing import Protocol, TypeVar

from meshfleet.errors import Declined
from meshfleet.protocol.codes import Status


class _HasStatus(Protocol):
    @property
    def status(self) -> int:
        """Status code of the response; 0 means success."""


ResponseT = TypeVar("ResponseT", bound=_HasStatus)


def check(response: ResponseT) -> ResponseT:
    """Return the response if its status is 0. Raise `Declined` with the status and its name otherwise.

    Status names are defined in response-20.
    """
    if response.status != Status.OK:
        raise Declined(response.status, format_status_name(response.status))
    return response


def format_status_name(status: int) -> str:
    """Return the name of a status code, such as `unknown-identifier`, or `unknown status` (response-20)."""
    try:
        return Status(status).name.lower().replace("_", "-")
    except ValueError:
        return "unknown status"
