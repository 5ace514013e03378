"""Values that describe a running fleet: addresses, credentials and MACs."""

from __future__ import annotations

from msgspec import Struct

from meshfleet.protocol.ids import Mac


class RunningGateway(Struct, frozen=True, kw_only=True):
    """Gateway that is claimed and connected, with its devices."""

    mac: Mac
    devices: tuple[Mac, ...]


class RunningFleet(Struct, frozen=True, kw_only=True):
    """Running service with its gateways: URLs and credentials for a test."""

    url: str
    user: str
    """User name of an admin."""
    password: str
    broker: str
    """URL of the MQTT broker of the service, with user and password."""
    prefix: str
    """Topic prefix; empty for none."""
    gateways: tuple[RunningGateway, ...]

    def __repr__(self) -> str:
        return f"RunningFleet({self.url!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url), ("gateways", self.gateways)]
