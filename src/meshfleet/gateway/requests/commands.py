"""Properties that act when they are written."""

from __future__ import annotations

from struct import unpack_from
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.gateway.requests.throughput import Throughput
from meshfleet.gateway.updates.progress import IMAGE_SIZE, ImageName
from meshfleet.gateway.world.device import Reset, ThroughputTest
from meshfleet.gateway.world.effects import take_effect
from meshfleet.gateway.world.products import Mode
from meshfleet.wire.codes import Status
from meshfleet.wire.ids import Identifier, Mac

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.life import Life
    from meshfleet.gateway.updates import Updates
    from meshfleet.gateway.world.device import Device

_SOON: Final = 0.1
"""Seconds that a device takes from the answer to the deed."""

_MOST_TEXT: Final = 200
"""Bytes that fit on the display of a device."""

_MAC_SIZE: Final = 6
_EVERYBODY: Final = Mac("000000000000")


class Refusal(NamedTuple):
    """Why a write is not done."""

    status: Status
    reason: str


class Commands:
    """What the devices of one gateway do on command. Values have the layouts of their identifiers here."""

    def __init__(self, core: Core, life: Life, updates: Updates) -> None:
        self._core = core
        self._life = life
        self._updates = updates
        self._throughput = Throughput(core)

    def soft_reset(self, device: Device, _raw: bytes, _t: float) -> None:
        """8300: restart."""
        self._core.agenda.after(_SOON, lambda _: self._life.reboot(device, Reset.SOFTWARE))

    def factory_reset(self, device: Device, _raw: bytes, _t: float) -> None:
        """8301: forget what was written, and restart."""
        self._core.agenda.after(_SOON, lambda _: self._forget(device))

    def _forget(self, device: Device) -> None:
        device.values = None
        for identifier, raw in device.product.values.items():
            take_effect(device, identifier, raw)
        self._life.reboot(device, Reset.SOFTWARE)

    def report_properties(self, device: Device, _raw: bytes, _t: float) -> Refusal | None:
        """8302: report all properties; busy while it runs (gateway-35)."""
        if device.is_reporting:
            return Refusal(Status.BUSY, "the properties are being reported already")
        self._core.agenda.after(_SOON, lambda _: self._life.report_on_request(device))
        device.is_reporting = True
        return None

    def set_mode(self, device: Device, raw: bytes, t: float) -> Refusal | None:
        """8110: a property, but one that does more than to hold its value."""
        mode = Mode(raw[0])
        if mode not in device.product.modes:
            return Refusal(Status.NOT_SUPPORTED, f"{device.product.name} has no mode {mode.name.lower()}")
        if self._updates.is_served(device):
            return Refusal(Status.BUSY, "the device is being updated, which cannot be stopped")
        if mode is Mode.DFU:
            self._soon(device, lambda now: self._updates.dfu_mode.enter(device, now))
        elif mode is not device.mode:
            self._soon(device, lambda now: self._life.set_mode(device, mode, now))
        else:
            self._life.report_property(device, Identifier("8110"), t)
        return None

    def _soon(self, device: Device, deed: Callable[[float], None]) -> None:
        """Let a device do something after its answer, unless it restarts before and forgets it."""
        self._core.agenda.after(_SOON, lambda now: None if device.is_away else deed(now))

    def switch_legacy_mode(self, _gateway: Device, raw: bytes, t: float) -> Refusal | None:
        """8111, on the gateway: put a device into another mode that cannot be written itself."""
        mac, mode = Mac(raw[:_MAC_SIZE].hex()), raw[_MAC_SIZE]
        target = self._core.devices.get(mac)
        if target is None or target is self._core.own:
            return Refusal(Status.UNREACHABLE, f"no device {mac} here")
        if mode not in set(Mode):
            return Refusal(Status.NOT_SUPPORTED, f"mode {mode} is not known")
        return self.set_mode(target, bytes((mode,)), t)

    def send_text(self, device: Device, raw: bytes, t: float) -> Refusal | None:
        """9820: show a message, which is unread until somebody reads it."""
        if not 0 < len(raw) <= _MOST_TEXT:
            return Refusal(Status.INVALID_VALUE, f"a message has 1 to {_MOST_TEXT} bytes")
        self._life.change(device, Identifier("9821"), b"\1", t)
        return None

    def upstream_test(self, device: Device, raw: bytes, _t: float) -> Refusal | None:
        """8303: send packets to the gateway."""
        if not device.is_connected:
            return Refusal(Status.NOT_SUPPORTED, "only connected devices send test packets")
        return self._test(device, raw, [self._core.own])

    def downstream_test(self, gateway: Device, raw: bytes, _t: float) -> Refusal | None:
        """8304, on the gateway: send packets to one device, or to all."""
        target = Mac(raw[_MAC_SIZE : 2 * _MAC_SIZE].hex())
        others = [device for device in self._core.devices.values() if device is not gateway]
        receivers = [device for device in others if target in (_EVERYBODY, device.mac)]
        if not receivers:
            return Refusal(Status.UNREACHABLE, f"no device {target} here")
        return self._test(gateway, raw, receivers)

    def _test(self, sender: Device, raw: bytes, receivers: list[Device]) -> Refusal | None:
        packets, millis, burst, priority = unpack_from(">HHBB", raw)
        test = ThroughputTest(packets, millis / 1000.0, burst, priority)
        if not self._throughput.start(sender, test, receivers):
            return Refusal(Status.BUSY, "a throughput test is running already")
        return None

    # Firmware

    def start_update(self, device: Device, raw: bytes, _t: float) -> Refusal | None:
        """8121: get an image and update with it."""
        stage = bool(raw[IMAGE_SIZE])
        return _unless_ok(self._updates.download(device, ImageName.read(raw), stage=stage))

    def control_update(self, device: Device, raw: bytes, _t: float) -> Refusal | None:
        """8122: apply or abort."""
        return _unless_ok(self._updates.control(device, apply=bool(raw[0])))

    def start_broadcast(self, _gateway: Device, raw: bytes, _t: float) -> Refusal | None:
        """8124, on the gateway: update many devices."""
        macs = raw[IMAGE_SIZE + 2 :].hex()
        targets = [Mac(macs[at : at + 2 * _MAC_SIZE]) for at in range(0, len(macs), 2 * _MAC_SIZE)]
        stage = bool(raw[IMAGE_SIZE])
        return _unless_ok(self._updates.broadcast(ImageName.read(raw), targets, stage=stage))

    def control_broadcast(self, _gateway: Device, raw: bytes, _t: float) -> Refusal | None:
        """8126, on the gateway: apply or abort."""
        return _unless_ok(self._updates.control_broadcast(apply=bool(raw[0])))

    def start_nordic(self, _gateway: Device, raw: bytes, _t: float) -> Refusal | None:
        """8131, on the gateway: send an image to a device in DFU mode."""
        mac = Mac(raw[:_MAC_SIZE].hex())
        return _unless_ok(self._updates.nordic(mac, ImageName.read(raw, _MAC_SIZE)))


_REASONS: Final = {
    Status.BUSY: "an update is running, and this is not possible now",
    Status.FAILED: "there is no update that this could concern",
    Status.INVALID_VALUE: "no connected device here takes this image by broadcast",
    Status.UNREACHABLE: "nobody advertises under this MAC in DFU mode within the gateway's range",
}


def _unless_ok(status: Status) -> Refusal | None:
    return None if status is Status.OK else Refusal(status, _REASONS[status])


ACTS: Final[Mapping[str, Callable[[Commands, Device, bytes, float], Refusal | None]]] = {
    "8110": Commands.set_mode,
    "8111": Commands.switch_legacy_mode,
    "8121": Commands.start_update,
    "8122": Commands.control_update,
    "8124": Commands.start_broadcast,
    "8126": Commands.control_broadcast,
    "8131": Commands.start_nordic,
    "8300": Commands.soft_reset,
    "8301": Commands.factory_reset,
    "8302": Commands.report_properties,
    "8303": Commands.upstream_test,
    "8304": Commands.downstream_test,
    "9820": Commands.send_text,
}
"""By identifier."""
