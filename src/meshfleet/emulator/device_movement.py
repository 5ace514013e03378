"""Moves the walking devices of a site, reports their RSSI, and records where they really are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from meshfleet.emulator.simulation.noise import uniform_noise
from meshfleet.emulator.simulation.routes import list_survey_stays
from meshfleet.emulator.simulation.site import SitePosition, Survey
from meshfleet.protocol.ids import DeviceId, Mac, to_device_id
from meshfleet.protocol.times import format_millis

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.routes import Route, Stay


class TruePosition(Struct, frozen=True, kw_only=True):
    """True position of a moving device at the time of its RSSI reports."""

    time: str
    """Wall-clock time as in reports."""
    device: DeviceId
    floor: int
    x: float
    y: float


class SurveyPoint(Struct, frozen=True, kw_only=True, rename={"begin": "from", "end": "to"}):
    """Stop of a survey, as in the request body that creates a survey point (gateway-51)."""

    device: DeviceId
    floor: int
    x: float
    y: float
    begin: str
    """Wall-clock time as in reports."""
    end: str


MovementRecord = TruePosition | SurveyPoint


class DeviceMovement:
    """Moves the devices of one gateway along their routes.

    Every moving device reports its RSSI at the interval of the site, at its position at that time.
    `on_record` is called with each position, and with each stop of a survey when it ends.
    """

    __slots__ = ("_behavior", "_context", "_on_record")  # every gateway of a large fleet has one

    def __init__(
        self, context: EmulatorContext, behavior: DeviceBehavior, on_record: Callable[[MovementRecord], None]
    ) -> None:
        self._context = context
        self._behavior = behavior
        self._on_record = on_record
        for mac, route in context.routes.items():
            device = context.devices[mac]
            phase = uniform_noise(device.noise_key, 9) * context.site.interval
            context.scheduler.at(phase, partial(self._step, device, route, 0))
            if isinstance(context.site.movements[mac], Survey):
                for stay in list_survey_stays(route):
                    context.scheduler.at(stay.begin, partial(self._begin_stay, mac, stay))

    def find_position(self, mac: Mac) -> SitePosition:
        """Return the true position of a device, or of the gateway, at the current simulated time."""
        route = self._context.routes.get(mac)
        if route is None:
            return self._context.devices[mac].node.position
        return _round(route.find_position(self._context.scheduler.now))

    def _step(self, device: SimulatedDevice, route: Route, n: int, sim_time: float) -> None:
        """Move a device to its position at this time, report its RSSI, and schedule the next step."""
        self._context.scheduler.at(
            sim_time + self._context.site.interval, partial(self._step, device, route, n + 1)
        )
        position = route.find_position(sim_time)
        if position != device.node.position:
            self._context.mesh.move(device.node, position, sim_time)
        if self._behavior.is_active(device):
            self._behavior.report_rssi(device, n, sim_time, len(device.node.receivers))
        floor, x, y = _round(position)
        self._on_record(
            TruePosition(
                time=self._format_time(sim_time), device=to_device_id(device.mac), floor=floor, x=x, y=y
            )
        )

    def _begin_stay(self, mac: Mac, stay: Stay, sim_time: float) -> None:
        """Remember the wall-clock time at which a stop of a survey begins, and schedule its end."""
        # Converted now: the clock may be set, or the speed change, before the stop ends.
        begin = self._format_time(sim_time)
        self._context.scheduler.at(stay.end, partial(self._end_stay, mac, stay, begin))

    def _end_stay(self, mac: Mac, stay: Stay, begin: str, sim_time: float) -> None:
        """Record a stop of a survey that ends now."""
        floor, x, y = _round(stay.position)
        self._on_record(
            SurveyPoint(
                device=to_device_id(mac), floor=floor, x=x, y=y, begin=begin, end=self._format_time(sim_time)
            )
        )

    def _format_time(self, sim_time: float) -> str:
        return format_millis(self._context.clock.wall_millis(sim_time))


def _round(position: SitePosition) -> SitePosition:
    """Round a position to centimeters."""
    return SitePosition(position.floor, round(position.x, 2), round(position.y, 2))
