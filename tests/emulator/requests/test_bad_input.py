"""Invalid input: whatever a gateway receives, it continues to run and responds once or not at all."""

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
REQUEST_PREFIX = f"mt/gateway/{GATEWAY}/request/"
BROADCAST_PREFIX = "mt/gateways/"
VERSIONS = [Version.parse(text) for text in ("1.2.0", "2.0.0", "2.3.0", "2.4.0")]


def create_driver(version: Version = VERSIONS[-1], mode: ReportMode = ReportMode.RAW) -> RequestDriver:
    return RequestDriver(
        place_device(1, 3.0), place_device(2, 0.0, 3.0, code="000F"), version=version, mode=mode
    )


def parse_operation(topic: str) -> str:
    """Return the operation of a topic; empty if it has none."""
    _, _, rest = topic.partition("/request/" if "/request/" in topic else "/response/")
    return rest.split("/")[1] if rest.count("/") else ""


def check_response(driver: RequestDriver, topic: str, *, acks: bool) -> list[Message]:
    """Check that there is at most one valid response, and that the gateway still works."""
    responses = driver.responses()
    assert len(responses) <= 1
    for message in responses:
        encode_topic(message.topic)
        operation = parse_operation(message.topic)
        is_answered = operation in set(Operation) and Operation(operation).is_answered
        response = decode_response(Operation(operation) if is_answered else Operation.WRITE, message.payload)
        assert 0 <= response.status <= 11
    if acks and parse_operation(topic) in {"ack", "ack-decoded"}:
        assert not responses
    assert driver.request_and_wait(GATEWAY, "read/8000")["status"] == Status.OK
    return responses


LEVEL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="+#/\0"), max_size=8)
DEVICES = st.sampled_from(
    [CONNECTED, UNCONNECTED, GATEWAY, device_mac(9), "ffffffffffff", GATEWAY.upper(), "", "x"]
)
OPERATIONS = st.sampled_from([*Operation, "nonsense", "READ", ""])
IDENTIFIERS = st.sampled_from(
    [*(entry.id for entry in BUILTIN_CATALOGUE), *BUILTIN_CATALOGUE.names, "05", "80", "", "x"]
)
TAILS = st.one_of(
    st.tuples(DEVICES, OPERATIONS, IDENTIFIERS),
    st.tuples(DEVICES, OPERATIONS),
    st.tuples(DEVICES, OPERATIONS, IDENTIFIERS, LEVEL),
    st.lists(LEVEL, max_size=5),
).map("/".join)
TOPICS = st.one_of(
    TAILS.map(REQUEST_PREFIX.__add__),
    TAILS.map(f"{BROADCAST_PREFIX}request/".__add__),
    st.lists(LEVEL, max_size=4).map(lambda levels: BROADCAST_PREFIX + "/".join(levels)),
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
def test_no_message_stops_a_gateway(topic: str, payload: bytes, version: Version, mode: ReportMode) -> None:
    check_anything(topic, payload, version, mode)


@pytest.mark.part("fuzz")
@settings(max_examples=3000)
@ANYTHING
def test_no_message_stops_a_gateway_in_a_long_search(
    topic: str, payload: bytes, version: Version, mode: ReportMode
) -> None:
    check_anything(topic, payload, version, mode)


def check_anything(topic: str, payload: bytes, version: Version, mode: ReportMode) -> None:
    driver = create_driver(version, mode)
    driver.publish(topic, payload)
    check_response(driver, topic, acks=version >= Version(2, 4, 0))


@settings(max_examples=examples(50))
@given(
    DEVICES,
    st.sampled_from(sorted(BUILTIN_CATALOGUE.names)),
    JSON,
    st.none() | st.dictionaries(st.text(max_size=4), JSON),
)
def test_a_decoded_write_of_any_json_has_a_valid_response(
    device: Mac, name: str, value: Any, ext: dict[str, Any] | None
) -> None:
    driver = create_driver()
    topic = f"{REQUEST_PREFIX}{device}/write-decoded/{name}"
    driver.publish(topic, json.dumps({"value": value} | ({} if ext is None else {"ext": ext})))
    check_response(driver, topic, acks=True)


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
def test_a_raw_write_of_any_bytes_has_a_valid_response(device: Mac, identifier: str, value: bytes) -> None:
    driver = create_driver()
    response = driver.request_and_wait(device, f"write/{identifier}", value=value.hex())
    assert response["status"] in {0, 1, 4, 5, 6, 8, 10}
    driver.advance(30.0)
    assert driver.request_and_wait(GATEWAY, "read/8000")["status"] == Status.OK


@each_row("payload", SPECIAL)
@each_row("operation", ["read/8000", "write/9802", "write-decoded/tx-power", "ack/8803", "apiversion", "x"])
def test_every_special_payload_has_one_response_or_none_for_acks(payload: bytes, operation: str) -> None:
    for device in (CONNECTED, UNCONNECTED, GATEWAY, device_mac(9)):
        driver = create_driver()
        topic = f"{REQUEST_PREFIX}{device}/{operation}"
        driver.publish(topic, payload)
        assert len(check_response(driver, topic, acks=True)) == (not operation.startswith("ack"))


@pytest.mark.rule("ack-5")
@each_row("operation", ["ack", "ack-decoded"])
@each_row(
    "suffix",
    ["", "/", "/8803", "/80", "/EF10", "/light-intensity", "/nonsense", "/8803/more", "/a/b/c", "//", "/+"],
)
@each_row("prefix", [REQUEST_PREFIX, f"{BROADCAST_PREFIX}request/"])
def test_acks_never_have_a_response_whatever_their_topic(operation: str, suffix: str, prefix: str) -> None:
    driver = create_driver()
    for device in (CONNECTED, GATEWAY, device_mac(9), "ffffffffffff"):
        for payload in (b"", b"nonsense", b'{"time":"2026-09-21T14:13:20Z","type":1,"id":"a"}'):
            driver.publish(f"{prefix}{device}/{operation}{suffix}", payload)
    assert driver.responses() == []


@each_row(
    "prefix",
    [
        f"{REQUEST_PREFIX}{CONNECTED}/",
        f"{BROADCAST_PREFIX}request/{CONNECTED}/",
        f"{REQUEST_PREFIX}{device_mac(9)}/",
    ],
)
@each_row("margin", range(0, 40, 3))
def test_the_response_to_a_very_long_topic_can_be_published(prefix: str, margin: int) -> None:
    driver = create_driver()
    topic = prefix + "x" * (MAX_STRING_BYTES - len(prefix) - margin)
    driver.publish(topic, b"")
    check_response(driver, topic, acks=True)


@each_row(
    "operation",
    [f"nonsense/response/{GATEWAY}/x", f"read/8000/response/{GATEWAY}/read/8000", "nonsense/request/x"],
)
def test_a_request_topic_that_contains_another_topic_is_an_unknown_operation(operation: str) -> None:
    driver = create_driver()
    response = driver.request_and_wait(CONNECTED, operation)
    assert (response["status"], response["origin"]) == (Status.UNKNOWN_OPERATION, 32)


@pytest.mark.rule("gateway-12")
def test_a_prefix_that_looks_like_a_topic_is_handled() -> None:
    prefix = f"mt/gateway/{GATEWAY}/response/{GATEWAY}"
    driver = RequestDriver(place_device(1, 3.0), prefix=prefix)
    for operation in ("nonsense", "read", "read/8000", "ack"):
        driver.publish(f"{prefix}/{REQUEST_PREFIX}{CONNECTED}/{operation}", b"")
        driver.publish(f"{REQUEST_PREFIX}{CONNECTED}/{operation}", b"")
    bodies = {message.topic.removeprefix(f"{prefix}/"): message.body for message in driver.responses()}
    response_prefix = f"mt/gateway/{GATEWAY}/response/{CONNECTED}/"
    assert {topic: (body["status"], body["origin"]) for topic, body in bodies.items()} == {
        f"{response_prefix}nonsense": (Status.UNKNOWN_OPERATION, 32),
        f"{response_prefix}read": (Status.UNKNOWN_IDENTIFIER, 32),
        f"{response_prefix}read/8000": (Status.OK, 0),
    }


@each_row("suffix", ["", "x", "request", "request/x", "response/x/read/8000", "device/x/heartbeat"])
def test_a_malformed_broadcast_topic_has_no_response(suffix: str) -> None:
    driver = create_driver()
    driver.publish(BROADCAST_PREFIX + suffix, b"{}")
    driver.publish(f"{BROADCAST_PREFIX}{suffix}/{GATEWAY}", b"{}")
    assert driver.responses() == []
