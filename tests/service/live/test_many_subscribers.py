"""Many listeners, and greedy ones: what they cost is bounded, and paid by themselves."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.errors import TooManySubscriptions
from meshfleet.rest import Role
from meshfleet.service.actor import Actor
from meshfleet.service.live.event import PublishedEvent
from meshfleet.service.live.filters import EventFilter, FilterIndex, Interest
from meshfleet.service.live.hub import MAX_QUEUED_BYTES, MAX_QUEUED_BYTES_PER_ACCOUNT, EventHub
from meshfleet.service.live.replay import CoverageTracker
from meshfleet.service.live.subscriber import MAX_BACKLOG_BYTES, LiveSubscriber
from meshfleet.service.live.websocket import TokenBucket
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

REPORT = frozenset({"report"})
REPORTS = EventFilter(types=REPORT)
MIB = 1 << 20


def _listener(
    hub: EventHub, *wants: EventFilter, account: str = "a", after: str | None = None
) -> LiveSubscriber:
    actor = Actor(name=account, role=Role.VIEWER, kind="user")
    listener = LiveSubscriber(lambda event: event.body + b"\n", actor, "token")
    hub.add(listener)
    for want in wants:
        hub.subscribe(listener, want, after)
    return listener


async def _take(listener: LiveSubscriber) -> list[Any]:
    async with asyncio.timeout(30):
        taken = await listener.next_chunk()
    assert taken is not None
    return [json.loads(line) for line in taken.splitlines()]


async def _values(listener: LiveSubscriber, last: int) -> list[Any]:
    """What is told, up to a value."""
    told: list[Any] = []
    for _ in range(1000):
        told += [event["data"].get("n", event["type"]) for event in await _take(listener)]
        if told[-1] == last:
            return told
    raise AssertionError(f"it ends with {told[-1]}")


class _Counted(EventFilter, frozen=True, kw_only=True):
    """A want that counts how often it is asked."""

    asked: list[int]

    def matches(self, event: PublishedEvent) -> bool:
        self.asked.append(event.number)
        return super().matches(event)

    def __hash__(self) -> int:
        return hash(self.devices)


# What an event costs


async def test_an_event_is_shown_only_to_those_who_named_its_device_or_gateway() -> None:
    hub = EventHub(lambda: 0)
    asked: list[int] = []
    for each in range(100):
        _listener(hub, _Counted(devices=frozenset({each}), asked=asked))
    for each in range(100, 200):
        _listener(hub, _Counted(gateways=frozenset({each}), asked=asked))
    everything = _listener(hub, REPORTS)
    for number in range(50):
        hub.publish("report", {"n": number}, device=7, gateway=107)
    assert await _values(everything, 49) == list(range(50))
    assert len(asked) == 2 * 50


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
def test_the_index_finds_exactly_the_wants_that_take_an_event_and_loses_them_with_their_holders(
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
    wants: list[dict[str, Any]] = [{}]
    for name, values in choices.items():
        wants = [{**want, name: value} for want in wants for value in values]
    index, listener = FilterIndex(), _somebody()
    for want in wants:
        index.add(listener, EventFilter(**want))
    told = PublishedEvent(**{"type": event["about"], **event}, number=1, id="x", body=b"", at=0)
    found = list(index.find_matches(told))
    assert len(found) == len(set(found))
    assert set(found) == {EventFilter(**want) for want in wants if EventFilter(**want).matches(told)}
    for want in wants:
        index.remove(listener, EventFilter(**want))
    assert not list(index.find_matches(told))


def test_what_all_listeners_of_an_account_name_together_is_bounded() -> None:
    index = FilterIndex()
    starts = range(0, 50_000, 1000)
    for start in starts:
        index.add(_somebody(), EventFilter(devices=frozenset(range(start, start + 1000))))
    one_more = EventFilter(gateways=frozenset({1}))
    with pytest.raises(TooManySubscriptions):
        index.add(_somebody(), one_more)
    index.add(_somebody("b"), one_more)
    index.add(_somebody(), REPORTS)


def _somebody(account: str = "a") -> LiveSubscriber:
    return LiveSubscriber(
        lambda event: event.body, Actor(name=account, role=Role.VIEWER, kind="user"), "token"
    )


# What waits


@pytest.mark.rule("rest-156")
async def test_what_waits_for_slow_listeners_of_one_account_is_bounded_and_others_keep_theirs() -> None:
    hub = EventHub(lambda: 0)
    slow = [_listener(hub, REPORTS) for _ in range(20)]
    other = _listener(hub, REPORTS, account="b")
    for number in range(3):
        hub.publish("report", {"n": number, "filling": "x" * MIB})
        await _pass(hub)
    assert sum(each.queued_bytes for each in slow) <= MAX_QUEUED_BYTES_PER_ACCOUNT
    assert hub.resyncs > 0
    assert await _values(other, 2) == [0, 1, 2]


@pytest.mark.rule("rest-156")
async def test_what_waits_for_all_together_is_bounded_and_who_waits_least_keeps_it() -> None:
    hub = EventHub(lambda: 0)
    slow = [_listener(hub, REPORTS, account=f"{each}") for each in range(40)]
    modest = _listener(hub, EventFilter(types=frozenset({"device"})), account="modest")
    hub.publish("device", {"n": 1})
    for number in range(3):
        hub.publish("report", {"n": number, "filling": "x" * MIB})
        await _pass(hub)
    assert sum(each.queued_bytes for each in slow) <= MAX_QUEUED_BYTES
    assert await _values(modest, 1) == [1]


async def test_what_is_being_written_waits_too() -> None:
    hub = EventHub(lambda: 0)
    listener = _listener(hub, REPORTS)
    hub.publish("report", {"n": 0, "filling": "x" * MIB})
    await _take(listener)
    assert listener.queued_bytes > MIB


async def _pass(hub: EventHub) -> None:
    """Wait until all that was published is told."""
    witness = _listener(hub, EventFilter(types=frozenset({"job"})), account="witness")
    hub.publish("job", {"n": 0})
    await _values(witness, 0)
    hub.remove(witness)


# What is told again


async def test_telling_again_lets_others_have_their_turn_however_long_it_takes() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    for number in range(20_000):
        hub.publish("report", {"n": number}, device=number % 100)
    turns = 0
    again = _listener(hub, EventFilter(types=REPORT, devices=frozenset({7})), after=first)
    telling = asyncio.create_task(_values(again, 19_907))
    while not telling.done():
        turns += 1
        await asyncio.sleep(0)
    assert telling.result() == list(range(7, 20_000, 100))
    assert turns > 10


async def test_what_comes_meanwhile_is_told_behind_what_was_missed() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    for number in range(5000):
        hub.publish("report", {"n": number})
    again = _listener(hub, REPORTS, after=first)
    hub.publish("report", {"n": 5000})
    await _pass(hub)
    assert await _values(again, 5000) == list(range(5001))


async def test_a_subscription_that_is_there_already_is_not_told_again() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    listener = _listener(hub, REPORTS)
    hub.publish("report", {"n": 1})
    hub.subscribe(listener, REPORTS, first)
    hub.publish("report", {"n": 2})
    assert await _values(listener, 2) == [1, 2]


@pytest.mark.rule("rest-149")
async def test_subscriptions_that_overlap_are_resumed_without_telling_anything_twice() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    for number in range(10):
        hub.publish("report", {"n": number}, device=number % 2, gateway=5)
    narrow = [EventFilter(types=REPORT, devices=frozenset({each})) for each in (0, 1)]
    again = _listener(
        hub, narrow[0], EventFilter(types=REPORT, gateways=frozenset({5})), narrow[1], after=first
    )
    hub.publish("report", {"n": 10}, device=0, gateway=5)
    told = await _values(again, 10)
    assert sorted(told) == list(range(11))


async def test_who_takes_a_subscription_back_before_it_is_resumed_misses_nothing_of_another() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    for number in range(10):
        hub.publish("report", {"n": number}, device=1)
    narrow = EventFilter(types=REPORT, devices=frozenset({1}))
    again = _listener(hub, narrow, REPORTS, after=first)
    hub.unsubscribe(again, narrow)
    hub.publish("report", {"n": 10})
    assert await _values(again, 10) == list(range(11))


@pytest.mark.rule("rest-156")
async def test_who_missed_more_than_may_wait_is_told_to_resync_and_hears_what_comes() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    for number in range(MAX_BACKLOG_BYTES // MIB + 2):
        hub.publish("report", {"n": number, "filling": "x" * MIB})
    again = _listener(hub, REPORTS, after=first)
    hub.publish("report", {"n": 99})
    assert await _values(again, 99) == ["resync", 99]


async def test_one_who_asks_for_much_is_not_told_before_others() -> None:
    hub = EventHub(lambda: 0)
    first = await _first(hub)
    for number in range(20_000):
        hub.publish("report", {"n": number}, device=number)
    wants = [EventFilter(types=REPORT, devices=frozenset({10**6 + each})) for each in range(50)]
    greedy = _listener(hub, *wants, after=first)
    modest = _listener(hub, EventFilter(types=REPORT, devices=frozenset({19_999})), account="b", after=first)
    assert await _values(modest, 19_999) == [19_999]
    assert len(greedy.replays) > 25


async def _first(hub: EventHub) -> str:
    """The id of an event, behind which reports are kept."""
    listener = _listener(hub, REPORTS, account="first")
    hub.publish("report", {"n": -1})
    (event,) = await _take(listener)
    hub.remove(listener)
    name: str = event["id"]
    return name


def test_what_is_kept_for_who_left_is_not_pushed_out_by_another_account() -> None:
    coverage = CoverageTracker([Interest("report")])
    coverage.add(REPORTS, 0)
    coverage.release(REPORTS, ("user", "a"), now=0.0)
    for each in range(300):
        want = EventFilter(devices=frozenset({each}), types=frozenset({"device"}))
        coverage.add(want, 0)
        coverage.release(want, ("user", "greedy"), now=1.0 + each)
    coverage.drop_expired(100.0)
    assert coverage.covers(REPORTS, 0)


# Frames


def test_an_allowance_is_used_up_and_comes_back_with_time() -> None:
    allowance = TokenBucket(2, 4.0, now=0.0)
    assert [allowance.take(1, 0.0) for _ in range(4)] == [0, 0, 0.25, 0.5]
    assert allowance.take(1, 0.75) == 0
    assert [allowance.take(1, 100.0) for _ in range(3)] == [0, 0, 0.25]


def test_who_resumes_again_and_again_is_shown_out(stage: LiveService) -> None:
    with stage.open_authenticated() as talk:
        for _ in range(150):
            talk.send(subscribe={"Types": ["report"]}, lastEventId="")
        code, last = talk.read_close()
    assert (code, last["error"]["code"]) == (4429, "too-many-subscriptions")
    assert "resumed" in last["error"]["detail"]
