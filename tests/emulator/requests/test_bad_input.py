"""Whatever comes in, a gateway goes on, and answers once or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.emulator import ReportMode
from meshfleet.mqtt.codec.topic_names import MAX_STRING_BYTES, encode_topic
from meshfleet.protocol.codes import Operation, Status
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierAccess
from meshfleet.protocol.ids import Version
from meshfleet.protocol.responses import decode_response
from tests.emulator.requests.driver import Message, RequestDriver
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

CONNECTED, UNCONNECTED = device_mac(1), device_mac(2)
FRONT = f"mt/gateway/{GATEWAY}/request/"
TO_ALL = "mt/gateways/"
VERSIONS = [Version.parse(text) for text in ("1.2.0", "2.0.0", "2.3.0", "2.4.0")]


def desk(version: Version = VERSIONS[-1], mode: ReportMode = ReportMode.RAW) -> RequestDriver:
    return RequestDriver(
        place_device(1, 3.0), place_device(2, 0.0, 3.0, code="000F"), version=version, mode=mode
    )


def word_of(topic: str) -> str:
    """The operation, as far as there is one."""
    _, _, rest = topic.partition("/request/" if "/request/" in topic else "/response/")
    return rest.split("/")[1] if rest.count("/") else ""


def check(asked: RequestDriver, topic: str, *, acks: bool) -> list[Message]:
    """What holds of the answer to whatever it was."""
    answers = asked.responses()
    assert len(answers) <= 1
    for message in answers:
        encode_topic(message.topic)
        word = word_of(message.topic)
        answered = word in set(Operation) and Operation(word).is_answered
        response = decode_response(Operation(word) if answered else Operation.WRITE, message.payload)
        assert 0 <= response.status <= 11
    if acks and word_of(topic) in {"ack", "ack-decoded"}:
        assert not answers
    assert asked.request_and_wait(GATEWAY, "read/8000")["status"] == Status.OK
    return answers


LEVEL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="+#/\0"), max_size=8)
DEVICES = st.sampled_from(
    [CONNECTED, UNCONNECTED, GATEWAY, device_mac(9), "ffffffffffff", GATEWAY.upper(), "", "x"]
)
WORDS = st.sampled_from([*Operation, "nonsense", "READ", ""])
IDENTIFIERS = st.sampled_from(
    [*(entry.id for entry in BUILTIN_CATALOGUE), *BUILTIN_CATALOGUE.names, "05", "80", "", "x"]
)
TAILS = st.one_of(
    st.tuples(DEVICES, WORDS, IDENTIFIERS),
    st.tuples(DEVICES, WORDS),
    st.tuples(DEVICES, WORDS, IDENTIFIERS, LEVEL),
    st.lists(LEVEL, max_size=5),
).map("/".join)
TOPICS = st.one_of(
    TAILS.map(FRONT.__add__),
    TAILS.map(f"{TO_ALL}request/".__add__),
    st.lists(LEVEL, max_size=4).map(lambda levels: TO_ALL + "/".join(levels)),
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9).map(bytes.hex),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["id", "value", "ext", "priority", "extenderId", "accessType", "publicKey", "key", "time", "type"]
)
DOCUMENTS = st.dictionaries(NAMES, JSON, max_size=6).map(json.dumps).map(str.encode)
SPECIAL = [
    b"",
    b"\0",
    b"null",
    b"{",
    b"{}",
    b"[" * 60_000,
    b'{"value":' + b"[" * 127 + b"]" * 127 + b"}",
    b'{"value":' * 30_000,
    b'{"id":NaN}',
    b'{"value":NaN,"id":"a"}',
    b'{"value":Infinity}',
    b'{"value":1e999}',
    b'{"priority":1e300,"type":1e300}',
    b'{"value":' + b"9" * 5000 + b',"priority":' + b"9" * 5000 + b"}",
    b'{"id":"a","id":"b","value":"00","value":1}',
    b'{"priority":1,"priority":"x"}',
    b'{"id":"\\ud800"}',
    b'{"value":"\\udfff","id":"a"}',
    b'{"value":{"\\ud800":1},"ext":{"\\ud800":1}}',
    b'{"id":"\xed\xa0\x80"}',
    b'\xef\xbb\xbf{"id":"a"}',
    b'{"time":"0001-01-01T00:00:00+23:59","type":1}',
    b'{"time":"9999-12-31T23:59:59.999-23:59","type":1}',
    b'{"time":"2026-09-21T24:00:00Z","type":0.0}',
    b"x" * 70 * 1024,
    b'{"id":"a","value":"' + b"00" * 35 * 1024 + b'"}',
    b'{"id":"' + b"a" * 60_000 + b'"}',
]
PAYLOADS = st.one_of(st.binary(max_size=40), DOCUMENTS, st.sampled_from(SPECIAL))


ANYTHING = given(TOPICS, PAYLOADS, st.sampled_from(VERSIONS), st.sampled_from(ReportMode))


@settings(max_examples=examples(80))
@ANYTHING
def test_nothing_that_comes_stops_a_gateway(
    topic: str, payload: bytes, version: Version, mode: ReportMode
) -> None:
    check_anything(topic, payload, version, mode)


@pytest.mark.part("fuzz")
@settings(max_examples=3000)
@ANYTHING
def test_nothing_stops_a_gateway_in_a_long_search(
    topic: str, payload: bytes, version: Version, mode: ReportMode
) -> None:
    check_anything(topic, payload, version, mode)


def check_anything(topic: str, payload: bytes, version: Version, mode: ReportMode) -> None:
    asked = desk(version, mode)
    asked.publish(topic, payload)
    check(asked, topic, acks=version >= Version(2, 4, 0))


@settings(max_examples=examples(50))
@given(
    DEVICES,
    st.sampled_from(sorted(BUILTIN_CATALOGUE.names)),
    JSON,
    st.none() | st.dictionaries(st.text(max_size=4), JSON),
)
def test_any_json_can_be_written_or_not(
    device: Mac, name: str, value: Any, ext: dict[str, Any] | None
) -> None:
    asked = desk()
    topic = f"{FRONT}{device}/write-decoded/{name}"
    asked.publish(topic, json.dumps({"value": value} | ({} if ext is None else {"ext": ext})))
    check(asked, topic, acks=True)


@settings(max_examples=examples(60))
@given(
    st.sampled_from([CONNECTED, UNCONNECTED, GATEWAY]),
    st.sampled_from(
        sorted(
            entry.id
            for entry in BUILTIN_CATALOGUE
            if entry.access in (IdentifierAccess.WRITE, IdentifierAccess.READ_WRITE)
        )
    ),
    st.binary(max_size=20),
)
def test_any_bytes_can_be_written_or_not(device: Mac, identifier: str, value: bytes) -> None:
    asked = desk()
    answer = asked.request_and_wait(device, f"write/{identifier}", value=value.hex())
    assert answer["status"] in {0, 1, 4, 5, 6, 8, 10}
    asked.advance(30.0)
    assert asked.request_and_wait(GATEWAY, "read/8000")["status"] == Status.OK


@each_row("payload", SPECIAL)
@each_row("what", ["read/8000", "write/9802", "write-decoded/tx-power", "ack/8803", "apiversion", "x"])
def test_every_special_payload_is_answered_once_or_never(payload: bytes, what: str) -> None:
    for device in (CONNECTED, UNCONNECTED, GATEWAY, device_mac(9)):
        asked = desk()
        topic = f"{FRONT}{device}/{what}"
        asked.publish(topic, payload)
        assert len(check(asked, topic, acks=True)) == (not what.startswith("ack"))


@pytest.mark.rule("ack-5")
@each_row("word", ["ack", "ack-decoded"])
@each_row(
    "tail",
    ["", "/", "/8803", "/80", "/EF10", "/light-intensity", "/nonsense", "/8803/more", "/a/b/c", "//", "/+"],
)
@each_row("front", [FRONT, f"{TO_ALL}request/"])
def test_acks_are_never_answered_however_they_are_spelled(word: str, tail: str, front: str) -> None:
    asked = desk()
    for device in (CONNECTED, GATEWAY, device_mac(9), "ffffffffffff"):
        for payload in (b"", b"nonsense", b'{"time":"2026-09-21T14:13:20Z","type":1,"id":"a"}'):
            asked.publish(f"{front}{device}/{word}{tail}", payload)
    assert asked.responses() == []


@each_row("front", [f"{FRONT}{CONNECTED}/", f"{TO_ALL}request/{CONNECTED}/", f"{FRONT}{device_mac(9)}/"])
@each_row("less", range(0, 40, 3))
def test_the_answer_to_a_very_long_topic_can_be_published(front: str, less: int) -> None:
    asked = desk()
    topic = front + "x" * (MAX_STRING_BYTES - len(front) - less)
    asked.publish(topic, b"")
    check(asked, topic, acks=True)


@each_row(
    "what",
    [f"nonsense/response/{GATEWAY}/x", f"read/8000/response/{GATEWAY}/read/8000", "nonsense/request/x"],
)
def test_a_topic_that_looks_like_another_is_taken_for_what_it_is(what: str) -> None:
    asked = desk()
    answer = asked.request_and_wait(CONNECTED, what)
    assert (answer["status"], answer["origin"]) == (Status.UNKNOWN_OPERATION, 32)


@pytest.mark.rule("gateway-12")
def test_a_prefix_that_looks_like_a_topic_confuses_nobody() -> None:
    prefix = f"mt/gateway/{GATEWAY}/response/{GATEWAY}"
    asked = RequestDriver(place_device(1, 3.0), prefix=prefix)
    for what in ("nonsense", "read", "read/8000", "ack"):
        asked.publish(f"{prefix}/{FRONT}{CONNECTED}/{what}", b"")
        asked.publish(f"{FRONT}{CONNECTED}/{what}", b"")
    found = {message.topic.removeprefix(f"{prefix}/"): message.body for message in asked.responses()}
    front = f"mt/gateway/{GATEWAY}/response/{CONNECTED}/"
    assert {topic: (body["status"], body["origin"]) for topic, body in found.items()} == {
        f"{front}nonsense": (Status.UNKNOWN_OPERATION, 32),
        f"{front}read": (Status.UNKNOWN_IDENTIFIER, 32),
        f"{front}read/8000": (Status.OK, 0),
    }


@each_row("tail", ["", "x", "request", "request/x", "response/x/read/8000", "device/x/heartbeat"])
def test_what_is_no_request_to_all_gateways_is_not_answered(tail: str) -> None:
    asked = desk()
    asked.publish(TO_ALL + tail, b"{}")
    asked.publish(f"{TO_ALL}{tail}/{GATEWAY}", b"{}")
    assert asked.responses() == []
