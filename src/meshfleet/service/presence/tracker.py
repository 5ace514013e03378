"""Tracks the connection state of gateways and devices (rest-51, rest-77, rest-78).

A device is connected if a report was received within three of its usual heartbeat intervals, through a
connected gateway. Silent devices are found with a timer wheel: each device is in the slot of its next check,
and reports do not move the device. So a device costs one check in three minutes, however often it reports.
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


# Changes that wait for the next flush to the database, some seconds later.


class PendingPresence(NamedTuple):
    """Presence changes waiting for the next flush to the database."""

    changes: Sequence[PresenceChange]
    intervals: Mapping[int, int]
    """Usual milliseconds between heartbeats to store, by device."""
    dfu_addresses: Mapping[int, int]
    """Addresses received in DFU mode, each with its gateway; the flush looks up their devices."""
    history_cutoff: int | None
    """Unix time in milliseconds before which connection history is deleted; None deletes nothing."""


class PresenceFlush:
    """Stores presence changes as part of an ingest flush, and notifies the subscriber after the commit."""

    def __init__(self, tracker: PresenceTracker, pending: PendingPresence, now: int) -> None:
        self._tracker = tracker
        self._pending = pending
        self._now = now
        self._result = store.PresenceWriteResult()
        self._dfu_owners: Mapping[int, int] = {}

    @property
    def changes(self) -> Sequence[PresenceChange]:
        """Presence changes to store."""
        return self._pending.changes

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Store the presence changes, and find the devices of addresses received in DFU mode."""
        self._result = store.update_presence(
            connection, [*self._pending.changes, *self._connect_added_devices(added)]
        )
        self._dfu_owners = store.find_dfu_owners(connection, self._pending.dfu_addresses)
        store.update_heartbeat_intervals(connection, list(self._pending.intervals.items()))
        if self._pending.history_cutoff is not None:
            store.delete_connection_history(connection, self._pending.history_cutoff)

    def on_flushed(self) -> None:
        """Update the tracker and notify its subscriber, after the changes were committed.

        Discard the presence of devices that are not in the database. Mark the devices as active that were
        received in DFU mode.
        """
        for device in self._result.unknown_devices:
            self._tracker.remove_device(device)
        for address, device in self._dfu_owners.items():
            self._tracker.mark_heard(device, self._pending.dfu_addresses[address], self._now)
        self._tracker.change_counts.update(change.cause for change in self._result.written)
        self._notify_subscriber()

    def _connect_added_devices(self, added: Collection[int]) -> Iterator[PresenceChange]:
        """Yield a change to connected for each added device that is connected in memory only.

        Such a device was deleted from the database while connected, and has reported again.
        """
        changed_devices = {change.device for change in self._pending.changes}
        for device in added:
            last_seen = self._tracker.find_connected(device)
            if last_seen is not None and device not in changed_devices:
                yield PresenceChange.to_connected(device, self._now, PresenceCause.HEARD, last_seen.gateway)

    def _notify_subscriber(self) -> None:
        """Pass the stored changes to the subscriber: single devices, and gateways with their devices."""
        subscriber = self._tracker.subscriber
        if subscriber is None:
            return
        devices_by_gateway: dict[int, list[int]] = {}
        single_changes = []
        for each in self._result.written:
            if each.cause is PresenceCause.GATEWAY:
                devices_by_gateway.setdefault(each.gateway, []).append(each.device)
            else:
                single_changes.append(each)
        subscriber.on_devices_changed([change.device for change in single_changes])
        for gateway in {
            each.device for each in single_changes if each.device == each.gateway
        } | devices_by_gateway.keys():
            subscriber.on_gateway_changed(gateway, devices=devices_by_gateway.get(gateway, ()))


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.presence.gateway_clocks import GatewayClocks
    from meshfleet.service.presence.last_seen import LastSeen
    from meshfleet.service.presence.store import PresenceSnapshot

    class PresenceSubscriber(Protocol):
        """Receiver of presence changes after they were stored."""

        def on_devices_changed(self, devices: Collection[int]) -> None:
            """Handle devices that connected or disconnected independently of their gateways."""

        def on_gateway_changed(self, gateway: int, *, devices: Collection[int]) -> None:
            """Handle a gateway that connected or disconnected, and the devices that changed with it."""


_MAX_CHECK_INTERVAL_MS: Final = 180_000
"""Maximum milliseconds between two silence checks of a device, as its usual interval may change."""

_MAX_CHANGES: Final = 10_000
"""Approximate maximum number of presence changes in one flush, so that the event loop is not blocked."""

_CHECKS_PER_INTERVAL_UPDATE: Final = 8
"""One of this many silence checks of an active device updates its stored heartbeat interval."""

_STALL_MS: Final = 30_000
"""If two flushes are at least this many milliseconds apart, reports may have been missed.

Possible reasons: the database was unavailable, the machine slept, or the local clock was set.
"""

_RECONNECT_GRACE_MS: Final = 60_000
"""Milliseconds that gateways have to reconnect after the service was unreachable."""


class PresenceTracker:
    """Derives the connection state of devices and gateways from their reports and MQTT connections."""

    def __init__(
        self,
        clocks: GatewayClocks,
        *,
        external_broker: bool,
        retention_ms: int | None = None,
        subscriber: PresenceSubscriber | None = None,
        now: int,
    ) -> None:
        """Create a tracker. `subscriber` is notified about presence changes after their commit.

        With `external_broker`, gateways connect to another MQTT broker, and a gateway counts as connected
        while its reports arrive. History is kept for `retention_ms` milliseconds; None keeps it forever.
        """
        self.clocks = clocks
        self._external_broker = external_broker
        self.retention_ms = retention_ms
        self._listening_since = now
        """Local time since when reports are received without interruption; silence is counted from then."""
        self._checked_at = now
        self._last_seen = LastSeenIndex()
        self._timer_wheel = TimerWheel()
        self._activity = ActivityDetector(self._last_seen, clocks, external_broker=external_broker)
        self._gateways = self._activity.gateways
        self._connected_gateways: dict[int, int] = {}
        """Connected gateways, each with its connection number, which differs for every connection.

        The number is 0 if the gateway was connected before reports were interrupted, and in no poll since.
        With an external broker, the number is 1.
        """
        self._polled_gateways: dict[int, int] | None = None
        """Connected gateways in the last poll of the embedded broker; None if a flush has processed them."""
        self._learned_intervals: dict[int, int] = {}
        """Usual heartbeat intervals in milliseconds that the next flush stores, by device."""
        self.subscriber = subscriber
        self.change_counts: Counter[str] = Counter()
        """Number of stored presence changes by cause."""

    # Input

    def restore(self, snapshot: PresenceSnapshot) -> None:
        """Restore the presence that the previous process stored. Silence of devices counts from now."""
        self._gateways |= snapshot.gateways
        # One int object for all devices behind a gateway, to save memory.
        shared_numbers = {each: each for each in snapshot.gateways}
        for device, gateway, interval in snapshot.devices:
            is_gateway = device in snapshot.gateways
            device_gateway = shared_numbers.get(gateway or 0, gateway or 0)
            last_seen = self._last_seen.add(
                device, device if is_gateway else device_gateway, self._checked_at
            )
            last_seen.connected, last_seen.stored_interval = True, interval or DEFAULT_INTERVAL_MS
            if is_gateway:
                self._connected_gateways[device] = 0
            # Spread the checks over three minutes.
            self._timer_wheel.schedule(device, last_seen, self._checked_at + device % _MAX_CHECK_INTERVAL_MS)

    def set_connected_gateways(self, gateways: dict[int, int]) -> None:
        """Set the gateways that are connected now, each with its connection number."""
        self._polled_gateways = gateways

    @property
    def connected_gateway_count(self) -> int:
        """Number of connected gateways."""
        return len(self._connected_gateways)

    def pause_detection(self, now: int) -> None:
        """Restart the silence timeouts of all devices and the time that gateways have to reconnect.

        Call this while the service cannot receive reports.
        """
        self._listening_since = now
        self._connected_gateways = dict.fromkeys(self._connected_gateways, 0)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Mark the devices that report in a committed batch as active."""
        self._activity.on_commit(batch)

    def prepare_flush(self, states: PendingStates, now: int) -> PresenceFlush:  # noqa: ARG002 # states do not affect presence
        """Compute and apply presence changes since the last flush. Return the flush part that stores them."""
        if not 0 <= now - self._checked_at < _STALL_MS:
            self.pause_detection(now)
        if now < self._checked_at:
            self._handle_clock_set_back(now)
        self._checked_at = now
        changes = []
        for change in chain(
            self._process_polled_gateways(now),
            self._process_returned_devices(now),
            self._process_due_checks(now),
        ):
            self.apply_change(change, now)  # before the next is computed, so that no device changes twice
            changes.append(change)
        history_cutoff = None if self.retention_ms is None else now - self.retention_ms
        pending = PendingPresence(
            changes, self._learned_intervals, self._activity.dfu_addresses, history_cutoff
        )
        self._learned_intervals, self._activity.dfu_addresses = {}, {}
        return PresenceFlush(self, pending, now)

    def mark_heard(self, device: int, gateway: int, now: int) -> None:
        """Record that a device was received in DFU mode, after the database lookup of its DFU address."""
        self._activity.mark_heard(device, gateway, now)

    # State

    def apply_change(self, change: PresenceChange, now: int) -> None:
        """Apply a presence change in memory, and schedule the next silence check of a connected device."""
        last_seen = self._last_seen.devices.get(change.device) or self._last_seen.add(
            change.device, change.gateway, now
        )
        last_seen.connected = change.connected
        if change.connected:
            silent_at = max(last_seen.heard_at, self._listening_since) + last_seen.silence_timeout
            self._schedule_check(change.device, last_seen, max(silent_at, now), now)

    def remove_device(self, device: int) -> None:
        """Discard the presence of a device that is not in the database.

        If the device reports again, it counts as new.
        """
        self._connected_gateways.pop(device, None)
        self._last_seen.remove(device)

    def find_connected(self, device: int) -> LastSeen | None:
        """Return the presence data of a device if the device is connected, else None."""
        last_seen = self._last_seen.devices.get(device)
        return last_seen if last_seen is not None and last_seen.connected else None

    # Gateways

    def _process_polled_gateways(self, now: int) -> Iterator[PresenceChange]:
        """Yield the presence changes by gateways that connected or disconnected since the last poll."""
        if self._polled_gateways is None:
            return
        polled, self._polled_gateways = self._polled_gateways, None
        # First, so that these gateways do not disconnect together with a gateway that receives their radio.
        self._gateways.update(polled)
        is_grace_period = now - self._listening_since < _RECONNECT_GRACE_MS
        disconnected = [
            each
            for each, number in self._connected_gateways.items()
            if each not in polled and (number or not is_grace_period)
        ]
        for gateway in self._limit_gateways(disconnected):
            del self._connected_gateways[gateway]
            yield from self._disconnect_gateway(gateway, now, PresenceCause.CONNECTION)
        for gateway in self._limit_gateways(
            [each for each in polled if each not in self._connected_gateways]
        ):
            self._connected_gateways[gateway] = polled[gateway]
            yield from self._connect_gateway(gateway, now, PresenceCause.CONNECTION)
        self._connected_gateways.update(
            (each, number) for each, number in polled.items() if each in self._connected_gateways
        )

    def _limit_gateways(self, gateways: list[int]) -> Iterator[int]:
        """Yield gateways until their devices exceed `_MAX_CHANGES`. The next poll yields the others."""
        count = 0
        for gateway in gateways:
            count += len(self._last_seen.list_devices_behind(gateway))
            yield gateway
            if count > _MAX_CHANGES:
                return

    def _connect_gateway(self, gateway: int, now: int, cause: PresenceCause) -> Iterator[PresenceChange]:
        """Yield the changes to connected of a gateway, and of its devices that are not silent."""
        yield PresenceChange.to_connected(gateway, now, cause, gateway)
        for device in self._last_seen.list_devices_behind(gateway):
            last_seen = self._last_seen.devices[device]
            if (
                device not in self._gateways
                and not last_seen.connected
                and now - last_seen.heard_at < last_seen.silence_timeout
            ):
                yield PresenceChange.to_connected(device, now, PresenceCause.GATEWAY, gateway)

    def _disconnect_gateway(self, gateway: int, now: int, cause: PresenceCause) -> Iterator[PresenceChange]:
        """Yield the changes to disconnected of a gateway, and of its devices without another gateway."""
        yield PresenceChange.to_disconnected(gateway, now, cause, gateway)
        for device in self._last_seen.list_devices_behind(gateway):
            last_seen = self._last_seen.devices[device]
            if not last_seen.connected or device in self._gateways:
                continue
            # Reports could not be received before that time.
            last_seen.heard_at = max(last_seen.heard_at, self._listening_since)
            if not self._last_seen.switch_gateway(device, self._connected_gateways, now):
                yield PresenceChange.to_disconnected(device, now, PresenceCause.GATEWAY, gateway)

    # Devices

    def _process_returned_devices(self, now: int) -> Iterator[PresenceChange]:
        """Yield the presence changes of disconnected devices and gateways that reported again."""
        returned = self._activity.returned_devices
        devices = [*(returned & self._gateways), *islice(returned - self._gateways, _MAX_CHANGES)]
        returned.difference_update(devices)
        for device in devices:
            last_seen = self._last_seen.devices.get(device)
            if device in self._gateways:
                if self._external_broker and device not in self._connected_gateways:
                    self._connected_gateways[device] = 1
                    yield from self._connect_gateway(device, now, PresenceCause.HEARD)
            elif (
                last_seen is not None
                and not last_seen.connected
                and last_seen.gateway in self._connected_gateways
            ):
                # Otherwise the device connects together with its gateway.
                yield PresenceChange.to_connected(device, now, PresenceCause.HEARD, last_seen.gateway)

    def _process_due_checks(self, now: int) -> Iterator[PresenceChange]:
        """Yield the presence changes of devices whose due check shows that they are silent.

        Schedule the next check of each other device.
        """
        count = 0
        for device, last_seen in self._timer_wheel.pop_due(self._last_seen.devices, now):
            if (
                now - last_seen.heard_at < _MAX_CHECK_INTERVAL_MS
                and last_seen.stored_interval != DEFAULT_INTERVAL_MS
                and (last_seen.due_slot + device) % _CHECKS_PER_INTERVAL_UPDATE
            ):
                # A report was received recently, so the device cannot be silent yet.
                self._timer_wheel.schedule(device, last_seen, last_seen.heard_at + _MAX_CHECK_INTERVAL_MS)
                continue
            interval = last_seen.interval
            silent_at = max(last_seen.heard_at, self._listening_since) + MISSED_HEARTBEATS * interval
            if now < silent_at:
                self._learn_interval(device, last_seen, interval)
                self._schedule_check(device, last_seen, silent_at, now)
            elif device in self._gateways:
                yield from self._time_out_gateway(device, now)
            elif self._is_gateway_late(last_seen.gateway, now):
                # Perhaps the gateway is silent, not the device.
                self._schedule_check(device, last_seen, now, now)
            else:
                yield PresenceChange.to_disconnected(device, now, PresenceCause.SILENT, last_seen.gateway)
                count += 1
            if count >= _MAX_CHANGES:
                return

    def _time_out_gateway(self, gateway: int, now: int) -> Iterator[PresenceChange]:
        """Disconnect a silent gateway, but only with an external broker, where connections are unknown."""
        if self._external_broker:
            self._connected_gateways.pop(gateway, None)
            self.clocks.reset_confirmation(gateway)
            yield from self._disconnect_gateway(gateway, now, PresenceCause.SILENT)

    def _is_gateway_late(self, gateway: int, now: int) -> bool:
        """Return whether the reports of a gateway are overdue, so that the gateway itself may be silent."""
        last_seen = self._last_seen.devices.get(gateway)
        if not self._external_broker or last_seen is None or gateway not in self._connected_gateways:
            return False
        return 2 * (now - max(last_seen.heard_at, self._listening_since)) > 3 * last_seen.interval

    def _learn_interval(self, device: int, last_seen: LastSeen, interval: int) -> None:
        """Let the next flush store a usual heartbeat interval (ms) that has changed by more than 10 %."""
        if abs(interval - last_seen.stored_interval) > last_seen.stored_interval // 10:
            last_seen.stored_interval = interval
            self._learned_intervals[device] = interval

    def _schedule_check(self, device: int, last_seen: LastSeen, silent_at: int, now: int) -> None:
        """Schedule the next silence check of a device at `silent_at`, but at most three minutes from now."""
        self._timer_wheel.schedule(device, last_seen, min(silent_at, now + _MAX_CHECK_INTERVAL_MS))

    def _handle_clock_set_back(self, now: int) -> None:
        """Limit all stored times to now, and reschedule all silence checks, after the clock was set back."""
        self._timer_wheel.clear()
        for device, last_seen in self._last_seen.devices.items():
            last_seen.heard_at = min(last_seen.heard_at, now)
            last_seen.previous_heard_at = min(last_seen.previous_heard_at, now)
            if last_seen.connected:
                self._schedule_check(device, last_seen, now + _MAX_CHECK_INTERVAL_MS, now)
