"""Topics: parsing and formatting of all forms, and rejection of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedIdentifier, MalformedInput, MalformedMac, MalformedTopic
from meshfleet.protocol import diagnostics
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import EVERY_GATEWAY, Identifier, IdentifierName, Mac
from meshfleet.protocol.topics import (
    TOPIC_CACHE_SIZE,
    BroadcastTopic,
    ReportTopic,
    RequestTopic,
    ResponseTopic,
    Topic,
    TopicCodec,
)
from tests.protocol.strategies import any_topics, macs
from tests.row_tables import each_row

G = Mac("0123456789ab")
D = Mac("fedcba987654")
ID = Identifier("8800")
DEVICE = f"mt/gateway/{G}/device/{D}"
REQUEST_PREFIXES = [f"mt/gateway/{G}/request/{D}", f"mt/gateway/{G}/response/{D}", f"mt/gateways/request/{D}"]
TOPICS = TopicCodec(identifier_names=BUILTIN_CATALOGUE.names)

RAW = [
    *[f"{DEVICE}/{kind}" for kind in ("property", "measurement", "measurement-error", "event")],
    *[f"{prefix}/{operation}" for prefix in REQUEST_PREFIXES for operation in ("read", "write", "ack")],
]
DECODED = [f"{text}-decoded" for text in RAW]


def _assert_rejected(error: type[MalformedInput], field: str, text: str, topics: TopicCodec = TOPICS) -> None:
    with pytest.raises(error) as caught:
        topics.parse(text)
    assert type(caught.value) is error
    assert caught.value.field == field


def _error_topic(kind: Kind, identifier: str) -> ReportTopic:
    return ReportTopic(G, D, kind, IdentifierName(identifier))


@pytest.mark.rule("topic-1", "topic-2", "topic-3", "topic-5", "topic-6", "topic-10")
@each_row(
    ("text", "topic"),
    [
        (f"mt/gateway/{G}/device/{D}/heartbeat", ReportTopic(G, D, Kind.HEARTBEAT)),
        (f"mt/gateway/{G}/device/{D}/event/8800", ReportTopic(G, D, Kind.EVENT, ID)),
        (f"mt/gateway/{G}/device/{G}/property/8800", ReportTopic(G, G, Kind.PROPERTY, ID)),
        (f"mt/gateway/{G}/request/{D}/read/8800", RequestTopic(G, D, Operation.READ, ID)),
        (f"mt/gateway/{G}/request/{G}/apiversion", RequestTopic(G, G, Operation.APIVERSION)),
        (f"mt/gateway/{G}/response/{D}/write/8800", ResponseTopic(G, D, Operation.WRITE, ID)),
        (f"mt/gateway/{G}/response/{G}/apiversion", ResponseTopic(G, G, Operation.APIVERSION)),
        (f"mt/gateways/request/{D}/write/8800", BroadcastTopic(D, Operation.WRITE, ID)),
        (f"mt/gateways/request/{D}/apiversion", BroadcastTopic(D, Operation.APIVERSION)),
    ],
)
def test_a_topic_is_parsed_and_formatted(text: str, topic: Topic) -> None:
    assert TOPICS.parse(text) == topic
    assert type(TOPICS.parse(text)) is type(topic)
    assert TOPICS.format_topic(topic) == str(topic) == text


@pytest.mark.rule("topic-12", "topic-17")
@each_row(
    "text",
    [
        f"{DEVICE}/heartbeat",
        f"{DEVICE}/dfu",
        f"{DEVICE}/rssi",
        *[f"{prefix}/apiversion" for prefix in REQUEST_PREFIXES],
    ],
)
def test_a_kind_or_operation_without_identifier_is_rejected_with_one(text: str) -> None:
    assert TOPICS.parse(text).identifier is None
    _assert_rejected(MalformedIdentifier, "identifier", f"{text}/8800")
    _assert_rejected(MalformedIdentifier, "identifier", f"{text}/temperature")


@pytest.mark.rule("topic-13", "topic-18", "id-8", "id-9", "id-24")
@each_row("prefix", RAW)
def test_a_raw_kind_or_operation_needs_a_hex_identifier(prefix: str) -> None:
    for identifier in ("8800", "80", "0505", "beef", "80ff", "000080ff"):
        assert TOPICS.parse(f"{prefix}/{identifier}").identifier == identifier
    _assert_rejected(MalformedIdentifier, "identifier", prefix)
    for identifier in ("880", "880011223", "EF10", "8800 ", "sauna", "+", "#", "0\u0665"):
        _assert_rejected(MalformedIdentifier, "identifier", f"{prefix}/{identifier}")


@pytest.mark.rule("topic-14", "topic-19", "id-11", "id-12")
@each_row("prefix", DECODED)
def test_a_decoded_kind_or_operation_needs_a_name(prefix: str) -> None:
    for name in ("temperature", "sauna heat", "Ofen Süd °C", "温度", "درجة", "8800", "a" * 128, "$SYS"):
        assert TOPICS.parse(f"{prefix}/{name}").identifier == name
    _assert_rejected(MalformedIdentifier, "identifier", prefix)
    for name in ("+", "#", "a+b", "temp#", "a\x00", "a\nb", "\x7f", "a" * 129):
        _assert_rejected(MalformedIdentifier, "identifier", f"{prefix}/{name}")


@pytest.mark.rule("topic-15", "topic-16")
@each_row("name", ["temperature", "motion", "battery-level"])
@each_row("marker", ["", "-decoded"])
def test_a_measurement_error_with_a_name_of_the_catalogue_is_decoded(name: str, marker: str) -> None:
    topic = TOPICS.parse(f"{DEVICE}/measurement-error{marker}/{name}")
    assert topic == _error_topic(Kind.MEASUREMENT_ERROR_DECODED, name)
    assert str(topic) == f"{DEVICE}/measurement-error-decoded/{name}"


@pytest.mark.rule("topic-13", "topic-16")
def test_a_name_without_the_marker_is_rejected_if_unknown_or_of_another_kind() -> None:
    _assert_rejected(MalformedIdentifier, "identifier", f"{DEVICE}/measurement-error/sauna")
    _assert_rejected(
        MalformedIdentifier, "identifier", f"{DEVICE}/measurement-error/temperature", TopicCodec()
    )
    _assert_rejected(MalformedIdentifier, "identifier", f"{DEVICE}/measurement/temperature")


@pytest.mark.rule("topic-13")
def test_hex_in_a_measurement_error_is_raw_even_if_a_catalogue_has_it_as_a_name() -> None:
    topics = TopicCodec(identifier_names={"05", "beef", "sauna"})
    raw, decoded = Kind.MEASUREMENT_ERROR, Kind.MEASUREMENT_ERROR_DECODED
    assert topics.parse(f"{DEVICE}/measurement-error/05") == _error_topic(raw, "05")
    assert topics.parse(f"{DEVICE}/measurement-error/beef") == _error_topic(raw, "beef")
    assert topics.parse(f"{DEVICE}/measurement-error/sauna") == _error_topic(decoded, "sauna")


@pytest.mark.rule("id-1", "id-2", "id-4")
@each_row("mac", ["0123456789AB", "0123456789a", "0123456789abc", "01:23:45:67:89:ab", ""])
def test_a_mac_in_a_topic_is_in_lower_case(mac: str) -> None:
    for direction, keyword in (("device", "rssi"), ("request", "apiversion"), ("response", "apiversion")):
        _assert_rejected(MalformedMac, "gateway", f"mt/gateway/{mac}/{direction}/{D}/{keyword}")
        _assert_rejected(MalformedMac, "device", f"mt/gateway/{G}/{direction}/{mac}/{keyword}")
    _assert_rejected(MalformedMac, "device", f"mt/gateways/request/{mac}/apiversion")


@pytest.mark.rule("id-4")
@given(macs, macs)
def test_a_mac_may_be_of_a_gateway_or_a_device(one: Mac, other: Mac) -> None:
    assert TOPICS.parse(f"mt/gateway/{one}/device/{other}/dfu") == ReportTopic(one, other, Kind.DFU)
    assert TOPICS.parse(f"mt/gateway/{other}/device/{one}/dfu") == ReportTopic(other, one, Kind.DFU)


@each_row("prefix", [DEVICE, *REQUEST_PREFIXES])
@each_row("keyword", ["Heartbeat", "READ", "heart beat", "+", "#", "erase", "read_decoded"])
def test_an_unknown_kind_or_operation_is_rejected(prefix: str, keyword: str) -> None:
    for text in (f"{prefix}/{keyword}", f"{prefix}/{keyword}/8800"):
        _assert_rejected(MalformedTopic, "kind" if prefix == DEVICE else "operation", text)


def test_an_operation_is_not_a_kind_and_a_kind_is_not_an_operation() -> None:
    _assert_rejected(MalformedTopic, "kind", f"{DEVICE}/read/8800")
    _assert_rejected(MalformedTopic, "operation", f"{REQUEST_PREFIXES[0]}/heartbeat")


@each_row(
    "text",
    [
        *["", "/", "mt", "mt/", "mt/gateway", "mt/gateways/request", "mt/gateway/+/device", "$SYS/load"],
        *[f"mt/gateway/{G}", f"mt/gateway/{G}/device", f"mt/gateway/{G}/{D}/rssi", f"MT{DEVICE[2:]}/rssi"],
        *[DEVICE, f"{DEVICE}/", f"{DEVICE}/rssi/", f"{DEVICE}//05", f"{DEVICE}/event/05/", f"/{DEVICE}/dfu"],
        *[
            f"{DEVICE}/event/05/05",
            f"{DEVICE}/event-decoded/a/b",
            f"site/{DEVICE}/rssi",
            f"{REQUEST_PREFIXES[0]}/",
        ],
        *[f"mt//gateway/{G}/device/{D}/rssi", f"mt/gateway/{G}/dev/{D}/rssi", f"mt/gateways/device/{D}/rssi"],
        *[f"mt/gateways/response/{D}/apiversion", f"mt/gateways/{G}/request/{D}/apiversion"],
        *[f"meshtech/diagnostics/{G}/server-command/firmware"],
    ],
)
def test_a_topic_of_another_form_is_rejected(text: str) -> None:
    _assert_rejected(MalformedTopic, "topic", text)


@pytest.mark.rule("topic-4")
@each_row("suffix", ["apiversion", "read/8800", "write-decoded/sauna heat", "write/05"])
def test_a_response_topic_has_the_ending_of_its_request_topic(suffix: str) -> None:
    request_topic = TOPICS.parse(f"mt/gateway/{G}/request/{D}/{suffix}")
    assert isinstance(request_topic, RequestTopic)
    assert str(request_topic.to_response_topic()) == f"mt/gateway/{G}/response/{D}/{suffix}"
    assert TOPICS.parse(str(request_topic.to_response_topic())) == request_topic.to_response_topic()


@pytest.mark.rule("topic-11")
@given(macs, macs)
def test_only_the_ff_address_of_a_broadcast_means_each_gateway(gateway: Mac, device: Mac) -> None:
    broadcast = BroadcastTopic(EVERY_GATEWAY, Operation.READ, ID)
    assert TOPICS.parse("mt/gateways/request/ffffffffffff/read/8800") == broadcast
    assert broadcast.to_request_topic(gateway) == RequestTopic(gateway, gateway, Operation.READ, ID)
    if device != "ffffffffffff":
        request_topic = BroadcastTopic(device, Operation.READ, ID).to_request_topic(gateway)
        assert request_topic == RequestTopic(gateway, device, Operation.READ, ID)


@pytest.mark.rule("topic-7")
@given(topic=any_topics())
@each_row("prefix", ["site", "a/b/c", "floor 7/Zürich", "x.*(y)[z]", "a$b", "mt/gateway"])
def test_every_topic_starts_with_the_prefix(prefix: str, topic: Topic) -> None:
    topics = TopicCodec(prefix)
    assert topics.format_topic(topic) == f"{prefix}/{topic}"
    assert topics.parse(f"{prefix}/{topic}") == topic


@pytest.mark.rule("topic-7")
@each_row("prefix", ["site", "a/b/c", "x.y"])
@each_row("start", ["", "/", "Site/", "site2/", "xsite/", "a/b/", "xzy/", "site//"])
def test_a_topic_with_another_prefix_is_rejected(prefix: str, start: str) -> None:
    _assert_rejected(MalformedTopic, "topic", f"{start}{DEVICE}/rssi", TopicCodec(prefix))


@pytest.mark.rule("topic-8")
@given(any_topics())
def test_without_a_prefix_a_topic_starts_with_mt(topic: Topic) -> None:
    assert TopicCodec().format_topic(topic) == str(topic)
    assert str(topic).startswith("mt/")


@each_row("prefix", ["/", "/a", "a/", "a//b", "+", "a/#", "a+b", "$SYS", "$SYS/a", "a\x00", "a\n"])
def test_an_invalid_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(MalformedTopic, match="is not a valid topic prefix") as caught:
        TopicCodec(prefix)
    assert caught.value.field == "prefix"


@pytest.mark.rule("topic-9", "topic-21", "topic-22")
def test_a_diagnostics_topic_has_its_mac_in_lower_case_and_no_prefix() -> None:
    request_topic = "meshtech/diagnostics/0123456789ab/server-command/firmware"
    assert diagnostics.format_image_request_topic(G) == request_topic
    assert diagnostics.format_image_response_topic(G) == request_topic.replace("command", "response")
    assert diagnostics.parse_image_request_topic(request_topic) == G
    assert request_topic.replace(G, "+") == diagnostics.IMAGE_REQUEST_FILTER
    for text in (
        f"site/{request_topic}",
        diagnostics.format_image_response_topic(G),
        f"{request_topic}/x",
        request_topic.replace(G, G.upper()),
    ):
        with pytest.raises(MalformedTopic):
            diagnostics.parse_image_request_topic(text)


@pytest.mark.rule("topic-7", "topic-8")
@each_row(("topics", "prefix"), [(TopicCodec(), ""), (TopicCodec("a/b"), "a/b/")])
def test_filters_match_their_topics(topics: TopicCodec, prefix: str) -> None:
    for gateway in (None, G):
        assert topics.report_filter(gateway) == f"{prefix}mt/gateway/{gateway or '+'}/device/#"
        assert topics.response_filter(gateway) == f"{prefix}mt/gateway/{gateway or '+'}/response/#"
    assert topics.request_filter(G) == f"{prefix}mt/gateway/{G}/request/#"
    assert topics.broadcast_filter() == f"{prefix}mt/gateways/#"


LEVELS = st.lists(st.sampled_from(["a", "b", "mt", "gateway", "gateways", G, "device", "rssi", "+", ""]))


@given(text=st.text() | LEVELS.map("/".join))
@each_row("topics", [TopicCodec(), TopicCodec("a/b", identifier_names={"a"})])
def test_arbitrary_text_is_parsed_or_raises_our_error(topics: TopicCodec, text: str) -> None:
    with suppress(MalformedInput):
        assert topics.format_topic(topics.parse(text)) == text


@each_row("prefix", ["", f"{DEVICE}/", f"{DEVICE}/event/", f"{DEVICE}/rssi/", "mt/gateway/"])
@each_row("hostile", ["x" * 60_000, "\x1b[2J\n" * 100])
def test_a_long_or_hostile_topic_is_not_repeated_in_full(prefix: str, hostile: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        TOPICS.parse(prefix + hostile)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@given(any_topics())
def test_a_topic_parsed_a_second_time_is_the_same(topic: Topic) -> None:
    topics = TopicCodec()
    first, second = topics.parse(str(topic)), topics.parse(str(topic))
    assert first == second == topic
    assert type(first) is type(second) is type(topic)


def test_codecs_do_not_share_their_caches() -> None:
    text = f"{DEVICE}/measurement-error/temperature"
    for _ in range(3):
        _assert_rejected(MalformedIdentifier, "identifier", text, TopicCodec())
        assert TOPICS.parse(text) == _error_topic(Kind.MEASUREMENT_ERROR_DECODED, "temperature")


def test_the_topic_cache_is_limited() -> None:
    topics = TopicCodec()
    for number in range(TOPIC_CACHE_SIZE + 10):
        topics.parse(f"mt/gateway/{number:012x}/device/{D}/dfu")
    parse: Any = topics.parse  # the type does not expose the cache
    assert parse.cache_info().currsize == TOPIC_CACHE_SIZE
    assert topics.parse(f"mt/gateway/{0:012x}/device/{D}/dfu") == ReportTopic(Mac("0" * 12), D, Kind.DFU)
