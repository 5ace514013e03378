"""Malformed requests and bodies: response topics, ids and errors."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.protocol import (
    GatewayTooOld,
    LineFault,
    MalformedCatalogue,
    MalformedPayload,
    UnencodableValue,
)
from meshfleet.protocol import requests, responses
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, Version
from meshfleet.protocol.times import parse_time
from meshfleet.protocol.topics import TopicCodec
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.devices import FriendlyName
from meshfleet.rest.inputs import parse_max_results
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.errors import FleetError

GATEWAY = Mac("d0cf5e000001")
DEVICE = Mac("d0cf5e0000a1")


@each_row("suffix", ["reboot", "reboot/8800", "read", "read/zz", "read/8800", "x/y/z"])
def test_any_request_has_a_response_topic(suffix: str) -> None:
    topics = TopicCodec("site")
    request_topic = f"site/mt/gateway/{GATEWAY}/request/{DEVICE}/{suffix}"
    assert (
        topics.format_response_topic(request_topic, GATEWAY)
        == f"site/mt/gateway/{GATEWAY}/response/{DEVICE}/{suffix}"
    )


def test_each_gateway_responds_to_a_broadcast_on_its_own_topic() -> None:
    request_topic = f"mt/gateways/request/{EVERY_GATEWAY}/reboot"
    assert (
        TopicCodec().format_response_topic(request_topic, GATEWAY)
        == f"mt/gateway/{GATEWAY}/response/{GATEWAY}/reboot"
    )
    request_topic = f"mt/gateways/request/{DEVICE}/reboot"
    assert (
        TopicCodec().format_response_topic(request_topic, GATEWAY)
        == f"mt/gateway/{GATEWAY}/response/{DEVICE}/reboot"
    )


@each_row(
    "topic",
    [
        f"mt/gateway/{DEVICE}/request/{DEVICE}/read/8800",
        f"mt/gateway/{GATEWAY}/response/{DEVICE}/read/8800",
        f"mt/gateway/{GATEWAY}/request/{DEVICE}",
        f"mt/gateway/{GATEWAY}/request/{DEVICE}/",
        f"mt/gateway/{GATEWAY}/request/{DEVICE.upper()}/read",
        f"mt/gateway/{GATEWAY}/request/{DEVICE}/#",
        "mt/gateways/x",
        "",
    ],
)
def test_a_topic_that_is_not_a_request_to_this_gateway_has_no_response_topic(topic: str) -> None:
    assert TopicCodec().format_response_topic(topic, GATEWAY) is None


@each_row(
    ("data", "request_id"),
    [
        (b'{"id":"7","priority":9}', "7"),
        (b'{"id":""}', ""),
        (b'{"id":7}', None),
        (b"{}", None),
        (b"", None),
        (b'{"id":"7"', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_the_id_of_a_malformed_request_is_decoded_if_possible(data: bytes, request_id: str | None) -> None:
    assert requests.decode_request_id(data) == request_id


def test_an_ack_has_no_response() -> None:
    response = responses.Response(time=parse_time("2020-11-04T10:07:20Z"), status=0)
    with pytest.raises(TypeError, match="is not the response to ack"):
        responses.encode_response(Operation.ACK, response)


@pytest.mark.rule("rest-5")
@each_row(
    ("data", "field"),
    [
        (b'{"name":"x","nmae":"y"}', "nmae"),
        (b"{}", "name"),
        (b'{"name":5}', "name"),
        (b'{"name":"x"', "body"),
        (b'{"name":"\xff"}', "body"),
        (b'{"name":' + b"[" * 60000, "name"),
    ],
)
def test_an_invalid_body_raises_our_error(data: bytes, field: str) -> None:
    with pytest.raises(MalformedPayload) as refused:
        decode_body(FriendlyName, data)
    assert refused.value.field == field


@pytest.mark.rule("rest-23")
def test_max_results_is_a_number_from_1_to_1000() -> None:
    assert [parse_max_results(text) for text in ("1", "100", "1000")] == [1, 100, 1000]
    for text in ("0", "1001", "-1", "1.0", "", " 1", "\u0661", "99999999"):
        with pytest.raises(MalformedPayload):
            parse_max_results(text)


@each_row("identifier", ["9804", "8200", "8005", "8120"])
def test_an_unknown_field_name_is_truncated_and_escaped_in_an_error(identifier: str) -> None:
    with pytest.raises(UnencodableValue) as refused:
        BUILTIN_CATALOGUE.encode(identifier, {"\x1b[31m" + "x" * 60000: 1})
    assert len(str(refused.value)) < 200
    assert "\x1b" not in str(refused.value)


def test_an_unknown_extension_name_is_truncated_and_escaped_in_an_error() -> None:
    for identifier in ("8810", "8800"):
        with pytest.raises(UnencodableValue) as refused:
            BUILTIN_CATALOGUE.encode(identifier, 1, {"\x1b[31m" + "x" * 60000: 1})
        assert len(str(refused.value)) < 200
        assert "\x1b" not in str(refused.value)


def test_an_extension_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(UnencodableValue) as refused:
        BUILTIN_CATALOGUE.encode("temperature", 0, [1])  # type: ignore[arg-type] # invalid on purpose
    assert refused.value.field == "ext"


@each_row(
    "error",
    [
        GatewayTooOld("ack", Version(2, 4, 0), Version(2, 0, 0)),
        MalformedCatalogue("my.table", [LineFault(2, "is bad")]),
        MalformedPayload("seq", "is missing"),
    ],
)
def test_errors_can_be_sent_to_another_process(error: FleetError) -> None:
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 # pickled one line above
    assert (type(copied), str(copied)) == (type(error), str(error))
