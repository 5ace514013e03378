"""`fleet.channels`: where messages about alarms are sent, and the routes that lead there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from meshfleet.client.arguments import check_text, parse_enum, to_tuple
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import build_query
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
    WebhookFormat,
)
from meshfleet.rest.paths import channel_path, deliveries_path, delivery_retry_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from meshfleet.rest.channels import AlarmRoute

Kind = ChannelKind | Literal["webhook", "email", "watchdog", "mqtt"]
Format = WebhookFormat | Literal["standard", "cloudevents", "pagerduty", "text"]


class Channels(RestResource):
    """Channels to which messages about alarms are sent, and the routes that lead to them.

    Methods accept the id of a channel or a `Channel` object. Changes need the role admin.
    """

    async def list(self) -> Sequence[Channel]:
        """List all channels by name."""
        return (await self._caller.get(ChannelList, CHANNELS_PATH)).items

    async def show(self, channel: str | Channel) -> Channel:
        """Return a channel: where it leads, and whether it works."""
        return await self._caller.get(Channel, channel_path(to_channel_id(channel)))

    async def create(  # noqa: PLR0913 # keyword-only after the kind
        self,
        name: str,
        kind: Kind,
        *,
        url: str | None = None,
        format: Format = WebhookFormat.STANDARD,  # noqa: A002 # as in REST
        routing_key: str | None = None,
        recipients: str | Iterable[str] = (),
        enabled: bool = True,
        time_zone: str = "UTC",
    ) -> IssuedChannel:
        """Create a channel, and return it with the secret of a webhook, which cannot be read again.

        The first channel gets routes: critical alarms at once, warnings by day, others once a day. A webhook
        or watchdog needs `url`, the format `pagerduty` also `routing_key`, and `email` needs `recipients`.
        `time_zone` is that of the routes, such as `Europe/Zurich`.
        """
        settings = _build_settings(name, kind, url, format, routing_key, recipients, enabled=enabled)
        body = msgspec.structs.replace(settings, time_zone=time_zone)
        return await self._caller.post(IssuedChannel, CHANNELS_PATH, body)

    async def change(  # noqa: PLR0913 # keyword-only after the kind
        self,
        channel: str | Channel,
        name: str,
        kind: Kind,
        *,
        url: str | None = None,
        format: Format = WebhookFormat.STANDARD,  # noqa: A002 # as in REST
        routing_key: str | None = None,
        recipients: str | Iterable[str] = (),
        enabled: bool = True,
    ) -> Channel:
        """Replace the settings of a channel. Without `url` and `routing_key`, these stay the same."""
        body = _build_settings(name, kind, url, format, routing_key, recipients, enabled=enabled)
        return await self._caller.put(Channel, channel_path(to_channel_id(channel)), body)

    async def delete(self, channel: str | Channel) -> None:
        """Delete a channel with its messages. Raise `ChannelInUse` if a route leads to it."""
        await self._caller.delete(channel_path(to_channel_id(channel)))

    async def test(self, channel: str | Channel) -> ChannelTest:
        """Send a message to a channel now, and return how that went."""
        return await self._caller.post(ChannelTest, f"{channel_path(to_channel_id(channel))}/test")

    async def rotate_secret(self, channel: str | Channel) -> IssuedChannel:
        """Replace the secret of a webhook. For 24 hours messages are signed with the old one, too."""
        return await self._caller.post(IssuedChannel, f"{channel_path(to_channel_id(channel))}/secret")

    def deliveries(
        self,
        channel: str | Channel,
        *,
        states: str | DeliveryState | Iterable[str | DeliveryState] = (),
    ) -> AsyncGenerator[Delivery, None]:
        """List the messages of a channel, the newest first; only those in `states`, if given."""
        chosen = [parse_enum(DeliveryState, each, "states") for each in to_tuple(states)]
        path = deliveries_path(to_channel_id(channel))
        return self._caller.iterate_items(DeliveryPage, path, build_query({}, {"State": chosen}))

    async def retry(self, channel: str | Channel, delivery: str | Delivery) -> Delivery:
        """Try a message again that was given up."""
        number = delivery.id if isinstance(delivery, Delivery) else check_text(delivery, "delivery")
        return await self._caller.post(Delivery, delivery_retry_path(to_channel_id(channel), number))

    async def retry_dead(self, channel: str | Channel) -> int:
        """Try all messages again that were given up, and a failing channel at once. Return how many."""
        path = f"{channel_path(to_channel_id(channel))}/retry-dead"
        return (await self._caller.post(RetriedDeliveries, path)).retried

    async def routes(self) -> Sequence[AlarmRoute]:
        """Return the routes of alarms to channels, in the order in which they are tried."""
        return (await self._caller.get(AlarmRoutes, ALARM_ROUTES_PATH)).items

    async def set_routes(self, routes: Iterable[AlarmRoute]) -> Sequence[AlarmRoute]:
        """Replace all routes. The first route that matches an alarm is used."""
        body = NewAlarmRoutes(items=[*routes])
        return (await self._caller.put(AlarmRoutes, ALARM_ROUTES_PATH, body)).items


def to_channel_id(channel: str | Channel) -> str:
    """Return the id of a channel that is given as its id or as an object."""
    return channel.id if isinstance(channel, Channel) else check_text(channel, "channel")


def _build_settings(  # noqa: PLR0913, PLR0917 # the settings of a channel
    name: str,
    kind: Kind,
    url: str | None,
    format_: Format,
    routing_key: str | None,
    recipients: str | Iterable[str],
    *,
    enabled: bool,
) -> NewChannel:
    return NewChannel(
        name=name,
        kind=parse_enum(ChannelKind, kind, "kind"),
        enabled=enabled,
        url=url,
        format=parse_enum(WebhookFormat, format_, "format"),
        routing_key=routing_key,
        recipients=[check_text(each, "recipients") for each in to_tuple(recipients)],
    )
