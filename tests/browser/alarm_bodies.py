"""Made-up alarms, with which a tab is answered: real ones open after minutes."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import (
    ALARMS_PATH,
    ATTENTION_PATH,
    Acknowledgment,
    Alarm,
    AlarmAcknowledgment,
    AlarmAcknowledgments,
    AlarmAction,
    AlarmCause,
    AlarmEvent,
    AlarmEventPage,
    AlarmMember,
    AlarmMemberPage,
    AlarmNews,
    AlarmNewsPage,
    AlarmPage,
    AlarmSeverity,
    AlarmState,
    AlarmSubject,
    Attention,
    AttentionCounts,
    HiddenAlarms,
    UnreadAlarms,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import Page, Route

GATEWAY: Final = "02005e000001"
OTHER_GATEWAY: Final = "02005e000002"

_ONE: Final = re.compile(rf"{ALARMS_PATH}/(alarm-\d+)(?:/(\w+))?")
_SEVERITIES: Final = list(AlarmSeverity)


def format_time(minutes_ago: float) -> str:
    """Return a past time as in REST."""
    return format_millis(int((time.time() - 60 * minutes_ago) * 1000))


def build_alarm(number: int, **changes: Any) -> Alarm:
    """Build the alarm of a gateway that is offline, with some fields changed."""
    alarm = Alarm(
        id=f"alarm-{number}",
        key=f"gateway-offline/gateway/gw:{number:012x}",
        rule="gateway-offline",
        severity=AlarmSeverity.CRITICAL,
        state=AlarmState.OPEN,
        sentence=f"Gateway Hall {number} is offline. 24 devices are cut off with it.",
        cause=AlarmCause(code="gateway", params={"devices": 24, "gateway": GATEWAY}),
        action=AlarmAction(
            code="check-gateway", text="Check its power and network.", href=f"/gateways/{GATEWAY}"
        ),
        subject=AlarmSubject(kind="gateway", id=f"bmac-{GATEWAY}", name=f"Hall {number}"),
        since=format_time(12),
        opened_at=format_time(7),
        cleared_at=None,
        recovering_since=None,
        member_count=1,
        affected_devices=24,
        peak_affected=24,
        acknowledged=None,
        new_since_acknowledged=0,
        reopened=0,
        version=1,
        silenced_until=None,
        silenced_by=None,
    )
    return msgspec.structs.replace(alarm, **changes)


def acknowledge(alarm: Alarm, by: str) -> Alarm:
    """Return an alarm after a user has taken it on."""
    acknowledgment = Acknowledgment(by=by, at=format_time(0))
    return msgspec.structs.replace(
        alarm, state=AlarmState.ACKNOWLEDGED, acknowledged=acknowledgment, version=alarm.version + 1
    )


def clear(alarm: Alarm) -> Alarm:
    """Return an alarm after its end."""
    return msgspec.structs.replace(
        alarm, state=AlarmState.CLEARED, cleared_at=format_time(0), version=alarm.version + 1
    )


def build_event(kind: str, actor: str | None = None, /, **detail: Any) -> AlarmEvent:
    """Build an event of an alarm."""
    return AlarmEvent(time=format_time(3), kind=kind, actor=actor, detail=detail)


def build_member(number: int, state: Any = "active") -> AlarmMember:
    """Build a member of an alarm."""
    return AlarmMember(
        id=f"bmac-c0ffee{number:06x}", name=f"Sensor {number}", since=format_time(12), state=state
    )


def silence(alarm: Alarm, by: str, *, minutes: float) -> Alarm:
    """Return an alarm after a user has silenced it."""
    return msgspec.structs.replace(
        alarm, silenced_until=format_time(-minutes), silenced_by=by, version=alarm.version + 1
    )


class RoutedAlarms:
    """Alarms with which a tab is answered instead of those of the service."""

    def __init__(self, page: Page, alarms: Iterable[Alarm] = ()) -> None:
        """Answer the requests of a tab for alarms from now on."""
        self.alarms = {each.id: each for each in alarms}
        self.events: list[AlarmEvent] = [build_event("opened")]
        self.members: list[AlarmMember] = [build_member(1)]
        self.news: list[AlarmNews] = []
        self.verdict = Verdict(tone="ok", sentence="All 126 devices are online.")
        self.more = 0
        self.channels_configured = True
        self.unread = UnreadAlarms(count=0, critical=False, up_to=0)
        self.queries: list[dict[str, list[str]]] = []
        """Queries of the requests for the list."""
        self.sent: list[tuple[str, Any]] = []
        """Path below the alarms, and body, of each change that was requested."""
        page.route(f"**{ATTENTION_PATH}", self._show_attention)
        page.route(re.compile(rf"{ALARMS_PATH}(\?|/|$)"), self._answer)

    def _show_attention(self, route: Route) -> None:
        counts = AttentionCounts(devices=126, connected=126, gateways=5, gateways_connected=5)
        found = self._list(["open", "acknowledged"])
        items = [each for each in found if each.silenced_until is None]
        _fulfill(
            route,
            Attention(
                verdict=self.verdict,
                checked_at=format_time(0),
                counts=counts,
                items=items,
                more=self.more,
                hidden=HiddenAlarms(silenced=len(found) - len(items), silences=len(found) - len(items)),
                unread=self.unread,
                channels_configured=self.channels_configured,
            ),
        )

    def _answer(self, route: Route) -> None:
        parts = urlsplit(route.request.url)
        found = _ONE.fullmatch(parts.path)
        if parts.path == ALARMS_PATH:
            self._answer_list(route, parse_qs(parts.query))
        elif parts.path == f"{ALARMS_PATH}/events":
            _fulfill(route, AlarmNewsPage(items=self.news, next_token=None))
        elif parts.path == f"{ALARMS_PATH}/seen":
            self.sent.append(("seen", route.request.post_data_json))
            self.unread = UnreadAlarms(count=0, critical=False, up_to=self.unread.up_to)
            _fulfill(route, self.unread)
        elif parts.path == f"{ALARMS_PATH}/acknowledge":
            self._acknowledge(route)
        elif found is None or found[1] not in self.alarms:
            route.continue_()
        elif route.request.method == "POST":
            self._change(route, found[1], found[2])
        elif found[2] == "events":
            _fulfill(route, AlarmEventPage(items=self.events, next_token=None))
        elif found[2] == "members":
            _fulfill(route, AlarmMemberPage(items=self.members, next_token=None))
        else:
            _fulfill(route, self.alarms[found[1]])

    def _answer_list(self, route: Route, query: dict[str, list[str]]) -> None:
        self.queries.append(query)
        items = self._list(query["State"], query.get("Severity"))
        _fulfill(route, AlarmPage(items=items, next_token=None))

    def _list(self, states: list[str], severities: list[str] | None = None) -> list[Alarm]:
        found = [
            each
            for each in self.alarms.values()
            if (each.state in states or ("silenced" in states and each.silenced_until is not None))
            and (severities is None or each.severity in severities)
        ]
        return sorted(found, key=lambda each: (_SEVERITIES.index(each.severity), -int(each.id[6:])))

    def _acknowledge(self, route: Route) -> None:
        body: Any = route.request.post_data_json
        ids = body["ids"]
        self.sent.append(("acknowledge", ids))
        for each in ids:
            self.alarms[each] = acknowledge(self.alarms[each], "operator")
        items = [AlarmAcknowledgment(id=each, acknowledged=True, code=None) for each in ids]
        _fulfill(route, AlarmAcknowledgments(items=items))

    def _change(self, route: Route, alarm: str, action: str) -> None:
        self.sent.append((f"{alarm}/{action}", route.request.post_data_json))
        before = self.alarms[alarm]
        if before.state == AlarmState.CLEARED and action != "notes":
            body = {"status": 409, "code": "alarm-cleared", "detail": f"{alarm} is over", "title": "Conflict"}
            route.fulfill(status=409, json=body)
            return
        if action == "acknowledge":
            self.alarms[alarm] = acknowledge(before, "operator")
        elif action == "unacknowledge":
            self.alarms[alarm] = msgspec.structs.replace(
                before, state=AlarmState.OPEN, acknowledged=None, version=before.version + 1
            )
        elif action == "silence":
            minutes = self.sent[-1][1]["seconds"] / 60
            self.alarms[alarm] = silenced = silence(before, "operator", minutes=minutes)
            self.events.insert(0, build_event("silenced", "operator", until=silenced.silenced_until))
        elif action == "unsilence":
            self.alarms[alarm] = msgspec.structs.replace(
                before, silenced_until=None, silenced_by=None, version=before.version + 1
            )
            self.events.insert(0, build_event("unsilenced", "operator"))
        else:
            self.events.insert(0, build_event("note", "operator", text=self.sent[-1][1]["text"]))
        _fulfill(route, self.alarms[alarm])


def _fulfill(route: Route, body: Any) -> None:
    route.fulfill(json=msgspec.to_builtins(body))
