"""Channels of the document match the topics of the protocol and the permissions of the broker."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.protocol import diagnostics
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import EVERY_GATEWAY, Identifier, IdentifierName, Mac, is_identifier
from meshfleet.protocol.topics import (
    AnyIdentifier,
    BroadcastTopic,
    ReportTopic,
    RequestTopic,
    ResponseTopic,
    Topic,
    TopicCodec,
)
from meshfleet.rest.accounts import Role
from meshfleet.service.asyncapi import build_asyncapi_document
from meshfleet.service.asyncapi.examples import EXAMPLE_GATEWAY
from tests.row_tables import each_row

LEVELS = {
    "gateway": "[0-9a-f]{12}",
    "device": "[0-9a-f]{12}",
    "identifier": "(?:[89a-f][0-9a-f]){0,3}[0-7][0-9a-f]",
    "name": "[^/]+",
}
PREFIXES = ["", "site/7", "a.b*c"]

macs = st.integers(0, 2**48 - 1).map(lambda number: Mac(f"{number:012x}"))
names = st.sampled_from(sorted(BUILTIN_CATALOGUE.names)) | st.text("abc-é .{}", min_size=1, max_size=12).map(
    IdentifierName
)
identifiers = st.sampled_from([entry.id for entry in BUILTIN_CATALOGUE]) | st.just(Identifier("ee8001"))


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    topic_type = draw(st.sampled_from([ReportTopic, RequestTopic, BroadcastTopic, ResponseTopic]))
    if topic_type is ReportTopic:
        kind = draw(st.sampled_from(list(Kind)))
        return ReportTopic(draw(macs), draw(macs), kind, _draw_identifier(draw, kind))
    operation = draw(
        st.sampled_from([each for each in Operation if each.is_answered or topic_type is not ResponseTopic])
    )
    identifier = _draw_identifier(draw, operation)
    if topic_type is BroadcastTopic:
        return BroadcastTopic(draw(macs | st.just(EVERY_GATEWAY)), operation, identifier)
    build = RequestTopic if topic_type is RequestTopic else ResponseTopic
    return build(draw(macs), draw(macs), operation, identifier)


def _draw_identifier(draw: st.DrawFn, code: Kind | Operation) -> AnyIdentifier | None:
    if not code.has_identifier:
        return None
    return draw(names) if code.is_decoded else draw(identifiers)


def _find_matching_channels(document: dict[str, Any], topic: str) -> list[str]:
    """Return the channels whose address pattern matches a topic."""
    return [
        name for name, channel in document["channels"].items() if re.fullmatch(_build_pattern(channel), topic)
    ]


def _build_pattern(channel: dict[str, Any]) -> str:
    pattern: str = re.escape(channel["address"])
    for level in channel["parameters"]:
        assert pattern.count(rf"\{{{level}\}}") == 1
        pattern = pattern.replace(rf"\{{{level}\}}", LEVELS[level])
    return pattern


@pytest.mark.rule("rest-162", "topic-7")
@pytest.mark.parametrize("prefix", PREFIXES)
@given(topic=topics())
def test_every_topic_matches_exactly_one_channel(prefix: str, topic: Topic) -> None:
    prefixes = {
        ReportTopic: "report",
        RequestTopic: "request",
        BroadcastTopic: "request-to-all",
        ResponseTopic: "response",
    }
    code = topic.kind if isinstance(topic, ReportTopic) else topic.operation
    found = _find_matching_channels(
        build_asyncapi_document(prefix=prefix), TopicCodec(prefix).format_topic(topic)
    )
    assert found == [f"{prefixes[type(topic)]}-{code}"]


@pytest.mark.rule("rest-162", "topic-9")
@each_row("prefix", PREFIXES)
def test_diagnostics_topics_match_their_channels_with_any_prefix(prefix: str) -> None:
    document = build_asyncapi_document(prefix=prefix)
    assert _find_matching_channels(document, diagnostics.format_image_request_topic(EXAMPLE_GATEWAY)) == [
        "firmware-question"
    ]
    assert _find_matching_channels(document, diagnostics.format_image_response_topic(EXAMPLE_GATEWAY)) == [
        "firmware-answer"
    ]


@pytest.mark.rule("rest-162")
@each_row("prefix", PREFIXES)
def test_every_address_with_example_parameters_is_a_valid_topic(prefix: str) -> None:
    document = build_asyncapi_document(prefix=prefix)
    parse = TopicCodec(prefix, identifier_names=BUILTIN_CATALOGUE.names).parse_uncached
    for name, channel in document["channels"].items():
        for example in range(2):
            topic = channel["address"]
            for level, reference in channel["parameters"].items():
                parameter = document["components"]["parameters"][reference["$ref"].rpartition("/")[2]]
                chosen = parameter["examples"][min(example, len(parameter["examples"]) - 1)]
                assert level != "name" or not is_identifier(chosen)
                topic = topic.replace(f"{{{level}}}", chosen)
            assert "{" not in topic
            if name.startswith("firmware-"):
                assert topic in {
                    diagnostics.format_image_request_topic(EXAMPLE_GATEWAY),
                    diagnostics.format_image_response_topic(EXAMPLE_GATEWAY),
                }
            else:
                assert TopicCodec(prefix).format_topic(parse(topic)) == topic


def test_an_ack_has_no_response_channel() -> None:
    topic = ResponseTopic(EXAMPLE_GATEWAY, EXAMPLE_GATEWAY, Operation.ACK, Identifier("8800"))
    assert _find_matching_channels(build_asyncapi_document(), str(topic)) == []


@pytest.mark.rule("rest-162")
@each_row("prefix", PREFIXES)
def test_the_documented_permissions_are_those_of_the_broker(prefix: str) -> None:
    accounts: dict[str, Account] = {
        "gateway": Account(kind=AccountKind.GATEWAY, name=EXAMPLE_GATEWAY),
        **{role: Account(kind=AccountKind.API_KEY, name="x", role=role) for role in Role},
    }
    for channel in build_asyncapi_document(prefix=prefix)["channels"].values():
        topic = channel["address"].replace("{gateway}", EXAMPLE_GATEWAY).replace("{device}", "02005e0000f1")
        topic = topic.replace("{identifier}", "8800").replace("{name}", "temperature")
        for kind, account in accounts.items():
            access = TopicPermissions(account, prefix)
            assert (kind in channel["x-access"]["publish"]) is access.may_publish(topic)
            assert (kind in channel["x-access"]["read"]) is access.may_read(topic)


@pytest.mark.rule("broker-14")
def test_only_the_gateway_reads_its_requests_and_every_viewer_reads_reports() -> None:
    channels = build_asyncapi_document()["channels"]
    assert channels["request-read"]["x-access"]["read"] == ["gateway"]
    assert channels["report-event"]["x-access"]["read"] == ["gateway", "viewer", "operator", "admin"]
    assert channels["request-to-all-read"]["x-access"]["publish"] == ["operator", "admin"]
    assert channels["report-event"]["x-access"]["publish"] == ["gateway"]
