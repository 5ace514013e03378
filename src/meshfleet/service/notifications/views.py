"""Channels, routes and messages as REST shows them. URLs are masked: they may be secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import func, select

from meshfleet.db.tables import channel, notification, notification_route
from meshfleet.errors import NotFound
from meshfleet.protocol.times import format_millis, format_optional_millis
from meshfleet.rest.channels import (
    AlarmRoutes,
    AlarmRouteView,
    Channel,
    ChannelKind,
    ChannelList,
    ChannelState,
    Delivery,
    DeliveryState,
)
from meshfleet.service.notifications.channels import ChannelTarget, StoredChannel, to_channel
from meshfleet.service.notifications.mqtt_publisher import ALARM_TOPICS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sqlalchemy import Connection, Row

_SHOWN_END: Final = 3
"""Number of characters at the end of a URL that are shown, to tell channels apart."""
_HIDDEN_AT_LEAST: Final = 8
"""Nothing of a URL's path is shown if fewer characters than these would be hidden."""

_UNFINISHED: Final = (str(DeliveryState.HELD), str(DeliveryState.WAITING))

_decode_route = msgspec.json.Decoder(AlarmRouteView).decode


def format_channel_id(number: int) -> str:
    """Return the id of a channel in REST, such as `channel-3`."""
    return f"channel-{number}"


# Channels.


def list_channels(connection: Connection, *, now: int) -> ChannelList:
    """List all channels by name."""
    rows = connection.execute(select(channel).order_by(channel.c.name, channel.c.id)).all()
    return ChannelList(items=_build_channels(connection, rows, now))


def load_channel(connection: Connection, number: int, *, now: int) -> Channel:
    """Load a channel. Raise `NotFound` if there is none with this number."""
    return _build_channels(connection, [_load_row(connection, number)], now)[0]


def load_stored_channel(connection: Connection, number: int, *, now: int) -> StoredChannel:
    """Load a channel with its secrets, to send a message. Raise `NotFound` if there is none."""
    return to_channel(_load_row(connection, number), now)


def _load_row(connection: Connection, number: int) -> Row[Any]:
    row = connection.execute(select(channel).where(channel.c.id == number)).first()
    if row is None:
        raise NotFound(f"{format_channel_id(number)} does not exist")
    return row


def _build_channels(connection: Connection, rows: Collection[Row[Any]], now: int) -> list[Channel]:
    columns = notification.c
    query = (
        select(columns.channel, columns.state, func.count())
        .where(columns.channel.in_([row.id for row in rows]))
        .where(columns.state.in_([*_UNFINISHED, str(DeliveryState.DEAD)]))
        .group_by(columns.channel, columns.state)
    )
    counts = {(number, state): count for number, state, count in connection.execute(query)}
    return [_build_channel(row, counts, now) for row in rows]


def _build_channel(row: Row[Any], counts: dict[tuple[int, str], int], now: int) -> Channel:
    stored = to_channel(row, now)
    state = ChannelState.READY if stored.failing_since is None else ChannelState.FAILING
    return Channel(
        id=format_channel_id(stored.id),
        name=stored.name,
        kind=stored.kind,
        enabled=stored.is_enabled,
        target=mask_target(stored.target),
        format=stored.target.format if stored.kind is ChannelKind.WEBHOOK else None,
        recipients=list(stored.target.recipients),
        state=state if stored.is_enabled else ChannelState.OFF,
        problem=stored.problem,
        failing_since=format_optional_millis(stored.failing_since),
        delivered_at=format_optional_millis(stored.delivered_at),
        waiting=sum(counts.get((stored.id, each), 0) for each in _UNFINISHED),
        dead=counts.get((stored.id, DeliveryState.DEAD), 0),
        created_at=format_millis(stored.created_at),
        version=row.version,
    )


def mask_target(target: ChannelTarget) -> str:
    """Return where a channel leads without what may be secret: `https://hooks.example.org/…f3a`."""
    if target.url is None:
        return ", ".join(target.recipients) or f"{ALARM_TOPICS}/+"
    parts = urlsplit(target.url)
    rest = target.url.partition("://")[2].partition(parts.netloc)[2].removeprefix("/")
    end = rest[-_SHOWN_END:] if len(rest) >= _HIDDEN_AT_LEAST + _SHOWN_END else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…{end}"


# Messages.


def list_deliveries(
    connection: Connection, number: int, states: Iterable[str], *, before: int | None, limit: int
) -> list[Delivery]:
    """List up to `limit` messages of a channel in some states, or in all without any; the newest first."""
    _load_row(connection, number)
    columns = notification.c
    query = select(notification).where(columns.channel == number).order_by(columns.id.desc()).limit(limit)
    if chosen := sorted(states):
        query = query.where(columns.state.in_(chosen))
    if before is not None:
        query = query.where(columns.id < before)
    return [_build_delivery(row) for row in connection.execute(query)]


def load_delivery(connection: Connection, number: int, message: int) -> Delivery:
    """Load a message of a channel. Raise `NotFound` if the channel has none with this number."""
    columns = notification.c
    query = select(notification).where(columns.id == message, columns.channel == number)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"{format_channel_id(number)} has no delivery-{message}")
    return _build_delivery(row)


def _build_delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        id=f"delivery-{row.id}",
        alarm=None if row.alarm is None else f"alarm-{row.alarm}",
        kind=row.kind,
        state=DeliveryState(row.state),
        created_at=format_millis(row.created_at),
        due=format_millis(row.due) if row.state in _UNFINISHED else None,
        finished_at=format_optional_millis(row.finished_at),
        problem=row.problem,
    )


# Routes.


def load_routes(connection: Connection) -> AlarmRoutes:
    """Load all routes in their order."""
    query = select(notification_route.c.body).order_by(notification_route.c.position)
    return AlarmRoutes(items=[_decode_route(body) for body in connection.scalars(query)])
