"""Whether the service can do its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import Unavailable

if TYPE_CHECKING:
    from typing import Protocol

    class Taker(Protocol):
        """Who takes reports: the embedded broker or who listens to another one, and the ingest behind it."""

        @property
        def trouble(self) -> str | None:
            """Why none are taken at the moment."""


class Readiness:
    """Knows what the service stands on, besides its database."""

    def __init__(self) -> None:
        self._takers: list[Taker] = []
        self._is_awaited = False

    def await_taker(self) -> None:
        """Somebody will take reports, and has not come so far."""
        self._is_awaited = True

    def watch(self, taker: Taker) -> None:
        """Who takes reports counts too from now on."""
        self._takers.append(taker)

    def check(self) -> None:
        """Raise the reason if something is amiss."""
        if self._is_awaited and not self._takers:
            raise Unavailable("reports are not taken yet")
        for taker in self._takers:
            if taker.trouble is not None:
                raise Unavailable(f"reports are not taken as they should be: {taker.trouble}")
