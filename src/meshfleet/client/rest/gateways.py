"""`fleet.gateways`: claiming gateways, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.client.names import mac_of
from meshfleet.client.rest.pages import walk
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import Gateway, GatewayClaim


class Gateways:
    """The claimed gateways of a fleet. Each is named by MAC or device id, in either case."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(self) -> AsyncGenerator[Gateway, None]:
        """All gateways, by MAC."""
        return walk(self._desk, rest.GatewayPage, rest.GATEWAYS)

    async def show(self, gateway: str) -> Gateway:
        """All about a gateway."""
        return await self._desk.get(rest.Gateway, rest.gateway_path(mac_of(gateway)))

    async def claim(self, gateway: str, name: str | None = None) -> GatewayClaim:
        """Take a gateway into the fleet, and get its credentials for MQTT, which are told this once."""
        ask = rest.NewGateway(mac=mac_of(gateway), friendly_name=name)
        return await self._desk.post(rest.GatewayClaim, rest.GATEWAYS, ask)

    async def rotate(self, gateway: str) -> GatewayClaim:
        """Give a gateway a new password. The old one holds no longer."""
        return await self._desk.post(rest.GatewayClaim, rest.credentials_path(mac_of(gateway)))

    async def release(self, gateway: str) -> None:
        """Give a gateway up. It stays among the devices until it is forgotten there."""
        await self._desk.delete(rest.gateway_path(mac_of(gateway)))
