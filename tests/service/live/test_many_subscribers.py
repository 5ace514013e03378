"""Many subscribers, and demanding ones: their cost is limited and does not affect others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.errors import TooManySubscriptions
from meshfleet.service.live.event import PublishedEvent
from meshfleet.service.live.filters import EventFilter, Interest
from meshfleet.service.live.hub import MAX_QUEUED_BYTES, MAX_QUEUED_BYTES_PER_ACCOUNT, EventHub
from meshfleet.service.live.replay import CoverageTracker
from meshfleet.service.live.subscriber import (
    MAX_BACKLOG_BYTES,
    FilterIndex,
    LiveSubscriber,
    SubscriberAccount,
)
from meshfleet.service.live.websocket import TokenBucket
from tests.row_tables import each_row
from tests.service.live.hub_subscriber import new_subscriber, read_events, subscribe

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

REPORT = frozenset({"report"})
REPORTS = EventFilter(types=REPORT)
MIB = 1 << 20


async def _read_values(subscriber: LiveSubscriber, last: int) -> list[Any]:
    """Read the values of events until the last one."""
    values: list[Any] = []
    for _ in range(1000):
        values += [event["data"].get("n", event["type"]) for event in await read_events(subscriber)]
        if values[-1] == last:
            return values
    raise AssertionError(f"it ends with {values[-1]}")


class _CountingFilter(EventFilter, frozen=True, kw_only=True):
    """Filter that records the events it is checked against."""

    checked: list[int]

    def matches(self, event: PublishedEvent) -> bool:
        self.checked.append(event.number)
        return super().matches(event)

    def __hash__(self) -> int:
        return hash(self.devices)


# Cost of an event


async def test_only_filters_on_the_device_or_gateway_of_an_event_are_checked() -> None:
    hub = EventHub(lambda: 0)
    checked: list[int] = []
    for each in range(100):
        subscribe(hub, _CountingFilter(devices=frozenset({each}), checked=checked))
    for each in range(100, 200):
        subscribe(hub, _CountingFilter(gateways=frozenset({each}), checked=checked))
    all_reports = subscribe(hub, REPORTS)
    for number in range(50):
        hub.publish("report", {"n": number}, device=7, gateway=107)
    assert await _read_values(all_reports, 49) == list(range(50))
    assert len(checked) == 2 * 50


@each_row(
    "event",
    [
        {"about": "report", "device": 1, "gateway": 9},
        {"about": "device", "device": 1, "gateway": None},
        {"about": "device", "device": 2, "gateway": 8, "former": 9},
        {"about": "gateway", "device": 9, "gateway": 9},
        {"about": "job"},
        {"about": "job", "gateway": -1, "job": 5},
        {"about": "execution", "device": 1, "gateway": 9, "job": 5},
        {"about": "device", "type": "resync"},
    ],
)
def test_the_index_finds_exactly_the_matching_filters_until_they_are_removed(
    event: dict[str, Any],
) -> None:
    choices = {
        "types": (
            None,
            frozenset(),
            REPORT,
            frozenset({"device", "execution", "gateway"}),
            frozenset({"resync"}),
        ),
        "devices": (None, frozenset(), frozenset({1}), frozenset({1, 2})),
        "gateways": (None, frozenset({9}), frozenset({8, 9})),
        "jobs": (None, frozenset(), frozenset({5}), frozenset({4, 5})),
    }
    filters: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        filters = [{**fields, name: value} for fields in filters for value in values]
    index, subscriber = FilterIndex(), new_subscriber()
    for fields in filters:
        index.add(subscriber, EventFilter(**fields))
    published = PublishedEvent(**{"type": event["about"], **event}, number=1, id="x", body=b"", at=0)
    matches = list(index.find_matches(published))
    assert len(matches) == len(set(matches))
    assert set(matches) == {
        EventFilter(**fields) for fields in filters if EventFilter(**fields).matches(published)
    }
    for fields in filters:
        index.remove(subscriber, EventFilter(**fields))
    assert not list(index.find_matches(published))


def test_the_objects_named_by_an_account_are_limited() -> None:
    index = FilterIndex()
    starts = range(0, 50_000, 1000)
    for start in starts:
        index.add(new_subscriber(), EventFilter(devices=frozenset(range(start, start + 1000))))
    one_more = EventFilter(gateways=frozenset({1}))
    with pytest.raises(TooManySubscriptions):
        index.add(new_subscriber(), one_more)
    index.add(new_subscriber("b"), one_more)
    index.add(new_subscriber(), REPORTS)


# Queues


@pytest.mark.rule("rest-156")
async def test_the_queues_of_one_account_are_limited_and_others_are_unaffected() -> None:
    hub = EventHub(lambda: 0)
    slow = [subscribe(hub, REPORTS) for _ in range(20)]
    other = subscribe(hub, REPORTS, account="b")
    for number in range(3):
        hub.publish("report", {"n": number, "filling": "x" * MIB})
        await _wait_for_delivery(hub)
    assert sum(each.queued_bytes for each in slow) <= MAX_QUEUED_BYTES_PER_ACCOUNT
    assert hub.resyncs > 0
    assert await _read_values(other, 2) == [0, 1, 2]


@pytest.mark.rule("rest-156")
async def test_all_queues_together_are_limited_and_short_ones_are_kept() -> None:
    hub = EventHub(lambda: 0)
    slow = [subscribe(hub, REPORTS, account=f"{each}") for each in range(40)]
    other = subscribe(hub, EventFilter(types=frozenset({"device"})), account="modest")
    hub.publish("device", {"n": 1})
    for number in range(3):
        hub.publish("report", {"n": number, "filling": "x" * MIB})
        await _wait_for_delivery(hub)
    assert sum(each.queued_bytes for each in slow) <= MAX_QUEUED_BYTES
    assert await _read_values(other, 1) == [1]


async def test_bytes_being_written_count_as_queued() -> None:
    hub = EventHub(lambda: 0)
    subscriber = subscribe(hub, REPORTS)
    hub.publish("report", {"n": 0, "filling": "x" * MIB})
    await read_events(subscriber)
    assert subscriber.queued_bytes > MIB


async def _wait_for_delivery(hub: EventHub) -> None:
    """Wait until all published events are delivered."""
    job_subscriber = subscribe(hub, EventFilter(types=frozenset({"job"})), account="witness")
    hub.publish("job", {"n": 0})
    await _read_values(job_subscriber, 0)
    hub.remove(job_subscriber)


# Replays


async def test_a_long_replay_does_not_block_the_event_loop() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    for number in range(20_000):
        hub.publish("report", {"n": number}, device=number % 100)
    loop_turns = 0
    resumed = subscribe(hub, EventFilter(types=REPORT, devices=frozenset({7})), after=first_id)
    read_task = asyncio.create_task(_read_values(resumed, 19_907))
    while not read_task.done():
        loop_turns += 1
        await asyncio.sleep(0)
    assert read_task.result() == list(range(7, 20_000, 100))
    assert loop_turns > 10


async def test_live_events_follow_the_replayed_ones() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    for number in range(5000):
        hub.publish("report", {"n": number})
    resumed = subscribe(hub, REPORTS, after=first_id)
    hub.publish("report", {"n": 5000})
    await _wait_for_delivery(hub)
    assert await _read_values(resumed, 5000) == list(range(5001))


async def test_an_existing_subscription_is_not_replayed() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    subscriber = subscribe(hub, REPORTS)
    hub.publish("report", {"n": 1})
    hub.subscribe(subscriber, REPORTS, first_id)
    hub.publish("report", {"n": 2})
    assert await _read_values(subscriber, 2) == [1, 2]


@pytest.mark.rule("rest-149")
async def test_overlapping_subscriptions_are_resumed_without_duplicates() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    for number in range(10):
        hub.publish("report", {"n": number}, device=number % 2, gateway=5)
    narrow = [EventFilter(types=REPORT, devices=frozenset({each})) for each in (0, 1)]
    resumed = subscribe(
        hub, narrow[0], EventFilter(types=REPORT, gateways=frozenset({5})), narrow[1], after=first_id
    )
    hub.publish("report", {"n": 10}, device=0, gateway=5)
    values = await _read_values(resumed, 10)
    assert sorted(values) == list(range(11))


async def test_ending_a_subscription_during_its_replay_does_not_affect_others() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    for number in range(10):
        hub.publish("report", {"n": number}, device=1)
    narrow = EventFilter(types=REPORT, devices=frozenset({1}))
    resumed = subscribe(hub, narrow, REPORTS, after=first_id)
    hub.unsubscribe(resumed, narrow)
    hub.publish("report", {"n": 10})
    assert await _read_values(resumed, 10) == list(range(11))


@pytest.mark.rule("rest-156")
async def test_a_replay_that_exceeds_the_queue_causes_a_resync_followed_by_live_events() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    for number in range(MAX_BACKLOG_BYTES // MIB + 2):
        hub.publish("report", {"n": number, "filling": "x" * MIB})
    resumed = subscribe(hub, REPORTS, after=first_id)
    hub.publish("report", {"n": 99})
    assert await _read_values(resumed, 99) == ["resync", 99]


async def test_an_account_with_many_replays_does_not_delay_others() -> None:
    hub = EventHub(lambda: 0)
    first_id = await _publish_first(hub)
    for number in range(20_000):
        hub.publish("report", {"n": number}, device=number)
    filters = [EventFilter(types=REPORT, devices=frozenset({10**6 + each})) for each in range(50)]
    demanding = subscribe(hub, *filters, after=first_id)
    other = subscribe(
        hub, EventFilter(types=REPORT, devices=frozenset({19_999})), account="b", after=first_id
    )
    assert await _read_values(other, 19_999) == [19_999]
    assert len(demanding.replays) > 25


async def _publish_first(hub: EventHub) -> str:
    """Publish an event and return its id; later reports are kept for a replay."""
    subscriber = subscribe(hub, REPORTS, account="first")
    hub.publish("report", {"n": -1})
    (event,) = await read_events(subscriber)
    hub.remove(subscriber)
    event_id: str = event["id"]
    return event_id


def test_released_filters_are_not_displaced_by_another_account() -> None:
    coverage = CoverageTracker([Interest("report")])
    coverage.add(REPORTS, 0)
    coverage.release(REPORTS, SubscriberAccount("user", "a"), now=0.0)
    for each in range(300):
        event_filter = EventFilter(devices=frozenset({each}), types=frozenset({"device"}))
        coverage.add(event_filter, 0)
        coverage.release(event_filter, SubscriberAccount("user", "greedy"), now=1.0 + each)
    coverage.drop_expired(100.0)
    assert coverage.covers(REPORTS, 0)


# Rate limits


def test_a_token_bucket_is_emptied_and_refilled_over_time() -> None:
    bucket = TokenBucket(2, 4.0, now=0.0)
    assert [bucket.take(1, 0.0) for _ in range(4)] == [0, 0, 0.25, 0.5]
    assert bucket.take(1, 0.75) == 0
    assert [bucket.take(1, 100.0) for _ in range(3)] == [0, 0, 0.25]


def test_a_session_that_resumes_too_often_is_closed(service: LiveService) -> None:
    with service.open_authenticated() as websocket:
        for _ in range(150):
            websocket.send(subscribe={"Types": ["report"]}, lastEventId="")
        code, last_frame = websocket.read_close()
    assert (code, last_frame["error"]["code"]) == (4429, "too-many-subscriptions")
    assert "resumed" in last_frame["error"]["detail"]
