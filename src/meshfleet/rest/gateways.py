"""Bodies of gateways and their claims."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from meshfleet.rest.bodies import DeviceIdText, HidesSecrets, MacText, RequestBody, ResponseBody, TimeText


class NewGateway(RequestBody, frozen=True, kw_only=True):
    """Gateway to claim (rest-69)."""

    mac: str
    friendly_name: str | None = None


class BrokerEndpoint(ResponseBody, frozen=True, kw_only=True):
    """Broker address that a gateway connects to."""

    host: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    tls: bool


class GatewayClaim(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """Claimed gateway with its MQTT credentials, which cannot be read again (rest-70, rest-71)."""

    shown = ("mac",)
    mac: str
    device_id: str
    username: str
    password: str
    broker: BrokerEndpoint


class Gateway(ResponseBody, frozen=True, kw_only=True):
    """Claimed gateway (rest-75)."""

    mac: MacText
    device_id: DeviceIdText
    friendly_name: str
    connected: bool
    since: TimeText
    """Time of the last change of `connected`."""
    api_version: str | None
    mode: Literal["raw", "decoded"] | None
    device_count: int
    reports_per_minute: float
    clock_offset: float | None = None
    """Seconds by which the gateway's clock is ahead of the service (negative: behind); None if unknown."""


class GatewayPage(ResponseBody, frozen=True, kw_only=True):
    """Page of gateways, by MAC."""

    items: list[Gateway]
    next_token: str | None
