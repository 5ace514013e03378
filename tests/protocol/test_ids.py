"""Ids: valid and invalid texts, and their formatting."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshfleet.errors.protocol import (
    MalformedCatalogue,
    MalformedDeviceId,
    MalformedIdentifier,
    MalformedInput,
    MalformedMac,
    MalformedModelNumber,
    MalformedVersion,
)
from meshfleet.protocol import reports, requests, responses
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierCatalogue
from meshfleet.protocol.ids import (
    Mac,
    Version,
    format_model_number,
    is_identifier,
    parse_device_id,
    parse_identifier,
    parse_identifier_name,
    parse_mac,
    parse_model_number,
    to_device_id,
    to_dfu_mac,
    to_mac,
)
from meshfleet.protocol.times import parse_time
from meshfleet.protocol.topics import ReportTopic
from tests.protocol.strategies import identifier_names, macs, texts, versions
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

    Parse = Callable[[str, str], object]

G = Mac("0123456789ab")
TIME = "2020-11-04T10:07:20.585Z"

PARSERS: list[tuple[Parse, type[MalformedInput]]] = [
    (parse_mac, MalformedMac),
    (parse_device_id, MalformedDeviceId),
    (parse_identifier, MalformedIdentifier),
    (parse_identifier_name, MalformedIdentifier),
    (parse_model_number, MalformedModelNumber),
    (Version.parse, MalformedVersion),
]


@each_row(("parse", "error"), PARSERS)
def test_an_error_has_its_class_and_names_the_field_and_the_text(
    parse: Parse, error: type[MalformedInput]
) -> None:
    with pytest.raises(error, match=r"^somewhere: 'no/id'") as caught:
        parse("no/id", "somewhere")
    assert (type(caught.value), caught.value.field) == (error, "somewhere")


@each_row(("parse", "error"), PARSERS)
@each_row("hostile", ["/" * 100_000, "\x1b[2J\n/" * 100])
def test_long_or_hostile_text_is_not_repeated_in_full(
    parse: Parse, error: type[MalformedInput], hostile: str
) -> None:
    with pytest.raises(error) as caught:
        parse(hostile, "field")
    assert len(str(caught.value)) < 160
    assert str(caught.value).isprintable()


@given(text=st.text() | st.text("0123456789abcdefABCDEF.-bmact: \n\u0663"))
@each_row(("parse", "error"), PARSERS)
def test_arbitrary_text_is_an_id_or_rejected_by_our_error(
    parse: Parse, error: type[MalformedInput], text: str
) -> None:
    with suppress(error):
        parse(text, "field")


@pytest.mark.rule("id-1")
@given(macs)
def test_twelve_lowercase_hex_digits_are_a_mac(mac: Mac) -> None:
    assert parse_mac(mac) == mac


@pytest.mark.rule("id-1")
@each_row(
    "text",
    [
        *["", "0123456789a", "0123456789abc", "0123456789ag", "01:23:45:67:89:ab", "01-23-45-67-89-ab"],
        *[" 0123456789ab", "0123456789ab\n", "0123456789AB", "bmac-0123456789ab", "0123456789a\u0665"],
    ],
)
def test_any_other_text_is_not_a_mac(text: str) -> None:
    with pytest.raises(MalformedMac) as caught:
        parse_mac(text)
    assert caught.value.field == "mac"


@pytest.mark.rule("id-3")
@each_row("kind", [Kind.DFU, Kind.RSSI])
@each_row("written", ["0123456789AB", "0123456789aB", "0123456789ab"])
def test_a_mac_in_a_payload_is_converted_to_lower_case(kind: Kind, written: str) -> None:
    payload = msgspec.json.encode({"time": TIME, "parent": written, "rssi": -58})
    report = reports.decode_report(kind, payload)
    assert isinstance(report, reports.Dfu | reports.Rssi)
    assert report.parent == "0123456789ab"


@pytest.mark.rule("id-5")
@given(macs)
def test_a_device_id_is_bmac_and_the_mac(mac: Mac) -> None:
    assert parse_device_id(f"bmac-{mac}") == to_device_id(mac) == "bmac-" + mac
    assert to_mac(to_device_id(mac)) == mac


@pytest.mark.rule("id-5")
@each_row(
    "text",
    [
        *["", "bmac-", "0123456789ab", "bmac-0123456789AB", "BMAC-0123456789ab", "bmac-0123456789abc"],
        *["bmac0123456789ab", "mac-0123456789ab", "bmac-0123456789ab\n", " bmac-0123456789ab"],
    ],
)
def test_any_other_text_is_not_a_device_id(text: str) -> None:
    with pytest.raises(MalformedDeviceId) as caught:
        parse_device_id(text)
    assert caught.value.field == "id"


@pytest.mark.rule("id-6")
def test_a_gateway_has_a_device_id_like_any_device() -> None:
    topic = ReportTopic(G, G, Kind.HEARTBEAT)
    assert to_device_id(topic.gateway) == to_device_id(topic.device) == "bmac-0123456789ab"


@pytest.mark.rule("firmware-14")
@each_row(
    ("mac", "advertised"),
    [("0123456789ab", "0123456789ac"), ("00000000003f", "000000000040"), ("ffffffffffff", "000000000000")],
)
def test_a_device_in_dfu_mode_advertises_its_mac_plus_one(mac: str, advertised: str) -> None:
    assert to_dfu_mac(parse_mac(mac)) == advertised


@pytest.mark.rule("id-7", "id-8", "id-9")
@each_row(
    "text",
    ["00", "05", "7e", "80", "ff", "8000", "ef10", "beef", "9999", "80ff", "00ef", "ee8001", "ffffffff"],
)
def test_one_to_four_bytes_are_an_identifier(text: str) -> None:
    assert is_identifier(text)
    assert parse_identifier(text) == text


@pytest.mark.rule("id-7", "id-8", "id-9", "id-24")
@each_row(
    "text",
    [
        *["", "5", "800", "80000", "8000000", "ffffffff7f", "000000008000"],
        *["7E", "EF10", "Ef10", "BEEF", "0x05", "05\n", " 05", "gg", "temperature", "0\u0665"],
    ],
)
def test_any_other_text_is_not_an_identifier(text: str) -> None:
    assert not is_identifier(text)
    with pytest.raises(MalformedIdentifier) as caught:
        parse_identifier(text)
    assert caught.value.field == "identifier"
    assert "2, 4, 6 or 8 lowercase hex digits" in caught.value.reason


@pytest.mark.rule("id-7", "id-8", "id-9")
@given(st.binary(max_size=6))
def test_bytes_are_an_identifier_when_there_are_one_to_four(raw: bytes) -> None:
    assert is_identifier(raw.hex()) == (1 <= len(raw) <= 4)


@pytest.mark.rule("id-10")
@each_row("kind", ["property", "measurement", "event"])
def test_an_identifier_cannot_have_two_definitions_for_different_kinds(kind: str) -> None:
    table = (
        "id | name | dictionary | kind | type | unit | access | ext | note\n"
        f"8800 | one | 1 | property | u8 | | r | | \n8800 | other | 1 | {kind} | u16 | | r | | "
    )
    with pytest.raises(MalformedCatalogue, match="8800 is already in line 2"):
        IdentifierCatalogue.parse(table, "two.table")


@pytest.mark.rule("id-11", "id-12")
@given(identifier_names)
def test_any_text_that_fits_into_a_topic_is_an_identifier_name(name: str) -> None:
    assert parse_identifier_name(name) == name


@each_row("text", ["", "a/b", "+", "#", "a+", "#a", "a\x00", "a\nb", "\t", "\x7f", "a" * 129])
def test_text_that_does_not_fit_into_a_topic_is_not_an_identifier_name(text: str) -> None:
    with pytest.raises(MalformedIdentifier) as caught:
        parse_identifier_name(text)
    assert caught.value.field == "identifier"


@pytest.mark.rule("id-13")
@given(texts)
@example(' Ab\t"\\/\n\x00ü ')
def test_a_request_id_of_any_content_is_unchanged_in_the_response(text: str) -> None:
    request = requests.decode_request(Operation.WRITE, msgspec.json.encode({"id": text}))
    response = responses.Response(time=parse_time(TIME), status=0, id=request.id)
    assert msgspec.json.decode(requests.encode_request(request))["id"] == text
    assert msgspec.json.decode(responses.encode_response(Operation.WRITE, response))["id"] == text


@pytest.mark.rule("id-14")
@each_row(("text", "parts"), [("2.4.0", (2, 4, 0)), ("10.20.30", (10, 20, 30)), ("1.2", (1, 2, 0))])
def test_a_version_is_dotted_numbers_and_a_missing_last_one_is_0(text: str, parts: tuple[int, ...]) -> None:
    assert Version.parse(text)[:3] == parts


@pytest.mark.rule("id-14", "id-16")
@each_row(
    "text",
    [
        *["", "2", "2.", ".2", "2..0", "2.4.", "2.4.0.0", "v2.4.0", "2.4.x", "-2.4.0", "2,4,0", "2.4.0\n"],
        *["2.4.0-rc.1", "2.4.0-beta", "2.4.0-beta.", "2.4.0beta.1", "2.4-beta.1", "2.4.\u0662"],
    ],
)
def test_any_other_text_is_not_a_version(text: str) -> None:
    with pytest.raises(MalformedVersion) as caught:
        Version.parse(text)
    assert caught.value.field == "version"


@pytest.mark.rule("id-14", "id-16")
@given(versions)
def test_a_formatted_version_is_parsed_to_the_same_version(version: Version) -> None:
    assert Version.parse(str(version)) == version
    assert repr(version) == f"Version('{version}')"


@pytest.mark.rule("id-16")
def test_a_beta_has_a_number_from_1_to_255() -> None:
    for beta in range(1, 256):
        assert Version.parse(f"2.4.0-beta.{beta}").beta == beta


@pytest.mark.rule("id-16")
@each_row("beta", ["0", "000", "256", "999", "1000"])
def test_a_beta_has_no_number_outside_1_to_255(beta: str) -> None:
    with pytest.raises(MalformedVersion):
        Version.parse(f"2.4.0-beta.{beta}")


@pytest.mark.rule("id-15", "id-17")
def test_versions_are_ordered() -> None:
    ascending = ["2.3.9", "2.4.0-beta.9", "2.4.0-beta.10", "2.4.0", "2.4.9", "2.4.10", "2.10.0", "10.0.0"]
    assert [str(version) for version in sorted(map(Version.parse, reversed(ascending)))] == ascending


def _naive_key(text: str) -> tuple[list[int], float]:
    release, _, beta = text.partition("-beta.")
    return [int(part) for part in release.split(".")], float(beta) if beta else float("inf")


@pytest.mark.rule("id-15", "id-17")
@given(st.lists(st.builds(Version, *[st.integers(0, 11)] * 3, st.integers(0, 255)).map(str), max_size=8))
def test_versions_sort_part_by_part_as_numbers_and_betas_before_their_release(written: list[str]) -> None:
    assert sorted(written, key=Version.parse) == sorted(written, key=_naive_key)


@pytest.mark.rule("id-29")
@each_row(("text", "number"), [("2011", 0x2011), ("000F", 0x0F), ("0040", 0x40), ("FFFF", 0xFFFF)])
def test_a_model_number_is_four_uppercase_hex_digits(text: str, number: int) -> None:
    assert format_model_number(number) == parse_model_number(text) == parse_model_number(text.lower()) == text


@pytest.mark.rule("id-29")
@each_row("text", ["", "15", "0000F", "0x0F", "00 F", "000G", "000F\n", "001\u0665", "00\ufb00"])
def test_any_other_text_is_not_a_model_number(text: str) -> None:
    with pytest.raises(MalformedModelNumber) as caught:
        parse_model_number(text)
    assert caught.value.field == "modelNumber"


@pytest.mark.rule("id-31")
@each_row(("raw", "text"), [("0102", "1.2"), ("0a00", "10.0"), ("0000", "0.0")])
def test_a_hardware_version_in_messages_has_two_parts(raw: str, text: str) -> None:
    assert BUILTIN_CATALOGUE.decode("8002", bytes.fromhex(raw)).value == text
    assert BUILTIN_CATALOGUE["hardware-version"].note == "0.0: unknown"


def test_a_version_survives_a_copy() -> None:
    for text in ("2.4.0", "2.4.0-beta.7"):
        assert copy.deepcopy(Version.parse(text)) == Version.parse(text)


def test_a_beta_number_above_255_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 255"):
        Version(2, 4, 0, 256)
