"""Properties that act when they are written."""

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


# Throughput tests: packets that say nothing, sent to be counted (gateway-36).

_MIN_TEST_INTERVAL: Final = 0.010
"""Seconds: no radio sends faster."""


class ThroughputTester:
    """The tests of one gateway, up and down."""

    def __init__(self, core: EmulatorContext) -> None:
        self._core = core

    def start(self, sender: SimulatedDevice, test: ThroughputTest, receivers: list[SimulatedDevice]) -> bool:
        """Start a test, or stop the one that runs when there is nothing to send; False: one runs already."""
        if not test.remaining:
            sender.throughput_test = None
            return True
        if sender.throughput_test is not None:
            return False
        sender.throughput_test = test
        for receiver in receivers:
            receiver.received_test_packets = 0
        self._send(sender, test, receivers, self._core.scheduler.now)
        return True

    def _send(
        self, sender: SimulatedDevice, test: ThroughputTest, receivers: list[SimulatedDevice], _t: float
    ) -> None:
        if sender.throughput_test is not test:
            return  # stopped, or the sender has restarted
        for _ in range(min(test.burst, test.remaining)):
            if self._core.packets.is_full(sender.node, test.priority):
                break  # the rest has to wait: nobody gains from packets that are lost at once
            test.remaining -= 1
            for receiver in receivers:
                self._send_one(sender, receiver, test.priority)
        if test.remaining:
            pause = max(test.interval, _MIN_TEST_INTERVAL)
            self._core.scheduler.after(pause, partial(self._send, sender, test, receivers))
        else:
            sender.throughput_test = None

    def _send_one(self, sender: SimulatedDevice, receiver: SimulatedDevice, priority: int) -> None:
        """Send one packet; who is not in the tree neither sends nor receives."""
        mesh = self._core.mesh
        down = mesh.find_route((receiver if sender is self._core.gateway_device else sender).node)
        if down is None or sender.is_offline:
            return
        path = (mesh.root, *down)
        if sender is not self._core.gateway_device:
            path = path[::-1]
        self._core.packets.send(path, priority=priority, on_arrival=partial(self._count, receiver))

    def _count(self, receiver: SimulatedDevice, _t: float) -> None:
        if not receiver.is_offline:
            receiver.received_test_packets += 1


_COMMAND_DELAY: Final = 0.1
"""Seconds that a device takes from the answer to the deed."""

_MAX_TEXT_BYTES: Final = 200
"""Bytes that fit on the display of a device."""

_MAC_SIZE: Final = 6
_ALL_DEVICES: Final = Mac("000000000000")


class RequestRejection(NamedTuple):
    """Why a write is not done."""

    status: Status
    reason: str


class DeviceCommands:
    """What the devices of one gateway do on command. Values have the layouts of their identifiers here."""

    def __init__(self, core: EmulatorContext, behavior: DeviceBehavior, updates: FirmwareUpdater) -> None:
        self._core = core
        self._behavior = behavior
        self._updates = updates
        self._throughput = ThroughputTester(core)

    def soft_reset(self, device: SimulatedDevice, _raw: bytes, _t: float) -> None:
        """8300: restart."""
        self._core.scheduler.after(
            _COMMAND_DELAY, lambda _: self._behavior.reboot(device, ResetCause.SOFTWARE)
        )

    def factory_reset(self, device: SimulatedDevice, _raw: bytes, _t: float) -> None:
        """8301: forget what was written, and restart."""
        self._core.scheduler.after(_COMMAND_DELAY, lambda _: self._reset_to_factory(device))

    def _reset_to_factory(self, device: SimulatedDevice) -> None:
        device.values = None
        for identifier, raw in device.product.default_values.items():
            apply_value_effects(device, identifier, raw)
        self._behavior.reboot(device, ResetCause.SOFTWARE)

    def report_properties(self, device: SimulatedDevice, _raw: bytes, _t: float) -> RequestRejection | None:
        """8302: report all properties; busy while it runs (gateway-35)."""
        if device.is_reporting:
            return RequestRejection(Status.BUSY, "the properties are being reported already")
        self._core.scheduler.after(_COMMAND_DELAY, lambda _: self._behavior.start_property_report(device))
        device.is_reporting = True
        return None

    def set_mode(self, device: SimulatedDevice, raw: bytes, t: float) -> RequestRejection | None:
        """8110: a property, but one that does more than to hold its value."""
        mode = DeviceMode(raw[0])
        if mode not in device.product.modes:
            return RequestRejection(
                Status.NOT_SUPPORTED, f"{device.product.name} has no mode {mode.name.lower()}"
            )
        if self._updates.is_receiving_image(device):
            return RequestRejection(Status.BUSY, "the device is being updated, which cannot be stopped")
        if mode is DeviceMode.DFU:
            self._run_delayed(device, lambda now: self._updates.dfu_mode.enter(device, now))
        elif mode is not device.mode:
            self._run_delayed(device, lambda now: self._behavior.set_mode(device, mode, now))
        else:
            self._behavior.report_property(device, Identifier("8110"), t)
        return None

    def _run_delayed(self, device: SimulatedDevice, deed: Callable[[float], None]) -> None:
        """Let a device do something after its answer, unless it restarts before and forgets it."""
        self._core.scheduler.after(_COMMAND_DELAY, lambda now: None if device.is_offline else deed(now))

    def switch_legacy_mode(self, _gateway: SimulatedDevice, raw: bytes, t: float) -> RequestRejection | None:
        """8111, on the gateway: put a device into another mode that cannot be written itself."""
        mac, mode = Mac(raw[:_MAC_SIZE].hex()), raw[_MAC_SIZE]
        target = self._core.devices.get(mac)
        if target is None or target is self._core.gateway_device:
            return RequestRejection(Status.UNREACHABLE, f"no device {mac} here")
        if mode not in set(DeviceMode):
            return RequestRejection(Status.NOT_SUPPORTED, f"mode {mode} is not known")
        return self.set_mode(target, bytes((mode,)), t)

    def send_text(self, device: SimulatedDevice, raw: bytes, t: float) -> RequestRejection | None:
        """9820: show a message, which is unread until somebody reads it."""
        if not 0 < len(raw) <= _MAX_TEXT_BYTES:
            return RequestRejection(Status.INVALID_VALUE, f"a message has 1 to {_MAX_TEXT_BYTES} bytes")
        self._behavior.set_property(device, Identifier("9821"), b"\1", t)
        return None

    def upstream_test(self, device: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8303: send packets to the gateway."""
        if not device.is_connected:
            return RequestRejection(Status.NOT_SUPPORTED, "only connected devices send test packets")
        return self._start_test(device, raw, [self._core.gateway_device])

    def downstream_test(self, gateway: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8304, on the gateway: send packets to one device, or to all."""
        target = Mac(raw[_MAC_SIZE : 2 * _MAC_SIZE].hex())
        others = [device for device in self._core.devices.values() if device is not gateway]
        receivers = [device for device in others if target in (_ALL_DEVICES, device.mac)]
        if not receivers:
            return RequestRejection(Status.UNREACHABLE, f"no device {target} here")
        return self._start_test(gateway, raw, receivers)

    def _start_test(
        self, sender: SimulatedDevice, raw: bytes, receivers: list[SimulatedDevice]
    ) -> RequestRejection | None:
        packets, millis, burst, priority = unpack_from(">HHBB", raw)
        test = ThroughputTest(packets, millis / 1000.0, burst, priority)
        if not self._throughput.start(sender, test, receivers):
            return RequestRejection(Status.BUSY, "a throughput test is running already")
        return None

    # Firmware

    def start_update(self, device: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8121: get an image and update with it."""
        stage = bool(raw[IMAGE_KEY_SIZE])
        return _reject_unless_ok(self._updates.start_download(device, ImageKey.from_bytes(raw), stage=stage))

    def control_update(self, device: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8122: apply or abort."""
        return _reject_unless_ok(self._updates.control_download(device, apply=bool(raw[0])))

    def start_broadcast(self, _gateway: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8124, on the gateway: update many devices."""
        macs = raw[IMAGE_KEY_SIZE + 2 :].hex()
        targets = [Mac(macs[at : at + 2 * _MAC_SIZE]) for at in range(0, len(macs), 2 * _MAC_SIZE)]
        stage = bool(raw[IMAGE_KEY_SIZE])
        return _reject_unless_ok(
            self._updates.start_broadcast(ImageKey.from_bytes(raw), targets, stage=stage)
        )

    def control_broadcast(self, _gateway: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8126, on the gateway: apply or abort."""
        return _reject_unless_ok(self._updates.control_broadcast(apply=bool(raw[0])))

    def start_nordic(self, _gateway: SimulatedDevice, raw: bytes, _t: float) -> RequestRejection | None:
        """8131, on the gateway: send an image to a device in DFU mode."""
        mac = Mac(raw[:_MAC_SIZE].hex())
        return _reject_unless_ok(self._updates.start_nordic_dfu(mac, ImageKey.from_bytes(raw, _MAC_SIZE)))


_REASONS: Final = {
    Status.BUSY: "an update is running, and this is not possible now",
    Status.FAILED: "there is no update that this could concern",
    Status.INVALID_VALUE: "no connected device here takes this image by broadcast",
    Status.UNREACHABLE: "nobody advertises under this MAC in DFU mode within the gateway's range",
}


def _reject_unless_ok(status: Status) -> RequestRejection | None:
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
    "8303": DeviceCommands.upstream_test,
    "8304": DeviceCommands.downstream_test,
    "9820": DeviceCommands.send_text,
}
"""By identifier."""
