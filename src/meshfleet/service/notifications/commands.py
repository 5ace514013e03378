"""Changes of channels, routes and messages that users make. Each one has a row in the audit log."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import available_timezones

import msgspec
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from meshfleet.db import bulk
from meshfleet.db.tables import channel, channel_alarm, gateway, notification, notification_route
from meshfleet.errors import (
    AlreadyExists,
    ChannelInUse,
    Conflict,
    Fault,
    InvalidRequest,
    NotFound,
    quote_input,
)
from meshfleet.errors.protocol import MalformedText
from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int
from meshfleet.rest.alarms import AlarmRule, AlarmSeverity
from meshfleet.rest.channels import (
    MAX_CHANNELS,
    AlarmRoute,
    ChannelKind,
    DeliveryState,
    IssuedChannel,
    RetriedDeliveries,
    RouteHours,
    RouteMatch,
    WebhookFormat,
)
from meshfleet.rest.inputs import parse_label, parse_title
from meshfleet.service.audit import log as audit_log
from meshfleet.service.notifications import outbox, views
from meshfleet.service.notifications.channels import ChannelTarget, StoredChannel, to_channel
from meshfleet.service.notifications.messages import MessageKind
from meshfleet.service.notifications.signature import create_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.rest.channels import AlarmRoutes, Channel, ChannelTest, Delivery, NewChannel
    from meshfleet.service.actor import Actor

_OLD_SECRET_MS: Final = 24 * 3600 * 1000
"""Time for which messages are also signed with the secret that was replaced."""

_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})")
"""E-mail addresses that every mail server accepts. Those in quotes are rare, and often an attack."""

_SELECT_CARRIED: Final = (
    "SELECT carrier, alarm, kind FROM notification WHERE carrier IN numbers AND alarm > 0"
)
_SELECT_TOLD: Final = """
    SELECT told.alarm, max(sent.id)
    FROM notification AS told
    JOIN notification AS sent ON sent.id = coalesce(told.carrier, told.id) AND sent.state = 'sent'
    WHERE told.alarm IN numbers AND told.channel = :channel
    GROUP BY told.alarm
"""
_SELECT_OVER: Final = "SELECT id FROM alarm WHERE id IN numbers AND state = 'cleared'"
_RETRY: Final = """
    UPDATE notification
    SET state = CASE WHEN body IS NULL THEN 'held' ELSE 'waiting' END,
        due = :now, attempts = 0, retried_at = :now,
        failed_at = NULL, finished_at = NULL, problem = NULL
    WHERE id IN numbers
"""
_MAX_FOLDED: Final = 10_000

_WORKS_AGAIN: Final[dict[str, Any]] = {
    "problem": None,
    "failing_since": None,
    "failures": 0,
    "retry_at": None,
}
"""Columns of a channel that has not failed."""


# Channels.


def create_channel(connection: Connection, new: NewChannel, *, by: Actor, now: int) -> IssuedChannel:
    """Create a channel. The first one gets routes, unless there are some.

    Raise `InvalidRequest` for fields that are missing or not for this kind, `AlreadyExists` if another
    channel has the name, and `Conflict` if there are too many.
    """
    name, target = _parse_channel(new)
    if connection.dialect.name == "postgresql":  # two channels at once are never both the first
        connection.exec_driver_sql("LOCK TABLE channel IN SHARE ROW EXCLUSIVE MODE")
    others = connection.execute(select(channel.c.kind)).scalars().all()
    if len(others) >= MAX_CHANNELS:
        raise Conflict(f"there are {len(others)} channels, which is the maximum: delete one first")
    secret = create_secret() if new.kind is ChannelKind.WEBHOOK else None
    values = {
        "name": name,
        "kind": str(new.kind),
        "enabled": new.enabled,
        "target": _encode_target(target),
        "secret": secret,
        "created_at": now,
        "version": 1,
        **_WORKS_AGAIN,
    }
    try:
        number: int = connection.execute(insert(channel).values(values).returning(channel.c.id)).scalar_one()
    except IntegrityError:
        raise _build_name_conflict(name) from None
    is_first = not any(kind != ChannelKind.WATCHDOG for kind in others)
    if is_first and new.kind is not ChannelKind.WATCHDOG and not _has_routes(connection):
        _write_routes(connection, build_default_routes(views.format_channel_id(number)))
    created = views.load_channel(connection, number, now=now)
    audit_log.record_change(connection, by, "channel.create", created.id, now=now, **_describe(created))
    return IssuedChannel(channel=created, secret=secret)


def replace_channel(connection: Connection, number: int, new: NewChannel, *, by: Actor, now: int) -> Channel:
    """Replace the settings of a channel. Without `url` or `routingKey`, these stay the same.

    A channel with another target, or one that is switched on again, is tried at once. Raise `InvalidRequest`
    if it would be of another kind, and as `create_channel`.
    """
    row = _lock_channel(connection, number)
    before = to_channel(row, now)
    name, target = _parse_channel(new, before)
    changes: dict[str, Any] = {}
    if target != before.target or (new.enabled and not before.is_enabled):
        changes |= _WORKS_AGAIN
    try:
        _update_channel(
            connection,
            number,
            name=name,
            enabled=new.enabled,
            target=_encode_target(target),
            **changes,
        )
    except IntegrityError:
        raise _build_name_conflict(name) from None
    if changes:
        told = channel_alarm.c.channel == number
        connection.execute(update(channel_alarm).where(told).values(check_at=now))
    changed = views.load_channel(connection, number, now=now)
    renamed = {} if name == before.name else {"before": before.name}
    audit_log.record_change(
        connection, by, "channel.change", changed.id, now=now, **_describe(changed), **renamed
    )
    return changed


def delete_channel(connection: Connection, number: int, *, by: Actor, now: int) -> None:
    """Delete a channel with its messages. Raise `ChannelInUse` if a route leads to it."""
    _lock_channel(connection, number)
    deleted = views.load_channel(connection, number, now=now)
    routes = views.load_routes(connection).items
    if names := [each.name for each in routes if deleted.id in each.channels]:
        raise ChannelInUse(f"routes lead to this channel: {', '.join(names)}; change them first")
    connection.execute(delete(channel).where(channel.c.id == number))
    audit_log.record_change(connection, by, "channel.delete", deleted.id, now=now, **_describe(deleted))


def rotate_secret(connection: Connection, number: int, *, by: Actor, now: int) -> IssuedChannel:
    """Replace the secret of a webhook. For 24 hours messages are signed with the old one, too.

    Raise `Conflict` if the channel is no webhook.
    """
    row = _lock_channel(connection, number)
    if row.kind != ChannelKind.WEBHOOK:
        raise Conflict(f"{row.name} is no webhook: its messages are not signed")
    secret = create_secret()
    old = {} if row.secret is None else {"old_secret": row.secret, "old_secret_until": now + _OLD_SECRET_MS}
    _update_channel(connection, number, secret=secret, **old)
    changed = views.load_channel(connection, number, now=now)
    audit_log.record_change(connection, by, "channel.secret", changed.id, now=now, name=changed.name)
    return IssuedChannel(channel=changed, secret=secret)


def record_test(
    connection: Connection, tested: StoredChannel, result: ChannelTest, *, by: Actor, now: int
) -> None:
    """Record a message that was sent as a test in the audit log."""
    identity = views.format_channel_id(tested.id)
    detail = {"name": tested.name, "delivered": result.delivered}
    audit_log.record_change(connection, by, "channel.test", identity, now=now, **detail)


def _lock_channel(connection: Connection, number: int) -> Row[Any]:
    """Load the row of a channel, and lock it until the transaction ends. Raise `NotFound`."""
    row = connection.execute(select(channel).where(channel.c.id == number).with_for_update()).first()
    if row is None:
        raise NotFound(f"{views.format_channel_id(number)} does not exist")
    return row


def _update_channel(connection: Connection, number: int, **values: Any) -> None:
    statement = update(channel).where(channel.c.id == number)
    connection.execute(statement.values(version=channel.c.version + 1, **values))


def _encode_target(target: ChannelTarget) -> str:
    return msgspec.json.encode(target).decode()


def _build_name_conflict(name: str) -> AlreadyExists:
    return AlreadyExists(f"a channel named {name} already exists")


def _describe(shown: Channel) -> dict[str, Any]:
    """Return what the audit log says of a channel: its target is masked."""
    return {
        "name": shown.name,
        "kind": str(shown.kind),
        "destination": shown.target,
        "enabled": shown.enabled,
    }


# Fields of channels: which ones are necessary depends on the kind.


def _parse_channel(new: NewChannel, before: StoredChannel | None = None) -> tuple[str, ChannelTarget]:
    """Return the name and the target of a channel. `before` is the channel that it replaces.

    Raise `InvalidRequest` that names all wrong fields.
    """
    url, routing_key = new.url, new.routing_key
    faults = list(_find_unneeded_fields(new))
    if before is not None:
        faults += _find_fixed_fields(new, before)
        url = before.target.url if url is None else url
        if routing_key is None and new.format is WebhookFormat.PAGERDUTY:
            routing_key = before.target.routing_key
    faults += _find_missing_fields(new, url, routing_key)
    faults += _find_wrong_recipients(new.recipients)
    try:
        name = parse_title(new.name)
    except MalformedText as exc:
        faults.append(Fault("name", exc.reason))
        name = ""
    if routing_key is not None and not (routing_key.isascii() and routing_key.isprintable()):
        faults.append(Fault("routingKey", "must consist of printable ASCII characters"))
    if faults:
        raise InvalidRequest(faults)
    target = ChannelTarget(
        url=url, format=new.format, routing_key=routing_key, recipients=tuple(new.recipients)
    )
    return name, target


def _find_unneeded_fields(new: NewChannel) -> list[Fault]:
    is_pagerduty = new.kind is ChannelKind.WEBHOOK and new.format is WebhookFormat.PAGERDUTY
    unneeded = {
        "url": new.url is not None and new.kind is ChannelKind.EMAIL,
        "format": new.format is not WebhookFormat.STANDARD and new.kind is not ChannelKind.WEBHOOK,
        "routingKey": new.routing_key is not None and not is_pagerduty,
        "recipients": bool(new.recipients) and new.kind is not ChannelKind.EMAIL,
    }
    owners = {
        "url": "a webhook or watchdog",
        "format": "a webhook",
        "routingKey": "a webhook in the format pagerduty",
        "recipients": "e-mails",
    }
    return [
        Fault(name, f"is only for {owners[name]}") for name, is_unneeded in unneeded.items() if is_unneeded
    ]


def _find_missing_fields(new: NewChannel, url: str | None, routing_key: str | None) -> list[Fault]:
    faults = []
    if not url and new.kind is not ChannelKind.EMAIL:
        faults.append(Fault("url", f"is required for a {new.kind}"))
    is_pagerduty = new.kind is ChannelKind.WEBHOOK and new.format is WebhookFormat.PAGERDUTY
    if is_pagerduty and not routing_key:
        faults.append(Fault("routingKey", "is required for the format pagerduty"))
    if not new.recipients and new.kind is ChannelKind.EMAIL:
        faults.append(Fault("recipients", "are required for e-mails"))
    return faults


def _find_fixed_fields(new: NewChannel, before: StoredChannel) -> list[Fault]:
    """Return the faults of changes that would make waiting messages unreadable for the new receiver."""
    if new.kind is not before.kind:
        return [Fault("kind", f"is {before.kind} and cannot change: create another channel")]
    is_text = new.format is WebhookFormat.TEXT
    if new.kind is ChannelKind.WEBHOOK and is_text is not before.is_for_people:
        return [Fault("format", "cannot change to or from text: create another channel")]
    return []


def _find_wrong_recipients(recipients: Sequence[str]) -> list[Fault]:
    faults, seen = [], set()
    for number, each in enumerate(recipients):
        if not _ADDRESS.fullmatch(each):
            faults.append(Fault(f"recipients[{number}]", f"{quote_input(each)} is not an e-mail address"))
        elif each.lower() in seen:
            faults.append(Fault(f"recipients[{number}]", f"{quote_input(each)} is there twice"))
        seen.add(each.lower())
    return faults


# Messages.


def retry_delivery(connection: Connection, number: int, message: int, *, by: Actor, now: int) -> Delivery:
    """Try a message again that was given up. Raise `Conflict` if it was not.

    It is folded instead if it is not necessary any more.
    """
    row = _lock_channel(connection, number)
    before = views.load_delivery(connection, number, message)
    if before.state is not DeliveryState.DEAD:
        raise Conflict(f"{before.id} is {before.state}: only messages that were given up are tried again")
    _retry(connection, row, message, by=by, now=now)
    return views.load_delivery(connection, number, message)


def retry_dead_deliveries(connection: Connection, number: int, *, by: Actor, now: int) -> RetriedDeliveries:
    """Try the messages of a channel again that were given up, and a failing channel at once.

    Those that are not necessary any more are folded.
    """
    row = _lock_channel(connection, number)
    return RetriedDeliveries(retried=_retry(connection, row, by=by, now=now))


def _retry(connection: Connection, row: Row[Any], message: int | None = None, *, by: Actor, now: int) -> int:
    """Let a dead message of a channel wait again, or all of them. Return how many wait."""
    columns = notification.c
    query = select(columns.id, columns.alarm, columns.kind).where(
        columns.channel == row.id, columns.state == str(DeliveryState.DEAD)
    )
    dead: list[Row[Any]] = list(connection.execute(query.order_by(columns.id)))
    needless = _find_needless(connection, row.id, dead)
    chosen = [each.id for each in dead if message is None or each.id == message]
    folded = [each for each in chosen if each in needless]
    for start in range(0, len(folded), _MAX_FOLDED):
        outbox.fold_messages(connection, folded[start : start + _MAX_FOLDED], now, carrier=None)
    retried = [each for each in chosen if each not in needless]
    bulk.execute_in(connection, _RETRY, retried, now=now)
    if row.retry_at is not None:
        connection.execute(update(channel).where(channel.c.id == row.id).values(retry_at=now))
    identity = views.format_channel_id(row.id)
    detail = {"name": row.name, "messages": len(retried)}
    audit_log.record_change(connection, by, "channel.retry", identity, now=now, **detail)
    return len(retried)


def _find_needless(connection: Connection, number: int, dead: Sequence[Row[Any]]) -> set[int]:
    """Return those dead messages of a channel that would only confuse its receivers.

    That is so if each alarm of a message was told of later, or is over and was never told.
    """
    about: dict[int, set[int]] = {each.id: {each.alarm} for each in dead if each.alarm is not None}
    opened = {each.alarm for each in dead if each.kind == MessageKind.OPENED}
    summaries = [each.id for each in dead if each.alarm is None]
    for carrier, alarm, kind in bulk.query_in(connection, _SELECT_CARRIED, summaries):
        about.setdefault(carrier, set()).add(alarm)
        if kind == MessageKind.OPENED:
            opened.add(alarm)
    alarms = sorted(set().union(*about.values()))
    told: dict[int, int] = dict(map(tuple, bulk.query_in(connection, _SELECT_TOLD, alarms, channel=number)))
    over = {each for (each,) in bulk.query_in(connection, _SELECT_OVER, alarms)}
    unknown = (over & opened) - told.keys()
    return {
        message
        for message, alarms_told in about.items()
        if all(told.get(each, 0) > message or each in unknown for each in alarms_told)
    }


# Routes.


def build_default_routes(identity: str) -> tuple[AlarmRoute, ...]:
    """Return the routes of the first channel: critical at once, warnings by day, the rest once a day."""
    return (
        AlarmRoute(
            name="Critical",
            match=RouteMatch(severity_at_least=AlarmSeverity.CRITICAL),
            channels=[identity],
            group_seconds=0,
            repeat_seconds=3600,
        ),
        AlarmRoute(
            name="Warnings",
            match=RouteMatch(severity_at_least=AlarmSeverity.WARNING),
            channels=[identity],
            hours=RouteHours(start="07:00", end="20:00"),
            group_seconds=300,
        ),
        AlarmRoute(name="Information", channels=[identity], digest="08:00"),
    )


def replace_routes(
    connection: Connection, routes: Sequence[AlarmRoute], *, by: Actor, now: int
) -> AlarmRoutes:
    """Replace all routes. Raise `InvalidRequest` that names the places of everything that does not exist."""
    # Locked, so that none of them is deleted before the routes are committed.
    rows = connection.execute(select(channel.c.id, channel.c.kind).order_by(channel.c.id).with_for_update())
    kinds = {views.format_channel_id(row.id): ChannelKind(row.kind) for row in rows}
    claimed = _load_claimed(connection, {mac for each in routes for mac in each.match.gateways})
    parser = _RouteParser(kinds, claimed)
    parsed = [parser.parse(each, f"items[{number}]") for number, each in enumerate(routes)]
    if parser.faults:
        raise InvalidRequest(parser.faults)
    _write_routes(connection, parsed)
    connection.execute(update(channel_alarm).values(check_at=now))  # other routes repeat at other times
    names = [each.name for each in parsed]
    audit_log.record_change(connection, by, "alarm-routes.change", "alarm-routes", now=now, routes=names)
    return views.load_routes(connection)


class _RouteParser:
    """Parser of routes that collects the faults of all of them."""

    def __init__(self, kinds: Mapping[str, ChannelKind], claimed: Collection[str]) -> None:
        """Create a parser that knows the kinds of all channels by id, and gateways that are claimed."""
        self.faults: list[Fault] = []
        self._kinds = kinds
        self._claimed = claimed

    def parse(self, route: AlarmRoute, place: str) -> AlarmRoute:
        """Return a route with normalized texts. Add a fault for each thing that does not exist."""
        match = route.match
        self._check(f"{place}.channels", route.channels, self._find_channel_fault)
        self._check(f"{place}.match.rules", match.rules, _find_rule_fault)
        self._check(f"{place}.match.gateways", match.gateways, self._find_gateway_fault)
        if route.time_zone not in _list_time_zones():
            reason = f"{quote_input(route.time_zone)} is not a time zone such as Europe/Zurich"
            self.faults.append(Fault(f"{place}.timeZone", reason))
        if route.hours is not None and route.hours.start == route.hours.end:
            reason = "must differ from `from`: leave `hours` out to send at any time"
            self.faults.append(Fault(f"{place}.hours.to", reason))
        labels = [
            self._read(parse_label, each, f"{place}.match.labels[{number}]")
            for number, each in enumerate(match.labels)
        ]
        return msgspec.structs.replace(
            route,
            name=self._read(parse_title, route.name, f"{place}.name"),
            match=msgspec.structs.replace(match, labels=labels),
        )

    def _check(self, place: str, names: Sequence[str], find_fault: Callable[[str], str | None]) -> None:
        """Add a fault for each name for which `find_fault` returns a reason."""
        for number, each in enumerate(names):
            reason = find_fault(each)
            if reason is not None:
                self.faults.append(Fault(f"{place}[{number}]", reason))

    def _read(self, parse: Callable[[str], str], text: str, place: str) -> str:
        try:
            return parse(text)
        except MalformedText as exc:
            self.faults.append(Fault(place, exc.reason))
            return text

    def _find_channel_fault(self, name: str) -> str | None:
        if name not in self._kinds:
            return f"{quote_input(name)} does not exist"
        is_watchdog = self._kinds[name] is ChannelKind.WATCHDOG
        return f"{name} is a watchdog, which is not told of alarms" if is_watchdog else None

    def _find_gateway_fault(self, name: str) -> str | None:
        return None if name in self._claimed else f"{quote_input(name)} is not a claimed gateway"


def _find_rule_fault(name: str) -> str | None:
    known = [str(each) for each in AlarmRule]
    return None if name in known else f"{quote_input(name)} is not one of {', '.join(known)}"


def _load_claimed(connection: Connection, macs: Collection[str]) -> set[str]:
    numbers = sorted(mac_to_int(Mac(each)) for each in macs)
    rows = connection.execute(select(gateway.c.device).where(gateway.c.device.in_(numbers))).scalars()
    return {str(mac_from_int(each)) for each in rows}


def _has_routes(connection: Connection) -> bool:
    return bool(connection.execute(select(func.count()).select_from(notification_route)).scalar())


def _write_routes(connection: Connection, routes: Sequence[AlarmRoute]) -> None:
    connection.execute(delete(notification_route))
    rows = [
        {"position": position, "body": msgspec.json.encode(each).decode()}
        for position, each in enumerate(routes)
    ]
    if rows:
        connection.execute(insert(notification_route), rows)


@cache
def _list_time_zones() -> frozenset[str]:
    """Return the names of all time zones. Looking for them takes milliseconds: they are files."""
    return frozenset(available_timezones())
