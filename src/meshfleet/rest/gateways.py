"""Bodies about gateways."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText


class NewGateway(RequestBody, frozen=True, kw_only=True):
    """A gateway to claim (rest-69)."""

    mac: str
    friendly_name: str | None = None


class BrokerPlace(ResponseBody, frozen=True, kw_only=True):
    """Where a gateway is to connect."""

    host: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    tls: bool


class GatewayClaim(ResponseBody, frozen=True, kw_only=True):
    """A claimed gateway with its credentials, which are shown this once (rest-70, rest-71)."""

    mac: str
    device_id: str
    username: str
    password: str
    broker: BrokerPlace

    def __repr__(self) -> str:
        return f"GatewayClaim(mac={self.mac!r}, password=…)"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("mac", self.mac)]


class Gateway(ResponseBody, frozen=True, kw_only=True):
    """A claimed gateway (rest-75)."""

    mac: MacText
    device_id: DeviceIdText
    friendly_name: str
    connected: bool
    since: TimeText
    """When `connected` last changed."""
    api_version: str | None
    mode: Literal["raw", "decoded"] | None
    device_count: int
    reports_per_minute: float
    clock_offset: float | None = None
    """Seconds that its clock is ahead of ours, or behind if negative; None: not known (rest-75)."""


class GatewayPage(ResponseBody, frozen=True, kw_only=True):
    """Gateways, by their MAC."""

    items: list[Gateway]
    next_token: str | None
