"""What there is to know of a fleet that runs."""

from __future__ import annotations

from msgspec import Struct

from meshfleet.protocol.ids import Mac


class RunningGateway(Struct, frozen=True, kw_only=True):
    """A gateway that is claimed and connected."""

    mac: Mac
    devices: tuple[Mac, ...]


class RunningFleet(Struct, frozen=True, kw_only=True):
    """A service that runs."""

    url: str
    user: str
    """An admin."""
    password: str
    broker: str
    """The URL of its broker, with user and password."""
    prefix: str
    gateways: tuple[RunningGateway, ...]

    def __repr__(self) -> str:
        return f"RunningFleet({self.url!r}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url), ("gateways", self.gateways)]
