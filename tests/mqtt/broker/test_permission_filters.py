"""Permissions: properties that hold for any filter and any topic."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.rest.accounts import Role
from tests.examples import examples
from tests.mqtt.broker.running_broker import D, G

OTHER: Final = "02005e000002"
"""Another gateway than G."""

GATEWAY: Final = Account(kind=AccountKind.GATEWAY, name=G)
NOT_GATEWAYS: Final = tuple(Account(kind=AccountKind.USER, name=role, role=role) for role in Role)
ALL_ACCOUNTS: Final = (GATEWAY, *NOT_GATEWAYS)

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


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic, as the standard defines it and without optimization."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False
    return _match_levels(topic_filter.split("/"), topic.split("/"))


def _match_levels(filter_levels: list[str], topic_levels: list[str]) -> bool:
    if not filter_levels or not topic_levels:
        return filter_levels in ([], ["#"]) and not topic_levels
    if filter_levels[0] == "#":
        return True
    return filter_levels[0] in {"+", topic_levels[0]} and _match_levels(filter_levels[1:], topic_levels[1:])


LEVELS: Final = (
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
PARENTS: Final = (
    *(
        f"mt/gateway/{mac}/{kind}"
        for mac in (G, OTHER, G.upper())
        for kind in ("device", "request", "response", "")
    ),
    *("mt/gateways/request", "mt/gateways", "mt/gateway", f"meshtech/diagnostics/{G}", "meshtech", "$SYS"),
)

level_names = st.sampled_from(LEVELS)


class Case(NamedTuple):
    """Filter and a topic that it matches, in an installation."""

    prefix: str
    topic: str
    topic_filter: str

    @property
    def inner(self) -> list[str]:
        """Levels of the topic after the prefix; empty if it has another prefix."""
        prefix = f"{self.prefix}/" if self.prefix else ""
        return self.topic.removeprefix(prefix).split("/") if self.topic.startswith(prefix) else []


@st.composite
def draw_cases(draw: st.DrawFn) -> Case:
    """Draw a case; most are close to what the rules cover."""
    prefix = draw(st.sampled_from(PREFIXES))
    topic_prefix = draw(st.sampled_from([prefix, prefix, prefix, *PREFIXES]))
    parent = draw(st.sampled_from(PARENTS) | st.lists(level_names, min_size=1, max_size=5).map("/".join))
    device = draw(st.sampled_from([D, D, "x", ""]))
    levels = [
        *([topic_prefix] if topic_prefix else []),
        parent,
        device,
        *draw(st.lists(level_names, max_size=3)),
    ]
    topic = "/".join(levels)
    levels = topic.split("/")
    wildcards = draw(st.sets(st.integers(0, len(levels) - 1), max_size=3))
    filter_levels = ["+" if index in wildcards else level for index, level in enumerate(levels)]
    if draw(st.booleans()):
        filter_levels[draw(st.integers(0, len(filter_levels))) :] = ["#"]
    return Case(prefix, topic, "/".join(filter_levels))


def any_account_may_publish(topic: str, prefix: str) -> bool:
    gateways = [Account(kind=AccountKind.GATEWAY, name=mac) for mac in (G, OTHER, D)]
    return any(TopicPermissions(account, prefix).may_publish(topic) for account in (*gateways, *NOT_GATEWAYS))


@settings(max_examples=examples(150))
@given(draw_cases())
def test_a_granted_filter_matches_no_forbidden_topic(case: Case) -> None:
    for account in ALL_ACCOUNTS:
        permissions = TopicPermissions(account, case.prefix)
        if permissions.may_read(case.topic_filter) and matches(case.topic_filter, case.topic):
            # `+` also matches a gateway level that is no MAC, but no account can publish there.
            assert permissions.may_read(case.topic) or not any_account_may_publish(case.topic, case.prefix)


@pytest.mark.rule("broker-14")
@settings(max_examples=examples(150))
@given(draw_cases())
def test_no_granted_filter_of_a_user_matches_a_request(case: Case) -> None:
    match case.inner:
        case ["mt", "gateways", *_] | ["mt", "gateway", _, "request", *_] if matches(
            case.topic_filter, case.topic
        ):
            assert not any(
                TopicPermissions(each, case.prefix).may_read(case.topic_filter) for each in NOT_GATEWAYS
            )


@pytest.mark.rule("broker-14")
@settings(max_examples=examples(150))
@given(draw_cases())
def test_no_granted_filter_of_a_gateway_matches_a_topic_of_another(case: Case) -> None:
    match case.inner:
        case ["mt", "gateway", mac, *_] if mac != G and matches(case.topic_filter, case.topic):
            assert not TopicPermissions(GATEWAY, case.prefix).may_read(case.topic_filter)


@given(draw_cases())
def test_the_publish_prefixes_of_a_gateway_decide_what_it_may_publish(case: Case) -> None:
    permissions = TopicPermissions(GATEWAY, case.prefix)
    topic_start = f"{case.prefix}/" if case.prefix else ""
    prefixes = (f"{topic_start}mt/gateway/{G}/", f"meshtech/diagnostics/{G}/")
    assert permissions.may_publish(case.topic) == case.topic.startswith(prefixes)
    assert permissions.publish_prefixes == prefixes


@given(draw_cases())
def test_the_matcher_of_these_tests_matches_every_filter_with_its_topic(case: Case) -> None:
    assert matches(case.topic_filter, case.topic) != (
        case.topic.startswith("$") and case.topic_filter[0] in "+#"
    )
