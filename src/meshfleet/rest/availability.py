"""JSON bodies of the REST API: how many devices were online, and what changed when."""

from __future__ import annotations

from typing import Final, Literal

from meshfleet.rest.bodies import DeviceIdText, MacText, ResponseBody, TimeText

AVAILABILITY_PATH: Final = "/api/v1/fleet/availability"
FLEET_CONNECTIVITY_PATH: Final = "/api/v1/fleet/connectivity"

MAX_AVAILABILITY_DAYS: Final = 400
"""Longest time of which the availability is returned at once."""
DEFAULT_AVAILABILITY_POINTS: Final = 168


class AvailabilityPoint(ResponseBody, frozen=True, kw_only=True):
    """One or more hours: how many devices were online, as far as it is known."""

    start: TimeText
    end: TimeText
    known: float
    """Share of the time in which the service knew the connections, from 0 to 1."""
    online: float | None
    """Share of the devices that were online in this time, on average, from 0 to 1; null if it is unknown."""
    devices: int | None
    """Number of devices at the end of this time; null if it is unknown."""
    offline: int | None
    """Number of devices that were offline at the end of this time; null if it is unknown."""
    alarms: int
    """Number of alarms that were opened in this time."""
    jobs: int
    """Number of update jobs that were started in this time."""


class Availability(ResponseBody, frozen=True, kw_only=True):
    """How many devices of the fleet were online, in order of time (rest-292)."""

    items: list[AvailabilityPoint]


class FleetConnectivityChange(ResponseBody, frozen=True, kw_only=True):
    """Connect or disconnect of a device, with its time and cause (rest-293)."""

    device: DeviceIdText
    name: str | None
    """Present name of the device; null if it was deleted."""
    time: TimeText
    connected: bool
    cause: Literal["heard", "silent", "gateway", "connection"]
    gateway: MacText | None


class FleetConnectivityPage(ResponseBody, frozen=True, kw_only=True):
    """Page of connects and disconnects of devices, the newest first."""

    items: list[FleetConnectivityChange]
    next_token: str | None
