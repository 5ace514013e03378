"""Whether gateways report raw or decoded, learned from what they report.

A gateway in decoded mode reports raw what its dictionary does not know, so a raw report says little, and a
decoded one says it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.service.gateways import store
from meshfleet.wire.codes import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Connection

    from meshfleet.service.ingest.draft import Draft

_LOOKS: Final = 8
"""Reports of a batch that are looked at. A gateway reports often, and changes its mode once in its life."""

_SURE: Final = 3_600_000
"""Milliseconds after a decoded report in which a raw one says nothing."""

_AGAIN: Final = 600_000
"""Milliseconds after which modes are told anew: a gateway may be released and claimed meanwhile."""

_RAW, _DECODED = "raw", "decoded"

_TELLING: Final[Mapping[str, str]] = {
    **{str(kind): _DECODED for kind in Kind if kind.decoded},
    **dict.fromkeys((str(Kind.PROPERTY), str(Kind.MEASUREMENT), str(Kind.EVENT)), _RAW),
}
"""What each kind of report tells of the mode. Others are the same in both."""


class NewModes:
    """Modes to be written down; see `Entry`."""

    def __init__(self, modes: Mapping[int, str]) -> None:
        self._modes = modes

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # nobody's mode
        """Write them."""
        store.set_modes(connection, self._modes)

    def written(self) -> None:
        """Nothing waits for it."""


class Modes:
    """Learns the modes of gateways."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._decoded_at: dict[int, int] = {}
        """When each was last seen to report decoded."""
        self._new: dict[int, str] = {}
        self._told_at: int | None = None

    def restore(self, modes: Mapping[int, str], now: int) -> None:
        """Go on with what was known before a start."""
        self._known |= modes
        self._decoded_at |= {gateway: now for gateway, mode in modes.items() if mode == _DECODED}

    def follow(self, draft: Draft) -> None:
        """Look at some reports of a batch, from all over it."""
        seen, gateways = draft.seen, draft.gateways
        step = len(seen) // _LOOKS + 1
        for kind, gateway in zip(seen[::step], gateways[::step], strict=False):
            mode = _TELLING.get(kind)
            if mode is not None:
                self._learn(gateway, mode, draft.now)

    def collect(self, now: int) -> NewModes:
        """What is newly known."""
        if self._told_at is None:
            self._told_at = now
        elif not 0 <= now - self._told_at < _AGAIN:
            self._told_at = now
            self._known.clear()
            self._decoded_at = {each: at for each, at in self._decoded_at.items() if now - at < _SURE}
        new, self._new = self._new, {}
        return NewModes(new)

    def _learn(self, gateway: int, mode: str, now: int) -> None:
        if mode == _DECODED:
            self._decoded_at[gateway] = now
        elif now - self._decoded_at.get(gateway, now - _SURE) < _SURE:
            return
        if self._known.get(gateway) != mode:
            self._known[gateway] = self._new[gateway] = mode
