"""Simulates what devices do without a request: periodic reports, motion, button presses and restarts.

Every device has a heartbeat cycle of one minute; the cycles of the devices of one gateway are spread evenly
over that minute (gateway-23). In every twentieth cycle a device also reports its properties (gateway-24).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.context import CloseConnection, OpenConnection
from meshfleet.emulator.simulation import properties, radio
from meshfleet.emulator.simulation.device import HEARTBEAT_COPIES, ResetCause
from meshfleet.emulator.simulation.noise import noise_bits, uniform_noise
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.sample_buffer import DeviceSample
from meshfleet.emulator.simulation.sensors import find_sensor_failure, read_sensor
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.simulation.clock import ScheduledCallback
    from meshfleet.emulator.simulation.device import SimulatedDevice

HEARTBEAT_INTERVAL: Final = 60.0
"""Simulated seconds between two heartbeats of a device."""

_MAX_SLOTS: Final = 20
"""Maximum number of time slots per heartbeat interval of a gateway; more devices share slots."""

HEARTBEATS_BETWEEN_PROPERTIES: Final = 20
"""Number of heartbeats from one report of a device's properties to the next."""
REBOOT_SECONDS: Final = 8.0
"""Simulated seconds that a device needs to restart."""

HOP_SECONDS: Final = 0.025
"""Simulated seconds of latency per mesh hop of a report on its way to the gateway."""

_PARENT_CHECK_INTERVAL: Final = 5
"""Heartbeats between two checks for a better parent; a device without a parent checks at every heartbeat."""

_REPORTED_RECEIVERS: Final = 4
"""Maximum number of nodes that report the RSSI of one device, besides its parent and children.

A site may set another number.
"""

_ALARM_PROBABILITY: Final = 1 / 360
"""Probability per heartbeat that a device with a button raises an alarm."""
_MESSAGE_READ_PROBABILITY: Final = 1 / 5
"""Probability per heartbeat that an unread text message on a device is read."""
_WATCHDOG_PROBABILITY: Final = 1 / 50_000
"""Probability per heartbeat that the watchdog resets a device."""

_PROPERTY_PAUSE: Final = 0.2
"""Simulated seconds between two property reports after command 8302."""

_ALARM = Identifier("9800")
_MESSAGE = Identifier("9821")
_MOTION = Identifier("8810")
_MODE = Identifier("8110")
_STORAGE_EVENT = Identifier("8112")
_WATCHDOG_EVENT = Identifier("8113")


class DeviceBehavior:
    """Simulates the behavior of the devices of one gateway, including the gateway as a device."""

    def __init__(self, context: EmulatorContext) -> None:
        self._context = context
        self._devices = list(context.devices.values())
        self._devices_per_slot = -(-len(self._devices) // _MAX_SLOTS)
        self._slot_count = -(-len(self._devices) // self._devices_per_slot)
        self._slot = 0
        self._reported_receivers = context.site.receivers or _REPORTED_RECEIVERS
        self.on_restart: Callable[[SimulatedDevice], None] = lambda _: None
        """Called with every device that is about to restart."""
        self._phase = uniform_noise(context.noise_key, 7) * HEARTBEAT_INTERVAL / self._slot_count
        self._schedule_slot()
        for device in self._devices:
            if device.product.motion_code:
                self._schedule_motion(device)

    # Heartbeat cycle

    def _schedule_slot(self) -> None:
        """Schedule the next time slot of the heartbeat interval. Each slot has its own devices."""
        self._context.scheduler.at(
            self._phase + self._slot * HEARTBEAT_INTERVAL / self._slot_count, self._run_slot
        )

    def _run_slot(self, sim_time: float) -> None:
        """Run the heartbeat cycles of the devices in the current time slot, and schedule the next slot."""
        first = self._slot % self._slot_count * self._devices_per_slot
        self._slot += 1
        self._schedule_slot()
        for device in self._devices[first : first + self._devices_per_slot]:
            self.run_heartbeat_cycle(device, sim_time)

    def run_heartbeat_cycle(self, device: SimulatedDevice, sim_time: float) -> None:
        """Publish the reports of a device for one heartbeat cycle. Called once per simulated minute."""
        device.heartbeats += 1
        if not device.battery_level(sim_time) and not device.is_offline:
            device.is_offline = True  # permanently: an empty battery is never replaced
            self._context.mesh.leave(device.node)
        if device.is_offline or device.mode is DeviceMode.DFU:
            return
        if device.mode is DeviceMode.STORAGE:
            self._report_storage_mode(device, sim_time)
            return
        if device.is_connected and (device.node.depth < 0 or device.heartbeats % _PARENT_CHECK_INTERVAL == 0):
            self._context.mesh.reselect_parent(device.node, sim_time)
        if device.mac not in self._context.routes:  # a moving device reports its RSSI at another interval
            self.report_rssi(device, device.heartbeats, sim_time, self._reported_receivers)
        copies = self._count_received_copies(device, sim_time)
        is_received = copies > 0
        sent = sim_time - HOP_SECONDS * max(device.node.depth, 1)
        self._report_heartbeat(device, copies, sent)
        self._measure(device, sent, is_received=is_received)
        self._run_random_events(device, sent)
        if device.heartbeats % HEARTBEATS_BETWEEN_PROPERTIES == 1 and is_received and not device.is_offline:
            self.report_properties(device, sent)

    def _report_heartbeat(self, device: SimulatedDevice, copies: int, sim_time: float) -> None:
        """Publish a heartbeat that arrived in `copies` copies. If none arrived, skip its sequence number."""
        if copies:
            self._context.reports.publish_heartbeat(device, sim_time)
        else:
            device.next_seq(Kind.HEARTBEAT)
        device.received_copies = copies  # reported as `lastCount` of the next heartbeat

    def _count_received_copies(self, device: SimulatedDevice, sim_time: float) -> int:
        """Return how many copies of a heartbeat arrive: all over a mesh link, 0 to 3 by advertising."""
        node = device.node
        if device.is_connected:
            return HEARTBEAT_COPIES if node.depth >= 0 else 0
        # The receiver with the best mean RSSI: choosing the best one at this time makes little difference.
        nearest_index = next((i for i, receiver in enumerate(node.receivers) if receiver.depth >= 0), None)
        if (
            nearest_index is None
            or (level := self._context.mesh.compute_link_rssi(node, nearest_index, sim_time))
            < radio.MIN_AUDIBLE_DBM
        ):
            return 0
        dice, lost = noise_bits(device.noise_key, device.heartbeats), radio.compute_packet_loss(level) * 1024
        return ((dice & 1023) >= lost) + ((dice >> 10 & 1023) >= lost) + ((dice >> 20 & 1023) >= lost)

    def report_rssi(self, device: SimulatedDevice, n: int, sim_time: float, max_receivers: int) -> None:
        """Publish the `n`th RSSI readings of a device at the mesh nodes that receive it.

        These are its parent, its children, and the best of the others: `max_receivers` in all, unless links
        are further down the list.
        """
        mesh, node, publish_rssi = self._context.mesh, device.node, self._context.reports.publish_rssi
        for i, receiver in enumerate(node.receivers):
            is_linked = receiver is node.parent or receiver.parent is node
            if i >= max_receivers and not is_linked:
                continue
            reading = mesh.measure_rssi(node, i, sim_time, n)
            if receiver.depth >= 0 and (is_linked or reading >= radio.MIN_AUDIBLE_DBM):
                channel = None if is_linked else 37 + (n + i) % 3
                publish_rssi(device, receiver.mac, reading, channel, sim_time)

    def _measure(self, device: SimulatedDevice, sim_time: float, *, is_received: bool) -> None:
        """Take all measurements of a device. Publish values and errors if the gateway receives the device."""
        reports = self._context.reports
        device.has_sensor_fault = False
        for identifier in device.product.measurements:
            if (error := find_sensor_failure(device, identifier)) is None:
                reports.publish_measurement(
                    device,
                    identifier,
                    read_sensor(device, identifier, sim_time),
                    sim_time,
                    is_received=is_received,
                )
                continue
            device.has_sensor_fault = True
            if is_received:
                reports.publish_measurement_error(device, identifier, error, sim_time)

    def _report_storage_mode(self, device: SimulatedDevice, sim_time: float) -> None:
        """Publish the event that a device is in storage mode. The gateway creates this event (gateway-33)."""
        if any(receiver.depth >= 0 for receiver in device.node.receivers):
            value = bytes.fromhex(device.product.model) + bytes((device.product.variant,))
            seq = device.next_seq(Kind.EVENT, _STORAGE_EVENT)
            # Not buffered: the event is created by the gateway, not by the device.
            sample = DeviceSample(self._context.clock.wall_millis(sim_time), seq, value)
            self._context.reports.publish_sample(device, Kind.EVENT, _STORAGE_EVENT, sample)

    # Random events

    def _run_random_events(self, device: SimulatedDevice, sim_time: float) -> None:
        """Let rare events happen by chance: watchdog resets, alarms, read text messages, opened doors."""
        dice = uniform_noise(device.noise_key ^ 0xB0, device.heartbeats)
        if dice < _WATCHDOG_PROBABILITY and device is not self._context.gateway_device:
            self.reboot(device, ResetCause.WATCHDOG)
        elif device.product.has_button and dice < _ALARM_PROBABILITY:
            self.raise_alarm(device, sim_time)
        if (
            _MESSAGE in device.product.default_values
            and any(device.value(_MESSAGE))
            and dice > 1 - _MESSAGE_READ_PROBABILITY
        ):
            self.set_property(device, _MESSAGE, b"\0", sim_time)
        if device.product.model == "0050":
            device.door_count += device.count_new_door_openings()

    def raise_alarm(self, device: SimulatedDevice, sim_time: float) -> None:
        """Simulate a button press: set and report an alarm, which a write request clears (gateway-34)."""
        device.set_value(_ALARM, b"\1")
        self._report_event(device, _ALARM, b"\1", sim_time)

    def _report_event(
        self, device: SimulatedDevice, identifier: Identifier, raw: bytes, sim_time: float
    ) -> None:
        """Report an event and the property with the same identifier, if the gateway receives the device.

        An event that is not received stays in the sample buffer of the device.
        """
        is_received = self._is_received(device, sim_time)
        self._context.reports.publish_event(device, identifier, raw, sim_time, is_received=is_received)
        if is_received:
            self.report_property(device, identifier, sim_time)

    def _is_received(self, device: SimulatedDevice, sim_time: float) -> bool:
        """Return whether any node of the mesh tree receives the device at this simulated time."""
        node, mesh = device.node, self._context.mesh
        if device.is_connected:
            return node.depth >= 0
        return any(
            receiver.depth >= 0 and mesh.compute_link_rssi(node, i, sim_time) >= radio.MIN_AUDIBLE_DBM
            for i, receiver in enumerate(node.receivers)
        )

    def _schedule_motion(self, device: SimulatedDevice) -> None:
        """Schedule the next start or end of a device's motion."""
        self._context.scheduler.after(device.next_motion_delay(), partial(self._toggle_motion, device))

    def _toggle_motion(self, device: SimulatedDevice, sim_time: float) -> None:
        """Start or stop the motion of a device, report the change, and schedule the next change."""
        device.toggle_motion(sim_time)
        if self.is_active(device) and device.battery_level(sim_time):
            self._report_event(device, _MOTION, properties.encode_motion_event(device), sim_time)
        self._schedule_motion(device)

    def is_active(self, device: SimulatedDevice) -> bool:
        """Return whether a device is in normal operation: not offline, and not in storage or DFU mode."""
        return not device.is_offline and device.mode in (DeviceMode.CONNECTED, DeviceMode.UNCONNECTED)

    # Operations for requests and updates

    def set_property(
        self, device: SimulatedDevice, identifier: Identifier, raw: bytes, sim_time: float
    ) -> None:
        """Set the stored raw value of a property and report the property."""
        device.set_value(identifier, raw)
        self.report_property(device, identifier, sim_time)

    def report_property(self, device: SimulatedDevice, identifier: Identifier, sim_time: float) -> None:
        """Report a property of a device with its current value."""
        self._context.reports.publish_property(
            device, identifier, properties.read_property(device, identifier, sim_time), sim_time
        )

    def report_properties(self, device: SimulatedDevice, sim_time: float) -> None:
        """Report all properties that a device reports without a request."""
        for identifier in device.product.reported_properties:
            self.report_property(device, identifier, sim_time)

    def start_property_report(self, device: SimulatedDevice) -> None:
        """Start to report all properties of a device one by one. The device is busy meanwhile.

        (gateway-35)
        """
        device.is_reporting = True
        self._report_next_property(device, 0, device.booted_at, self._context.scheduler.now)

    def _report_next_property(
        self, device: SimulatedDevice, index: int, booted_at: float, sim_time: float
    ) -> None:
        """Report the property with this index, and schedule the next one."""
        if device.booted_at != booted_at or device.is_offline:
            return  # a restart ends the series of reports
        if index == len(device.product.reported_properties) or not self.is_active(device):
            device.is_reporting = False
            return
        self.report_property(device, device.product.reported_properties[index], sim_time)
        self._context.scheduler.after(
            _PROPERTY_PAUSE, partial(self._report_next_property, device, index + 1, booted_at)
        )

    def set_mode(self, device: SimulatedDevice, mode: DeviceMode, sim_time: float) -> None:
        """Put a device into another device mode. The gateway reports the mode for the device (gateway-32)."""
        device.mode = mode
        mesh = self._context.mesh
        if mode is DeviceMode.CONNECTED:
            mesh.join(device.node, sim_time)
        else:
            mesh.leave(device.node)
        self.report_property(device, _MODE, sim_time)

    def reboot(
        self,
        device: SimulatedDevice,
        cause: int,
        *,
        seconds: float = REBOOT_SECONDS,
        on_restarted: ScheduledCallback | None = None,
    ) -> None:
        """Restart a device: take it offline for `seconds` simulated seconds, then report its properties.

        `on_restarted` is called with the simulated time of the restart. If the device is restarting already,
        it restarts once more afterwards if `on_restarted` is set; otherwise nothing is done.
        """
        if device.is_offline:
            if on_restarted is not None and device.battery_level(self._context.scheduler.now):
                retry_reboot = partial(self.reboot, device, cause, seconds=seconds, on_restarted=on_restarted)
                # Wait until the restart in progress has ended.
                self._context.scheduler.after(1.0, lambda _: retry_reboot())
            return
        self.on_restart(device)
        device.is_offline = True
        if device is self._context.gateway_device:
            self._context.outbox.close()
            self._context.packets.drop_queued_packets()
            self._context.actions.append(CloseConnection(crashed=cause == ResetCause.WATCHDOG))
        elif device.is_connected:
            self._context.mesh.leave(device.node)
        self._context.scheduler.after(seconds, partial(self._finish_reboot, device, cause, on_restarted))

    def _finish_reboot(
        self,
        device: SimulatedDevice,
        cause: int,
        on_restarted: Callable[[float], None] | None,
        sim_time: float,
    ) -> None:
        """Take a restarted device online again, and report its heartbeat and properties."""
        device.is_offline = False
        device.restart(sim_time, cause)
        if device is self._context.gateway_device:
            self._context.outbox.is_open = True
            self._context.actions.append(OpenConnection())
        if device.is_connected and device is not self._context.gateway_device:
            self._context.mesh.join(device.node, sim_time)
        if on_restarted is not None:
            on_restarted(sim_time)
        if device.mode is DeviceMode.STORAGE:
            self.report_property(
                device, _MODE, sim_time
            )  # sent by the gateway on behalf of the device (gateway-32)
        if self.is_active(device) and (copies := self._count_received_copies(device, sim_time)):
            self._report_heartbeat(device, copies, sim_time)
            if cause == ResetCause.WATCHDOG:
                self._context.reports.publish_event(device, _WATCHDOG_EVENT, None, sim_time)
            self.report_properties(device, sim_time)
