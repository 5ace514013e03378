"""Enumerations of the protocol, and the hierarchy of errors."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors import FleetError, quote_input
from meshfleet.errors.protocol import GatewayTooOld, MalformedInput, MalformedPayload, PayloadTooLarge
from meshfleet.protocol import requests
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin, Priority, Status
from tests.row_tables import each_row


def _list_subclasses(error: type[FleetError]) -> list[type[FleetError]]:
    return [
        error,
        *(descendant for child in error.__subclasses__() for descendant in _list_subclasses(child)),
    ]


ERRORS = _list_subclasses(FleetError)


def test_there_are_eleven_kinds() -> None:
    assert [str(kind) for kind in Kind] == [
        "heartbeat",
        "dfu",
        "rssi",
        "property",
        "property-decoded",
        "measurement",
        "measurement-decoded",
        "measurement-error",
        "measurement-error-decoded",
        "event",
        "event-decoded",
    ]


def test_there_are_seven_operations() -> None:
    assert [str(operation) for operation in Operation] == [
        "apiversion",
        "read",
        "read-decoded",
        "write",
        "write-decoded",
        "ack",
        "ack-decoded",
    ]


@pytest.mark.rule("topic-12", "topic-13", "topic-14")
@each_row("kind", Kind)
def test_three_kinds_have_no_identifier_and_the_decoded_ones_have_a_name(kind: Kind) -> None:
    assert kind.has_identifier == (kind.value not in {"heartbeat", "dfu", "rssi"})
    assert kind.is_decoded == ("decoded" in kind.value)


@pytest.mark.rule("topic-17", "topic-18", "topic-19")
@each_row("operation", Operation)
def test_one_operation_has_no_identifier_and_the_decoded_ones_have_a_name(operation: Operation) -> None:
    assert operation.has_identifier == (operation.value != "apiversion")
    assert operation.is_decoded == ("decoded" in operation.value)


@each_row("operation", Operation)
def test_only_acks_have_no_response(operation: Operation) -> None:
    assert operation.is_answered == (operation.value not in {"ack", "ack-decoded"})


@each_row(
    ("kind", "raw"),
    [
        (Kind.PROPERTY_DECODED, Kind.PROPERTY),
        (Kind.MEASUREMENT_DECODED, Kind.MEASUREMENT),
        (Kind.MEASUREMENT_ERROR_DECODED, Kind.MEASUREMENT_ERROR),
        (Kind.EVENT_DECODED, Kind.EVENT),
        (Kind.HEARTBEAT, Kind.HEARTBEAT),
    ],
)
def test_both_forms_of_a_kind_have_the_same_raw_kind(kind: Kind, raw: Kind) -> None:
    assert kind.raw_kind is raw
    assert raw.raw_kind is raw


@each_row("keyword", [*Kind, *Operation])
def test_a_keyword_equals_its_text_as_a_dictionary_key(keyword: Kind | Operation) -> None:
    assert hash(keyword) == hash(keyword.value)
    assert {keyword.value: "found"}[keyword] == "found"


def test_priorities_count_from_lowest_to_highest() -> None:
    assert {priority.value: priority.name for priority in Priority} == {
        4: "HIGHEST",
        3: "HIGH",
        2: "MEDIUM",
        1: "LOW",
        0: "LOWEST",
    }


def test_a_response_has_one_of_four_origins() -> None:
    assert {origin.name: origin.value for origin in Origin} == {
        "CONNECTED": 0,
        "UNCONNECTED": 1,
        "EXTENDER": 16,
        "GATEWAY": 32,
    }


def test_an_ack_has_one_of_three_types() -> None:
    assert {ack.name: ack.value for ack in AckType} == {"ACK": 0, "BACKFILL": 1, "ERASE_ALL": 2}


def test_there_are_two_types_of_access() -> None:
    assert {str(access) for access in AccessType} == {"unprovisioned", "legacy"}


@pytest.mark.rule("response-20")
def test_each_status_has_its_documented_name() -> None:
    assert [(status.value, status.name) for status in Status] == [
        (0, "OK"),
        (1, "FAILED"),
        (2, "INVALID_REQUEST"),
        (3, "UNKNOWN_OPERATION"),
        (4, "UNKNOWN_IDENTIFIER"),
        (5, "NOT_SUPPORTED"),
        (6, "INVALID_VALUE"),
        (7, "ACCESS_NOT_ALLOWED"),
        (8, "BUSY"),
        (9, "TIMEOUT"),
        (10, "UNREACHABLE"),
        (11, "ACCESS_DENIED"),
    ]


def test_no_two_errors_have_the_same_code() -> None:
    codes = [error.code for error in ERRORS]
    assert sorted(codes) == sorted(set(codes))


@each_row("error", ERRORS)
def test_an_error_has_a_lower_case_code_and_an_http_error_status(error: type[FleetError]) -> None:
    assert error.code.replace("-", "").isalpha()
    assert error.code == error.code.lower()
    assert 400 <= error.http <= 599


@each_row("error", _list_subclasses(MalformedInput))
def test_every_wire_error_names_the_field_and_the_reason(error: type[MalformedInput]) -> None:
    raised = error("seq", "is missing")
    assert (raised.field, raised.reason, str(raised)) == ("seq", "is missing", "seq: is missing")


@each_row(
    ("error", "code", "http"),
    [
        (MalformedInput, "malformed", 400),
        (PayloadTooLarge, "payload-too-large", 413),
        (GatewayTooOld, "gateway-too-old", 409),
        (FleetError, "error", 500),
    ],
)
def test_an_error_keeps_its_code_and_its_http_status(error: type[FleetError], code: str, http: int) -> None:
    assert (error.code, error.http) == (code, http)


@given(st.text() | st.binary() | st.text(min_size=60, max_size=200) | st.lists(st.text(), max_size=50))
def test_quoted_input_is_printable_and_truncated(given_input: object) -> None:
    assert len(quote_input(given_input)) <= 61
    assert quote_input(given_input).isprintable()


@each_row(
    ("value", "quoted"),
    [
        ("0123", "'0123'"),
        ("", "''"),
        ("a\nb", r"'a\nb'"),
        ("a" * 58, "'" + "a" * 58 + "'"),
        ("a" * 59, "'" + "a" * 59 + "…"),
        ("a" * 10**6, "'" + "a" * 59 + "…"),
        (b"\xff" * 10**6, "b'" + r"\xff" * 14 + r"\x" + "…"),
        (None, "None"),
        (True, "True"),
        (2.5, "2.5"),
        (-(10**59), "-1" + "0" * 59),
        ({"key": "secret"}, "an object"),
        (["secret"], "an array"),
    ],
)
def test_short_input_is_quoted_in_full_and_long_input_is_truncated(value: object, quoted: str) -> None:
    assert quote_input(value) == quoted


def test_a_number_that_python_refuses_to_format_is_described() -> None:
    assert quote_input(10**5000) == quote_input(-(10**60)) == "a very large number"


def test_an_invalid_enumeration_value_is_not_repeated_in_full() -> None:
    with pytest.raises(MalformedPayload) as caught:
        requests.decode_request(Operation.READ, msgspec.json.encode({"accessType": "a" * 50_000}))
    assert caught.value.field == "accessType"
    assert len(str(caught.value)) < 160
