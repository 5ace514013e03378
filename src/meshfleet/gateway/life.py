"""What devices do by themselves: the rhythm of reports, motion, buttons, doors, restarts.

Every device has its beat, once in a minute, and the beats of a gateway's devices are spread evenly over that
minute (gateway-23). With every twentieth beat it tells its properties too (gateway-24).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.core import ComeUp, GoDown
from meshfleet.gateway.world import properties, radio
from meshfleet.gateway.world.device import ADVERTISEMENTS, Reset
from meshfleet.gateway.world.noise import bits, noise
from meshfleet.gateway.world.products import Mode
from meshfleet.gateway.world.samples import Sample
from meshfleet.gateway.world.senses import failure, sense
from meshfleet.wire.codes import Kind
from meshfleet.wire.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.world.agenda import Deed
    from meshfleet.gateway.world.device import Device

INTERVAL: Final = 60.0
"""Seconds from beat to beat."""

_MOST_BEATS: Final = 20
"""Beats of a gateway in that time: the devices of large ones share theirs, which costs less."""

BEATS_BETWEEN_PROPERTIES: Final = 20
REBOOT: Final = 8.0
"""Seconds that a device takes to restart."""

HOP: Final = 0.025
"""Seconds that a report is on its way per hop: it arrives with the beat, and was made earlier."""

_LOOKS_AROUND: Final = 5
"""Beats after which a device looks for a better parent; one that has none looks at every beat."""

_HEARERS: Final = 4
"""As many nodes as report how well they hear a device."""

_PRESSES: Final = 1 / 360
_READS_MESSAGE: Final = 1 / 5
_HANGS: Final = 1 / 50_000
"""Chances in one beat: that somebody needs help, reads a message, that a device has to be reset."""

_PROPERTY_PAUSE: Final = 0.2
"""Seconds between properties that were asked for all together."""

_ALARM = Identifier("9800")
_MESSAGE = Identifier("9821")
_MOTION = Identifier("8810")
_MODE = Identifier("8110")
_STORAGE_EVENT = Identifier("8112")
_WATCHDOG_EVENT = Identifier("8113")


class Life:
    """The devices of one gateway, and the gateway as a device."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ring = list(core.devices.values())
        self._together = -(-len(self._ring) // _MOST_BEATS)
        self._beats = -(-len(self._ring) // self._together)
        self._beat = 0
        self.interrupt: Callable[[Device], None] = lambda _: None
        """Told of every device that is about to restart, whatever it is busy with."""
        self._phase = noise(core.key, 7) * INTERVAL / self._beats
        self._plan_beat()
        for device in self._ring:
            if device.product.motion:
                self._plan_turn(device)

    # The beat

    def _plan_beat(self) -> None:
        self._core.agenda.at(self._phase + self._beat * INTERVAL / self._beats, self._on_beat)

    def _on_beat(self, t: float) -> None:
        first = self._beat % self._beats * self._together
        self._beat += 1
        self._plan_beat()
        for device in self._ring[first : first + self._together]:
            self.beat(device, t)

    def beat(self, device: Device, t: float) -> None:
        """Let a device report what is due once in a minute."""
        device.beats += 1
        if not device.battery_level(t) and not device.is_away:
            device.is_away = True  # for good: nothing restarts it
            self._core.mesh.leave(device.node)
        if device.is_away or device.mode is Mode.DFU:
            return
        if device.mode is Mode.STORAGE:
            self._tell_storage(device, t)
            return
        if device.is_connected and (device.node.depth < 0 or device.beats % _LOOKS_AROUND == 0):
            self._core.mesh.reconsider(device.node, t)
        self._tell_signal(device, t)
        copies = self._copies(device, t)
        heard = copies > 0
        sent = t - HOP * max(device.node.depth, 1)
        self._heartbeat(device, copies, sent)
        self._measure(device, sent, heard=heard)
        self._live(device, sent)
        if device.beats % BEATS_BETWEEN_PROPERTIES == 1 and heard and not device.is_away:
            self.report_properties(device, sent)

    def _heartbeat(self, device: Device, copies: int, t: float) -> None:
        """Report a heartbeat, of which so many copies are heard. One that nobody hears leaves a hole."""
        if copies:
            self._core.report.heartbeat(device, t)
        else:
            device.next_seq(Kind.HEARTBEAT)
        device.copies = copies  # the next one tells it

    def _copies(self, device: Device, t: float) -> int:
        """How many copies of a beat arrive. Links are reliable, advertisements come in a few copies."""
        node = device.node
        if device.is_connected:
            return ADVERTISEMENTS if node.depth >= 0 else 0
        # By the one who hears it best on average: who that is just now makes little difference.
        nearest = next((i for i, each in enumerate(node.hearers) if each.depth >= 0), None)
        if nearest is None or (level := self._core.mesh.rssi(node, nearest, t)) < radio.HEARD:
            return 0
        dice, lost = bits(device.key, device.beats), radio.loss(level) * 1024
        return ((dice & 1023) >= lost) + ((dice >> 10 & 1023) >= lost) + ((dice >> 20 & 1023) >= lost)

    def _tell_signal(self, device: Device, t: float) -> None:
        mesh, node, tell = self._core.mesh, device.node, self._core.report.rssi
        for i, hearer in enumerate(node.hearers):
            linked = hearer is node.parent or hearer.parent is node
            if i >= _HEARERS and not linked:
                continue
            reading = mesh.reading(node, i, t, device.beats)
            if hearer.depth >= 0 and (linked or reading >= radio.HEARD):
                channel = None if linked else 37 + (device.beats + i) % 3
                tell(device, hearer.mac, reading, channel, t)

    def _measure(self, device: Device, t: float, *, heard: bool) -> None:
        report = self._core.report
        device.faulty = False
        for identifier in device.product.measured:
            if (error := failure(device, identifier)) is None:
                report.measurement(device, identifier, sense(device, identifier, t), t, heard=heard)
                continue
            device.faulty = True
            if heard:
                report.measurement_error(device, identifier, error, t)

    def _tell_storage(self, device: Device, t: float) -> None:
        """The gateway speaks for a device in storage mode (gateway-33)."""
        if any(hearer.depth >= 0 for hearer in device.node.hearers):
            value = bytes.fromhex(device.product.model) + bytes((device.product.variant,))
            seq = device.next_seq(Kind.EVENT, _STORAGE_EVENT)
            sample = Sample(self._core.clock.millis(t), seq, value)  # the device knows nothing of it
            self._core.report.sample(device, Kind.EVENT, _STORAGE_EVENT, sample)

    # What happens now and then

    def _live(self, device: Device, t: float) -> None:
        dice = noise(device.key ^ 0xB0, device.beats)
        if dice < _HANGS and device is not self._core.own:
            self.reboot(device, Reset.WATCHDOG)
        elif device.product.button and dice < _PRESSES:
            self.raise_alarm(device, t)
        if _MESSAGE in device.product.values and any(device.value(_MESSAGE)) and dice > 1 - _READS_MESSAGE:
            self.change(device, _MESSAGE, b"\0", t)
        if device.product.model == "0050":
            device.doors += device.doors_opened()

    def raise_alarm(self, device: Device, t: float) -> None:
        """Somebody presses the button. The alarm stays until it is cleared by a write (gateway-34)."""
        device.set_value(_ALARM, b"\1")
        self._tell(device, _ALARM, b"\1", t)

    def _tell(self, device: Device, identifier: Identifier, raw: bytes, t: float) -> None:
        """Tell what happened as an event and as a property; who is not heard keeps the event for later."""
        heard = self._has_listener(device, t)
        self._core.report.event(device, identifier, raw, t, heard=heard)
        if heard:
            self.report_property(device, identifier, t)

    def _has_listener(self, device: Device, t: float) -> bool:
        """Whether somebody in the tree hears the device now."""
        node, mesh = device.node, self._core.mesh
        if device.is_connected:
            return node.depth >= 0
        return any(
            hearer.depth >= 0 and mesh.rssi(node, i, t) >= radio.HEARD
            for i, hearer in enumerate(node.hearers)
        )

    def _plan_turn(self, device: Device) -> None:
        self._core.agenda.after(device.lingers(), partial(self._turn, device))

    def _turn(self, device: Device, t: float) -> None:
        """Motion comes or goes."""
        device.turn(t)
        if self._speaks(device) and device.battery_level(t):
            self._tell(device, _MOTION, properties.motion_event(device), t)
        self._plan_turn(device)

    def _speaks(self, device: Device) -> bool:
        return not device.is_away and device.mode in (Mode.CONNECTED, Mode.UNCONNECTED)

    # What requests and updates ask for

    def change(self, device: Device, identifier: Identifier, raw: bytes, t: float) -> None:
        """Set a property, and report it."""
        device.set_value(identifier, raw)
        self.report_property(device, identifier, t)

    def report_property(self, device: Device, identifier: Identifier, t: float) -> None:
        """Report one property."""
        self._core.report.property(device, identifier, properties.read(device, identifier, t), t)

    def report_properties(self, device: Device, t: float) -> None:
        """Report all properties that are reported at all."""
        for identifier in device.product.reported:
            self.report_property(device, identifier, t)

    def report_on_request(self, device: Device) -> None:
        """Report all properties one after the other; the device is busy with it for a while (gateway-35)."""
        device.is_reporting = True
        self._report_next(device, 0, device.booted, self._core.agenda.now)

    def _report_next(self, device: Device, place: int, booted: float, t: float) -> None:
        if device.booted != booted or device.is_away:
            return  # it has restarted, and forgotten what it was about
        if place == len(device.product.reported) or not self._speaks(device):
            device.is_reporting = False
            return
        self.report_property(device, device.product.reported[place], t)
        self._core.agenda.after(_PROPERTY_PAUSE, partial(self._report_next, device, place + 1, booted))

    def set_mode(self, device: Device, mode: Mode, t: float) -> None:
        """Put a device into another mode. The gateway tells it, also for those that cannot (gateway-32)."""
        device.mode = mode
        mesh = self._core.mesh
        if mode is Mode.CONNECTED:
            mesh.join(device.node, t)
        else:
            mesh.leave(device.node)
        self.report_property(device, _MODE, t)

    def reboot(
        self, device: Device, cause: int, *, seconds: float = REBOOT, then: Deed | None = None
    ) -> None:
        """Restart a device: it is away for some seconds, comes back and introduces itself."""
        if device.is_away:
            if then is not None and device.battery_level(self._core.agenda.now):
                again = partial(self.reboot, device, cause, seconds=seconds, then=then)
                self._core.agenda.after(1.0, lambda _: again())  # it is restarting for another reason
            return
        self.interrupt(device)
        device.is_away = True
        if device is self._core.own:
            self._core.outbox.close()
            self._core.traffic.clear()
            self._core.chores.append(GoDown(crashed=cause == Reset.WATCHDOG))
        elif device.is_connected:
            self._core.mesh.leave(device.node)
        self._core.agenda.after(seconds, partial(self._back, device, cause, then))

    def _back(self, device: Device, cause: int, then: Callable[[float], None] | None, t: float) -> None:
        device.is_away = False
        device.restart(t, cause)
        if device is self._core.own:
            self._core.outbox.is_open = True
            self._core.chores.append(ComeUp())
        if device.is_connected and device is not self._core.own:
            self._core.mesh.join(device.node, t)
        if then is not None:
            then(t)
        if device.mode is Mode.STORAGE:
            self.report_property(device, _MODE, t)  # the gateway does, in its place (gateway-32)
        if self._speaks(device) and (copies := self._copies(device, t)):
            self._heartbeat(device, copies, t)
            if cause == Reset.WATCHDOG:
                self._core.report.event(device, _WATCHDOG_EVENT, None, t)
            self.report_properties(device, t)
