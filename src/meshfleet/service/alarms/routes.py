"""REST routes of alarms: `/api/v1/alarms`, and `/api/v1/attention`."""

from typing import Annotated

from litestar import Router, get, post, put
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody, QueryParameter
from sqlalchemy import Connection

from meshfleet.db import Database
from meshfleet.errors import NotFound, quote_name
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.protocol.times import parse_millis
from meshfleet.rest.alarms import (
    ALARMS_PATH,
    ATTENTION_PATH,
    Alarm,
    AlarmAcknowledgments,
    AlarmEventPage,
    AlarmMemberPage,
    AlarmNewsPage,
    AlarmPage,
    AlarmRule,
    AlarmSelection,
    AlarmSeverity,
    AlarmStateFilter,
    Attention,
    Diagnosis,
    NewAlarmNote,
    NewAlarmSilence,
    SeenAlarms,
    UnreadAlarms,
)
from meshfleet.rest.paths import DEVICES_PATH
from meshfleet.service.actor import Actor
from meshfleet.service.alarms import commands, diagnosis, news, views
from meshfleet.service.alarms.rules import Severity
from meshfleet.service.clock import Now
from meshfleet.service.devices.parameters import parse_gateway_mac, parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import FromTime, NextToken, QueryReader, ToTime, build_choice_parser
from meshfleet.service.http.request import decode_segment

_parse_state = build_choice_parser({str(each): str(each) for each in AlarmStateFilter})
_parse_severity = build_choice_parser({str(each): int(Severity[each.name]) for each in AlarmSeverity})
_parse_rule = build_choice_parser({str(each): str(each) for each in AlarmRule})

States = Annotated[
    list[str] | None,
    QueryParameter(
        name="State",
        description="State to include; can be repeated. Default: `open` and `acknowledged`. `silenced`"
        " stands for alarms that are not over, and silenced now.",
        schema_extra={"items": {"type": "string", "enum": [str(each) for each in AlarmStateFilter]}},
    ),
]
Severities = Annotated[
    list[str] | None,
    QueryParameter(
        name="Severity",
        description="Severity to include; can be repeated.",
        schema_extra={"items": {"type": "string", "enum": [str(each) for each in AlarmSeverity]}},
    ),
]


def parse_path_alarm(text: str) -> int:
    """Return the number of an alarm in a path. Raise `NotFound` if there cannot be one."""
    number = views.parse_alarm_id(decode_segment(text))
    if number is None:
        raise NotFound(f"{quote_name(text)} is not the id of an alarm")
    return number


@get()
async def list_alarms(  # injected by name
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    now: Given[Now],
    states: States = None,
    severities: Severities = None,
    rule: Annotated[
        str | None, QueryParameter(name="Rule", description="Rule that opened the alarm.")
    ] = None,
    gateway: Annotated[
        str | None, QueryParameter(name="Gateway", description="MAC of the gateway of the alarm.")
    ] = None,
    device: Annotated[
        str | None, QueryParameter(name="Device", description="Id of a device that is a member of the alarm.")
    ] = None,
    since: FromTime = None,
    until: ToTime = None,
    next_token: NextToken = None,
) -> AlarmPage:
    """List alarms, the most severe first, then the newest. `From` and `To` limit when they were opened."""
    reader = QueryReader()
    mac = reader.read(parse_gateway_mac, gateway, "Gateway", default=None)
    member = reader.read(parse_device_id, device, "Device", default=None)
    query = views.AlarmListing(
        states=tuple(
            sorted(
                {
                    reader.read(_parse_state, each, "State", default="")
                    for each in states or ("open", "acknowledged")
                }
            )
        ),
        severities=tuple(
            sorted({reader.read(_parse_severity, each, "Severity", default=0) for each in severities or ()})
        ),
        rule=reader.read(_parse_rule, rule, "Rule", default=None),
        gateway=None if mac is None else mac_to_int(mac),
        device=None if member is None else mac_to_int(to_mac(member)),
        since=reader.read(parse_millis, since, "From", default=None),
        until=reader.read(parse_millis, until, "To", default=None),
    )
    reader.check_span(query.since, query.until)
    reader.raise_faults()
    after = None if next_token is None else views.AlarmPosition(*pages.decode(query, next_token))
    found = await database.read(views.list_alarms, query, after=after, limit=limit + 1, now=now())
    page = pages.build_page(query, found, limit, lambda last: last.position)
    return AlarmPage(items=[each.body for each in page["items"]], next_token=page["next_token"])


@get("/{alarm_id:str}")
async def show_alarm(alarm_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Alarm:
    """Show an alarm."""
    return await database.read(views.load_alarm, parse_path_alarm(alarm_id), now=now())


@get("/{alarm_id:str}/members")
async def list_alarm_members(
    alarm_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> AlarmMemberPage:
    """List the devices or gateways that belong to an alarm now, by id. An alarm that is over has none."""
    number = parse_path_alarm(alarm_id)
    query = f"members of {number}"
    after = pages.decode_start(query, next_token, start=-1)
    found = await database.read(views.list_members, number, after=after, limit=limit + 1)
    page = pages.build_page(query, found, limit, lambda last: (last[0],))
    return AlarmMemberPage(items=[member for _, member in page["items"]], next_token=page["next_token"])


@get("/{alarm_id:str}/events")
async def list_alarm_events(
    alarm_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> AlarmEventPage:
    """List what happened to an alarm, the newest event first."""
    number = parse_path_alarm(alarm_id)
    query = f"events of {number}"
    before = pages.decode_start(query, next_token, start=None)
    found = await database.read(views.list_events, number, before=before, limit=limit + 1)
    page = pages.build_page(query, found, limit, lambda last: (last[0],))
    return AlarmEventPage(items=[event for _, event in page["items"]], next_token=page["next_token"])


@post("/{alarm_id:str}/acknowledge", status_code=200, problems=(409,))
async def acknowledge_alarm(
    alarm_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> Alarm:
    """Take on an alarm with its present members. A member that joins later opens it again."""
    return await database.write(commands.acknowledge_alarm, parse_path_alarm(alarm_id), by=actor, now=now())


@post("/{alarm_id:str}/unacknowledge", status_code=200, problems=(409,))
async def unacknowledge_alarm(
    alarm_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> Alarm:
    """Take an acknowledgment back."""
    return await database.write(commands.unacknowledge_alarm, parse_path_alarm(alarm_id), by=actor, now=now())


@post("/{alarm_id:str}/notes", status_code=200)
async def add_alarm_note(
    alarm_id: FromPath[str],
    data: JSONBody[NewAlarmNote],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Alarm:
    """Write a note on an alarm. It becomes one of its events."""
    return await database.write(commands.add_note, parse_path_alarm(alarm_id), data.text, by=actor, now=now())


@post("/{alarm_id:str}/silence", status_code=200, problems=(409,))
async def silence_alarm(
    alarm_id: FromPath[str],
    data: JSONBody[NewAlarmSilence],
    actor: Given[Actor],
    database: Given[Database],
    now: Given[Now],
) -> Alarm:
    """Send no messages about an alarm for a while, also not about its end. An earlier silence is replaced."""
    number, current = parse_path_alarm(alarm_id), now()
    until = current + data.seconds * 1000
    return await database.write(
        commands.silence_alarm, number, until=until, note=data.note, by=actor, now=current
    )


@post("/{alarm_id:str}/unsilence", status_code=200, problems=(409,))
async def unsilence_alarm(
    alarm_id: FromPath[str], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> Alarm:
    """End the silence of an alarm."""
    return await database.write(commands.unsilence_alarm, parse_path_alarm(alarm_id), by=actor, now=now())


@post("/acknowledge", status_code=200)
async def acknowledge_alarms(
    data: JSONBody[AlarmSelection], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> AlarmAcknowledgments:
    """Acknowledge up to 1,000 alarms. The answer says of each whether it is acknowledged now."""
    return AlarmAcknowledgments(
        items=await database.write(commands.acknowledge_alarms, data.ids, by=actor, now=now())
    )


@get("/events")
async def list_alarm_news(
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    now: Given[Now],
    next_token: NextToken = None,
) -> AlarmNewsPage:
    """List when alarms were opened, became more severe or ended, the newest first."""
    query = "news of alarms"
    before = pages.decode_start(query, next_token, start=None)
    found = await database.read(news.list_news, before=before, limit=limit + 1, now=now())
    page = pages.build_page(query, found, limit, lambda last: (last.number,))
    return AlarmNewsPage(**page)


@put("/seen", problems=(409,))
async def mark_alarms_seen(
    data: JSONBody[SeenAlarms], actor: Given[Actor], database: Given[Database], now: Given[Now]
) -> UnreadAlarms:
    """Record that the user has seen what happened up to an event, on all devices of the user."""
    return await database.write(news.mark_seen, actor, data.up_to, now())


@get(ATTENTION_PATH)
async def show_attention(actor: Given[Actor], database: Given[Database], now: Given[Now]) -> Attention:
    """Show what needs attention now: the state of the fleet in a sentence, and the open alarms."""
    return await database.read(_load_attention, actor, now())


def _load_attention(connection: Connection, actor: Actor, now: int) -> Attention:
    return views.build_attention(connection, now, news.count_unread(connection, actor, now))


@get("/{device_id:str}/diagnosis")
async def diagnose_device(device_id: FromPath[str], database: Given[Database], now: Given[Now]) -> Diagnosis:
    """Say what is wrong with a device, if anything: how sure that is, the evidence, and what to do."""
    number = mac_to_int(parse_path_device(device_id))
    return await database.read(diagnosis.diagnose_device, number, now())


router = Router(
    ALARMS_PATH,
    route_handlers=[
        list_alarms,
        acknowledge_alarms,
        list_alarm_news,
        mark_alarms_seen,
        show_alarm,
        list_alarm_members,
        list_alarm_events,
        acknowledge_alarm,
        unacknowledge_alarm,
        add_alarm_note,
        silence_alarm,
        unsilence_alarm,
    ],
    tags=["Alarms"],
)
attention_router = Router("", route_handlers=[show_attention], tags=["Alarms"])
device_router = Router(DEVICES_PATH, route_handlers=[diagnose_device], tags=["Alarms"])
