"""Executes device commands: properties that trigger an action when they are written."""

from __future__ import annotations

from functools import partial
from struct import unpack_from
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.emulator.simulation.device import ResetCause, ThroughputTest
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.simulation.properties import apply_value_effects
from meshfleet.emulator.updates.update_state import IMAGE_KEY_SIZE, ImageKey
from meshfleet.protocol.codes import Status
from meshfleet.protocol.ids import Identifier, Mac

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.updates import FirmwareUpdater


# Throughput tests: packets without content, sent to be counted (gateway-36).

_MIN_TEST_INTERVAL: Final = 0.010
"""Minimum simulated seconds between two bursts of a throughput test, the limit of the radio."""


class ThroughputTester:
    """Runs throughput tests between one gateway and its devices, upstream and downstream."""

    def __init__(self, context: EmulatorContext) -> None:
        self._context = context

    def start(self, sender: SimulatedDevice, test: ThroughputTest, receivers: list[SimulatedDevice]) -> bool:
        """Start a throughput test, or stop the running test if `test` has 0 packets.

        Return False if another test of the sender is running.
        """
        if not test.remaining:
            sender.throughput_test = None
            return True
        if sender.throughput_test is not None:
            return False
        sender.throughput_test = test
        for receiver in receivers:
            receiver.received_test_packets = 0
        self._send(sender, test, receivers, self._context.scheduler.now)
        return True

    def _send(
        self,
        sender: SimulatedDevice,
        test: ThroughputTest,
        receivers: list[SimulatedDevice],
        _sim_time: float,
    ) -> None:
        """Send one burst of test packets, and schedule the next burst."""
        if sender.throughput_test is not test:
            return  # stopped, or the sender has restarted
        for _ in range(min(test.burst, test.remaining)):
            if self._context.packets.is_queue_full(sender.node, test.priority):
                break  # send the rest later: a full queue would drop it
            test.remaining -= 1
            for receiver in receivers:
                self._send_packet(sender, receiver, test.priority)
        if test.remaining:
            pause = max(test.interval, _MIN_TEST_INTERVAL)
            self._context.scheduler.after(pause, partial(self._send, sender, test, receivers))
        else:
            sender.throughput_test = None

    def _send_packet(self, sender: SimulatedDevice, receiver: SimulatedDevice, priority: int) -> None:
        """Send one test packet, unless the sender is offline or there is no route."""
        mesh = self._context.mesh
        route = mesh.find_route((receiver if sender is self._context.gateway_device else sender).node)
        if route is None or sender.is_offline:
            return
        path = (mesh.root, *route)
        if sender is not self._context.gateway_device:
            path = path[::-1]
        self._context.packets.send(path, priority=priority, on_arrival=partial(self._count_packet, receiver))

    def _count_packet(self, receiver: SimulatedDevice, _sim_time: float) -> None:
        """Count a test packet that has arrived, unless the receiver is offline."""
        if not receiver.is_offline:
            receiver.received_test_packets += 1


_COMMAND_DELAY: Final = 0.1
"""Simulated seconds from the response of a device to the execution of the command."""

_MAX_TEXT_BYTES: Final = 200
"""Maximum size in bytes of a text message for the display of a device."""

_MAC_SIZE: Final = 6
_ALL_DEVICES: Final = Mac("000000000000")


class RequestRejection(NamedTuple):
    """Status and reason in the response to a rejected request."""

    status: Status
    reason: str


class DeviceCommands:
    """Executes writes of command properties; the caller has checked the layout of the values."""

    def __init__(self, context: EmulatorContext, behavior: DeviceBehavior, updates: FirmwareUpdater) -> None:
        self._context = context
        self._behavior = behavior
        self._updates = updates
        self._throughput = ThroughputTester(context)

    def soft_reset(self, device: SimulatedDevice, _raw: bytes, _sim_time: float) -> None:
        """Restart the device (8300)."""
        self._context.scheduler.after(
            _COMMAND_DELAY, lambda _: self._behavior.reboot(device, ResetCause.SOFTWARE)
        )

    def factory_reset(self, device: SimulatedDevice, _raw: bytes, _sim_time: float) -> None:
        """Discard all written properties of the device and restart it (8301)."""
        self._context.scheduler.after(_COMMAND_DELAY, lambda _: self._reset_to_factory(device))

    def _reset_to_factory(self, device: SimulatedDevice) -> None:
        """Set all properties of a device to their default values, and restart the device."""
        device.values = None
        for identifier, raw in device.product.default_values.items():
            apply_value_effects(device, identifier, raw)
        self._behavior.reboot(device, ResetCause.SOFTWARE)

    def report_properties(
        self, device: SimulatedDevice, _raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Report all properties of the device, unless this is in progress already (8302, gateway-35)."""
        if device.is_reporting:
            return RequestRejection(Status.BUSY, "the properties are being reported already")
        self._context.scheduler.after(_COMMAND_DELAY, lambda _: self._behavior.start_property_report(device))
        device.is_reporting = True
        return None

    def set_mode(self, device: SimulatedDevice, raw: bytes, sim_time: float) -> RequestRejection | None:
        """Change the device mode (8110)."""
        mode = DeviceMode(raw[0])
        if mode not in device.product.modes:
            return RequestRejection(
                Status.NOT_SUPPORTED, f"{device.product.name} has no mode {mode.name.lower()}"
            )
        if self._updates.is_receiving_image(device):
            return RequestRejection(
                Status.BUSY, "the device is being updated and the update cannot be stopped"
            )
        if mode is DeviceMode.DFU:
            self._run_delayed(device, lambda now: self._updates.dfu_mode.enter(device, now))
        elif mode is not device.mode:
            self._run_delayed(device, lambda now: self._behavior.set_mode(device, mode, now))
        else:
            self._behavior.report_property(device, Identifier("8110"), sim_time)
        return None

    def _run_delayed(self, device: SimulatedDevice, action: Callable[[float], None]) -> None:
        """Run an action shortly after the device has responded, unless it has gone offline meanwhile."""
        self._context.scheduler.after(_COMMAND_DELAY, lambda now: None if device.is_offline else action(now))

    def switch_legacy_mode(
        self, _gateway: SimulatedDevice, raw: bytes, sim_time: float
    ) -> RequestRejection | None:
        """Change the mode of a device through the gateway (8111), even if the device accepts no writes."""
        mac, mode = Mac(raw[:_MAC_SIZE].hex()), raw[_MAC_SIZE]
        target = self._context.devices.get(mac)
        if target is None or target is self._context.gateway_device:
            return RequestRejection(Status.UNREACHABLE, f"device {mac} not found at this gateway")
        if mode not in set(DeviceMode):
            return RequestRejection(Status.NOT_SUPPORTED, f"unknown device mode {mode}")
        return self.set_mode(target, bytes((mode,)), sim_time)

    def send_text(self, device: SimulatedDevice, raw: bytes, sim_time: float) -> RequestRejection | None:
        """Show a text message on the device and mark the message as unread (9820)."""
        if not 0 < len(raw) <= _MAX_TEXT_BYTES:
            return RequestRejection(Status.INVALID_VALUE, f"a message must have 1 to {_MAX_TEXT_BYTES} bytes")
        self._behavior.set_property(device, Identifier("9821"), b"\1", sim_time)
        return None

    def start_upstream_test(
        self, device: SimulatedDevice, raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Start a throughput test from the device to the gateway (8303)."""
        if not device.is_connected:
            return RequestRejection(Status.NOT_SUPPORTED, "only connected devices can send test packets")
        return self._start_test(device, raw, [self._context.gateway_device])

    def start_downstream_test(
        self, gateway: SimulatedDevice, raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Start a throughput test from the gateway to one device or to all devices (8304)."""
        target = Mac(raw[_MAC_SIZE : 2 * _MAC_SIZE].hex())
        others = [device for device in self._context.devices.values() if device is not gateway]
        receivers = [device for device in others if target in (_ALL_DEVICES, device.mac)]
        if not receivers:
            return RequestRejection(Status.UNREACHABLE, f"device {target} not found at this gateway")
        return self._start_test(gateway, raw, receivers)

    def _start_test(
        self, sender: SimulatedDevice, raw: bytes, receivers: list[SimulatedDevice]
    ) -> RequestRejection | None:
        """Start the throughput test that the written value `raw` describes."""
        packets, millis, burst, priority = unpack_from(">HHBB", raw)
        test = ThroughputTest(packets, millis / 1000.0, burst, priority)
        if not self._throughput.start(sender, test, receivers):
            return RequestRejection(Status.BUSY, "a throughput test is running already")
        return None

    # Firmware

    def start_update(self, device: SimulatedDevice, raw: bytes, _sim_time: float) -> RequestRejection | None:
        """Start a firmware update of the device by download (8121)."""
        stage = bool(raw[IMAGE_KEY_SIZE])
        return _reject_unless_ok(self._updates.start_download(device, ImageKey.from_bytes(raw), stage=stage))

    def control_update(
        self, device: SimulatedDevice, raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Apply or abort a firmware update by download (8122)."""
        return _reject_unless_ok(self._updates.control_download(device, apply=bool(raw[0])))

    def start_broadcast(
        self, _gateway: SimulatedDevice, raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Start a firmware update of many devices by broadcast (8124, written to the gateway)."""
        macs = raw[IMAGE_KEY_SIZE + 2 :].hex()
        targets = [
            Mac(macs[offset : offset + 2 * _MAC_SIZE]) for offset in range(0, len(macs), 2 * _MAC_SIZE)
        ]
        stage = bool(raw[IMAGE_KEY_SIZE])
        return _reject_unless_ok(
            self._updates.start_broadcast(ImageKey.from_bytes(raw), targets, stage=stage)
        )

    def control_broadcast(
        self, _gateway: SimulatedDevice, raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Apply or abort a firmware update by broadcast (8126, written to the gateway)."""
        return _reject_unless_ok(self._updates.control_broadcast(apply=bool(raw[0])))

    def start_nordic(
        self, _gateway: SimulatedDevice, raw: bytes, _sim_time: float
    ) -> RequestRejection | None:
        """Start sending a firmware image to a device in DFU mode (8131, written to the gateway)."""
        mac = Mac(raw[:_MAC_SIZE].hex())
        return _reject_unless_ok(self._updates.start_nordic_dfu(mac, ImageKey.from_bytes(raw, _MAC_SIZE)))


_REASONS: Final = {
    Status.BUSY: "an update is in progress and does not allow this now",
    Status.FAILED: "no update is in progress",
    Status.INVALID_VALUE: "no connected device of this gateway accepts this image by broadcast",
    Status.UNREACHABLE: "no device advertises with this MAC in DFU mode in range of the gateway",
}


def _reject_unless_ok(status: Status) -> RequestRejection | None:
    """Return the rejection for a status of the updater, or None for OK."""
    return None if status is Status.OK else RequestRejection(status, _REASONS[status])


COMMANDS_BY_IDENTIFIER: Final[
    Mapping[str, Callable[[DeviceCommands, SimulatedDevice, bytes, float], RequestRejection | None]]
] = {
    "8110": DeviceCommands.set_mode,
    "8111": DeviceCommands.switch_legacy_mode,
    "8121": DeviceCommands.start_update,
    "8122": DeviceCommands.control_update,
    "8124": DeviceCommands.start_broadcast,
    "8126": DeviceCommands.control_broadcast,
    "8131": DeviceCommands.start_nordic,
    "8300": DeviceCommands.soft_reset,
    "8301": DeviceCommands.factory_reset,
    "8302": DeviceCommands.report_properties,
    "8303": DeviceCommands.start_upstream_test,
    "8304": DeviceCommands.start_downstream_test,
    "9820": DeviceCommands.send_text,
}
"""Methods that execute the commands, by the identifier of the command property."""
