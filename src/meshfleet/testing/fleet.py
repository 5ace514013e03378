"""A whole service with emulated gateways, in a folder that is gone at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.emulator import EmulatorSettings, ReportMode, SimulatedClock, generate_site
from meshfleet.protocol.ids import Version, mac_from_int, mac_to_int
from meshfleet.testing.background import BackgroundContext
from meshfleet.testing.gateway import DEFAULT_GATEWAY_MAC

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from meshfleet.testing.handles import RunningFleet


def running_fleet(  # noqa: PLR0913 # by name, each may be left out
    *,
    gateways: int = 1,
    devices: int = 3,
    mode: str = "raw",
    api_version: str = "2.4.0",
    speed: float = 1.0,
    seed: int = 1,
    prefix: str = "",
) -> BackgroundContext[RunningFleet]:
    """A service and so many gateways with so many devices each, while a `with` or `async with` lasts.

    It is the real service on a SQLite of its own. It knows all devices from the beginning, so that requests
    to them are answered at once. They report once in a minute of their own; `speed` makes it shorter.
    """
    if gateways < 1:
        raise ValueError("a fleet has one gateway or more")
    settings = EmulatorSettings(
        mac=DEFAULT_GATEWAY_MAC,
        mode=ReportMode(mode),
        api_version=Version.parse(api_version),
        topic_prefix=prefix,
        clean_session=True,
    )
    macs = [mac_from_int(mac_to_int(DEFAULT_GATEWAY_MAC) + number) for number in range(gateways)]
    emulated = [(replace(settings, mac=mac), generate_site(mac, devices=devices, seed=seed)) for mac in macs]
    world = SimulatedClock(0, speed)

    def make() -> AbstractAsyncContextManager[RunningFleet]:
        # It is heavy, and who wants a gateway alone does not need it.
        from meshfleet.testing.service import running_service  # noqa: PLC0415

        return running_service(prefix, world, emulated)

    return BackgroundContext("running fleet", make)
