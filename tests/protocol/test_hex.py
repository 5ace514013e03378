"""Hex: accepted in any case, encoded in lower case, and secrets that are not shown."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedHex, MalformedInput
from meshfleet.protocol import reports, requests, responses
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.hex import Hex, Secret, format_hex, parse_hex
from meshfleet.protocol.ids import Mac
from meshfleet.protocol.times import parse_time
from tests.row_tables import each_row

TIME = "2020-11-04T10:07:20.585Z"
EXTENDER = Mac("0123456789ab")
KEY = "00112233445566778899AABBCCDDEEFF"

NOT_HEX = [
    "0",
    "abc",
    "0g",
    "0x12",
    "12 34",
    " 12",
    "12\n",
    "12:34",
    "-1",
    "0\u0661",
    "é0",
    "\ud800",
    "\x00\x00",
]


@pytest.mark.rule("id-25")
@given(st.lists(st.text("0123456789abcdefABCDEF", min_size=2, max_size=2)))
def test_hex_is_accepted_in_upper_lower_and_mixed_case(pairs: list[str]) -> None:
    assert parse_hex("".join(pairs)) == bytes(int(pair, 16) for pair in pairs)


@pytest.mark.rule("id-24")
@each_row("text", NOT_HEX)
def test_any_other_text_is_rejected(text: str) -> None:
    with pytest.raises(MalformedHex) as caught:
        parse_hex(text, "publicKey")
    assert caught.value.field == "publicKey"


@pytest.mark.rule("id-24")
@given(st.text("0123456789abcdefABCDEF", max_size=40))
def test_hex_digits_are_hex_when_their_number_is_even(text: str) -> None:
    try:
        raw = parse_hex(text)
    except MalformedHex:
        assert len(text) % 2 == 1
    else:
        assert len(raw) * 2 == len(text)


@given(st.text() | st.text("0123456789abcdefABCDEF \n\u0663"))
def test_arbitrary_text_is_hex_or_rejected_by_our_error(text: str) -> None:
    with suppress(MalformedInput):
        assert format_hex(parse_hex(text)) == text.lower()


def test_an_error_never_repeats_the_text() -> None:
    with pytest.raises(MalformedHex) as caught:
        parse_hex(KEY + "0", "key")
    assert str(caught.value) == "key: is not an even number of hex digits"


@pytest.mark.rule("id-26")
@given(st.binary(max_size=40))
def test_bytes_are_formatted_in_lower_case(raw: bytes) -> None:
    assert format_hex(raw) == "".join(f"{byte:02x}" for byte in raw)


def _encode_report(value: str) -> bytes:
    return msgspec.json.encode({"time": TIME, "seq": 1, "value": value})


@pytest.mark.rule("id-24", "id-25")
@each_row("kind", [Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT])
def test_the_value_of_a_raw_report_is_hex_in_any_case(kind: Kind) -> None:
    for written in ("fbeb", "FBEB", "FbEb"):
        report = reports.decode_report(kind, _encode_report(written))
        assert isinstance(report, reports.Property | reports.Measurement | reports.Event)
        assert isinstance(report.value, str)
        assert parse_hex(report.value) == b"\xfb\xeb"
    with pytest.raises(MalformedHex) as caught:
        reports.decode_report(kind, _encode_report("fbe"))
    assert caught.value.field == "value"


@pytest.mark.rule("id-26")
@each_row("kind", [Kind.PROPERTY, Kind.MEASUREMENT, Kind.EVENT])
def test_a_report_received_in_upper_case_is_encoded_in_lower_case(kind: Kind) -> None:
    written = reports.encode_report(kind, reports.decode_report(kind, _encode_report("FBEB")))
    assert msgspec.json.decode(written)["value"] == "fbeb"


@pytest.mark.rule("id-26")
def test_a_value_to_write_is_encoded_in_lower_case() -> None:
    written = requests.encode_request(requests.WriteRequest(value=Hex("FBEB")))
    assert msgspec.json.decode(written)["value"] == "fbeb"


@pytest.mark.rule("id-26")
def test_a_value_that_was_read_is_encoded_in_lower_case() -> None:
    response = responses.ReadResponse(time=parse_time(TIME), status=0, value=Hex("FBEB"))
    assert msgspec.json.decode(responses.encode_response(Operation.READ, response))["value"] == "fbeb"


@pytest.mark.rule("id-26")
def test_a_key_is_encoded_in_lower_case() -> None:
    request = requests.decode_request(Operation.READ, msgspec.json.encode({"key": KEY, "publicKey": KEY}))
    written = msgspec.json.decode(requests.encode_request(request))
    assert written["key"] == written["publicKey"] == KEY.lower()


@pytest.mark.rule("id-27")
@each_row(
    "written",
    [
        requests.encode_request(requests.ReadRequest(extender_id=EXTENDER)),
        requests.encode_request(requests.WriteRequest(extender_id=EXTENDER)),
        requests.encode_request(requests.WriteDecodedRequest(extender_id=EXTENDER)),
        responses.encode_response(
            Operation.WRITE, responses.Response(time=parse_time(TIME), status=0, extender_id=EXTENDER)
        ),
    ],
)
def test_an_extender_id_is_encoded_in_upper_case(written: bytes) -> None:
    assert msgspec.json.decode(written)["extenderId"] == "0123456789AB"


@pytest.mark.rule("id-28")
@each_row("operation", [Operation.READ, Operation.WRITE, Operation.WRITE_DECODED])
def test_extender_ids_of_requests_are_compared_case_insensitively(operation: Operation) -> None:
    upper, lower, other = (
        requests.decode_request(operation, msgspec.json.encode({"extenderId": written}))
        for written in ("0123456789AB", "0123456789ab", "0123456789ac")
    )
    assert upper == lower
    assert upper != other


@pytest.mark.rule("id-28")
def test_extender_ids_of_responses_are_compared_case_insensitively() -> None:
    upper, lower = (
        responses.decode_response(
            Operation.WRITE, msgspec.json.encode({"time": TIME, "status": 0, "extenderId": written})
        )
        for written in ("0123456789AB", "0123456789ab")
    )
    assert upper == lower


def test_a_secret_is_shown_only_by_reveal() -> None:
    secret = Secret(parse_hex(KEY))
    request = requests.ReadRequest(key=secret, public_key=secret)
    for text in (repr(secret), str(secret), f"{secret}", repr(request), repr([secret])):
        assert KEY.lower() not in text.lower()
    assert secret.reveal() == KEY.lower()


@given(st.binary(max_size=3), st.binary(max_size=3))
def test_secrets_are_equal_when_their_keys_are(one: bytes, other: bytes) -> None:
    assert (Secret(one) == Secret(other)) == (one == other)
    assert hash(Secret(one)) == hash(Secret(bytes(one)))
    assert Secret(one) != one.hex()
