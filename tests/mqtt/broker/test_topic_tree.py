"""Which filters match which topics.

No account may use a filter that begins with a wildcard, so most of this asks the two trees themselves.
"""

from __future__ import annotations

import pickle
import unicodedata
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.broker.topic_tree import SubscriptionTree, TopicTree
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Suback, Subscribe
from tests.mqtt.broker.messages import expect_messages, payloads_of, publish
from tests.mqtt.broker.running_broker import G, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

TOPICS = ("a", "a/", "a/b", "a/b/c", "a//c", "a/$b", "/", "/a", "A", "ab", "$SYS", "$SYS/a")

MATCHES = {
    "#": "a a/ a/b a/b/c a//c a/$b / /a A ab",
    "+": "a A ab",
    "/+": "/ /a",
    "/#": "/ /a",
    "+/+": "a/ a/b a/$b / /a",
    "+/#": "a a/ a/b a/b/c a//c a/$b / /a A ab",
    "+/a": "/a",
    "+/b/+": "a/b/c",
    "a": "a",
    "a/": "a/",
    "a/#": "a a/ a/b a/b/c a//c a/$b",
    "a/+": "a/ a/b a/$b",
    "a/+/#": "a/ a/b a/b/c a//c a/$b",
    "a/+/c": "a/b/c a//c",
    "a/b/#": "a/b a/b/c",
    "b/#": "",
    "$SYS/#": "$SYS $SYS/a",
    "$SYS/+": "$SYS/a",
    "$SYS/a": "$SYS/a",
}

LEVELS = st.sampled_from(["", "a", "b", "A", "$a", "$", " "])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
WISHES = st.builds(
    lambda levels, end: "/".join(levels + end),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


def matches(wanted: str, topic: str) -> bool:
    """The rules of the standard, for one filter and one topic."""
    if topic.startswith("$") and wanted[0] in "+#":
        return False
    for level, name in zip_longest(wanted.split("/"), topic.split("/")):
        if level == "#":
            return True
        if level is None or name is None or level not in {"+", name}:
            return False
    return True


def found(wanted: str, topic: str) -> bool:
    """What both trees say, who must agree."""
    filters, names = SubscriptionTree[str](), TopicTree[str]()
    filters.add(wanted, "somebody", 1)
    names.put(topic, topic)
    by_topic = filters.find_subscribers(topic) == {"somebody": 1}
    by_filter = list(names.find_matching(wanted)) == [topic]
    assert by_topic == by_filter
    return by_topic


@each_row("wanted", MATCHES)
def test_a_filter_gets_the_topics_that_match_it_and_no_others(wanted: str) -> None:
    expected = set(MATCHES[wanted].split())
    assert {topic for topic in TOPICS if found(wanted, topic)} == expected
    assert {topic for topic in TOPICS if matches(wanted, topic)} == expected
    names = TopicTree[str]()
    for topic in TOPICS:
        names.put(topic, topic)
    assert sorted(names.find_matching(wanted)) == sorted(expected)


@given(st.dictionaries(WISHES, st.sampled_from([0, 1]), max_size=12), NAMES)
def test_many_filters_find_what_each_of_them_finds(wishes: dict[str, int], topic: str) -> None:
    filters = SubscriptionTree[str]()
    for wanted, qos in wishes.items():
        filters.add(wanted, wanted, qos)
        filters.add(wanted, "everybody", qos)
    matching = {wanted: qos for wanted, qos in wishes.items() if matches(wanted, topic)}
    everybody = {"everybody": max(matching.values())} if matching else {}
    assert filters.find_subscribers(topic) == matching | everybody


@given(st.sets(WISHES, max_size=6), NAMES)
def test_filters_reach_every_beginning_of_a_topic_that_they_match(wishes: set[str], topic: str) -> None:
    filters = SubscriptionTree[str]()
    for wanted in wishes:
        filters.add(wanted, "somebody", 1)
    parts = topic.split("/")
    for depth in range(1, len(parts)):
        if filters.find_subscribers(topic):
            assert filters.may_match_below("/".join(parts[:depth]) + "/")
        assert not filters.may_match_below("/".join(["elsewhere", *parts[:depth], *"xyzxyz"]) + "/") or any(
            wanted[0] in "+#" for wanted in wishes
        )


@given(st.sets(NAMES, max_size=12), WISHES)
def test_many_names_are_found_by_what_matches_each_of_them(topics: set[str], wanted: str) -> None:
    names = TopicTree[str]()
    for topic in topics:
        names.put(topic, topic)
    assert sorted(names.find_matching(wanted)) == sorted(topic for topic in topics if matches(wanted, topic))


@given(st.lists(st.tuples(WISHES, st.sampled_from("xy"), st.booleans()), max_size=30))
def test_what_was_removed_is_not_found_and_leaves_no_branch(steps: list[tuple[str, str, bool]]) -> None:
    filters, left = SubscriptionTree[str](), set[tuple[str, str]]()
    for wanted, who, is_added in steps:
        if is_added:
            filters.add(wanted, who, 1)
            left.add((wanted, who))
        else:
            filters.remove(wanted, who)
            left.discard((wanted, who))
        for topic in TOPICS:
            assert set(filters.find_subscribers(topic)) == {
                each for wish, each in left if matches(wish, topic)
            }
    for wanted, who in left:
        filters.remove(wanted, who)
    assert pickle.dumps(filters) == pickle.dumps(SubscriptionTree[str]()), "what was removed still takes room"


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=30))
def test_names_that_were_removed_are_not_found_and_leave_no_branch(steps: list[tuple[str, bool]]) -> None:
    names, left = TopicTree[str](), set[str]()
    for topic, is_put in steps:
        if is_put:
            names.put(topic, topic)
            left.add(topic)
        else:
            names.remove(topic)
            left.discard(topic)
        assert sorted(
            [*names.find_matching("#"), *names.find_matching("$/#"), *names.find_matching("$a/#")]
        ) == sorted(left)
    for topic in left:
        names.remove(topic)
    assert pickle.dumps(names) == pickle.dumps(TopicTree[str]()), "what was removed still takes room"


@pytest.mark.anyio
async def test_a_client_gets_the_topics_that_match_its_filters_and_no_others(stage: RunningBroker) -> None:
    place = f"mt/gateway/{G}"
    viewer = await stage.subscriber("viewer", f"{place}/device/+/heartbeat", f"{place}/device/a/#")
    gateway = await stage.gateway()
    topics = ["device", "device/a", "device/a/", "device/a/x/y", "device/ab", "device/b/heartbeat"]
    topics += ["device/b/heartbeat/", "device//heartbeat", "device/heartbeat", "request/a/x", "Device/a/x"]
    for topic in topics:
        await publish(gateway, topic.encode(), topic=f"{place}/{topic}")
    wanted = ["device/a", "device/a/", "device/a/x/y", "device/b/heartbeat", "device//heartbeat"]
    await expect_messages(viewer, *(topic.encode() for topic in wanted))


@each_row("topic", ["$SYS", "$SYS/x", "$SYS/x/y", "$", "$/x", "$share/x"])
def test_a_wildcard_in_front_does_not_match_a_dollar(topic: str) -> None:
    first, *rest = topic.split("/")
    for wanted in ("#", "+", "+/#", "+/+", "+/x", "+/x/y", "+/x/#", "/".join(["+", *rest])):
        assert not found(wanted, topic)
    for wanted in (topic, f"{first}/#", "/".join([first, *("+" for _ in rest)])):
        assert found(wanted, topic)
    assert found("+/$SYS", "a/$SYS")
    assert found("a/+", "a/$SYS")
    assert found("a/#", "a/$SYS")


@each_row(
    ("one", "other"),
    [
        ("a", "A"),
        ("straße", "STRASSE"),
        ("a", "\ufeffa"),
        ("a", "a "),
        ("a", " a"),
        ("a", "/a"),
        ("a", "a/"),
        ("a/b", "a//b"),
        ("a", "\uff41"),
        ("a", "a\u200b"),
        ("µ", "\u03bc"),
        ("a.b", "a/b"),
        (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
    ],
)
def test_names_are_compared_as_they_are_spelt(one: str, other: str) -> None:
    assert found(one, one)
    assert found(other, other)
    assert not found(one, other)
    assert not found(other, one)


@pytest.mark.anyio
async def test_the_broker_leaves_every_character_of_a_topic_alone(stage: RunningBroker) -> None:
    nfc, nfd = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    names = [nfc, nfd, "E", "e", "e ", "\ufeffe", "e/", "/e", "ﬁ", "fi", "\U0001f600"]
    gateway = await stage.gateway()
    for name in names:
        viewer = await stage.subscriber("viewer", f"mt/gateway/{G}/device/{name}")
        for each in names:
            await publish(gateway, each.encode(), topic=f"mt/gateway/{G}/device/{each}")
        (message,) = await expect_messages(viewer, name.encode())
        assert message.topic == f"mt/gateway/{G}/device/{name}"


@pytest.mark.anyio
@each_row("wanted", ["#", "+/#", "+/gateway/+/device/#", "$SYS/#", "$share/all/mt/#"])
@with_fresh_broker
async def test_nobody_subscribes_with_a_wildcard_in_front(stage: RunningBroker, wanted: str) -> None:
    client = await stage.client("admin")
    client.send(Subscribe(1, ((wanted, 1),)))
    assert await client.expect(Suback) == Suback(1, (SUBACK_FAILURE,))
    await publish(await stage.gateway(), b"{}")
    assert payloads_of(await client.receive_until_pong()) == []
