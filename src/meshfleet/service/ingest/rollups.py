"""Roll-ups of heartbeats and radio readings by minute (report-51).

A minute is closed some seconds after its end, or some seconds after its last reading if that came late. Its
readings become one sample then. Readings that arrive later are not counted, so that none counts twice. Until
the sample of a minute is committed, `Rollups.list_unwritten_minutes` returns the minute's roll-up so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db.samples import SampleKind, SampleRow, StoredSample
from meshfleet.service.ingest.minute_rollup import (
    KEY_DEVICE,
    KEY_IDENTIFIER,
    KEY_KIND,
    MARK_BITS,
    MINUTE_MS,
    MinuteKey,
    MinuteRollup,
    build_sample_row,
)
from meshfleet.service.ingest.readings import CHANNEL_MASK, Reading, ReadingKind
from meshfleet.service.ingest.recent_links import RecentLinks, build_link_state, keep_newest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from meshfleet.service.ingest.recent_links import Links

_GRACE_MS: Final = 5_000
"""Milliseconds to wait for late readings before a minute is closed."""

MAX_CLOSED_PER_FLUSH: Final = 50_000
"""Maximum number of minute roll-ups closed in one transaction."""

_MAX_CHAIN_LENGTH: Final = 64
"""Maximum number of open minute roll-ups of one device that `list_unwritten_minutes` returns.

A device has a dozen parents at most, with two open minutes each. The limit protects against gateways that
report invented parents.
"""

_ROLLED_KINDS: Final[dict[int, int]] = {
    int(ReadingKind.HEARTBEAT): int(SampleKind.HEARTBEAT),
    int(ReadingKind.LINK): int(SampleKind.LINK),
}
"""Sample kind of the minutes by kind of the readings; plain numbers are encoded faster than enum members."""


class Rollups:
    """Minute roll-ups of all devices, open or closed, whose samples are not committed yet."""

    def __init__(self, *, max_per_flush: int = MAX_CLOSED_PER_FLUSH) -> None:
        """Create without roll-ups. `close_ended_minutes` closes at most `max_per_flush` minutes per call."""
        self._max_per_flush = max_per_flush
        self._open: dict[int, dict[MinuteKey, MinuteRollup]] = {}
        """Open minutes by their start, in the order in which they were opened."""
        self._opened_at = 0
        """Unix time in milliseconds at which the newest minute was opened."""
        self._chains: dict[int, MinuteRollup] = {}
        """Most recently opened minute by device: the first in the linked list of the device's minutes."""
        self.recent = RecentLinks()
        """Newest minute of each link of the last hour."""
        self.linked_parents: Mapping[int, int] = {}
        """Known parent by device over an established link; the owner of the topology keeps it up to date."""
        self.suspects: set[int] = set()
        """Devices that may have another parent than the known one.

        They have a new minute of an established link to another parent, or a closed minute of advertisements
        and no established link.
        """

    def add(self, journal_id: int, readings: Sequence[Reading], now: int) -> None:
        """Add the heartbeats and radio readings of one journal entry to the roll-ups of their minutes."""
        group_start, group = None, {}
        for kind, device, gateway, time, value, identifier, flags in readings:
            if (rolled_kind := _ROLLED_KINDS.get(kind)) is None:
                continue
            start = time - time % MINUTE_MS
            if start != group_start:
                group_start, group = start, self._open.setdefault(start, {})
            key = (device, rolled_kind, identifier, start)
            minute = group.get(key)
            if minute is None:
                minute = group[key] = MinuteRollup(journal_id, now, now, gateway, key)
                self._start_following(minute, device, flags)
            if minute.add(time, value, flags):
                minute.updated_at = now
                if time == minute.last_mark >> MARK_BITS:  # the newest reading
                    minute.gateway = gateway

    def _start_following(self, minute: MinuteRollup, device: int, flags: int) -> None:
        """Record a minute that was opened. `flags` are those of its first reading."""
        self._opened_at = minute.opened_at
        head = self._chains.get(device)
        if head is None:
            self._chains[device] = minute
        elif head.chain_length < _MAX_CHAIN_LENGTH:
            minute.previous, minute.chain_length = head, head.chain_length + 1
            self._chains[device] = minute
        if head is None or head.gateway != minute.gateway:
            self.recent.add_device(minute.gateway, device)
        parent = minute.key[KEY_IDENTIFIER]
        if parent and not flags & CHANNEL_MASK and self.linked_parents.get(device) != parent:
            self.suspects.add(device)

    def list_unwritten_minutes(self, device: int, kinds: Collection[int]) -> list[StoredSample]:
        """Return the minutes of a device that are not committed yet as samples, the oldest first.

        An open minute is returned as if it were closed now. Call this before reading the sample store: then a
        minute that is committed in between is read twice instead of missed.
        """
        samples = [
            StoredSample(*build_sample_row(minute))
            for minute in _list_chain(self._chains.get(device))
            if minute.key[KEY_KIND] in kinds
        ]
        return sorted(samples, key=lambda sample: sample.identity)

    def get_links(self, device: int) -> Links:
        """Return the links of a device in the last hour by parent, with the minutes under way."""
        links = self.recent.get_links(device)
        for minute in _list_chain(self._chains.get(device)):
            keep_newest(links, minute.key[KEY_IDENTIFIER], build_link_state(minute))
        return links

    def close_ended_minutes(self, now: int) -> dict[int, list[SampleRow]]:
        """Close the minutes that have ended, at most `max_per_flush`. Return their samples by device.

        `list_unwritten_minutes` still returns these minutes until `drop_closed_minutes` is called.
        """
        rows: dict[int, list[SampleRow]] = {}
        self.recent.forget_old(now)
        for minute in self._take_ended_minutes(now):
            minute.chain_length = 0
            minute.marks = None
            device = minute.key[KEY_DEVICE]
            if minute.heard and device not in self.linked_parents:
                self.suspects.add(device)  # now that all parents of the minute can be compared
            self.recent.add(minute)
            rows.setdefault(device, []).append(build_sample_row(minute))
        return rows

    def _take_ended_minutes(self, now: int) -> list[MinuteRollup]:
        """Remove the minutes that have ended from the open ones, at most `max_per_flush`, and return them."""
        # Minutes opened in the future are closed too: the clock of this machine was set back.
        is_set_back = self._opened_at > now
        ended: list[MinuteRollup] = []
        for start in list(self._open):
            # Most groups are those of the minute under way: looking at each minute of them would cost more at
            # every flush than all the readings.
            if not is_set_back and start + MINUTE_MS + _GRACE_MS > now:
                continue
            group = self._open[start]
            keys = [key for key, minute in group.items() if _has_ended(minute, start, now)]
            ended += [group.pop(key) for key in keys[: self._max_per_flush - len(ended)]]
            if not group:
                del self._open[start]
        if is_set_back and len(ended) < self._max_per_flush:
            self._opened_at = now
        return ended

    def drop_closed_minutes(self, devices: Iterable[int]) -> None:
        """Delete the closed minutes of devices from memory, after their samples were committed."""
        chains = self._chains
        for device in devices:
            first, last, count = None, None, 0
            minute = chains.pop(device, None)
            while minute is not None:
                if minute.chain_length:
                    if last is None:
                        first = minute
                    else:
                        last.previous = minute
                    last, count = minute, count + 1
                    minute = minute.previous
                else:  # closed minutes may live on as recent links, and must not keep older ones alive
                    minute.previous, minute = None, minute.previous
            if first is not None and last is not None:
                last.previous, first.chain_length = None, count
                chains[device] = first

    def find_oldest_journal_id(self, default: int) -> int:
        """Return the id of the oldest journal entry with readings of open minutes, or else `default`."""
        # Ids grow, so the minute of each group that was opened first has the group's oldest one.
        first_opened = (next(iter(group.values())) for group in self._open.values() if group)
        return min((minute.oldest_journal_id for minute in first_opened), default=default)


def _list_chain(minute: MinuteRollup | None) -> list[MinuteRollup]:
    """Return a minute of a device and all its minutes that were opened before, the newest first."""
    minutes = []
    while minute is not None:
        minutes.append(minute)
        minute = minute.previous
    return minutes


def _has_ended(minute: MinuteRollup, start: int, now: int) -> bool:
    """Return whether a minute must be closed, because it has ended and no late readings are expected.

    Late readings delay closing by about a minute at most, because the journal must keep the readings of open
    minutes. A minute that was opened in the future is closed too: the clock of this machine was set back.
    """
    if minute.opened_at > now:
        return True
    is_quiet = minute.updated_at + _GRACE_MS <= now or minute.opened_at + MINUTE_MS + 2 * _GRACE_MS <= now
    return start + MINUTE_MS + _GRACE_MS <= now and is_quiet
