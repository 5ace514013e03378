"""Times of silences: when each one begins and ends, also if it repeats itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from zoneinfo import ZoneInfo

from meshfleet.rest.silences import Repetition

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECOND_MS: Final = 1000
_INTERVALS: Final = {Repetition.DAILY: timedelta(days=1), Repetition.WEEKLY: timedelta(days=7)}


class Occurrence(NamedTuple):
    """One time in which alarms are silenced. Times are Unix times in milliseconds."""

    start: int
    end: int


class SilenceTimes(NamedTuple):
    """Times of a silence. Repetitions begin at the same time of day, also when summer time begins or ends."""

    first: Occurrence
    repeat: Repetition | None = None
    repeat_until: int | None = None
    """Time from which it does not begin again."""
    time_zone: str = "UTC"

    @property
    def ends_at(self) -> int:
        """Time from which nothing is silenced any more."""
        return max(each.end for each in self.list_occurrences())

    def find_active(self, now: int) -> Occurrence | None:
        """Return the time that holds now; None if there is none."""
        return next((each for each in self.list_occurrences() if each.start <= now < each.end), None)

    def find_next_start(self, now: int) -> int | None:
        """Return the time of the next beginning after now; None if there is none."""
        return next((each.start for each in self.list_occurrences() if each.start > now), None)

    def list_occurrences(self) -> Iterator[Occurrence]:
        """Yield all times, the earliest first; none overlaps the next one."""
        yield self.first
        if self.repeat is None or self.repeat_until is None:
            return
        zone, length = ZoneInfo(self.time_zone), self.first.end - self.first.start
        local = datetime.fromtimestamp(self.first.start / _SECOND_MS, zone)
        while True:
            local += _INTERVALS[self.repeat]  # by the clock of the time zone
            start = int(local.astimezone(UTC).timestamp() * _SECOND_MS)
            if start >= self.repeat_until:
                return
            # The last one ends with the whole.
            yield Occurrence(start, min(start + length, self.repeat_until))
