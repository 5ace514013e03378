"""Measures from committed reports the report rate of gateways and their mode (raw or decoded values)."""

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


# Detection of the mode: a gateway sends values raw (hex) or decoded.

_INSPECTED_REPORTS: Final = 8
"""Number of reports per batch from which modes are detected. Few are enough: gateways report often."""

_DECODED_FOR_MS: Final = 3_600_000
"""After a decoded report, raw reports do not end the decoded mode of a gateway for so many milliseconds."""

_RESET_MS: Final = 600_000
"""Milliseconds after which the modes of all gateways are stored again.

The stored mode of a gateway is lost if the gateway is released and claimed again.
"""

_RAW, _DECODED = "raw", "decoded"

_MODE_BY_KIND: Final[Mapping[str, str]] = {
    **{str(kind): _DECODED for kind in Kind if kind.is_decoded},
    **dict.fromkeys((str(Kind.PROPERTY), str(Kind.MEASUREMENT), str(Kind.EVENT)), _RAW),
}
"""Gateway mode that a report kind proves. Kinds that occur in both modes are missing."""


class GatewayModeFlush:
    """Part of an ingest flush that stores the detected modes of gateways."""

    def __init__(self, modes: Mapping[int, str]) -> None:
        self._modes = modes

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # new devices have no mode
        """Store the modes of gateways in the transaction of the flush."""
        store.update_gateway_modes(connection, self._modes)

    def on_flushed(self) -> None:
        """Do nothing, because no state in memory depends on the commit of the flush."""


class GatewayModeDetector:
    """Detects from report kinds whether a gateway is in raw or decoded mode."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        """Last detected or stored mode, by gateway."""
        self._decoded_at: dict[int, int] = {}
        """Unix time in milliseconds of the last decoded report, by gateway."""
        self._new: dict[int, str] = {}
        """Modes that changed since the last call of `pop_changes`, by gateway."""
        self._reset_at: int | None = None

    def restore(self, modes: Mapping[int, str], now: int) -> None:
        """Set the modes that are stored in the database. Call this at start-up."""
        self._known |= modes
        self._decoded_at |= {gateway: now for gateway, mode in modes.items() if mode == _DECODED}

    def inspect_reports(self, batch: ParsedBatch) -> None:
        """Detect the modes of gateways from some reports, spread evenly over a batch."""
        kinds, gateways = batch.report_kinds, batch.report_gateways
        step = len(kinds) // _INSPECTED_REPORTS + 1
        for kind, gateway in zip(kinds[::step], gateways[::step], strict=False):
            mode = _MODE_BY_KIND.get(kind)
            if mode is not None:
                self._record_mode(gateway, mode, batch.now)

    def pop_changes(self, now: int) -> GatewayModeFlush:
        """Return the part of a flush that stores the modes of gateways which changed since the last call."""
        if self._reset_at is None:
            self._reset_at = now
        elif not 0 <= now - self._reset_at < _RESET_MS:
            self._reset_at = now
            self._known.clear()
            self._decoded_at = {
                each: at for each, at in self._decoded_at.items() if now - at < _DECODED_FOR_MS
            }
        new, self._new = self._new, {}
        return GatewayModeFlush(new)

    def _record_mode(self, gateway: int, mode: str, now: int) -> None:
        """Record the mode that a report proves. Ignore a raw report within an hour after a decoded one."""
        if mode == _DECODED:
            self._decoded_at[gateway] = now
        elif now - self._decoded_at.get(gateway, now - _DECODED_FOR_MS) < _DECODED_FOR_MS:
            return
        if self._known.get(gateway) != mode:
            self._known[gateway] = self._new[gateway] = mode


_MINUTE: Final = 60_000

_RECENT_MINUTES: Final = 15
"""Number of minutes for which a gateway counts as active after a report."""


class GatewayTraffic:
    """Counts the reports of each gateway per minute. Is a `CommitSubscriber` of ingest."""

    def __init__(self, monotonic: Now) -> None:
        """Create empty counters. `monotonic` is a monotonic clock in milliseconds."""
        self.modes = GatewayModeDetector()
        self._monotonic = monotonic
        self._started_at = monotonic()
        self._minute = self._started_at // _MINUTE
        self._counts: Counter[int] = Counter()
        """Number of reports per gateway in the current minute."""
        self._previous_counts: Counter[int] = Counter()
        """Number of reports per gateway in the previous minute."""
        self._last_minutes: dict[int, int] = {}
        """Last minute in which each gateway reported, by gateway; without the current minute."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """Count the reports of a committed batch."""
        self._roll_over_minute(self._monotonic() // _MINUTE)
        self._counts.update(batch.report_gateways)
        self.modes.inspect_reports(batch)

    def prepare_flush(self, states: PendingStates, now: int) -> GatewayModeFlush:  # noqa: ARG002 # states of devices do not affect gateways
        """Return the part of a flush that stores the changed modes of gateways."""
        return self.modes.pop_changes(now)

    def reports_per_minute(self, gateway: int) -> float:
        """Return a gateway's reports per minute, averaged over the current and the previous minute."""
        elapsed = self._measure_elapsed()
        return round((self._previous_counts[gateway] + self._counts[gateway]) * _MINUTE / elapsed, 1)

    def reports_per_second(self) -> float:
        """Return the reports per second of all gateways, averaged over the current and previous minute."""
        elapsed = self._measure_elapsed()
        return (self._previous_counts.total() + self._counts.total()) * 1000 / elapsed

    def recent_gateways(self) -> set[int]:
        """Return the gateways that reported in the last 15 minutes."""
        self._roll_over_minute(self._monotonic() // _MINUTE)
        return {*self._last_minutes, *self._counts}

    def _measure_elapsed(self) -> int:
        """Return the milliseconds that counts of the current and previous minute cover; at least 60000."""
        now = self._monotonic()
        self._roll_over_minute(now // _MINUTE)
        return max(now - max(self._started_at, (self._minute - 1) * _MINUTE), _MINUTE)

    def _roll_over_minute(self, minute: int) -> None:
        """Start counting a new minute if the current minute is over."""
        if minute == self._minute:
            return
        for gateway in self._counts:
            self._last_minutes[gateway] = self._minute
        if min(self._last_minutes.values(), default=minute) < minute - _RECENT_MINUTES:
            self._last_minutes = {
                each: last_minute
                for each, last_minute in self._last_minutes.items()
                if last_minute >= minute - _RECENT_MINUTES
            }
        self._previous_counts = self._counts if minute == self._minute + 1 else Counter()
        self._counts = Counter()
        self._minute = minute
