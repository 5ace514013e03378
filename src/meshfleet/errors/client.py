"""Errors of those who use a service over REST."""

from __future__ import annotations

from meshfleet.errors.root import FleetError


class ServiceUnreachable(FleetError):
    """Nobody answers at the address of the service, or not in time. Another try may help."""

    code = "service-unreachable"

    def __init__(self, words: str, *, was_sent: bool = False, is_slow: bool = False) -> None:
        super().__init__(words)
        self.was_sent = was_sent
        """Whether the service may have got what was asked, and may have done it."""
        self.is_slow = is_slow
        """Whether time ran out while we waited."""


class ServiceRefused(FleetError):
    """The service does not do what we ask of it over REST, is not there, or is something else."""

    code = "service-refused"
