"""Who may publish and read what: what holds for any filter and any topic."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.rest import Role
from tests.examples import examples
from tests.mqtt.broker.running_broker import D, G

OTHER: Final = "02005e000002"
"""A gateway beside G."""

GATEWAY: Final = Account(kind=AccountKind.GATEWAY, name=G)
NOT_GATEWAYS: Final = tuple(Account(kind=AccountKind.USER, name=role, role=role) for role in Role)
EVERYBODY: Final = (GATEWAY, *NOT_GATEWAYS)

PREFIXES: Final = (
    "",
    "site",
    "a/b",
    "a.c",
    "mt",
    "mt/gateway",
    "(x|y)",
    "meshtech/diagnostics",
    "$x",
    "[^/]",
)


def fits(wanted: str, topic: str) -> bool:
    """Whether a filter matches a topic, as the standard tells it and without any care for speed."""
    if topic.startswith("$") and wanted[0] in "+#":
        return False
    return _fit(wanted.split("/"), topic.split("/"))


def _fit(wanted: list[str], topic: list[str]) -> bool:
    if not wanted or not topic:
        return wanted in ([], ["#"]) and not topic
    if wanted[0] == "#":
        return True
    return wanted[0] in {"+", topic[0]} and _fit(wanted[1:], topic[1:])


WORDS: Final = (
    *(
        "mt",
        "gateway",
        "gateways",
        "device",
        "request",
        "response",
        "meshtech",
        "diagnostics",
        "site",
        "a",
        "b",
    ),
    *("a.c", "(x|y)", "[^/]", "$x", "$SYS", "", "read", "8000", "x"),
    *(G, OTHER, D, G.upper(), G[:-1], "{me}", "{mac}"),
)
PLACES: Final = (
    *(
        f"mt/gateway/{mac}/{kind}"
        for mac in (G, OTHER, G.upper())
        for kind in ("device", "request", "response", "")
    ),
    *("mt/gateways/request", "mt/gateways", "mt/gateway", f"meshtech/diagnostics/{G}", "meshtech", "$SYS"),
)

words = st.sampled_from(WORDS)


class Case(NamedTuple):
    """A filter and a topic that it matches, in an installation."""

    prefix: str
    topic: str
    wanted: str

    @property
    def inner(self) -> list[str]:
        """The levels of the topic behind the prefix; none if it has another."""
        front = f"{self.prefix}/" if self.prefix else ""
        return self.topic.removeprefix(front).split("/") if self.topic.startswith(front) else []


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Most of them close to what the rules are about."""
    prefix = draw(st.sampled_from(PREFIXES))
    front = draw(st.sampled_from([prefix, prefix, prefix, *PREFIXES]))
    place = draw(st.sampled_from(PLACES) | st.lists(words, min_size=1, max_size=5).map("/".join))
    device = draw(st.sampled_from([D, D, "x", ""]))
    levels = [*([front] if front else []), place, device, *draw(st.lists(words, max_size=3))]
    topic = "/".join(levels)
    levels = topic.split("/")
    wild = draw(st.sets(st.integers(0, len(levels) - 1), max_size=3))
    wanted = ["+" if at in wild else level for at, level in enumerate(levels)]
    if draw(st.booleans()):
        wanted[draw(st.integers(0, len(wanted))) :] = ["#"]
    return Case(prefix, topic, "/".join(wanted))


def somebody_may_publish(topic: str, prefix: str) -> bool:
    gateways = [Account(kind=AccountKind.GATEWAY, name=mac) for mac in (G, OTHER, D)]
    return any(TopicPermissions(account, prefix).may_publish(topic) for account in (*gateways, *NOT_GATEWAYS))


@settings(max_examples=examples(150))
@given(cases())
def test_a_filter_that_is_granted_reaches_nothing_that_is_not(case: Case) -> None:
    for account in EVERYBODY:
        access = TopicPermissions(account, case.prefix)
        if access.may_read(case.wanted) and fits(case.wanted, case.topic):
            # A gateway's level that is no MAC is matched by `+` all the same: nobody can publish there.
            assert access.may_read(case.topic) or not somebody_may_publish(case.topic, case.prefix)


@pytest.mark.rule("broker-14")
@settings(max_examples=examples(150))
@given(cases())
def test_no_filter_brings_a_request_to_anybody_but_gateways(case: Case) -> None:
    match case.inner:
        case ["mt", "gateways", *_] | ["mt", "gateway", _, "request", *_] if fits(case.wanted, case.topic):
            assert not any(TopicPermissions(each, case.prefix).may_read(case.wanted) for each in NOT_GATEWAYS)


@pytest.mark.rule("broker-14")
@settings(max_examples=examples(150))
@given(cases())
def test_no_filter_brings_a_gateway_what_is_for_another(case: Case) -> None:
    match case.inner:
        case ["mt", "gateway", mac, *_] if mac != G and fits(case.wanted, case.topic):
            assert not TopicPermissions(GATEWAY, case.prefix).may_read(case.wanted)


@given(cases())
def test_the_quick_way_to_know_gives_the_same_answer(case: Case) -> None:
    access = TopicPermissions(GATEWAY, case.prefix)
    front = f"{case.prefix}/" if case.prefix else ""
    mine = (f"{front}mt/gateway/{G}/", f"meshtech/diagnostics/{G}/")
    assert access.may_publish(case.topic) == case.topic.startswith(mine)
    assert access.publish_prefixes == mine


@given(cases())
def test_the_matcher_of_these_tests_knows_what_each_filter_was_made_from(case: Case) -> None:
    assert fits(case.wanted, case.topic) != (case.topic.startswith("$") and case.wanted[0] in "+#")
