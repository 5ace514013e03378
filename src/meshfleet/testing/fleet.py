"""Runs a whole service with emulated gateways, in a temporary directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.emulator import EmulatorSettings, ReportMode, SimulatedClock, generate_site
from meshfleet.protocol.ids import Version, mac_from_int, mac_to_int
from meshfleet.testing.background import BackgroundContext
from meshfleet.testing.gateway import DEFAULT_GATEWAY_MAC

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from meshfleet.emulator import Site
    from meshfleet.testing.handles import RunningFleet


def running_fleet(  # noqa: PLR0913 # keyword-only, all optional
    *,
    gateways: int = 1,
    devices: int = 3,
    mode: str = "raw",
    api_version: str = "2.4.0",
    speed: float = 1.0,
    seed: int = 1,
    prefix: str = "",
    sites: Sequence[Site] | None = None,
) -> BackgroundContext[RunningFleet]:
    """Run a service and emulated gateways, each with `devices` devices, during a `with` block.

    `async with` works too. The service is a real Meshfleet service with a new SQLite database. All devices
    are registered from the start, so that you can send requests at once. Devices report every minute of
    simulated time; `speed` is the number of simulated seconds per real second. `sites` are sites of your own,
    each with its gateway, such as those of `generate_position_site`; then `gateways`, `devices` and `seed`
    have no effect.
    """
    if gateways < 1:
        raise ValueError("gateways must be at least 1")
    settings = EmulatorSettings(
        mac=DEFAULT_GATEWAY_MAC,
        mode=ReportMode(mode),
        api_version=Version.parse(api_version),
        topic_prefix=prefix,
        clean_session=True,
    )
    if sites is None:
        macs = [mac_from_int(mac_to_int(DEFAULT_GATEWAY_MAC) + number) for number in range(gateways)]
        sites = [generate_site(mac, devices=devices, seed=seed) for mac in macs]
    emulated = [(replace(settings, mac=site.gateway), site) for site in sites]
    simulated_clock = SimulatedClock(0, speed)

    def open_service() -> AbstractAsyncContextManager[RunningFleet]:
        # Imported only here: it is heavy, and a single emulated gateway does not need it.
        from meshfleet.testing.service import running_service  # noqa: PLC0415

        return running_service(prefix, simulated_clock, emulated)

    return BackgroundContext("running fleet", open_service)
