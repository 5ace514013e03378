"""Addresses, credentials and MACs of a running fleet, for use in tests."""

from __future__ import annotations

from msgspec import Struct

from meshfleet.protocol.ids import Mac


class RunningGateway(Struct, frozen=True, kw_only=True):
    """MACs of a connected emulated gateway and its devices."""

    mac: Mac
    devices: tuple[Mac, ...]


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
