"""Addresses, credentials and MACs of a running fleet, for use in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from meshfleet.emulator import GatewayEmulator
from meshfleet.protocol.ids import Mac

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.site import SitePosition


class TruePlaces(Struct, frozen=True, kw_only=True):
    """Handle of an emulated gateway that knows where its devices really are."""

    _emulator: GatewayEmulator | None = None

    def true_place(self, mac: Mac) -> SitePosition:
        """Return the true position of a device, or of the gateway, at the time of the latest reports.

        Raise `LookupError` if the gateway has no such device.
        """
        if self._emulator is None:
            raise LookupError("this gateway does not run here")
        return self._emulator.true_place(mac)


class RunningGateway(TruePlaces, frozen=True, kw_only=True):
    """MACs of a connected emulated gateway and its devices."""

    mac: Mac
    devices: tuple[Mac, ...]

    def __repr__(self) -> str:
        return f"RunningGateway(mac={self.mac!r}, devices={self.devices!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("mac", self.mac), ("devices", self.devices)]


class RunningFleet(Struct, frozen=True, kw_only=True):
    """URLs and credentials of a running service, and MACs of its emulated gateways."""

    url: str
    user: str
    """User name of an admin of the service."""
    password: str
    broker: str
    """URL of the MQTT broker of the service, with user and password."""
    prefix: str
    """Prefix of all MQTT topics; empty for no prefix."""
    gateways: tuple[RunningGateway, ...]

    def __repr__(self) -> str:
        return f"RunningFleet({self.url!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url), ("gateways", self.gateways)]
