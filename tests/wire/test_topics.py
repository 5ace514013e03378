"""Topics: every shape both ways, and whatever is not quite one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import MalformedIdentifier, MalformedMac, MalformedTopic, WireError
from meshfleet.wire import diagnostics
from meshfleet.wire.codes import Kind, Operation
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.ids import EVERY_GATEWAY, Identifier, IdentifierName, Mac
from meshfleet.wire.topics import (
    CACHED_TOPICS,
    BroadcastTopic,
    ReportTopic,
    RequestTopic,
    ResponseTopic,
    Topic,
    Topics,
)
from tests.wire.strategies import any_topics, macs

G = Mac("0123456789ab")
D = Mac("fedcba987654")
ID = Identifier("8800")
NAME = IdentifierName("temperature")
TOPICS = Topics(names=BUILTIN.names)

PREFIXES = ["site", "a/b/c", "customer 7/Zürich", "x.*(y)[z]", "a$b", "mt", "mt/gateway", "ключ"]
PLAIN_KINDS = [Kind.HEARTBEAT, Kind.DFU, Kind.RSSI]
RAW_KINDS = [Kind.PROPERTY, Kind.MEASUREMENT, Kind.MEASUREMENT_ERROR, Kind.EVENT]
DECODED_KINDS = [kind for kind in Kind if kind not in [*PLAIN_KINDS, *RAW_KINDS]]
RAW_OPERATIONS = [Operation.READ, Operation.WRITE, Operation.ACK]
DECODED_OPERATIONS = [Operation.READ_DECODED, Operation.WRITE_DECODED, Operation.ACK_DECODED]
RAW_ENDS = [*(f"device/{D}/{kind}" for kind in RAW_KINDS)] + [
    f"{way}/{D}/{operation}" for operation in RAW_OPERATIONS for way in ("request", "response")
]
DECODED_ENDS = [*(f"device/{D}/{kind}" for kind in DECODED_KINDS)] + [
    f"{way}/{D}/{operation}" for operation in DECODED_OPERATIONS for way in ("request", "response")
]


def _rejects(error: type[WireError], field: str, text: str, topics: Topics = TOPICS) -> None:
    with pytest.raises(error) as caught:
        topics.parse(text)
    assert type(caught.value) is error
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        pytest.param(text, topic, marks=pytest.mark.rule(*rules))
        for text, topic, *rules in [
            (f"mt/gateway/{G}/device/{D}/heartbeat", ReportTopic(G, D, Kind.HEARTBEAT), "topic-1"),
            (
                f"mt/gateway/{G}/device/{D}/event/05",
                ReportTopic(G, D, Kind.EVENT, Identifier("05")),
                "topic-1",
            ),
            (f"mt/gateway/{G}/device/{G}/rssi", ReportTopic(G, G, Kind.RSSI), "topic-6"),
            (f"mt/gateway/{G}/request/{D}/read/8800", RequestTopic(G, D, Operation.READ, ID), "topic-2"),
            (f"mt/gateway/{G}/request/{G}/apiversion", RequestTopic(G, G, Operation.APIVERSION), "topic-5"),
            (f"mt/gateway/{G}/response/{D}/write/8800", ResponseTopic(G, D, Operation.WRITE, ID), "topic-3"),
            (f"mt/gateways/request/{D}/write/8800", BroadcastTopic(D, Operation.WRITE, ID), "topic-10"),
            (f"mt/gateways/request/{D}/apiversion", BroadcastTopic(D, Operation.APIVERSION), "topic-10"),
        ]
    ],
)
def test_a_topic_is_read_and_spelled(text: str, topic: Topic) -> None:
    assert TOPICS.parse(text) == topic
    assert type(TOPICS.parse(text)) is type(topic)
    assert TOPICS.spell(topic) == str(topic) == text


@pytest.mark.rule("topic-12")
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_a_plain_kind_carries_no_identifier(kind: Kind) -> None:
    assert TOPICS.parse(f"mt/gateway/{G}/device/{D}/{kind}") == ReportTopic(G, D, kind)
    for identifier in ("8800", "temperature"):
        _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/device/{D}/{kind}/{identifier}")


@pytest.mark.rule("topic-17")
@pytest.mark.parametrize("front", [f"gateway/{G}/request", f"gateway/{G}/response", "gateways/request"])
def test_apiversion_carries_no_identifier(front: str) -> None:
    assert TOPICS.parse(f"mt/{front}/{G}/apiversion")[-2:] == (Operation.APIVERSION, None)
    _rejects(MalformedIdentifier, "identifier", f"mt/{front}/{G}/apiversion/8800")


@pytest.mark.rule("topic-13", "topic-18", "id-9", "id-24")
@pytest.mark.parametrize("end", RAW_ENDS)
def test_a_raw_kind_or_operation_needs_a_hex_identifier(end: str) -> None:
    assert TOPICS.parse(f"mt/gateway/{G}/{end}/8800")[-1] == "8800"
    _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/{end}")
    for identifier in ("880", "80", "0505", "EF10", "8800 ", "sauna-temperature", "+", "#", "٠٥"):
        _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/{end}/{identifier}")


@pytest.mark.rule("topic-14", "topic-15", "topic-19", "id-11", "id-12")
@pytest.mark.parametrize("end", DECODED_ENDS)
def test_a_decoded_kind_or_operation_needs_a_name_known_or_not(end: str) -> None:
    for name in (
        "temperature",
        "sauna temperature",
        "Ofen Süd °C",
        "温度",
        "درجة",
        "8800",
        "a" * 128,
        "$SYS",
    ):
        assert TOPICS.parse(f"mt/gateway/{G}/{end}/{name}")[-1] == name
    _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/{end}")
    for name in ("+", "#", "a+b", "temp#", "a\x00", "a\nb", "\x7f", "a" * 129):
        _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/{end}/{name}")


@pytest.mark.rule("topic-15")
def test_a_decoded_measurement_error_is_spelled_with_the_marker() -> None:
    decoded = ReportTopic(G, D, Kind.MEASUREMENT_ERROR_DECODED, NAME)
    assert str(decoded) == f"mt/gateway/{G}/device/{D}/measurement-error-decoded/temperature"
    assert str(TOPICS.parse(f"mt/gateway/{G}/device/{D}/measurement-error/temperature")) == str(decoded)


@pytest.mark.rule("topic-16")
@pytest.mark.parametrize("name", sorted(BUILTIN.names))
def test_a_measurement_error_with_a_name_of_the_catalogue_counts_as_decoded(name: str) -> None:
    topic = TOPICS.parse(f"mt/gateway/{G}/device/{D}/measurement-error/{name}")
    assert topic == (G, D, Kind.MEASUREMENT_ERROR_DECODED, name)


@pytest.mark.rule("topic-13", "topic-16")
def test_a_measurement_error_with_another_name_is_rejected() -> None:
    _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/device/{D}/measurement-error/sauna")
    _rejects(
        MalformedIdentifier, "identifier", f"mt/gateway/{G}/device/{D}/measurement-error/{NAME}", Topics()
    )
    _rejects(MalformedIdentifier, "identifier", f"mt/gateway/{G}/device/{D}/measurement/{NAME}")


@pytest.mark.rule("topic-13")
def test_a_measurement_error_with_hex_is_raw_even_if_a_catalogue_has_it_as_a_name() -> None:
    topics = Topics(names={"05", "beef"})
    assert topics.parse(f"mt/gateway/{G}/device/{D}/measurement-error/05") == (
        G,
        D,
        "measurement-error",
        "05",
    )
    assert topics.parse(f"mt/gateway/{G}/device/{D}/measurement-error/beef")[2] == "measurement-error-decoded"


@pytest.mark.rule("id-2", "id-4", "id-1")
@pytest.mark.parametrize(
    "mac", ["0123456789AB", "0123456789a", "0123456789abc", "01:23:45:67:89:ab", "+", ""]
)
def test_a_mac_of_a_gateway_or_a_device_is_lowercase_hex_in_a_topic(mac: str) -> None:
    for way, word in (("device", "rssi"), ("request", "apiversion"), ("response", "apiversion")):
        _rejects(MalformedMac, "gateway", f"mt/gateway/{mac}/{way}/{D}/{word}")
        _rejects(MalformedMac, "device", f"mt/gateway/{G}/{way}/{mac}/{word}")
    _rejects(MalformedMac, "device", f"mt/gateways/request/{mac}/apiversion")


@pytest.mark.rule("id-4")
@given(macs, macs)
def test_what_is_a_mac_of_a_gateway_is_one_of_a_device_and_the_other_way_round(one: Mac, other: Mac) -> None:
    assert TOPICS.parse(f"mt/gateway/{one}/device/{other}/dfu") == ReportTopic(one, other, Kind.DFU)
    assert TOPICS.parse(f"mt/gateway/{other}/device/{one}/dfu") == ReportTopic(other, one, Kind.DFU)


@pytest.mark.parametrize("word", ["", "Heartbeat", "heart beat", "+", "read", "battery", "property_decoded"])
def test_an_unknown_kind_is_rejected(word: str) -> None:
    _rejects(MalformedTopic, "kind" if word else "topic", f"mt/gateway/{G}/device/{D}/{word}")


@pytest.mark.parametrize("word", ["", "READ", "#", "erase", "heartbeat", "api-version", "read-raw"])
@pytest.mark.parametrize("front", [f"gateway/{G}/request", f"gateway/{G}/response", "gateways/request"])
def test_an_unknown_operation_is_rejected(front: str, word: str) -> None:
    _rejects(MalformedTopic, "operation" if word else "topic", f"mt/{front}/{D}/{word}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "mt",
        "mt/",
        "mt/gateway",
        "MT/gateway/0123456789ab/device/0123456789ab/rssi",
        "$SYS/broker/load",
    ]
    + [f"mt/gateway/{G}", f"mt/gateway/{G}/device", f"mt/gateway/{G}/device/{D}", f"mt/gateway/{G}/{D}/rssi"]
    + [f"/mt/gateway/{G}/device/{D}/rssi", f"mt//gateway/{G}/device/{D}/rssi", f"mt/gateway/{G}/dev/{D}/rssi"]
    + [f"mt/gateway/{G}/device/{D}/rssi/", f"mt/gateway/{G}/device/{D}//8800", f"mt/gateway/{G}/device/{D}/"]
    + [
        f"mt/gateway/{G}/device/{D}/event/05/",
        f"mt/gateway/{G}/device/{D}/event/05/05",
        "mt/gateway/+/device/#",
    ]
    + [f"mt/gateways/device/{D}/rssi", f"mt/gateways/response/{D}/apiversion", "mt/gateways/request"]
    + [f"mt/gateways/{G}/request/{D}/apiversion", f"site/mt/gateway/{G}/device/{D}/rssi"]
    + [f"mt/gateway/{G}/device/{D}/event-decoded/a/b", f"meshtech/diagnostics/{G}/server-command/firmware"],
)
def test_a_topic_of_another_shape_is_rejected(text: str) -> None:
    _rejects(MalformedTopic, "topic", text)


@pytest.mark.rule("topic-4")
@given(any_topics().filter(lambda topic: isinstance(topic, RequestTopic)))
def test_a_response_ends_as_its_request_did(request: RequestTopic) -> None:
    answer = request.response()
    assert str(answer) == str(request).replace("/request/", "/response/", 1)
    assert TOPICS.parse(str(answer)) == answer
    assert type(TOPICS.parse(str(answer))) is ResponseTopic


@pytest.mark.rule("topic-11")
@given(macs, macs)
def test_in_a_request_to_all_gateways_only_ff_stands_for_each_gateway(gateway: Mac, device: Mac) -> None:
    to_all = BroadcastTopic(EVERY_GATEWAY, Operation.READ, ID)
    assert str(to_all) == "mt/gateways/request/ffffffffffff/read/8800"
    assert to_all.addressed_to(gateway) == RequestTopic(gateway, gateway, Operation.READ, ID)
    if device != "ffffffffffff":
        to_one = BroadcastTopic(device, Operation.READ, ID)
        assert to_one.addressed_to(gateway) == RequestTopic(gateway, device, Operation.READ, ID)


@pytest.mark.rule("topic-7")
@pytest.mark.parametrize("prefix", PREFIXES)
@given(topic=any_topics())
def test_a_prefix_stands_in_front_of_every_topic(prefix: str, topic: Topic) -> None:
    topics = Topics(prefix)
    assert topics.spell(topic) == f"{prefix}/{topic}"
    assert topics.parse(f"{prefix}/{topic}") == topic


@pytest.mark.rule("topic-7")
@pytest.mark.parametrize("prefix", ["site", "a/b/c", "x.y"])
@pytest.mark.parametrize(
    "front", ["", "/", "Site/", "site2/", "xsite/", "a/b/", "xzy/", "site//", "site/site/"]
)
def test_a_topic_with_another_prefix_is_rejected(prefix: str, front: str) -> None:
    _rejects(MalformedTopic, "topic", f"{front}mt/gateway/{G}/device/{D}/rssi", Topics(prefix))


@pytest.mark.rule("topic-8")
@given(any_topics())
def test_without_a_setting_a_topic_starts_with_mt(topic: Topic) -> None:
    assert Topics().spell(topic) == str(topic)
    assert str(topic).startswith("mt/")


@pytest.mark.parametrize(
    "prefix",
    [
        "/",
        "/a",
        "a/",
        "a//b",
        "+",
        "a/+/b",
        "#",
        "a/#",
        "a+b",
        "$SYS",
        "$SYS/a",
        "$share/g",
        "$",
        "a\x00b",
        "a\nb",
    ],
)
def test_a_prefix_that_would_break_topics_is_refused(prefix: str) -> None:
    with pytest.raises(MalformedTopic, match="cannot stand in front of a topic") as caught:
        Topics(prefix)
    assert caught.value.field == "prefix"


@pytest.mark.rule("topic-9", "topic-21")
def test_a_question_of_a_gateway_and_its_answer_have_their_topics_without_a_prefix() -> None:
    asked, answered = diagnostics.question_topic(G), diagnostics.answer_topic(G)
    assert asked == "meshtech/diagnostics/0123456789ab/server-command/firmware"
    assert answered == "meshtech/diagnostics/0123456789ab/server-response/firmware"
    assert diagnostics.parse_question_topic(asked) == G
    assert diagnostics.QUESTIONS == asked.replace(G, "+")
    for text in (f"site/{asked}", answered, f"{asked}/x"):
        with pytest.raises(MalformedTopic):
            diagnostics.parse_question_topic(text)


@pytest.mark.rule("topic-22")
def test_the_mac_in_a_diagnostics_topic_is_in_lower_case() -> None:
    with pytest.raises(MalformedTopic):
        diagnostics.parse_question_topic("meshtech/diagnostics/0123456789AB/server-command/firmware")


@pytest.mark.rule("topic-7", "topic-8")
@pytest.mark.parametrize(("topics", "front"), [(Topics(), ""), (Topics("a/b"), "a/b/")])
def test_a_filter_takes_in_the_topics_it_is_for(topics: Topics, front: str) -> None:
    assert topics.reports() == f"{front}mt/gateway/+/device/#"
    assert topics.reports(G) == f"{front}mt/gateway/{G}/device/#"
    assert topics.responses() == f"{front}mt/gateway/+/response/#"
    assert topics.responses(G) == f"{front}mt/gateway/{G}/response/#"
    assert topics.requests(G) == f"{front}mt/gateway/{G}/request/#"
    assert topics.broadcasts() == f"{front}mt/gateways/#"


@pytest.mark.parametrize("topics", [TOPICS, Topics("a/b", names={"x"})], ids=["no prefix", "prefix"])
@given(
    text=st.text()
    | st.lists(st.sampled_from(["a", "b", "mt", "gateway", G, "device", "rssi", "+", ""])).map("/".join)
)
def test_arbitrary_text_is_a_topic_or_rejected_by_our_error(topics: Topics, text: str) -> None:
    with suppress(WireError):
        assert topics.spell(topics.parse(text)) == text


@pytest.mark.parametrize(
    "front", ["", f"mt/gateway/{G}/device/{D}/", f"mt/gateway/{G}/device/{D}/event/", "mt/gateway/"]
)
@pytest.mark.parametrize("hostile", ["x" * 60_000, "\x1b[2J\n" * 100])
def test_a_long_or_hostile_topic_is_not_repeated_in_full(front: str, hostile: str) -> None:
    with pytest.raises(WireError) as caught:
        TOPICS.parse(front + hostile)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@given(any_topics())
def test_a_topic_read_a_second_time_is_the_same_topic(topic: Topic) -> None:
    topics = Topics()
    first, second = topics.parse(str(topic)), topics.parse(str(topic))
    assert first == second == topic
    assert type(first) is type(second) is type(topic)


def test_a_topic_rejected_once_is_rejected_again() -> None:
    for _ in range(3):
        _rejects(MalformedTopic, "kind", f"mt/gateway/{G}/device/{D}/battery")


def test_one_reader_does_not_answer_for_another() -> None:
    text = f"mt/gateway/{G}/device/{D}/measurement-error/temperature"
    assert TOPICS.parse(text)[2] is Kind.MEASUREMENT_ERROR_DECODED
    _rejects(MalformedIdentifier, "identifier", text, Topics())


def test_more_topics_than_are_remembered_are_still_read_and_the_memory_stays_bounded() -> None:
    topics = Topics()
    for number in range(CACHED_TOPICS + 10):
        topics.parse(f"mt/gateway/{number:012x}/device/{D}/dfu")
    parse: Any = topics.parse  # the cache shows itself at run time only
    assert parse.cache_info().currsize == CACHED_TOPICS
    assert topics.parse(f"mt/gateway/{0:012x}/device/{D}/dfu") == ("0" * 12, D, Kind.DFU, None)
