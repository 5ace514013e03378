"""Changes of routes that users make, and the routes of the first channel."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import delete, func, insert, select, update

from meshfleet.db.tables import channel, channel_alarm, gateway, notification_route
from meshfleet.errors import Fault, InvalidRequest, VersionConflict, quote_input
from meshfleet.errors.protocol import MalformedText
from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int
from meshfleet.rest.alarms import AlarmRule, AlarmSeverity
from meshfleet.rest.channels import AlarmRoute, ChannelKind, RouteHours, RouteMatch
from meshfleet.rest.inputs import parse_label, parse_title
from meshfleet.service.audit import log as audit_log
from meshfleet.service.notifications import views
from meshfleet.service.time_zones import list_time_zones

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.rest.channels import AlarmRoutes
    from meshfleet.service.actor import Actor


def build_default_routes(identity: str, time_zone: str) -> tuple[AlarmRoute, ...]:
    """Return the routes of the first channel: critical at once, warnings by day, the rest once a day."""
    return (
        AlarmRoute(
            name="Critical",
            match=RouteMatch(severity_at_least=AlarmSeverity.CRITICAL),
            channels=[identity],
            time_zone=time_zone,
            group_seconds=0,
            repeat_seconds=3600,
        ),
        AlarmRoute(
            name="Warnings",
            match=RouteMatch(severity_at_least=AlarmSeverity.WARNING),
            channels=[identity],
            time_zone=time_zone,
            hours=RouteHours(start="07:00", end="20:00"),
            group_seconds=300,
        ),
        AlarmRoute(name="Information", channels=[identity], time_zone=time_zone, digest="08:00"),
    )


def build_etag(routes: AlarmRoutes) -> str:
    """Return the `ETag` of routes, which changes with them."""
    return f'"{hashlib.sha256(msgspec.json.encode(routes)).hexdigest()[:32]}"'


def replace_routes(
    connection: Connection,
    routes: Sequence[AlarmRoute],
    *,
    by: Actor,
    now: int,
    if_match: str | None = None,
) -> AlarmRoutes:
    """Replace all routes. Raise `InvalidRequest` that names the places of everything that does not exist.

    `if_match` are the `ETag`s that the present routes may have; raise `VersionConflict` for others.
    """
    # Locked, so that none of them is deleted, and no other routes are stored, before these are committed.
    rows = connection.execute(select(channel.c.id, channel.c.kind).order_by(channel.c.id).with_for_update())
    kinds = {views.format_channel_id(row.id): ChannelKind(row.kind) for row in rows}
    claimed = _load_claimed(connection, {mac for each in routes for mac in each.match.gateways})
    if if_match is not None:
        wanted = {each.strip() for each in if_match.split(",")}
        if wanted.isdisjoint({"*", build_etag(views.load_routes(connection))}):
            raise VersionConflict("another admin has changed the routes: load them again")
    parser = _RouteParser(kinds, claimed)
    parsed = [parser.parse(each, f"items[{number}]") for number, each in enumerate(routes)]
    if parser.faults:
        raise InvalidRequest(parser.faults)
    _rename_told_routes(connection, views.load_routes(connection).items, parsed)
    write_routes(connection, parsed)
    connection.execute(update(channel_alarm).values(check_at=now))  # other routes repeat at other times
    names = [each.name for each in parsed]
    audit_log.record_change(connection, by, "alarm-routes.change", "alarm-routes", now=now, routes=names)
    return views.load_routes(connection)


def _rename_told_routes(
    connection: Connection, before: Sequence[AlarmRoute], after: Sequence[AlarmRoute]
) -> None:
    """Store the new names of routes by which channels were told of alarms that are not over."""
    for old, new in find_renamed_routes(before, after).items():
        told = channel_alarm.c.route == old
        connection.execute(update(channel_alarm).where(told).values(route=new))


def find_renamed_routes(before: Sequence[AlarmRoute], after: Sequence[AlarmRoute]) -> dict[str, str]:
    """Return the new names of routes by their old ones.

    A route is the same one if only its name differs, or if it has the place of one whose name is gone.
    """
    kept = {each.name for each in before} & {each.name for each in after}
    new = [each for each in after if each.name not in kept]
    renamed = {}
    for place, old in enumerate(before):
        if old.name in kept:
            continue
        same = next((each for each in new if _is_same_but_for_name(each, old)), None)
        if same is None and place < len(after) and after[place].name not in kept:
            same = after[place]
        if same is not None:
            renamed[old.name] = same.name
    return renamed


def _is_same_but_for_name(one: AlarmRoute, other: AlarmRoute) -> bool:
    # Compared as JSON: one was read from the database, the other is of a request.
    renamed = msgspec.structs.replace(one, name=other.name)
    return msgspec.json.encode(renamed) == msgspec.json.encode(other)


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
        if route.time_zone not in list_time_zones():
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


def has_routes(connection: Connection) -> bool:
    """Return whether any routes lead alarms to channels."""
    return bool(connection.execute(select(func.count()).select_from(notification_route)).scalar())


def write_routes(connection: Connection, routes: Sequence[AlarmRoute]) -> None:
    """Replace all routes, without a row in the audit log."""
    connection.execute(delete(notification_route))
    rows = [
        {"position": position, "body": msgspec.json.encode(each).decode()}
        for position, each in enumerate(routes)
    ]
    if rows:
        connection.execute(insert(notification_route), rows)
