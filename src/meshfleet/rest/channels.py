"""JSON bodies of the REST API: channels and routes of notifications, and their deliveries."""

from __future__ import annotations

from collections.abc import Sequence  # msgspec reads it
from enum import StrEnum
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from meshfleet.rest.alarms import AlarmSeverity
from meshfleet.rest.bodies import HidesSecrets, MacText, RequestBody, ResponseBody, TimeText

CHANNELS_PATH: Final = "/api/v1/channels"
ALARM_ROUTES_PATH: Final = "/api/v1/alarm-routes"

MAX_CHANNELS: Final = 50
MAX_ROUTES: Final = 50
MAX_RECIPIENTS: Final = 50
MAX_MATCHES: Final = 100
"""Maximum number of rules, of labels and of gateways that a route names."""

ChannelIdText = Annotated[str, Meta(pattern="^channel-[1-9][0-9]*$")]
DeliveryIdText = Annotated[str, Meta(pattern="^delivery-[1-9][0-9]*$")]
DayTime = Annotated[str, Meta(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")]
"""Time of day, such as `07:30`."""


class ChannelKind(StrEnum):
    """Kind of a channel (rest-276)."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    WATCHDOG = "watchdog"
    """A URL that is called while this service is well: another service notices its silence."""
    MQTT = "mqtt"
    """Retained messages at the MQTT broker: one for each alarm that is not over (rest-295)."""


class WebhookFormat(StrEnum):
    """Format of the body of a webhook (rest-277)."""

    STANDARD = "standard"
    """Standard Webhooks: `type`, `timestamp` and `data`."""
    CLOUDEVENTS = "cloudevents"
    PAGERDUTY = "pagerduty"
    TEXT = "text"
    """A message for people, `{"text": …}`: Slack, Mattermost and others."""


class ChannelState(StrEnum):
    """State of a channel."""

    READY = "ready"
    FAILING = "failing"
    """The last attempt failed; it is tried again."""
    OFF = "off"


class NewChannel(HidesSecrets, RequestBody, frozen=True, kw_only=True):
    """Request to create a channel, or to replace its settings."""

    shown = ("name", "kind")
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    kind: ChannelKind
    enabled: bool = True
    url: Annotated[str, Meta(max_length=2000)] | None = None
    """URL of a webhook or watchdog. If it is absent in a request to replace, the URL stays the same."""
    format: WebhookFormat = WebhookFormat.STANDARD
    routing_key: Annotated[str, Meta(max_length=200)] | None = None
    """Key of the integration, in the format `pagerduty`. In a request to replace, as `url`."""
    recipients: Annotated[Sequence[str], Meta(max_length=MAX_RECIPIENTS)] = ()
    """Addresses to which e-mails are sent."""
    time_zone: str = "UTC"
    """Time zone of the routes that the first channel gets, such as `Europe/Zurich`; else without meaning."""


class Channel(ResponseBody, frozen=True, kw_only=True):
    """Place to which messages about alarms are sent (rest-276)."""

    id: ChannelIdText
    name: str
    kind: ChannelKind
    enabled: bool
    target: str
    """Recipients of e-mails, the topics of alarms below the topic prefix, or the beginning and the end of the
    URL: the whole of it may be a secret."""
    format: WebhookFormat | None
    recipients: list[str]
    state: ChannelState
    problem: str | None
    """Why the last attempt failed; null if it did not fail."""
    failing_since: TimeText | None
    delivered_at: TimeText | None
    """Time of the last message that was delivered."""
    waiting: int
    """Number of messages that are not sent yet."""
    dead: int
    """Number of messages that were given up."""
    created_at: TimeText
    version: int


class IssuedChannel(HidesSecrets, ResponseBody, frozen=True, kw_only=True):
    """Channel with the secret that signs its messages, which cannot be read again."""

    shown = ("channel",)
    channel: Channel
    secret: str | None
    """Secret of a webhook (`whsec_…`); null for other channels."""


class ChannelList(ResponseBody, frozen=True, kw_only=True):
    """All channels by name."""

    items: list[Channel]


class ChannelTest(ResponseBody, frozen=True, kw_only=True):
    """Result of a message that was sent as a test (rest-280)."""

    delivered: bool
    status: int | None
    """HTTP status, or the code of the mail server; null without an answer."""
    problem: str | None
    milliseconds: int


class DeliveryState(StrEnum):
    """State of a message (rest-279)."""

    HELD = "held"
    """Waiting for others, for the end of quiet hours, or for the hour of a digest."""
    WAITING = "waiting"
    SENT = "sent"
    DEAD = "dead"
    """Given up; it can be tried again."""
    FOLDED = "folded"
    """Another message told the same, or it was not necessary any more."""


class Delivery(ResponseBody, frozen=True, kw_only=True):
    """Message for a channel, and what became of it."""

    id: DeliveryIdText
    alarm: str | None
    """Id of the alarm; null in a message about several."""
    kind: str
    state: DeliveryState
    created_at: TimeText
    due: TimeText | None
    """Time of the next attempt; null if there is none."""
    finished_at: TimeText | None
    problem: str | None


class DeliveryPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the messages of a channel, the newest first."""

    items: list[Delivery]
    next_token: str | None


class RetriedDeliveries(ResponseBody, frozen=True, kw_only=True):
    """Number of messages that are tried again."""

    retried: int


Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class AlarmRoutePart(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base class of a route and its parts. Responses contain all fields, including defaults."""


class RouteHours(AlarmRoutePart, frozen=True, kw_only=True):
    """Hours in which messages are sent at once; `to` may be on the next day."""

    days: Annotated[Sequence[Day], Meta(min_length=1, max_length=7)] = get_args(Day)
    start: DayTime = msgspec.field(name="from")
    end: DayTime = msgspec.field(name="to")


class RouteMatch(AlarmRoutePart, frozen=True, kw_only=True):
    """Alarms that a route is for. Absent fields match all."""

    severity_at_least: AlarmSeverity = AlarmSeverity.INFO
    rules: Annotated[Sequence[str], Meta(max_length=MAX_MATCHES)] = ()
    labels: Annotated[Sequence[str], Meta(max_length=MAX_MATCHES)] = ()
    """Labels of the gateway or of a member; one of them is enough."""
    gateways: Annotated[Sequence[MacText], Meta(max_length=MAX_MATCHES)] = ()


class AlarmRoute(AlarmRoutePart, frozen=True, kw_only=True):
    """Route of alarms to channels (rest-278). The first route that matches an alarm is used."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    match: RouteMatch = RouteMatch()
    channels: Annotated[Sequence[ChannelIdText], Meta(min_length=1, max_length=MAX_CHANNELS)]
    time_zone: str = "UTC"
    """Time zone of `hours` and `digest`, such as `Europe/Zurich`."""
    hours: RouteHours | None = None
    """Hours in which messages are sent; null for always."""
    quiet: Literal["hold", "drop", "pass"] = "hold"
    """Outside `hours`, messages are held until they begin, not sent at all, or sent all the same."""
    group_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 300
    """Seconds between two messages to people; what happens meanwhile is told in one."""
    digest: DayTime | None = None
    """Time of day at which one message tells everything; null for messages when alarms open."""
    cleared: bool = True
    """Whether the end of an alarm is told, too."""
    repeat_seconds: Annotated[int, Meta(ge=600, le=604_800)] | None = None
    """Seconds after which people are told again of an open alarm: once, and then after four times as long."""
    continues: bool = msgspec.field(default=False, name="continue")
    """Whether later routes are tried, too."""


class NewAlarmRoutes(RequestBody, frozen=True, kw_only=True):
    """Request to replace all routes, in the order in which they are tried."""

    items: Annotated[Sequence[AlarmRoute], Meta(max_length=MAX_ROUTES)]


class RouteHoursView(RouteHours, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`RouteHours` in responses; unlike in requests, unknown fields are ignored."""


class RouteMatchView(RouteMatch, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`RouteMatch` in responses; unlike in requests, unknown fields are ignored."""


class AlarmRouteView(AlarmRoute, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """`AlarmRoute` in responses; unlike in requests, unknown fields are ignored."""

    match: RouteMatchView = RouteMatchView()
    hours: RouteHoursView | None = None


class AlarmRoutes(ResponseBody, frozen=True, kw_only=True):
    """All routes, in the order in which they are tried."""

    items: list[AlarmRouteView]
