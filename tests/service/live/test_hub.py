"""The hub by itself: what it keeps for whom, and that nobody waits for anybody."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import State
from websockets.uri import parse_uri

from meshfleet.rest import Role
from meshfleet.service.actor import Actor
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.live.device_events import DeviceEvents
from meshfleet.service.live.event import build_text_frame
from meshfleet.service.live.filters import EventFilter, Interest
from meshfleet.service.live.hub import MAX_QUEUED_BYTES_PER_ACCOUNT, EventHub
from meshfleet.service.live.replay import CoverageTracker
from meshfleet.service.live.report_events import ReportEvents
from meshfleet.service.live.subscriber import MAX_BACKLOG_BYTES, LiveSubscriber
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

REPORTS = EventFilter(types=frozenset({"report"}))
DEVICES = EventFilter(types=frozenset({"device"}))
MIB = 1 << 20


def _listener(hub: EventHub, want: EventFilter) -> LiveSubscriber:
    listener = LiveSubscriber(
        lambda event: event.body + b"\n", Actor(name="a", role=Role.VIEWER, kind="user"), "token"
    )
    hub.add(listener)
    hub.subscribe(listener, want)
    return listener


async def _next(listener: LiveSubscriber) -> list[Any]:
    async with asyncio.timeout(30):
        taken = await listener.next_chunk()
    assert taken is not None
    return [json.loads(line) for line in taken.splitlines()]


async def test_while_nobody_listens_nothing_is_made_of_what_is_published() -> None:
    hub = EventHub(lambda: 0)
    hub.publish("report", object())  # which nobody could spell
    assert not hub.published


async def test_while_nobody_wants_reports_a_draft_is_not_even_looked_at(sqlite_database: Database) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    _listener(hub, DEVICES)
    draft = ParsedBatch(0)
    draft.rows = None  # type: ignore[assignment] # whoever looks fails
    draft.readings = None  # type: ignore[assignment] # the same
    reports.on_commit(draft)
    hub.publish("device", {})
    await asyncio.sleep(0)
    assert not hub.published["report"]
    sqlite_database.close()


async def test_a_listener_for_one_device_makes_nobody_build_the_events_of_others(
    sqlite_database: Database,
) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    listener = _listener(hub, EventFilter(types=frozenset({"report"}), devices=frozenset({7})))
    draft = ParsedBatch(0)
    draft.rows = {device: [(0, 1, 0x8800, 1, 3, 1.5, None, None)] for device in range(1000)}
    draft.report_kinds = ["measurement"] * 1000
    reports.on_commit(draft)
    (only,) = await _next(listener)
    assert (only["data"]["device"], hub.published["report"]) == ("bmac-000000000007", 1)
    sqlite_database.close()


@pytest.mark.rule("rest-156")
async def test_who_does_not_keep_up_gets_one_resync_for_all_that_was_waiting_and_others_miss_nothing() -> (
    None
):
    hub = EventHub(lambda: 0)
    slow, quick = _listener(hub, REPORTS), _listener(hub, REPORTS)
    heard = []
    for number in range(20):
        hub.publish("report", {"number": number, "filling": "x" * MIB})
        heard += await _next(quick)
    assert [event["data"]["number"] for event in heard] == list(range(20))
    first, *others = await _next(slow)
    assert first["type"] == "resync"
    assert all(event["type"] == "report" for event in others)
    hub.publish("report", {"number": 20})
    for _ in range(20):
        others += await _next(slow)
        if others[-1]["data"]["number"] == 20:
            break
    numbers = [event["data"]["number"] for event in others]
    assert numbers == list(range(numbers[0], 21)), "behind the resync there is another hole"


@pytest.mark.rule("rest-156")
async def test_no_more_waits_for_an_account_than_its_budget() -> None:
    """The resyncs count as well that are told instead of what waited."""
    hub = EventHub(lambda: 0)
    quick = _listener(hub, REPORTS)
    hub.publish("report", {"number": 1})
    size = len(await quick.next_chunk() or b"")
    slow = [_listener(hub, DEVICES) for _ in range(MAX_QUEUED_BYTES_PER_ACCOUNT // MAX_BACKLOG_BYTES + 1)]
    # Together with the next event it is as much too much as one of them has.
    for listener in slow:
        assert listener.enqueue(b"x" * (MAX_BACKLOG_BYTES - (size if listener is slow[0] else 0)))
    hub.publish("report", {"number": 2})
    assert [event["data"]["number"] for event in await _next(quick)] == [2]
    assert sum(listener.queued_bytes for listener in hub.subscribers) <= MAX_QUEUED_BYTES_PER_ACCOUNT
    assert sum(listener.queued_bytes >= MAX_BACKLOG_BYTES - size for listener in slow) == len(slow) - 2


@pytest.mark.rule("rest-156")
async def test_if_there_are_more_reports_than_can_be_told_listeners_are_told_that(
    sqlite_database: Database,
) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    listener, other = _listener(hub, REPORTS), _listener(hub, DEVICES)
    for _ in range(11):
        draft = ParsedBatch(0)
        draft.rows = {1: [(0, 1, 0x8800, 1, 3, 1.5, None, None)] * 1000}
        draft.report_kinds = ["measurement"] * 1000
        reports.on_commit(draft)
    assert (await _next(listener))[0]["type"] == "resync"
    hub.publish("device", {})
    assert [event["type"] for event in await _next(other)] == ["device"]
    sqlite_database.close()


async def test_events_of_one_moment_come_together_and_in_their_order() -> None:
    hub = EventHub(lambda: 0)
    listener = _listener(hub, REPORTS)
    for number in range(100):
        hub.publish("report", {"number": number})
    assert [event["data"]["number"] for event in await _next(listener)] == list(range(100))


async def test_who_comes_while_events_are_on_their_way_gets_none_of_them() -> None:
    hub = EventHub(lambda: 0)
    early = _listener(hub, REPORTS)
    hub.publish("report", {"number": 1})
    late = _listener(hub, REPORTS)
    hub.publish("report", {"number": 2})
    assert [event["data"]["number"] for event in await _next(late)] == [2]
    assert [event["data"]["number"] for event in await _next(early)] == [1, 2]


@pytest.mark.rule("rest-149")
async def test_what_is_wanted_goes_on_to_be_kept_for_a_while_after_its_listener_left() -> None:
    hub = EventHub(lambda: 0)
    listener = _listener(hub, REPORTS)
    hub.publish("report", {"number": 1})
    (first,) = await _next(listener)
    hub.remove(listener)
    hub.publish("report", {"number": 2})
    again = LiveSubscriber(listener.encoder, listener.actor, "token")
    hub.add(again)
    hub.subscribe(again, REPORTS, first["id"])
    assert [event["data"]["number"] for event in await _next(again)] == [2]


@pytest.mark.rule("rest-149", "rest-156")
async def test_who_missed_more_than_can_wait_beside_what_came_meanwhile_gets_a_resync_instead() -> None:
    hub = EventHub(lambda: 0)
    listener = _listener(hub, REPORTS)
    hub.publish("report", {"number": 0})
    (first,) = await _next(listener)
    for number in (1, 2, 3):
        hub.publish("report", {"number": number, "filling": "x" * MIB})
    again = LiveSubscriber(listener.encoder, listener.actor, "token")
    hub.add(again)
    hub.subscribe(again, REPORTS, first["id"])
    for number in (4, 5):
        hub.publish("report", {"number": number, "filling": "x" * MIB})
    _listener(hub, DEVICES)  # a subscription sends out what was published before it
    resync, *others = await _next(again)
    assert resync["type"] == "resync"
    assert [event["data"]["number"] for event in others] == [4, 5]


def test_two_minutes_after_its_last_listener_nothing_is_wanted_any_more() -> None:
    interest = Interest("report")
    coverage = CoverageTracker([interest])
    coverage.add(REPORTS, 5)
    coverage.release(REPORTS, ("user", "a"), now=1000.0)
    coverage.drop_expired(1119.0)
    assert interest
    assert coverage.covers(REPORTS, 5)
    assert not coverage.covers(REPORTS, 4)
    coverage.drop_expired(1121.0)
    assert not interest
    assert not coverage
    assert not coverage.covers(REPORTS, 5)


def test_of_those_who_left_only_so_much_is_remembered() -> None:
    interest = Interest("report")
    coverage = CoverageTracker([interest])
    wants = [EventFilter(devices=frozenset(range(start, start + 1000))) for start in range(0, 100_000, 1000)]
    for number, want in enumerate(wants):
        coverage.add(want, 0)
        coverage.release(want, ("user", "a"), now=float(number))
    coverage.drop_expired(100.0)
    assert len(interest.devices) == 20_000
    assert coverage.covers(wants[-1], 0)
    assert not coverage.covers(wants[0], 0)


@each_row("length", [0, 1, 125, 126, 65_535, 65_536, 70_000])
def test_a_frame_is_what_the_library_reads(length: int) -> None:
    client = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN, max_size=None)
    client.receive_data(build_text_frame(b"x" * length))
    (frame,) = client.events_received()
    assert isinstance(frame, Frame)
    assert bytes(frame.data) == b"x" * length
