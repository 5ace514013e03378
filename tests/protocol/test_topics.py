"""Topics: every shape both ways, and whatever is not quite one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedIdentifier, MalformedMac, MalformedTopic, WireError
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
ASKING = [f"mt/gateway/{G}/request/{D}", f"mt/gateway/{G}/response/{D}", f"mt/gateways/request/{D}"]
TOPICS = TopicCodec(identifier_names=BUILTIN_CATALOGUE.names)

RAW = [
    *[f"{DEVICE}/{kind}" for kind in ("property", "measurement", "measurement-error", "event")],
    *[f"{front}/{operation}" for front in ASKING for operation in ("read", "write", "ack")],
]
DECODED = [f"{text}-decoded" for text in RAW]


def _rejects(error: type[WireError], field: str, text: str, topics: TopicCodec = TOPICS) -> None:
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
def test_a_topic_is_read_and_spelled(text: str, topic: Topic) -> None:
    assert TOPICS.parse(text) == topic
    assert type(TOPICS.parse(text)) is type(topic)
    assert TOPICS.format_topic(topic) == str(topic) == text


@pytest.mark.rule("topic-12", "topic-17")
@each_row(
    "text",
    [f"{DEVICE}/heartbeat", f"{DEVICE}/dfu", f"{DEVICE}/rssi", *[f"{front}/apiversion" for front in ASKING]],
)
def test_a_word_without_identifier_is_rejected_with_one(text: str) -> None:
    assert TOPICS.parse(text).identifier is None
    _rejects(MalformedIdentifier, "identifier", f"{text}/8800")
    _rejects(MalformedIdentifier, "identifier", f"{text}/temperature")


@pytest.mark.rule("topic-13", "topic-18", "id-8", "id-9", "id-24")
@each_row("front", RAW)
def test_a_raw_word_needs_a_hex_identifier(front: str) -> None:
    for identifier in ("8800", "80", "0505", "beef", "80ff", "000080ff"):
        assert TOPICS.parse(f"{front}/{identifier}").identifier == identifier
    _rejects(MalformedIdentifier, "identifier", front)
    for identifier in ("880", "880011223", "EF10", "8800 ", "sauna", "+", "#", "0\u0665"):
        _rejects(MalformedIdentifier, "identifier", f"{front}/{identifier}")


@pytest.mark.rule("topic-14", "topic-19", "id-11", "id-12")
@each_row("front", DECODED)
def test_a_decoded_word_needs_a_name_known_or_not(front: str) -> None:
    for name in ("temperature", "sauna heat", "Ofen Süd °C", "温度", "درجة", "8800", "a" * 128, "$SYS"):
        assert TOPICS.parse(f"{front}/{name}").identifier == name
    _rejects(MalformedIdentifier, "identifier", front)
    for name in ("+", "#", "a+b", "temp#", "a\x00", "a\nb", "\x7f", "a" * 129):
        _rejects(MalformedIdentifier, "identifier", f"{front}/{name}")


@pytest.mark.rule("topic-15", "topic-16")
@each_row("name", ["temperature", "motion", "battery-level"])
@each_row("marker", ["", "-decoded"])
def test_a_measurement_error_with_a_name_of_the_catalogue_is_decoded(name: str, marker: str) -> None:
    topic = TOPICS.parse(f"{DEVICE}/measurement-error{marker}/{name}")
    assert topic == _error_topic(Kind.MEASUREMENT_ERROR_DECODED, name)
    assert str(topic) == f"{DEVICE}/measurement-error-decoded/{name}"


@pytest.mark.rule("topic-13", "topic-16")
def test_a_name_without_the_marker_is_rejected_when_unknown_or_of_another_kind() -> None:
    _rejects(MalformedIdentifier, "identifier", f"{DEVICE}/measurement-error/sauna")
    _rejects(MalformedIdentifier, "identifier", f"{DEVICE}/measurement-error/temperature", TopicCodec())
    _rejects(MalformedIdentifier, "identifier", f"{DEVICE}/measurement/temperature")


@pytest.mark.rule("topic-13")
def test_hex_in_a_measurement_error_is_raw_even_if_a_catalogue_has_it_as_a_name() -> None:
    topics = TopicCodec(identifier_names={"05", "beef", "sauna"})
    raw, decoded = Kind.MEASUREMENT_ERROR, Kind.MEASUREMENT_ERROR_DECODED
    assert topics.parse(f"{DEVICE}/measurement-error/05") == _error_topic(raw, "05")
    assert topics.parse(f"{DEVICE}/measurement-error/beef") == _error_topic(raw, "beef")
    assert topics.parse(f"{DEVICE}/measurement-error/sauna") == _error_topic(decoded, "sauna")


@pytest.mark.rule("id-1", "id-2", "id-4")
@each_row("mac", ["0123456789AB", "0123456789a", "0123456789abc", "01:23:45:67:89:ab", ""])
def test_a_mac_in_a_topic_is_lowercase_hex_whether_of_a_gateway_or_a_device(mac: str) -> None:
    for way, word in (("device", "rssi"), ("request", "apiversion"), ("response", "apiversion")):
        _rejects(MalformedMac, "gateway", f"mt/gateway/{mac}/{way}/{D}/{word}")
        _rejects(MalformedMac, "device", f"mt/gateway/{G}/{way}/{mac}/{word}")
    _rejects(MalformedMac, "device", f"mt/gateways/request/{mac}/apiversion")


@pytest.mark.rule("id-4")
@given(macs, macs)
def test_a_mac_of_a_gateway_may_be_one_of_a_device_and_the_other_way_round(one: Mac, other: Mac) -> None:
    assert TOPICS.parse(f"mt/gateway/{one}/device/{other}/dfu") == ReportTopic(one, other, Kind.DFU)
    assert TOPICS.parse(f"mt/gateway/{other}/device/{one}/dfu") == ReportTopic(other, one, Kind.DFU)


@each_row("front", [DEVICE, *ASKING])
@each_row("word", ["Heartbeat", "READ", "heart beat", "+", "#", "erase", "read_decoded"])
def test_an_unknown_kind_or_operation_is_rejected(front: str, word: str) -> None:
    for text in (f"{front}/{word}", f"{front}/{word}/8800"):
        _rejects(MalformedTopic, "kind" if front == DEVICE else "operation", text)


def test_an_operation_is_no_kind_and_a_kind_is_no_operation() -> None:
    _rejects(MalformedTopic, "kind", f"{DEVICE}/read/8800")
    _rejects(MalformedTopic, "operation", f"{ASKING[0]}/heartbeat")


@each_row(
    "text",
    [
        *["", "/", "mt", "mt/", "mt/gateway", "mt/gateways/request", "mt/gateway/+/device", "$SYS/load"],
        *[f"mt/gateway/{G}", f"mt/gateway/{G}/device", f"mt/gateway/{G}/{D}/rssi", f"MT{DEVICE[2:]}/rssi"],
        *[DEVICE, f"{DEVICE}/", f"{DEVICE}/rssi/", f"{DEVICE}//05", f"{DEVICE}/event/05/", f"/{DEVICE}/dfu"],
        *[f"{DEVICE}/event/05/05", f"{DEVICE}/event-decoded/a/b", f"site/{DEVICE}/rssi", f"{ASKING[0]}/"],
        *[f"mt//gateway/{G}/device/{D}/rssi", f"mt/gateway/{G}/dev/{D}/rssi", f"mt/gateways/device/{D}/rssi"],
        *[f"mt/gateways/response/{D}/apiversion", f"mt/gateways/{G}/request/{D}/apiversion"],
        *[f"meshtech/diagnostics/{G}/server-command/firmware"],
    ],
)
def test_a_topic_of_another_shape_is_rejected(text: str) -> None:
    _rejects(MalformedTopic, "topic", text)


@pytest.mark.rule("topic-4")
@each_row("end", ["apiversion", "read/8800", "write-decoded/sauna heat", "write/05"])
def test_a_response_ends_as_its_request_did(end: str) -> None:
    asked = TOPICS.parse(f"mt/gateway/{G}/request/{D}/{end}")
    assert isinstance(asked, RequestTopic)
    assert str(asked.to_response_topic()) == f"mt/gateway/{G}/response/{D}/{end}"
    assert TOPICS.parse(str(asked.to_response_topic())) == asked.to_response_topic()


@pytest.mark.rule("topic-11")
@given(macs, macs)
def test_in_a_request_to_all_gateways_only_ff_stands_for_each_gateway(gateway: Mac, device: Mac) -> None:
    to_all = BroadcastTopic(EVERY_GATEWAY, Operation.READ, ID)
    assert TOPICS.parse("mt/gateways/request/ffffffffffff/read/8800") == to_all
    assert to_all.to_request_topic(gateway) == RequestTopic(gateway, gateway, Operation.READ, ID)
    if device != "ffffffffffff":
        about_one = BroadcastTopic(device, Operation.READ, ID).to_request_topic(gateway)
        assert about_one == RequestTopic(gateway, device, Operation.READ, ID)


@pytest.mark.rule("topic-7")
@given(topic=any_topics())
@each_row("prefix", ["site", "a/b/c", "floor 7/Zürich", "x.*(y)[z]", "a$b", "mt/gateway"])
def test_a_prefix_stands_in_front_of_every_topic(prefix: str, topic: Topic) -> None:
    topics = TopicCodec(prefix)
    assert topics.format_topic(topic) == f"{prefix}/{topic}"
    assert topics.parse(f"{prefix}/{topic}") == topic


@pytest.mark.rule("topic-7")
@each_row("prefix", ["site", "a/b/c", "x.y"])
@each_row("front", ["", "/", "Site/", "site2/", "xsite/", "a/b/", "xzy/", "site//"])
def test_a_topic_with_another_prefix_is_rejected(prefix: str, front: str) -> None:
    _rejects(MalformedTopic, "topic", f"{front}{DEVICE}/rssi", TopicCodec(prefix))


@pytest.mark.rule("topic-8")
@given(any_topics())
def test_without_a_setting_a_topic_starts_with_mt(topic: Topic) -> None:
    assert TopicCodec().format_topic(topic) == str(topic)
    assert str(topic).startswith("mt/")


@each_row("prefix", ["/", "/a", "a/", "a//b", "+", "a/#", "a+b", "$SYS", "$SYS/a", "a\x00", "a\n"])
def test_a_prefix_that_would_break_topics_is_refused(prefix: str) -> None:
    with pytest.raises(MalformedTopic, match="is not a valid topic prefix") as caught:
        TopicCodec(prefix)
    assert caught.value.field == "prefix"


@pytest.mark.rule("topic-9", "topic-21", "topic-22")
def test_a_diagnostics_topic_has_its_mac_in_lower_case_and_no_prefix() -> None:
    asked = "meshtech/diagnostics/0123456789ab/server-command/firmware"
    assert diagnostics.format_question_topic(G) == asked
    assert diagnostics.format_answer_topic(G) == asked.replace("command", "response")
    assert diagnostics.parse_question_topic(asked) == G
    assert asked.replace(G, "+") == diagnostics.QUESTION_FILTER
    for text in (
        f"site/{asked}",
        diagnostics.format_answer_topic(G),
        f"{asked}/x",
        asked.replace(G, G.upper()),
    ):
        with pytest.raises(MalformedTopic):
            diagnostics.parse_question_topic(text)


@pytest.mark.rule("topic-7", "topic-8")
@each_row(("topics", "front"), [(TopicCodec(), ""), (TopicCodec("a/b"), "a/b/")])
def test_a_filter_takes_in_the_topics_it_is_for(topics: TopicCodec, front: str) -> None:
    for gateway in (None, G):
        assert topics.report_filter(gateway) == f"{front}mt/gateway/{gateway or '+'}/device/#"
        assert topics.response_filter(gateway) == f"{front}mt/gateway/{gateway or '+'}/response/#"
    assert topics.request_filter(G) == f"{front}mt/gateway/{G}/request/#"
    assert topics.broadcast_filter() == f"{front}mt/gateways/#"


LEVELS = st.lists(st.sampled_from(["a", "b", "mt", "gateway", "gateways", G, "device", "rssi", "+", ""]))


@given(text=st.text() | LEVELS.map("/".join))
@each_row("topics", [TopicCodec(), TopicCodec("a/b", identifier_names={"a"})])
def test_arbitrary_text_is_a_topic_or_rejected_by_our_error(topics: TopicCodec, text: str) -> None:
    with suppress(WireError):
        assert topics.format_topic(topics.parse(text)) == text


@each_row("front", ["", f"{DEVICE}/", f"{DEVICE}/event/", f"{DEVICE}/rssi/", "mt/gateway/"])
@each_row("hostile", ["x" * 60_000, "\x1b[2J\n" * 100])
def test_a_long_or_hostile_topic_is_not_repeated_in_full(front: str, hostile: str) -> None:
    with pytest.raises(WireError) as caught:
        TOPICS.parse(front + hostile)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@given(any_topics())
def test_a_topic_read_a_second_time_is_the_same_topic(topic: Topic) -> None:
    topics = TopicCodec()
    first, second = topics.parse(str(topic)), topics.parse(str(topic))
    assert first == second == topic
    assert type(first) is type(second) is type(topic)


def test_what_one_reader_knows_or_has_rejected_it_does_not_tell_another() -> None:
    text = f"{DEVICE}/measurement-error/temperature"
    for _ in range(3):
        _rejects(MalformedIdentifier, "identifier", text, TopicCodec())
        assert TOPICS.parse(text) == _error_topic(Kind.MEASUREMENT_ERROR_DECODED, "temperature")


def test_more_topics_than_are_remembered_are_still_read_and_the_memory_stays_bounded() -> None:
    topics = TopicCodec()
    for number in range(TOPIC_CACHE_SIZE + 10):
        topics.parse(f"mt/gateway/{number:012x}/device/{D}/dfu")
    parse: Any = topics.parse  # the cache shows itself at run time only
    assert parse.cache_info().currsize == TOPIC_CACHE_SIZE
    assert topics.parse(f"mt/gateway/{0:012x}/device/{D}/dfu") == ReportTopic(Mac("0" * 12), D, Kind.DFU)
