"""REST routes of notifications: `/api/v1/channels` and `/api/v1/alarm-routes`."""

import re
from collections.abc import Collection
from typing import Annotated, Final, Protocol

from litestar import Response, Router, delete, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter

from meshfleet.db import Database
from meshfleet.errors import NotFound, Unavailable, quote_name
from meshfleet.rest.channels import (
    ALARM_ROUTES_PATH,
    CHANNELS_PATH,
    AlarmRoutes,
    Channel,
    ChannelKind,
    ChannelList,
    ChannelTest,
    Delivery,
    DeliveryPage,
    DeliveryState,
    IssuedChannel,
    NewAlarmRoutes,
    NewChannel,
    RetriedDeliveries,
)
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken, QueryReader, build_choice_parser
from meshfleet.service.http.request import decode_segment
from meshfleet.service.notifications import channel_commands, delivery_commands, route_commands, views
from meshfleet.service.notifications.channels import StoredChannel
from meshfleet.service.notifications.target_guard import TargetGuard

_CHANNEL_ID: Final = re.compile(r"channel-([1-9][0-9]{0,17})")
_DELIVERY_ID: Final = re.compile(r"delivery-([1-9][0-9]{0,17})")

_parse_state = build_choice_parser({str(each): str(each) for each in DeliveryState})

States = Annotated[
    list[str] | None,
    QueryParameter(
        name="State",
        description="State to include; can be repeated. Default: all.",
        schema_extra={"items": {"type": "string", "enum": [str(each) for each in DeliveryState]}},
    ),
]


def parse_path_channel(text: str) -> int:
    """Return the number of a channel in a path. Raise `NotFound` if there cannot be one."""
    return _parse_id(_CHANNEL_ID, text, "channel")


def parse_path_delivery(text: str) -> int:
    """Return the number of a message in a path. Raise `NotFound` if there cannot be one."""
    return _parse_id(_DELIVERY_ID, text, "delivery")


def _parse_id(pattern: re.Pattern[str], text: str, kind: str) -> int:
    found = pattern.fullmatch(decode_segment(text))
    if found is None:
        raise NotFound(f"{quote_name(text)} is not the id of a {kind}")
    return int(found[1])


class ChannelTester(Protocol):
    """Sends messages as tests."""

    async def test(self, channel: StoredChannel) -> ChannelTest:
        """Send a message to a channel now, and return how it went."""

    async def withdraw(self, alarms: Collection[int]) -> None:
        """Remove the retained messages about alarms from the MQTT broker."""


class ChannelTesterFacade:
    """Entry point of REST routes to the tester of channels, which is attached after the start."""

    def __init__(self) -> None:
        self._tester: ChannelTester | None = None

    def attach(self, tester: ChannelTester) -> None:
        """Set the tester that sends all further tests."""
        self._tester = tester

    async def test(self, channel: StoredChannel) -> ChannelTest:
        """Send a message to a channel now. Raise `Unavailable` if no tester is attached yet."""
        if self._tester is None:
            raise Unavailable("no messages can be sent yet: the service is starting")
        return await self._tester.test(channel)

    async def withdraw(self, alarms: Collection[int]) -> None:
        """Remove the retained messages about alarms from the MQTT broker, if the service has one yet."""
        if self._tester is not None and alarms:
            await self._tester.withdraw(alarms)


@get()
async def list_channels(database: Given[Database], now: Given[Now]) -> ChannelList:
    """List all channels by name. Their URLs are masked."""
    return await database.read(views.list_channels, now=now())


@post(problems=(409,))
async def create_channel(
    data: JSONBody[NewChannel],
    actor: Given[Actor],
    database: Given[Database],
    target_guard: Given[TargetGuard],
    now: Given[Now],
) -> IssuedChannel:
    """Create a channel. Only this response contains the secret that signs its messages."""
    await _check_url(data, target_guard)
    return await database.write(channel_commands.create_channel, data, by=actor, now=now())


@get("/{channel_id:str}")
async def show_channel(channel_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Channel:
    """Show a channel: where it leads, and whether it works."""
    return await database.read(views.load_channel, parse_path_channel(channel_id), now=now())


@put("/{channel_id:str}", problems=(409,))
async def change_channel(
    channel_id: FromPath[str],
    data: JSONBody[NewChannel],
    actor: Given[Actor],
    database: Given[Database],
    target_guard: Given[TargetGuard],
    now: Given[Now],
) -> Channel:
    """Replace the settings of a channel. Without a URL or routing key, these stay the same."""
    number = parse_path_channel(channel_id)
    await _check_url(data, target_guard)
    return await database.write(channel_commands.replace_channel, number, data, by=actor, now=now())


@delete("/{channel_id:str}", problems=(409,))
async def delete_channel(
    channel_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    channel_tester: Given[ChannelTesterFacade],
    now: Given[Now],
) -> None:
    """Delete a channel with its messages. Routes must not lead to it."""
    number = parse_path_channel(channel_id)
    published = await database.write(channel_commands.delete_channel, number, by=actor, now=now())
    await channel_tester.withdraw(published)


@post("/{channel_id:str}/test", status_code=200)
async def test_channel(
    channel_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    channel_tester: Given[ChannelTesterFacade],
    now: Given[Now],
) -> ChannelTest:
    """Send a message to a channel now, also to one that is off, and say how it went."""
    stored = await database.read(views.load_stored_channel, parse_path_channel(channel_id), now=now())
    result = await channel_tester.test(stored)
    await database.write(channel_commands.record_test, stored, result, by=actor, now=now())
    return result


@post("/{channel_id:str}/secret", status_code=200, problems=(409,))
async def rotate_channel_secret(
    channel_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> IssuedChannel:
    """Replace the secret of a webhook. For 24 hours messages are signed with the old one, too."""
    return await database.write(
        channel_commands.rotate_secret, parse_path_channel(channel_id), by=actor, now=now()
    )


@get("/{channel_id:str}/deliveries")
async def list_deliveries(
    channel_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    states: States = None,
    next_token: NextToken = None,
) -> DeliveryPage:
    """List the messages of a channel, the newest first, and what became of them."""
    number = parse_path_channel(channel_id)
    reader = QueryReader()
    chosen = sorted({reader.read(_parse_state, each, "State", default="") for each in states or ()})
    reader.raise_faults()
    query = f"deliveries of {number}: {' '.join(chosen)}"
    before = pages.decode_start(query, next_token, start=None)
    found = await database.read(views.list_deliveries, number, chosen, before=before, limit=limit + 1)
    page = pages.build_page(query, found, limit, lambda last: (parse_path_delivery(last.id),))
    return DeliveryPage(**page)


@post("/{channel_id:str}/deliveries/{delivery_id:str}/retry", status_code=200, problems=(409,))
async def retry_delivery(
    channel_id: FromPath[str],
    delivery_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Delivery:
    """Try a message again that was given up."""
    number, message = parse_path_channel(channel_id), parse_path_delivery(delivery_id)
    return await database.write(delivery_commands.retry_delivery, number, message, by=actor, now=now())


@post("/{channel_id:str}/retry-dead", status_code=200)
async def retry_dead_deliveries(
    channel_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> RetriedDeliveries:
    """Try all messages of a channel again that were given up, and a failing channel at once."""
    number = parse_path_channel(channel_id)
    return await database.write(delivery_commands.retry_dead_deliveries, number, by=actor, now=now())


IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        description="`ETag` of the routes that are replaced; 412 if another admin has changed them.",
    ),
]


@get(ALARM_ROUTES_PATH)
async def list_alarm_routes(database: Given[Database]) -> Response[AlarmRoutes]:
    """List the routes of alarms to channels, in the order in which they are tried."""
    return _build_routes_response(await database.read(views.load_routes))


@put(ALARM_ROUTES_PATH, problems=(412,))
async def change_alarm_routes(
    data: JSONBody[NewAlarmRoutes],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
    if_match: IfMatch = None,
) -> Response[AlarmRoutes]:
    """Replace all routes of alarms to channels."""
    changed = await database.write(
        route_commands.replace_routes, data.items, by=actor, now=now(), if_match=if_match
    )
    return _build_routes_response(changed)


def _build_routes_response(routes: AlarmRoutes) -> Response[AlarmRoutes]:
    return Response(routes, headers={"ETag": route_commands.build_etag(routes)})


async def _check_url(data: NewChannel, guard: TargetGuard) -> None:
    """Raise `TargetForbidden` if a request has a URL to which messages are not sent."""
    if data.url and data.kind in {ChannelKind.WEBHOOK, ChannelKind.WATCHDOG}:
        await guard.check(data.url)


router = Router(
    CHANNELS_PATH,
    route_handlers=[
        list_channels,
        create_channel,
        show_channel,
        change_channel,
        delete_channel,
        test_channel,
        rotate_channel_secret,
        list_deliveries,
        retry_delivery,
        retry_dead_deliveries,
    ],
    tags=["Alarms"],
)
alarm_route_router = Router("", route_handlers=[list_alarm_routes, change_alarm_routes], tags=["Alarms"])
