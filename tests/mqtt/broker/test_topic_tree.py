"""Matching of topics and filters.

No account may use a filter that begins with a wildcard, so most tests use the two trees directly.
"""

from __future__ import annotations

import pickle
import unicodedata
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.broker.topic_tree import SubscriptionTree, TopicTree
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Suback, Subscribe
from tests.mqtt.broker.messages import expect_messages, payloads_of, publish
from tests.mqtt.broker.running_broker import G, RunningBroker, with_fresh_broker
from tests.row_tables import each_row

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
FILTERS = st.builds(
    lambda levels, end: "/".join(levels + end),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic by the rules of the standard."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    for level, name in zip_longest(topic_filter.split("/"), topic.split("/")):
        if level == "#":
            return True
        if level is None or name is None or level not in {"+", name}:
            return False
    return True


def tree_matches(topic_filter: str, topic: str) -> bool:
    """Return whether both trees match, which must agree."""
    subscriptions, topics = SubscriptionTree[str](), TopicTree[str]()
    subscriptions.add(topic_filter, "subscriber", 1)
    topics.put(topic, topic)
    by_topic = subscriptions.find_subscribers(topic) == {"subscriber": 1}
    by_filter = list(topics.find_matching(topic_filter)) == [topic]
    assert by_topic == by_filter
    return by_topic


@each_row("topic_filter", MATCHES)
def test_a_filter_gets_the_topics_that_match_it_and_no_others(topic_filter: str) -> None:
    expected = set(MATCHES[topic_filter].split())
    assert {topic for topic in TOPICS if tree_matches(topic_filter, topic)} == expected
    assert {topic for topic in TOPICS if matches(topic_filter, topic)} == expected
    tree = TopicTree[str]()
    for topic in TOPICS:
        tree.put(topic, topic)
    assert sorted(tree.find_matching(topic_filter)) == sorted(expected)


@given(st.dictionaries(FILTERS, st.sampled_from([0, 1]), max_size=12), NAMES)
def test_many_filters_match_what_each_of_them_matches(filters_with_qos: dict[str, int], topic: str) -> None:
    tree = SubscriptionTree[str]()
    for topic_filter, qos in filters_with_qos.items():
        tree.add(topic_filter, topic_filter, qos)
        tree.add(topic_filter, "all", qos)
    matching = {
        topic_filter: qos for topic_filter, qos in filters_with_qos.items() if matches(topic_filter, topic)
    }
    all_filters = {"all": max(matching.values())} if matching else {}
    assert tree.find_subscribers(topic) == matching | all_filters


@given(st.sets(FILTERS, max_size=6), NAMES)
def test_filters_may_match_below_every_prefix_of_a_topic_that_they_match(
    filters: set[str], topic: str
) -> None:
    tree = SubscriptionTree[str]()
    for topic_filter in filters:
        tree.add(topic_filter, "subscriber", 1)
    parts = topic.split("/")
    for depth in range(1, len(parts)):
        if tree.find_subscribers(topic):
            assert tree.may_match_below("/".join(parts[:depth]) + "/")
        assert not tree.may_match_below("/".join(["elsewhere", *parts[:depth], *"xyzxyz"]) + "/") or any(
            topic_filter[0] in "+#" for topic_filter in filters
        )


@given(st.sets(NAMES, max_size=12), FILTERS)
def test_a_filter_finds_all_topics_that_it_matches(topics: set[str], topic_filter: str) -> None:
    tree = TopicTree[str]()
    for topic in topics:
        tree.put(topic, topic)
    assert sorted(tree.find_matching(topic_filter)) == sorted(
        topic for topic in topics if matches(topic_filter, topic)
    )


@given(st.lists(st.tuples(FILTERS, st.sampled_from("xy"), st.booleans()), max_size=30))
def test_removed_subscriptions_are_not_found_and_leave_no_node(steps: list[tuple[str, str, bool]]) -> None:
    tree, remaining = SubscriptionTree[str](), set[tuple[str, str]]()
    for topic_filter, subscriber, is_added in steps:
        if is_added:
            tree.add(topic_filter, subscriber, 1)
            remaining.add((topic_filter, subscriber))
        else:
            tree.remove(topic_filter, subscriber)
            remaining.discard((topic_filter, subscriber))
        for topic in TOPICS:
            assert set(tree.find_subscribers(topic)) == {
                each for added_filter, each in remaining if matches(added_filter, topic)
            }
    for topic_filter, subscriber in remaining:
        tree.remove(topic_filter, subscriber)
    assert pickle.dumps(tree) == pickle.dumps(SubscriptionTree[str]()), "removed items still use memory"


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=30))
def test_removed_topics_are_not_found_and_leave_no_node(steps: list[tuple[str, bool]]) -> None:
    tree, remaining = TopicTree[str](), set[str]()
    for topic, is_put in steps:
        if is_put:
            tree.put(topic, topic)
            remaining.add(topic)
        else:
            tree.remove(topic)
            remaining.discard(topic)
        assert sorted(
            [*tree.find_matching("#"), *tree.find_matching("$/#"), *tree.find_matching("$a/#")]
        ) == sorted(remaining)
    for topic in remaining:
        tree.remove(topic)
    assert pickle.dumps(tree) == pickle.dumps(TopicTree[str]()), "removed items still use memory"


@pytest.mark.anyio
async def test_a_client_gets_the_topics_that_match_its_filters_and_no_others(server: RunningBroker) -> None:
    prefix = f"mt/gateway/{G}"
    viewer = await server.subscriber("viewer", f"{prefix}/device/+/heartbeat", f"{prefix}/device/a/#")
    gateway = await server.gateway()
    topics = ["device", "device/a", "device/a/", "device/a/x/y", "device/ab", "device/b/heartbeat"]
    topics += ["device/b/heartbeat/", "device//heartbeat", "device/heartbeat", "request/a/x", "Device/a/x"]
    for topic in topics:
        await publish(gateway, topic.encode(), topic=f"{prefix}/{topic}")
    expected = ["device/a", "device/a/", "device/a/x/y", "device/b/heartbeat", "device//heartbeat"]
    await expect_messages(viewer, *(topic.encode() for topic in expected))


@each_row("topic", ["$SYS", "$SYS/x", "$SYS/x/y", "$", "$/x", "$share/x"])
def test_a_leading_wildcard_does_not_match_a_dollar_sign(topic: str) -> None:
    first, *rest = topic.split("/")
    for topic_filter in ("#", "+", "+/#", "+/+", "+/x", "+/x/y", "+/x/#", "/".join(["+", *rest])):
        assert not tree_matches(topic_filter, topic)
    for topic_filter in (topic, f"{first}/#", "/".join([first, *("+" for _ in rest)])):
        assert tree_matches(topic_filter, topic)
    assert tree_matches("+/$SYS", "a/$SYS")
    assert tree_matches("a/+", "a/$SYS")
    assert tree_matches("a/#", "a/$SYS")


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
def test_topics_are_compared_exactly(one: str, other: str) -> None:
    assert tree_matches(one, one)
    assert tree_matches(other, other)
    assert not tree_matches(one, other)
    assert not tree_matches(other, one)


@pytest.mark.anyio
async def test_the_broker_does_not_change_any_character_of_a_topic(server: RunningBroker) -> None:
    nfc, nfd = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    names = [nfc, nfd, "E", "e", "e ", "\ufeffe", "e/", "/e", "ﬁ", "fi", "\U0001f600"]
    gateway = await server.gateway()
    for name in names:
        viewer = await server.subscriber("viewer", f"mt/gateway/{G}/device/{name}")
        for each in names:
            await publish(gateway, each.encode(), topic=f"mt/gateway/{G}/device/{each}")
        (message,) = await expect_messages(viewer, name.encode())
        assert message.topic == f"mt/gateway/{G}/device/{name}"


@pytest.mark.anyio
@each_row("topic_filter", ["#", "+/#", "+/gateway/+/device/#", "$SYS/#", "$share/all/mt/#"])
@with_fresh_broker
async def test_a_filter_with_a_leading_wildcard_is_refused(server: RunningBroker, topic_filter: str) -> None:
    client = await server.client("admin")
    client.send(Subscribe(1, ((topic_filter, 1),)))
    assert await client.expect(Suback) == Suback(1, (SUBACK_FAILURE,))
    await publish(await server.gateway(), b"{}")
    assert payloads_of(await client.receive_until_pong()) == []
