"""The event hub without a service: what it keeps, and that subscribers do not delay each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.protocol import State
from websockets.uri import parse_uri

from meshfleet.db.samples import NO_SEQ, ClockFlag, SampleExtras, SampleKind
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.live.device_events import DeviceEvents
from meshfleet.service.live.event import build_text_frame
from meshfleet.service.live.filters import EventFilter, Interest
from meshfleet.service.live.hub import MAX_QUEUED_BYTES_PER_ACCOUNT, EventHub
from meshfleet.service.live.replay import CoverageTracker
from meshfleet.service.live.report_events import ReportEvents
from meshfleet.service.live.subscriber import MAX_BACKLOG_BYTES, LiveSubscriber, SubscriberAccount
from tests.row_tables import each_row
from tests.service.live.hub_subscriber import read_events, subscribe

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

REPORTS = EventFilter(types=frozenset({"report"}))
DEVICES = EventFilter(types=frozenset({"device"}))
MIB = 1 << 20


async def test_without_subscribers_events_are_not_encoded() -> None:
    hub = EventHub(lambda: 0)
    hub.publish("report", object())  # cannot be encoded
    assert not hub.published


async def test_without_a_filter_on_reports_batches_are_not_inspected(sqlite_database: Database) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    subscribe(hub, DEVICES)
    batch = ParsedBatch(0)
    batch.rows = None  # type: ignore[assignment] # inspecting it would fail
    batch.readings = None  # type: ignore[assignment] # inspecting it would fail
    reports.on_commit(batch)
    hub.publish("device", {})
    await asyncio.sleep(0)
    assert not hub.published["report"]


async def test_events_that_match_no_filter_are_not_built(
    sqlite_database: Database,
) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    subscriber = subscribe(hub, EventFilter(types=frozenset({"report"}), devices=frozenset({7})))
    batch = ParsedBatch(0)
    batch.rows = {device: [(0, 1, 0x8800, 1, 3, 1.5, None, None)] for device in range(1000)}
    batch.report_kinds = ["measurement"] * 1000
    reports.on_commit(batch)
    (only,) = await read_events(subscriber)
    assert (only["data"]["device"], hub.published["report"]) == ("bmac-000000000007", 1)


async def test_heartbeats_and_links_with_an_implausible_time_are_published(sqlite_database: Database) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    subscriber = subscribe(hub, REPORTS)
    batch = ParsedBatch(0)
    implausible = SampleExtras(clock=ClockFlag.PAST)
    batch.rows = {
        7: [
            (0, SampleKind.HEARTBEAT, 0, NO_SEQ, 3, 1, None, implausible),
            (0, SampleKind.LINK, 5, NO_SEQ, 3, -60, None, implausible),
            (0, SampleKind.MEASUREMENT, 0x8800, 1, 3, 1.5, None, implausible),
        ]
    }
    batch.report_kinds = ["heartbeat", "rssi", "measurement"]
    reports.on_commit(batch)
    events = [event["data"] for event in await read_events(subscriber)]
    assert [(each["kind"], each["time"][:4]) for each in events] == [
        ("heartbeat", "1970"),
        ("rssi", "1970"),
        ("measurement", "1970"),
    ]
    assert (events[0]["status"], events[1]["parent"], events[1]["rssi"]) == (1, "000000000005", -60)


@pytest.mark.rule("rest-156")
async def test_a_slow_subscriber_gets_one_resync_and_others_miss_nothing() -> None:
    hub = EventHub(lambda: 0)
    slow, quick = subscribe(hub, REPORTS), subscribe(hub, REPORTS)
    received = []
    for number in range(20):
        hub.publish("report", {"number": number, "filling": "x" * MIB})
        received += await read_events(quick)
    assert [event["data"]["number"] for event in received] == list(range(20))
    first, *others = await read_events(slow)
    assert first["type"] == "resync"
    assert all(event["type"] == "report" for event in others)
    hub.publish("report", {"number": 20})
    for _ in range(20):
        others += await read_events(slow)
        if others[-1]["data"]["number"] == 20:
            break
    numbers = [event["data"]["number"] for event in others]
    assert numbers == list(range(numbers[0], 21)), "there is another gap after the resync"


@pytest.mark.rule("rest-156")
async def test_the_queues_of_an_account_do_not_exceed_its_budget() -> None:
    """Count the resyncs that replace dropped queues, too."""
    hub = EventHub(lambda: 0)
    quick = subscribe(hub, REPORTS)
    hub.publish("report", {"number": 1})
    size = len(await quick.next_chunk() or b"")
    slow = [subscribe(hub, DEVICES) for _ in range(MAX_QUEUED_BYTES_PER_ACCOUNT // MAX_BACKLOG_BYTES + 1)]
    # Together with the next event, the budget is exceeded by the queue of one of them.
    for subscriber in slow:
        assert subscriber.enqueue(b"x" * (MAX_BACKLOG_BYTES - (size if subscriber is slow[0] else 0)))
    hub.publish("report", {"number": 2})
    assert [event["data"]["number"] for event in await read_events(quick)] == [2]
    assert sum(subscriber.queued_bytes for subscriber in hub.subscribers) <= MAX_QUEUED_BYTES_PER_ACCOUNT
    assert sum(subscriber.queued_bytes >= MAX_BACKLOG_BYTES - size for subscriber in slow) == len(slow) - 2


@pytest.mark.rule("rest-156")
async def test_too_many_reports_cause_a_resync(
    sqlite_database: Database,
) -> None:
    hub = EventHub(lambda: 0)
    reports = ReportEvents(hub, DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0))
    subscriber, other = subscribe(hub, REPORTS), subscribe(hub, DEVICES)
    for _ in range(11):
        batch = ParsedBatch(0)
        batch.rows = {1: [(0, 1, 0x8800, 1, 3, 1.5, None, None)] * 1000}
        batch.report_kinds = ["measurement"] * 1000
        reports.on_commit(batch)
    assert (await read_events(subscriber))[0]["type"] == "resync"
    hub.publish("device", {})
    assert [event["type"] for event in await read_events(other)] == ["device"]


async def test_events_of_one_moment_are_sent_together_and_in_order() -> None:
    hub = EventHub(lambda: 0)
    subscriber = subscribe(hub, REPORTS)
    for number in range(100):
        hub.publish("report", {"number": number})
    assert [event["data"]["number"] for event in await read_events(subscriber)] == list(range(100))


async def test_a_new_subscriber_gets_no_earlier_events() -> None:
    hub = EventHub(lambda: 0)
    early = subscribe(hub, REPORTS)
    hub.publish("report", {"number": 1})
    late = subscribe(hub, REPORTS)
    hub.publish("report", {"number": 2})
    assert [event["data"]["number"] for event in await read_events(late)] == [2]
    assert [event["data"]["number"] for event in await read_events(early)] == [1, 2]


@pytest.mark.rule("rest-149")
async def test_matching_events_are_kept_for_a_while_after_a_subscriber_disconnects() -> None:
    hub = EventHub(lambda: 0)
    subscriber = subscribe(hub, REPORTS)
    hub.publish("report", {"number": 1})
    (first,) = await read_events(subscriber)
    hub.remove(subscriber)
    hub.publish("report", {"number": 2})
    resumed = LiveSubscriber(subscriber.encoder, subscriber.actor, "token")
    hub.add(resumed)
    hub.subscribe(resumed, REPORTS, first["id"])
    assert [event["data"]["number"] for event in await read_events(resumed)] == [2]


@pytest.mark.rule("rest-149", "rest-156")
async def test_missed_events_that_exceed_the_queue_cause_a_resync() -> None:
    hub = EventHub(lambda: 0)
    subscriber = subscribe(hub, REPORTS)
    hub.publish("report", {"number": 0})
    (first,) = await read_events(subscriber)
    for number in (1, 2, 3):
        hub.publish("report", {"number": number, "filling": "x" * MIB})
    resumed = LiveSubscriber(subscriber.encoder, subscriber.actor, "token")
    hub.add(resumed)
    hub.subscribe(resumed, REPORTS, first["id"])
    for number in (4, 5):
        hub.publish("report", {"number": number, "filling": "x" * MIB})
    subscribe(hub, DEVICES)  # a new subscription delivers earlier events
    resync, *others = await read_events(resumed)
    assert resync["type"] == "resync"
    assert [event["data"]["number"] for event in others] == [4, 5]


def test_a_filter_is_discarded_two_minutes_after_its_last_subscriber() -> None:
    interest = Interest("report")
    coverage = CoverageTracker([interest])
    coverage.add(REPORTS, 5)
    coverage.release(REPORTS, SubscriberAccount("user", "a"), now=1000.0)
    coverage.drop_expired(1119.0)
    assert interest
    assert coverage.covers(REPORTS, 5)
    assert not coverage.covers(REPORTS, 4)
    coverage.drop_expired(1121.0)
    assert not interest
    assert not coverage
    assert not coverage.covers(REPORTS, 5)


def test_the_number_of_released_filters_is_limited() -> None:
    interest = Interest("report")
    coverage = CoverageTracker([interest])
    filters = [
        EventFilter(devices=frozenset(range(start, start + 1000))) for start in range(0, 100_000, 1000)
    ]
    for number, event_filter in enumerate(filters):
        coverage.add(event_filter, 0)
        coverage.release(event_filter, SubscriberAccount("user", "a"), now=float(number))
    coverage.drop_expired(100.0)
    assert len(interest.devices) == 20_000
    assert coverage.covers(filters[-1], 0)
    assert not coverage.covers(filters[0], 0)


@each_row("length", [0, 1, 125, 126, 65_535, 65_536, 70_000])
def test_the_websockets_library_reads_the_frame(length: int) -> None:
    client = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN, max_size=None)
    client.receive_data(build_text_frame(b"x" * length))
    (frame,) = client.events_received()
    assert isinstance(frame, Frame)
    assert bytes(frame.data) == b"x" * length
