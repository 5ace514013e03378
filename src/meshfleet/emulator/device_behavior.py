"""What devices do by themselves: the rhythm of reports, motion, buttons, doors, restarts.

Every device has its beat, once in a minute, and the beats of a gateway's devices are spread evenly over that
minute (gateway-23). With every twentieth beat it tells its properties too (gateway-24).
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
"""Seconds from beat to beat."""

_MAX_SLOTS: Final = 20
"""Beats of a gateway in that time: the devices of large ones share theirs, which costs less."""

HEARTBEATS_BETWEEN_PROPERTIES: Final = 20
REBOOT_SECONDS: Final = 8.0
"""Seconds that a device takes to restart."""

HOP_SECONDS: Final = 0.025
"""Seconds that a report is on its way per hop: it arrives with the beat, and was made earlier."""

_PARENT_CHECK_INTERVAL: Final = 5
"""Beats after which a device looks for a better parent; one that has none looks at every beat."""

_REPORTED_RECEIVERS: Final = 4
"""As many nodes as report how well they hear a device."""

_ALARM_PROBABILITY: Final = 1 / 360
_MESSAGE_READ_PROBABILITY: Final = 1 / 5
_WATCHDOG_PROBABILITY: Final = 1 / 50_000
"""Chances in one beat: that somebody needs help, reads a message, that a device has to be reset."""

_PROPERTY_PAUSE: Final = 0.2
"""Seconds between properties that were asked for all together."""

_ALARM = Identifier("9800")
_MESSAGE = Identifier("9821")
_MOTION = Identifier("8810")
_MODE = Identifier("8110")
_STORAGE_EVENT = Identifier("8112")
_WATCHDOG_EVENT = Identifier("8113")


class DeviceBehavior:
    """The devices of one gateway, and the gateway as a device."""

    def __init__(self, core: EmulatorContext) -> None:
        self._core = core
        self._devices = list(core.devices.values())
        self._devices_per_slot = -(-len(self._devices) // _MAX_SLOTS)
        self._slot_count = -(-len(self._devices) // self._devices_per_slot)
        self._slot = 0
        self.on_restart: Callable[[SimulatedDevice], None] = lambda _: None
        """Told of every device that is about to restart, whatever it is busy with."""
        self._phase = uniform_noise(core.noise_key, 7) * HEARTBEAT_INTERVAL / self._slot_count
        self._schedule_slot()
        for device in self._devices:
            if device.product.motion_code:
                self._schedule_motion(device)

    # The beat

    def _schedule_slot(self) -> None:
        self._core.scheduler.at(
            self._phase + self._slot * HEARTBEAT_INTERVAL / self._slot_count, self._run_slot
        )

    def _run_slot(self, t: float) -> None:
        first = self._slot % self._slot_count * self._devices_per_slot
        self._slot += 1
        self._schedule_slot()
        for device in self._devices[first : first + self._devices_per_slot]:
            self.run_heartbeat_cycle(device, t)

    def run_heartbeat_cycle(self, device: SimulatedDevice, t: float) -> None:
        """Let a device report what is due once in a minute."""
        device.heartbeats += 1
        if not device.battery_level(t) and not device.is_offline:
            device.is_offline = True  # for good: nothing restarts it
            self._core.mesh.leave(device.node)
        if device.is_offline or device.mode is DeviceMode.DFU:
            return
        if device.mode is DeviceMode.STORAGE:
            self._report_storage_mode(device, t)
            return
        if device.is_connected and (device.node.depth < 0 or device.heartbeats % _PARENT_CHECK_INTERVAL == 0):
            self._core.mesh.reselect_parent(device.node, t)
        self._report_rssi(device, t)
        copies = self._count_heard_copies(device, t)
        heard = copies > 0
        sent = t - HOP_SECONDS * max(device.node.depth, 1)
        self._report_heartbeat(device, copies, sent)
        self._measure(device, sent, heard=heard)
        self._run_random_events(device, sent)
        if device.heartbeats % HEARTBEATS_BETWEEN_PROPERTIES == 1 and heard and not device.is_offline:
            self.report_properties(device, sent)

    def _report_heartbeat(self, device: SimulatedDevice, copies: int, t: float) -> None:
        """Report a heartbeat, of which so many copies are heard. One that nobody hears leaves a hole."""
        if copies:
            self._core.reports.publish_heartbeat(device, t)
        else:
            device.next_seq(Kind.HEARTBEAT)
        device.heard_copies = copies  # the next one tells it

    def _count_heard_copies(self, device: SimulatedDevice, t: float) -> int:
        """How many copies of a beat arrive. Links are reliable, advertisements come in a few copies."""
        node = device.node
        if device.is_connected:
            return HEARTBEAT_COPIES if node.depth >= 0 else 0
        # By the one who hears it best on average: who that is just now makes little difference.
        nearest = next((i for i, each in enumerate(node.receivers) if each.depth >= 0), None)
        if nearest is None or (level := self._core.mesh.link_rssi(node, nearest, t)) < radio.MIN_AUDIBLE_DBM:
            return 0
        dice, lost = noise_bits(device.noise_key, device.heartbeats), radio.packet_loss(level) * 1024
        return ((dice & 1023) >= lost) + ((dice >> 10 & 1023) >= lost) + ((dice >> 20 & 1023) >= lost)

    def _report_rssi(self, device: SimulatedDevice, t: float) -> None:
        mesh, node, tell = self._core.mesh, device.node, self._core.reports.publish_rssi
        for i, hearer in enumerate(node.receivers):
            linked = hearer is node.parent or hearer.parent is node
            if i >= _REPORTED_RECEIVERS and not linked:
                continue
            reading = mesh.measure_rssi(node, i, t, device.heartbeats)
            if hearer.depth >= 0 and (linked or reading >= radio.MIN_AUDIBLE_DBM):
                channel = None if linked else 37 + (device.heartbeats + i) % 3
                tell(device, hearer.mac, reading, channel, t)

    def _measure(self, device: SimulatedDevice, t: float, *, heard: bool) -> None:
        report = self._core.reports
        device.has_sensor_fault = False
        for identifier in device.product.measurements:
            if (error := find_sensor_failure(device, identifier)) is None:
                report.publish_measurement(
                    device, identifier, read_sensor(device, identifier, t), t, heard=heard
                )
                continue
            device.has_sensor_fault = True
            if heard:
                report.publish_measurement_error(device, identifier, error, t)

    def _report_storage_mode(self, device: SimulatedDevice, t: float) -> None:
        """The gateway speaks for a device in storage mode (gateway-33)."""
        if any(hearer.depth >= 0 for hearer in device.node.receivers):
            value = bytes.fromhex(device.product.model) + bytes((device.product.variant,))
            seq = device.next_seq(Kind.EVENT, _STORAGE_EVENT)
            sample = DeviceSample(
                self._core.clock.wall_millis(t), seq, value
            )  # the device knows nothing of it
            self._core.reports.publish_sample(device, Kind.EVENT, _STORAGE_EVENT, sample)

    # What happens now and then

    def _run_random_events(self, device: SimulatedDevice, t: float) -> None:
        dice = uniform_noise(device.noise_key ^ 0xB0, device.heartbeats)
        if dice < _WATCHDOG_PROBABILITY and device is not self._core.gateway_device:
            self.reboot(device, ResetCause.WATCHDOG)
        elif device.product.has_button and dice < _ALARM_PROBABILITY:
            self.raise_alarm(device, t)
        if (
            _MESSAGE in device.product.default_values
            and any(device.value(_MESSAGE))
            and dice > 1 - _MESSAGE_READ_PROBABILITY
        ):
            self.set_property(device, _MESSAGE, b"\0", t)
        if device.product.model == "0050":
            device.door_count += device.new_door_openings()

    def raise_alarm(self, device: SimulatedDevice, t: float) -> None:
        """Somebody presses the button. The alarm stays until it is cleared by a write (gateway-34)."""
        device.set_value(_ALARM, b"\1")
        self._report_event(device, _ALARM, b"\1", t)

    def _report_event(self, device: SimulatedDevice, identifier: Identifier, raw: bytes, t: float) -> None:
        """Tell what happened as an event and as a property; who is not heard keeps the event for later."""
        heard = self._is_heard(device, t)
        self._core.reports.publish_event(device, identifier, raw, t, heard=heard)
        if heard:
            self.report_property(device, identifier, t)

    def _is_heard(self, device: SimulatedDevice, t: float) -> bool:
        """Whether somebody in the tree hears the device now."""
        node, mesh = device.node, self._core.mesh
        if device.is_connected:
            return node.depth >= 0
        return any(
            hearer.depth >= 0 and mesh.link_rssi(node, i, t) >= radio.MIN_AUDIBLE_DBM
            for i, hearer in enumerate(node.receivers)
        )

    def _schedule_motion(self, device: SimulatedDevice) -> None:
        self._core.scheduler.after(device.next_motion_delay(), partial(self._toggle_motion, device))

    def _toggle_motion(self, device: SimulatedDevice, t: float) -> None:
        """Motion comes or goes."""
        device.toggle_motion(t)
        if self._is_active(device) and device.battery_level(t):
            self._report_event(device, _MOTION, properties.encode_motion_event(device), t)
        self._schedule_motion(device)

    def _is_active(self, device: SimulatedDevice) -> bool:
        return not device.is_offline and device.mode in (DeviceMode.CONNECTED, DeviceMode.UNCONNECTED)

    # What requests and updates ask for

    def set_property(self, device: SimulatedDevice, identifier: Identifier, raw: bytes, t: float) -> None:
        """Set a property, and report it."""
        device.set_value(identifier, raw)
        self.report_property(device, identifier, t)

    def report_property(self, device: SimulatedDevice, identifier: Identifier, t: float) -> None:
        """Report one property."""
        self._core.reports.publish_property(
            device, identifier, properties.read_property(device, identifier, t), t
        )

    def report_properties(self, device: SimulatedDevice, t: float) -> None:
        """Report all properties that are reported at all."""
        for identifier in device.product.reported_properties:
            self.report_property(device, identifier, t)

    def start_property_report(self, device: SimulatedDevice) -> None:
        """Report all properties one after the other; the device is busy with it for a while (gateway-35)."""
        device.is_reporting = True
        self._report_next(device, 0, device.booted_at, self._core.scheduler.now)

    def _report_next(self, device: SimulatedDevice, place: int, booted: float, t: float) -> None:
        if device.booted_at != booted or device.is_offline:
            return  # it has restarted, and forgotten what it was about
        if place == len(device.product.reported_properties) or not self._is_active(device):
            device.is_reporting = False
            return
        self.report_property(device, device.product.reported_properties[place], t)
        self._core.scheduler.after(_PROPERTY_PAUSE, partial(self._report_next, device, place + 1, booted))

    def set_mode(self, device: SimulatedDevice, mode: DeviceMode, t: float) -> None:
        """Put a device into another mode. The gateway tells it, also for those that cannot (gateway-32)."""
        device.mode = mode
        mesh = self._core.mesh
        if mode is DeviceMode.CONNECTED:
            mesh.join(device.node, t)
        else:
            mesh.leave(device.node)
        self.report_property(device, _MODE, t)

    def reboot(
        self,
        device: SimulatedDevice,
        cause: int,
        *,
        seconds: float = REBOOT_SECONDS,
        on_restarted: ScheduledCallback | None = None,
    ) -> None:
        """Restart a device: it is away for some seconds, comes back and introduces itself."""
        if device.is_offline:
            if on_restarted is not None and device.battery_level(self._core.scheduler.now):
                again = partial(self.reboot, device, cause, seconds=seconds, on_restarted=on_restarted)
                self._core.scheduler.after(1.0, lambda _: again())  # it is restarting for another reason
            return
        self.on_restart(device)
        device.is_offline = True
        if device is self._core.gateway_device:
            self._core.outbox.close()
            self._core.packets.clear()
            self._core.actions.append(CloseConnection(crashed=cause == ResetCause.WATCHDOG))
        elif device.is_connected:
            self._core.mesh.leave(device.node)
        self._core.scheduler.after(seconds, partial(self._finish_reboot, device, cause, on_restarted))

    def _finish_reboot(
        self, device: SimulatedDevice, cause: int, then: Callable[[float], None] | None, t: float
    ) -> None:
        device.is_offline = False
        device.restart(t, cause)
        if device is self._core.gateway_device:
            self._core.outbox.is_open = True
            self._core.actions.append(OpenConnection())
        if device.is_connected and device is not self._core.gateway_device:
            self._core.mesh.join(device.node, t)
        if then is not None:
            then(t)
        if device.mode is DeviceMode.STORAGE:
            self.report_property(device, _MODE, t)  # the gateway does, in its place (gateway-32)
        if self._is_active(device) and (copies := self._count_heard_copies(device, t)):
            self._report_heartbeat(device, copies, t)
            if cause == ResetCause.WATCHDOG:
                self._core.reports.publish_event(device, _WATCHDOG_EVENT, None, t)
            self.report_properties(device, t)
