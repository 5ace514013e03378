"""JSON bodies of the REST API: gateways and their claims."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from meshfleet.rest.bodies import DeviceIdText, HidesSecrets, MacText, RequestBody, ResponseBody, TimeText


class NewGateway(RequestBody, frozen=True, kw_only=True):
    """Request to claim a gateway (rest-69)."""

    mac: str
    friendly_name: str | None = None


MAX_BATCH: Final = 1000
"""Maximum number of gateways in a `NewGatewayBatch`, because other writers wait for the transaction."""
MAX_BATCH_LABELS: Final = 20
"""Maximum number of labels of a gateway in a `NewGatewayBatch`."""


class BatchGateway(RequestBody, frozen=True, kw_only=True):
    """Gateway to claim together with others, and the labels that it gets (rest-226)."""

    mac: str
    friendly_name: str | None = None
    labels: tuple[str, ...] = ()


class NewGatewayBatch(RequestBody, frozen=True, kw_only=True):
    """Request to claim up to 1,000 gateways: all of them or none (rest-226)."""

    gateways: tuple[BatchGateway, ...]


class BrokerEndpoint(ResponseBody, frozen=True, kw_only=True):
    """Address of the MQTT broker to which a gateway connects."""

    host: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    tls: bool


class GatewayClaim(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """New claim of a gateway, with the MQTT password, which cannot be read again (rest-70, rest-71)."""

    shown = ("mac",)
    mac: str
    device_id: str
    username: str
    password: str
    broker: BrokerEndpoint


class GatewayClaimBatch(ResponseBody, frozen=True, kw_only=True):
    """New claims of gateways, in the order of the request (rest-226)."""

    items: list[GatewayClaim]


class Gateway(ResponseBody, frozen=True, kw_only=True):
    """Claimed gateway and its current state (rest-75)."""

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
    """Seconds by which the gateway's clock is ahead of the service's clock; None if unknown."""


class GatewayPage(ResponseBody, frozen=True, kw_only=True):
    """Page of claimed gateways, sorted by MAC."""

    items: list[Gateway]
    next_token: str | None
