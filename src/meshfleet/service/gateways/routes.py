"""REST routes `/api/v1/gateways`: claim, list, show and release gateways."""

from typing import Annotated, Final

import msgspec
from litestar import Router, delete, get, post
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter

from meshfleet.db import Database
from meshfleet.errors import NoBroker
from meshfleet.protocol.ids import Mac, mac_to_int, to_device_id
from meshfleet.rest.gateways import (
    BrokerEndpoint,
    Gateway,
    GatewayClaim,
    GatewayClaimBatch,
    GatewayPage,
    NewGateway,
    NewGatewayBatch,
)
from meshfleet.rest.inputs import parse_friendly_name
from meshfleet.rest.paths import GATEWAY_BATCH_PATH
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.devices.parameters import parse_new_gateway_mac, parse_path_gateway
from meshfleet.service.gateways import batch_claims, store
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken, QueryReader, parse_flag
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.requests.dispatcher import RequestFacade

_ALL_ADDRESSES: Final = {"0.0.0.0", "::"}  # noqa: S104 # only compared, not bound
"""Listen addresses that mean every network interface, so that gateways cannot connect to them."""


@get()
async def list_gateways(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    traffic: Given[GatewayTraffic],
    connected: Annotated[
        str | None,
        QueryParameter(
            name="Connected",
            description="Whether the gateway is connected.",
            schema_extra={"type": "boolean"},
        ),
    ] = None,
    next_token: NextToken = None,
) -> GatewayPage:
    """List claimed gateways, sorted by MAC."""
    reader = QueryReader()
    is_connected = reader.read(parse_flag, connected, "Connected", default=None)
    reader.raise_faults()
    query = "gateways" if is_connected is None else f"gateways {is_connected}"
    after = pages.decode_start(query, next_token, start=-1)
    rows = await database.read(store.list_gateways, connected=is_connected, after=after, limit=limit + 1)
    gateways = [_add_report_rate(each, traffic) for each in rows]
    page = pages.build_page(query, gateways, limit, lambda last: (mac_to_int(Mac(last.mac)),))
    return GatewayPage(**page)


@post(problems=(409,))
async def claim_gateway(
    data: JSONBody[NewGateway],
    actor: Given[Actor],
    database: Given[Database],
    broker: Given[BrokerEndpoint | None],
    now: Given[Now],
    request: ApiRequest,
) -> GatewayClaim:
    """Claim a gateway, and return its MQTT credentials. The password is returned only once."""
    address = _resolve_broker(broker, request)
    mac = parse_new_gateway_mac(data.mac)
    name = None if data.friendly_name is None else parse_friendly_name(data.friendly_name, "friendlyName")
    password = await database.write(store.claim_gateway, mac, name=name, by=actor, now=now())
    return _build_gateway_claim(mac, password, address)


@post("/batch", problems=(409,))
async def claim_gateways(
    data: JSONBody[NewGatewayBatch],
    actor: Given[Actor],
    database: Given[Database],
    broker: Given[BrokerEndpoint | None],
    request_facade: Given[RequestFacade],
    now: Given[Now],
    request: ApiRequest,
    idempotency_key: Annotated[
        str | None,
        HeaderParameter(
            name="Idempotency-Key",
            description="A repeated request with the same key gets 409, as its passwords are not stored.",
        ),
    ] = None,
) -> GatewayClaimBatch:
    """Claim up to 1,000 gateways, all or none, and return their MQTT credentials.

    The passwords are returned only once.
    """
    address = _resolve_broker(broker, request)
    gateways = batch_claims.parse_gateways(data.gateways)
    key = request_facade.build_idempotency_key(idempotency_key, actor, GATEWAY_BATCH_PATH, data)
    passwords = await database.write(batch_claims.claim_gateways, gateways, key=key, by=actor, now=now())
    return GatewayClaimBatch(
        items=[_build_gateway_claim(each.mac, passwords[each.mac], address) for each in gateways]
    )


@get("/{mac:str}")
async def show_gateway(
    mac: FromPath[str], database: Given[Database], traffic: Given[GatewayTraffic]
) -> Gateway:
    """Show a claimed gateway. The path contains the MAC or the device id of the gateway."""
    return _add_report_rate(await database.read(store.load_gateway, parse_path_gateway(mac)), traffic)


@post("/{mac:str}/credentials", status_code=200)
async def rotate_credentials(
    mac: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    broker: Given[BrokerEndpoint | None],
    now: Given[Now],
    request: ApiRequest,
) -> GatewayClaim:
    """Give a gateway a new MQTT password. The old password becomes invalid."""
    address = _resolve_broker(broker, request)
    gateway = parse_path_gateway(mac)
    password = await database.write(store.rotate_password, gateway, by=actor, now=now())
    return _build_gateway_claim(gateway, password, address)


@delete("/{mac:str}")
async def release_gateway(
    mac: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> None:
    """Release a claimed gateway. The gateway stays in the device list until it is deleted there."""
    await database.write(store.release_gateway, parse_path_gateway(mac), by=actor, now=now())


def _add_report_rate(gateway: Gateway, traffic: GatewayTraffic) -> Gateway:
    """Return a copy of a gateway with its reports per minute, which only the memory of this process holds."""
    reports_per_minute = traffic.reports_per_minute(mac_to_int(Mac(gateway.mac)))
    return msgspec.structs.replace(gateway, reports_per_minute=reports_per_minute)


def _resolve_broker(broker: BrokerEndpoint | None, request: ApiRequest) -> BrokerEndpoint:
    """Return the MQTT address to which gateways connect.

    If the broker listens on all addresses, use the host name of the HTTP request. Raise `NoBroker` if no MQTT
    listener is enabled.
    """
    if broker is None:
        raise NoBroker("no MQTT listener is enabled; set mqtt, mqtt-tls or public-mqtt")
    if broker.host not in _ALL_ADDRESSES:
        return broker
    return msgspec.structs.replace(broker, host=request.url.hostname or broker.host)


def _build_gateway_claim(mac: Mac, password: str, broker: BrokerEndpoint) -> GatewayClaim:
    return GatewayClaim(mac=mac, device_id=to_device_id(mac), username=mac, password=password, broker=broker)


router = Router(
    "/api/v1/gateways",
    route_handlers=[
        list_gateways,
        claim_gateway,
        claim_gateways,
        show_gateway,
        rotate_credentials,
        release_gateway,
    ],
    tags=["Gateways"],
)
