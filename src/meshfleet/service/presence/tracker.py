"""Who is there (rest-51, rest-77, rest-78).

A device is connected when it was heard within three of its usual intervals, through a gateway that is
connected itself. Those that may be silent are found by a wheel: each lies in the slot of the moment at which
it is to be looked at again, and what is heard meanwhile moves nothing. So a device costs one look in three
minutes, however often it reports.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from meshfleet.service.presence import store
from meshfleet.service.presence.activity import ActivityDetector
from meshfleet.service.presence.changes import PresenceCause, PresenceChange
from meshfleet.service.presence.last_seen import (
    DEFAULT_INTERVAL_MS,
    MISSED_HEARTBEATS,
    LastSeenIndex,
    TimerWheel,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection


# What presence has to write down, every other second.


class PendingPresence(NamedTuple):
    """What is to be written down."""

    changes: Sequence[PresenceChange]
    intervals: Mapping[int, int]
    """Of devices, in milliseconds."""
    dfu_addresses: Mapping[int, int]
    """Addresses that were heard and may be known, each with its gateway."""
    history_cutoff: int | None
    """What happened before this time nobody wants to know any more."""


class PresenceFlush:
    """News on their way to the database."""

    def __init__(self, tracker: PresenceTracker, pending: PendingPresence, now: int) -> None:
        self._tracker = tracker
        self._pending = pending
        self._now = now
        self._result = store.PresenceWriteResult()
        self._dfu_owners: Mapping[int, int] = {}

    @property
    def changes(self) -> Sequence[PresenceChange]:
        """Who came and went."""
        return self._pending.changes

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write changes of devices that are known, and remember which are not."""
        self._result = store.update_presence(
            connection, [*self._pending.changes, *self._changes_of_added(added)]
        )
        self._dfu_owners = store.find_dfu_owners(connection, self._pending.dfu_addresses)
        store.update_intervals(connection, list(self._pending.intervals.items()))
        if self._pending.history_cutoff is not None:
            store.delete_history(connection, self._pending.history_cutoff)

    def on_flushed(self) -> None:
        """Take over what only the database knew, and tell who wants to know."""
        for device in self._result.unknown_devices:
            self._tracker.remove(device)
        for address, device in self._dfu_owners.items():
            self._tracker.mark_heard(device, self._pending.dfu_addresses[address], self._now)
        self._tracker.change_counts.update(change.cause for change in self._result.written)
        self._notify()

    def _changes_of_added(self, added: Collection[int]) -> Iterator[PresenceChange]:
        """Devices that were forgotten, and are here again: nobody noticed them go."""
        changing = {change.device for change in self._pending.changes}
        for device in added:
            rhythm = self._tracker.find_connected(device)
            if rhythm is not None and device not in changing:
                yield PresenceChange.to_connected(device, self._now, PresenceCause.HEARD, rhythm.gateway)

    def _notify(self) -> None:
        audience = self._tracker.subscriber
        if audience is None:
            return
        together: dict[int, list[int]] = {}
        alone = []
        for each in self._result.written:
            if each.cause is PresenceCause.GATEWAY:
                together.setdefault(each.gateway, []).append(each.device)
            else:
                alone.append(each)
        audience.devices_changed([change.device for change in alone])
        for gateway in {each.device for each in alone if each.device == each.gateway} | together.keys():
            audience.gateway_changed(gateway, devices=together.get(gateway, ()))


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.presence.gateway_clocks import GatewayClocks
    from meshfleet.service.presence.last_seen import LastSeen
    from meshfleet.service.presence.store import PresenceSnapshot

    class PresenceSubscriber(Protocol):
        """Who is told of changes."""

        def devices_changed(self, devices: Collection[int]) -> None:
            """These came, or went, each by itself."""

        def gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
            """A gateway came or went, and these devices with it."""


_MAX_CHECK_INTERVAL_MS: Final = 180_000
"""Milliseconds after which a device is looked at again, however patient we are with it: its rhythm may be
another by then."""

_MAX_CHANGES: Final = 10_000
"""Devices that change in one look; all others wait, and not the event loop for them."""

_CHECKS_PER_INTERVAL_UPDATE: Final = 8
"""Looks at a device that is heard all the time, of which one is for its rhythm."""

_STALL_MS: Final = 30_000
"""Milliseconds between two looks after which we cannot have listened: the database was away, the machine
slept, or our own clock was set."""

_RECONNECT_GRACE_MS: Final = 60_000
"""Milliseconds that gateways have to come back after a start of ours: it was not they who were away."""


class PresenceTracker:
    """Follows what is heard, and finds out what is not."""

    def __init__(
        self, clocks: GatewayClocks, *, external_broker: bool, retention_ms: int | None = None, now: int
    ) -> None:
        """`by_hearing`: gateways are on another broker, and connected when they are heard.

        `retention` tells for how many milliseconds the history is kept.
        """
        self.clocks = clocks
        self._external_broker = external_broker
        self._retention_ms = retention_ms
        self._listening_since = now
        """Since when we listen without a pause: nobody is silent whom we could not hear."""
        self._checked_at = now
        self._last_seen = LastSeenIndex()
        self._timer_wheel = TimerWheel()
        self._activity = ActivityDetector(self._last_seen, clocks, external_broker=external_broker)
        self._gateways = self._activity.gateways
        self._connected_gateways: dict[int, int] = {}
        """Gateways that are connected, each with the number of its connection."""
        self._polled_gateways: dict[int, int] | None = None
        """Those that are connected by the last look, where a broker of ours knows."""
        self._learned_intervals: dict[int, int] = {}
        """Rhythms that are not written down yet."""
        self.subscriber: PresenceSubscriber | None = None
        self.change_counts: Counter[str] = Counter()
        """What was written so far, by cause."""

    # What it is told

    def restore(self, snapshot: PresenceSnapshot) -> None:
        """Go on with what was connected before a start. Its silence begins with us."""
        self._gateways |= snapshot.gateways
        same = {each: each for each in snapshot.gateways}  # one number for all devices behind it
        for device, gateway, usual in snapshot.devices:
            is_gateway = device in snapshot.gateways
            behind = same.get(gateway or 0, gateway or 0)
            rhythm = self._last_seen.add(device, device if is_gateway else behind, self._checked_at)
            rhythm.connected, rhythm.stored_interval = True, usual or DEFAULT_INTERVAL_MS
            if is_gateway:
                self._connected_gateways[device] = 0
            # Not all at once: in three minutes everybody is looked at, and somebody in every second.
            self._timer_wheel.schedule(device, rhythm, self._checked_at + device % _MAX_CHECK_INTERVAL_MS)

    def set_connected_gateways(self, gateways: dict[int, int]) -> None:
        """Which gateways have a connection now, each with its number."""
        self._polled_gateways = gateways

    @property
    def connected_gateway_count(self) -> int:
        """How many gateways are there."""
        return len(self._connected_gateways)

    def pause_detection(self, now: int) -> None:
        """We cannot hear anybody at this moment, and gateways that lose us cannot come back."""
        self._listening_since = now
        self._connected_gateways = dict.fromkeys(self._connected_gateways, 0)

    def on_commit(self, batch: ParsedBatch) -> None:
        """A draft is committed."""
        self._activity.on_commit(batch)

    def prepare_flush(self, states: PendingStates, now: int) -> PresenceFlush:  # noqa: ARG002 # they change nobody's presence
        """All changes since the last time."""
        if not 0 <= now - self._checked_at < _STALL_MS:
            self.pause_detection(now)
        if now < self._checked_at:
            self._rewind_clock(now)
        self._checked_at = now
        changes = []
        for change in chain(self._gateway_changes(now), self._reconnections(now), self._timeouts(now)):
            self.apply_change(change, now)  # before the next is looked for, so nobody changes twice
            changes.append(change)
        outdated = None if self._retention_ms is None else now - self._retention_ms
        news = PendingPresence(changes, self._learned_intervals, self._activity.dfu_addresses, outdated)
        self._learned_intervals, self._activity.dfu_addresses = {}, {}
        return PresenceFlush(self, news, now)

    def mark_heard(self, device: int, gateway: int, now: int) -> None:
        """A device is heard, by what the database knows."""
        self._activity.mark_heard(device, gateway, now)

    # What is written

    def apply_change(self, change: PresenceChange, now: int) -> None:
        """A device is connected from now on, or no longer."""
        rhythm = self._last_seen.devices.get(change.device) or self._last_seen.add(
            change.device, change.gateway, now
        )
        rhythm.connected = change.connected
        if change.connected:
            silent_at = max(rhythm.heard_at, self._listening_since) + rhythm.silence_timeout
            self._schedule_check(change.device, rhythm, max(silent_at, now), now)

    def remove(self, device: int) -> None:
        """Nobody knows it any more. If it is heard again, it is new."""
        self._connected_gateways.pop(device, None)
        self._last_seen.remove(device)

    def find_connected(self, device: int) -> LastSeen | None:
        """A device that is connected, as far as we know."""
        rhythm = self._last_seen.devices.get(device)
        return rhythm if rhythm is not None and rhythm.connected else None

    # Gateways

    def _gateway_changes(self, now: int) -> Iterator[PresenceChange]:
        if self._polled_gateways is None:
            return
        arrived, self._polled_gateways = self._polled_gateways, None
        self._gateways.update(
            arrived
        )  # before anybody goes: these do not go with the gateway that hears them
        grace = now - self._listening_since < _RECONNECT_GRACE_MS
        gone = [
            each
            for each, number in self._connected_gateways.items()
            if each not in arrived and (number or not grace)
        ]
        for gateway in self._limit_gateways(gone):
            del self._connected_gateways[gateway]
            yield from self._disconnect_gateway(gateway, now, PresenceCause.CONNECTION)
        for gateway in self._limit_gateways(
            [each for each in arrived if each not in self._connected_gateways]
        ):
            self._connected_gateways[gateway] = arrived[gateway]
            yield from self._connect_gateway(gateway, now, PresenceCause.CONNECTION)
        self._connected_gateways.update(
            (each, number) for each, number in arrived.items() if each in self._connected_gateways
        )

    def _limit_gateways(self, gateways: list[int]) -> Iterator[int]:
        """Gateways with as many devices as can change at once; the next look finds the others."""
        count = 0
        for gateway in gateways:
            count += len(self._last_seen.devices_behind(gateway))
            yield gateway
            if count > _MAX_CHANGES:
                return

    def _connect_gateway(self, gateway: int, now: int, cause: PresenceCause) -> Iterator[PresenceChange]:
        """A gateway is there, and with it all devices behind it that are not silent themselves."""
        yield PresenceChange.to_connected(gateway, now, cause, gateway)
        for device in self._last_seen.devices_behind(gateway):
            rhythm = self._last_seen.devices[device]
            if (
                device not in self._gateways
                and not rhythm.connected
                and now - rhythm.heard_at < rhythm.silence_timeout
            ):
                yield PresenceChange.to_connected(device, now, PresenceCause.GATEWAY, gateway)

    def _disconnect_gateway(self, gateway: int, now: int, cause: PresenceCause) -> Iterator[PresenceChange]:
        """A gateway is gone, and with it all devices that nobody else hears."""
        yield PresenceChange.to_disconnected(gateway, now, cause, gateway)
        for device in self._last_seen.devices_behind(gateway):
            rhythm = self._last_seen.devices[device]
            if not rhythm.connected or device in self._gateways:
                continue
            rhythm.heard_at = max(rhythm.heard_at, self._listening_since)  # before that we could not hear it
            if not self._last_seen.switch_gateway(device, self._connected_gateways, now):
                yield PresenceChange.to_disconnected(device, now, PresenceCause.GATEWAY, gateway)

    # Devices

    def _reconnections(self, now: int) -> Iterator[PresenceChange]:
        heard = self._activity.returned_devices
        back = [*(heard & self._gateways), *islice(heard - self._gateways, _MAX_CHANGES)]
        heard.difference_update(back)
        for device in back:
            rhythm = self._last_seen.devices.get(device)
            if device in self._gateways:
                if self._external_broker and device not in self._connected_gateways:
                    self._connected_gateways[device] = 1
                    yield from self._connect_gateway(device, now, PresenceCause.HEARD)
            elif rhythm is not None and not rhythm.connected and rhythm.gateway in self._connected_gateways:
                yield PresenceChange.to_connected(
                    device, now, PresenceCause.HEARD, rhythm.gateway
                )  # else it comes with its gateway

    def _timeouts(self, now: int) -> Iterator[PresenceChange]:
        count = 0
        for device, rhythm in self._timer_wheel.pop_due(self._last_seen.devices, now):
            if (
                now - rhythm.heard_at < _MAX_CHECK_INTERVAL_MS
                and rhythm.stored_interval != DEFAULT_INTERVAL_MS
                and (rhythm.due_slot + device) % _CHECKS_PER_INTERVAL_UPDATE
            ):
                self._timer_wheel.schedule(
                    device, rhythm, rhythm.heard_at + _MAX_CHECK_INTERVAL_MS
                )  # nobody is silent so soon
                continue
            interval = rhythm.interval
            silent_at = max(rhythm.heard_at, self._listening_since) + MISSED_HEARTBEATS * interval
            if now < silent_at:
                self._learn_interval(device, rhythm, interval)
                self._schedule_check(device, rhythm, silent_at, now)
            elif device in self._gateways:
                yield from self._time_out_gateway(device, now)
            elif self._is_gateway_late(rhythm.gateway, now):
                self._schedule_check(device, rhythm, now, now)  # it may not be the device that is silent
            else:
                yield PresenceChange.to_disconnected(device, now, PresenceCause.SILENT, rhythm.gateway)
                count += 1
            if count >= _MAX_CHANGES:
                return

    def _time_out_gateway(self, gateway: int, now: int) -> Iterator[PresenceChange]:
        """A gateway is not heard any more, which matters only where nobody knows its connection."""
        if self._external_broker:
            self._connected_gateways.pop(gateway, None)
            self.clocks.reset_confirmation(gateway)
            yield from self._disconnect_gateway(gateway, now, PresenceCause.SILENT)

    def _is_gateway_late(self, gateway: int, now: int) -> bool:
        """Whether a gateway should have been heard for a while: then it may go soon, with its devices."""
        rhythm = self._last_seen.devices.get(gateway)
        if not self._external_broker or rhythm is None or gateway not in self._connected_gateways:
            return False
        return 2 * (now - max(rhythm.heard_at, self._listening_since)) > 3 * rhythm.interval

    def _learn_interval(self, device: int, rhythm: LastSeen, interval: int) -> None:
        """Let its rhythm be remembered, if it is another than before."""
        if abs(interval - rhythm.stored_interval) > rhythm.stored_interval // 10:
            rhythm.stored_interval = interval
            self._learned_intervals[device] = interval

    def _schedule_check(self, device: int, rhythm: LastSeen, silent_at: int, now: int) -> None:
        """Look at a device again when it may be silent, and before that now and then."""
        self._timer_wheel.schedule(device, rhythm, min(silent_at, now + _MAX_CHECK_INTERVAL_MS))

    def _rewind_clock(self, now: int) -> None:
        """Our clock was set back: nobody was heard later than now, and all are looked at again."""
        self._timer_wheel.clear()
        for device, rhythm in self._last_seen.devices.items():
            rhythm.heard_at, rhythm.previous_heard_at = (
                min(rhythm.heard_at, now),
                min(rhythm.previous_heard_at, now),
            )
            if rhythm.connected:
                self._schedule_check(device, rhythm, now + _MAX_CHECK_INTERVAL_MS, now)
