"""How much gateways report at the moment, and in which form. In memory: nobody asks for yesterday."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.codes import Kind
from meshfleet.service.gateways import store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Connection

    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates


# Whether gateways report raw or decoded, learned from what they report.

_INSPECTED_REPORTS: Final = 8
"""Reports of a batch that are looked at. A gateway reports often, and changes its mode once in its life."""

_DECODED_FOR_MS: Final = 3_600_000
"""Milliseconds after a decoded report in which a raw one says nothing."""

_RESET_MS: Final = 600_000
"""Milliseconds after which modes are told anew: a gateway may be released and claimed meanwhile."""

_RAW, _DECODED = "raw", "decoded"

_MODE_BY_KIND: Final[Mapping[str, str]] = {
    **{str(kind): _DECODED for kind in Kind if kind.is_decoded},
    **dict.fromkeys((str(Kind.PROPERTY), str(Kind.MEASUREMENT), str(Kind.EVENT)), _RAW),
}
"""What each kind of report tells of the mode. Others are the same in both."""


class ModeChanges:
    """Modes to be written down; see `Entry`."""

    def __init__(self, modes: Mapping[int, str]) -> None:
        self._modes = modes

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # nobody's mode
        """Write them."""
        store.update_modes(connection, self._modes)

    def on_flushed(self) -> None:
        """Nothing waits for it."""


class ModeDetector:
    """Learns the modes of gateways."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._decoded_at: dict[int, int] = {}
        """When each was last seen to report decoded."""
        self._new: dict[int, str] = {}
        self._reset_at: int | None = None

    def restore(self, modes: Mapping[int, str], now: int) -> None:
        """Go on with what was known before a start."""
        self._known |= modes
        self._decoded_at |= {gateway: now for gateway, mode in modes.items() if mode == _DECODED}

    def inspect_reports(self, batch: ParsedBatch) -> None:
        """Look at some reports of a batch, from all over it."""
        seen, gateways = batch.report_kinds, batch.report_gateways
        step = len(seen) // _INSPECTED_REPORTS + 1
        for kind, gateway in zip(seen[::step], gateways[::step], strict=False):
            mode = _MODE_BY_KIND.get(kind)
            if mode is not None:
                self._record_mode(gateway, mode, batch.now)

    def pop_changes(self, now: int) -> ModeChanges:
        """What is newly known."""
        if self._reset_at is None:
            self._reset_at = now
        elif not 0 <= now - self._reset_at < _RESET_MS:
            self._reset_at = now
            self._known.clear()
            self._decoded_at = {
                each: at for each, at in self._decoded_at.items() if now - at < _DECODED_FOR_MS
            }
        new, self._new = self._new, {}
        return ModeChanges(new)

    def _record_mode(self, gateway: int, mode: str, now: int) -> None:
        if mode == _DECODED:
            self._decoded_at[gateway] = now
        elif now - self._decoded_at.get(gateway, now - _DECODED_FOR_MS) < _DECODED_FOR_MS:
            return
        if self._known.get(gateway) != mode:
            self._known[gateway] = self._new[gateway] = mode


_MINUTE: Final = 60_000

_RECENT_MINUTES: Final = 15
"""Minutes for which a gateway counts as heard."""


class GatewayTraffic:
    """Counts reports by the gateways that brought them, minute by minute; see `Follower`."""

    def __init__(self, steady: Now) -> None:
        """`steady` is a clock that is never set: minutes go by it."""
        self.modes = ModeDetector()
        self._steady = steady
        self._started_at = steady()
        self._minute = self._started_at // _MINUTE
        self._counts: Counter[int] = Counter()
        """Of this minute."""
        self._previous_counts: Counter[int] = Counter()
        """Of the minute before it."""
        self._last_minutes: dict[int, int] = {}
        """The last minute in which each gateway was heard, this one aside."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """A draft is committed."""
        self._roll_over(self._steady() // _MINUTE)
        self._counts.update(batch.report_gateways)
        self.modes.inspect_reports(batch)

    def prepare_flush(self, states: PendingStates, now: int) -> ModeChanges:  # noqa: ARG002 # they say nothing of gateways
        """What is newly known of their modes."""
        return self.modes.pop_changes(now)

    def reports_per_minute(self, gateway: int) -> float:
        """Reports per minute of a gateway, over this minute and the one before it."""
        now = self._steady()
        self._roll_over(now // _MINUTE)
        since = max(self._started_at, (self._minute - 1) * _MINUTE)
        count = self._previous_counts[gateway] + self._counts[gateway]
        return round(count * _MINUTE / max(now - since, _MINUTE), 1)

    def recent_gateways(self) -> set[int]:
        """The gateways that were heard lately."""
        self._roll_over(self._steady() // _MINUTE)
        return {*self._last_minutes, *self._counts}

    def _roll_over(self, minute: int) -> None:
        """Begin another minute, if it is another."""
        if minute == self._minute:
            return
        for gateway in self._counts:
            self._last_minutes[gateway] = self._minute
        if min(self._last_minutes.values(), default=minute) < minute - _RECENT_MINUTES:
            self._last_minutes = {
                each: at for each, at in self._last_minutes.items() if at >= minute - _RECENT_MINUTES
            }
        self._previous_counts = self._counts if minute == self._minute + 1 else Counter()
        self._counts = Counter()
        self._minute = minute
