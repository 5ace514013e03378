"""Versions of the messaging: what came with which, row by row, and what is refused to an older gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet import rest
from meshfleet.errors.protocol import GatewayTooOld, MalformedVersion, WireError
from meshfleet.protocol import reports, requests, responses
from meshfleet.protocol.api_versions import (
    ASSUMED_VERSION,
    FEATURES,
    LATEST_VERSION,
    Feature,
    InterfacePart,
    check_operation_supported,
    find_first_version,
    is_supported,
    list_unsupported_fields,
)
from meshfleet.protocol.codes import AccessType, AckType, Kind, Operation, Origin
from meshfleet.protocol.hex import Secret
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import DeviceId, Mac, Version
from meshfleet.protocol.times import parse_time
from meshfleet.protocol.topics import TopicCodec
from tests.protocol.strategies import versions
from tests.row_tables import each_row

TIME = "2020-11-04T10:07:20.585Z"
NOW = parse_time(TIME)
EXTENDER = Mac("0123456789ab")
ANSWERED = [operation for operation in Operation if operation.is_answered]
REACHING = [Operation.READ, Operation.READ_DECODED, Operation.WRITE, Operation.WRITE_DECODED]

# A version, and one just below it. Betas of a version come before it.
BEFORE = {
    "1.1.1": "1.1.1-beta.255",
    "1.2.0": "1.1.99999",
    "1.3.0": "1.2.99999",
    "2.0.0": "1.99999.99999",
    "2.0.1": "2.0.0",
    "2.1.0": "2.0.99999",
    "2.2.0": "2.1.99999",
    "2.4.0": "2.4.0-beta.255",
}
# The published table of versions: version, part, kinds or operations, fields.
TABLE: list[tuple[str, InterfacePart, list[Any], list[str | None]]] = [
    ("1.1.1", "configuration", [None], ["mode"]),
    ("1.2.0", "configuration", [None], ["topicPrefix", "disableSubscribe"]),
    ("1.3.0", "report", [Kind.HEARTBEAT], ["lastCount"]),
    ("2.0.0", "response", REACHING, ["responseTime", "origin", "route"]),
    ("2.0.0", "response", ANSWERED, ["extenderId", "extenderRoute"]),
    ("2.0.0", "request", [Operation.WRITE_DECODED], ["ext"]),
    (
        "2.0.1",
        "response",
        [Operation.APIVERSION],
        ["responseTime", "origin", "route"],
    ),
    ("2.1.0", "request", REACHING, ["extenderId"]),
    ("2.2.0", "request", REACHING, ["accessType", "publicKey", "key"]),
    ("2.4.0", "request", [Operation.ACK, Operation.ACK_DECODED], [None]),
]


@pytest.mark.rule("version-1", "version-2", "version-3", "version-4")
@pytest.mark.rule("version-5", "version-6", "version-7", "version-8")
@each_row(
    ("version", "part", "of", "field"),
    [
        (version, part, of, field)
        for version, part, words, fields in TABLE
        for of in words
        for field in fields
    ],
)
def test_a_feature_exists_from_its_version_on_and_not_just_below(
    version: str, part: InterfacePart, of: Kind | Operation | None, field: str | None
) -> None:
    at, below = Version.parse(version), Version.parse(BEFORE[version])
    assert find_first_version(part, of, field) == at
    assert is_supported(part, of, field, at)
    assert is_supported(part, of, field, LATEST_VERSION)
    assert not is_supported(part, of, field, below)


def test_the_table_holds_nothing_else() -> None:
    told = {(part, field) for _, part, _, fields in TABLE for field in fields}
    assert {(feature.part, feature.field) for feature in FEATURES} == told
    assert max(feature.since for feature in FEATURES) == LATEST_VERSION


@each_row(
    ("part", "of", "field"),
    [
        ("report", Kind.HEARTBEAT, "seq"),
        ("report", Kind.RSSI, "lastCount"),
        ("response", Operation.READ, "status"),
        ("response", Operation.READ_DECODED, "ext"),
        ("request", Operation.READ, None),
        ("request", Operation.WRITE, "value"),
        ("request", Operation.APIVERSION, "priority"),
    ],
)
def test_what_has_no_row_has_always_been_there(
    part: InterfacePart, of: Kind | Operation, field: str | None
) -> None:
    assert find_first_version(part, of, field) is None
    assert is_supported(part, of, field, Version(0, 0, 0))


@pytest.mark.rule("version-4", "version-5")
@each_row(
    ("version", "operation", "missing"),
    [
        ("1.3.0", "apiversion", {"responseTime", "origin", "route", "extenderId", "extenderRoute"}),
        ("1.3.0", "read", {"responseTime", "origin", "route", "extenderId", "extenderRoute"}),
        ("2.0.0", "apiversion", {"responseTime", "origin", "route"}),
        ("2.0.0", "read", set()),
        ("2.0.1", "apiversion", set()),
    ],
)
def test_a_response_lacks_the_fields_that_are_newer(version: str, operation: str, missing: set[str]) -> None:
    kind = responses.ApiVersionResponse if operation == "apiversion" else responses.ReadResponse
    answer = kind(
        time=NOW,
        status=0,
        response_time=12,
        origin=Origin.CONNECTED,
        route="a-b",
        extender_id=EXTENDER,
        extender_route="c",
    )
    given_version = Version.parse(version)
    written = responses.encode_response(Operation(operation), answer, version=given_version)
    gated = {"responseTime", "origin", "route", "extenderId", "extenderRoute"}
    assert list_unsupported_fields("response", Operation(operation), given_version) == missing
    assert set(msgspec.json.decode(written)) == {"time", "status"} | gated - missing


@pytest.mark.rule("version-3")
@each_row(("version", "there"), [("1.2.99999", False), ("1.3.0", True), ("2.4.0", True)])
def test_a_heartbeat_tells_its_last_count_from_1_3_0_on(version: str, *, there: bool) -> None:
    heartbeat = reports.Heartbeat(time=NOW, seq=1, status=0, last_count=2)
    written = reports.encode_report(Kind.HEARTBEAT, heartbeat, version=Version.parse(version))
    assert ("lastCount" in msgspec.json.decode(written)) == there


@each_row("part", ["report", "request", "response"])
def test_without_a_version_nothing_is_newer(part: InterfacePart) -> None:
    for word in (*Kind, *Operation):
        assert (
            list_unsupported_fields(part, word, None)
            == list_unsupported_fields(part, word, LATEST_VERSION)
            == frozenset()
        )


@given(versions, versions, st.sampled_from(FEATURES))
def test_what_a_version_has_every_newer_one_has(one: Version, other: Version, feature: Feature) -> None:
    _, part, of, field = feature
    older, newer = sorted([one, other])
    assert is_supported(part, of, field, older) <= is_supported(part, of, field, newer)


PARAMETERS: list[tuple[str, dict[str, object]]] = [
    ("2.1.0", {"extenderId": "0123456789AB"}),
    ("2.2.0", {"accessType": "legacy"}),
    ("2.2.0", {"publicKey": "00ff"}),
    ("2.2.0", {"key": "00ff"}),
]
GATED = [
    *((version, operation, given) for version, given in PARAMETERS for operation in REACHING),
    ("2.0.0", Operation.WRITE_DECODED, {"ext": {"a": 1}}),
]


@pytest.mark.rule("version-4", "version-6", "version-7")
@each_row(
    ("version", "operation", "given_parameter"),
    GATED,
)
def test_a_newer_parameter_is_refused_to_an_older_gateway_and_not_looked_at_by_it(
    version: str, operation: Operation, given_parameter: dict[str, object]
) -> None:
    at, below = Version.parse(version), Version.parse(BEFORE[version])
    payload = msgspec.json.encode(given_parameter)
    asked, bare = requests.decode_request(operation, payload), requests.decode_request(operation, b"{}")
    assert requests.decode_request(operation, payload, version=at) == asked != bare
    assert requests.decode_request(operation, payload, version=below) == bare
    requests.check_request_supported(operation, asked, at)
    requests.check_request_supported(operation, bare, below)
    with pytest.raises(GatewayTooOld) as caught:
        requests.check_request_supported(operation, asked, below)
    (name,) = given_parameter
    assert str(caught.value) == f"{name} in {operation} needs API version {at}; the gateway has {below}"
    assert (caught.value.feature, caught.value.since, caught.value.version) == (
        f"{name} in {operation}",
        at,
        below,
    )


@pytest.mark.rule("version-8")
@each_row("operation", [Operation.ACK, Operation.ACK_DECODED])
@each_row("below", ["1.2.0", "2.3.99999", "2.4.0-beta.255"])
def test_an_ack_is_refused_to_a_gateway_before_2_4_0(operation: Operation, below: str) -> None:
    ack = requests.AckRequest(time=NOW, type=AckType.ACK)
    requests.check_request_supported(operation, ack, Version(2, 4, 0))
    with pytest.raises(GatewayTooOld) as caught:
        requests.check_request_supported(operation, ack, Version.parse(below))
    assert str(caught.value) == f"{operation} needs API version 2.4.0; the gateway has {below}"


@each_row("operation", [Operation.APIVERSION, *REACHING])
def test_an_operation_with_its_oldest_parameters_is_refused_to_nobody(operation: Operation) -> None:
    check_operation_supported(operation, frozenset({"id", "priority", "value"}), Version(0, 0, 0))


def test_the_operation_is_told_before_its_parameters_and_these_in_order() -> None:
    with pytest.raises(GatewayTooOld, match=r"^ack needs"):
        check_operation_supported(Operation.ACK, frozenset({"extenderId"}), ASSUMED_VERSION)
    with pytest.raises(GatewayTooOld, match=r"^accessType in read needs"):
        check_operation_supported(
            Operation.READ, frozenset({"publicKey", "key", "accessType"}), ASSUMED_VERSION
        )


def test_a_refusal_does_not_show_the_key() -> None:
    asked = requests.ReadRequest(key=Secret(b"\xaa" * 16), access_type=AccessType.LEGACY)
    with pytest.raises(GatewayTooOld) as caught:
        requests.check_request_supported(Operation.READ, asked, ASSUMED_VERSION)
    assert "aaaa" not in repr(caught.value)


@pytest.mark.rule("version-9")
@each_row(
    ("text", "version"), [("2.4.0", LATEST_VERSION), ("1.2.0", ASSUMED_VERSION), ("2.0", Version(2, 0, 0))]
)
def test_a_gateway_tells_its_version_as_a_dotted_text(text: str, version: Version) -> None:
    payload = msgspec.json.encode({"time": TIME, "status": 0, "version": text})
    answer = responses.decode_response(Operation.APIVERSION, payload)
    assert isinstance(answer, responses.ApiVersionResponse)
    assert answer.version == version
    written = msgspec.json.decode(responses.encode_response(Operation.APIVERSION, answer))
    assert written["version"] == str(version)


@pytest.mark.rule("version-9")
@each_row("version", ["", "two", "2", "2.4.0.0.0"])
def test_a_version_that_is_no_dotted_text_is_rejected(version: str) -> None:
    with pytest.raises(MalformedVersion) as caught:
        responses.decode_response(
            Operation.APIVERSION, msgspec.json.encode({"time": TIME, "status": 0, "version": version})
        )
    assert caught.value.field == "version"


@pytest.mark.rule("version-19")
def test_a_value_grown_at_its_end_is_read_as_before_with_the_rest_behind() -> None:
    assert BUILTIN_CATALOGUE.decode("8800", bytes.fromhex("1234")).value == 46.60
    grown = BUILTIN_CATALOGUE.decode("8800", bytes.fromhex("1234c0ffee"))
    assert (grown.value, grown.ext) == (46.60, {"rest": "c0ffee"})


@pytest.mark.rule("version-19")
@each_row(
    "text",
    [
        "mt/gateways/news/0123456789ab",
        "mt/gateway/0123456789ab/device/0123456789ab/weather/8800",
        "mt/gateway/0123456789ab/request/0123456789ab/erase/8800",
        "mt/gateway/0123456789ab/log",
    ],
)
def test_a_topic_of_a_newer_version_is_our_error_and_nothing_worse(text: str) -> None:
    with pytest.raises(WireError):
        TopicCodec().parse(text)


@pytest.mark.rule("version-20")
@each_row(
    "path",
    [
        rest.LOGIN_PATH,
        rest.DEVICES_PATH,
        rest.LABELS_PATH,
        rest.friendly_name_path(DeviceId("bmac-0123456789ab")),
        rest.device_label_path(DeviceId("bmac-0123456789ab"), "roof"),
    ],
)
def test_a_path_of_the_rest_interface_starts_with_the_version_v1(path: str) -> None:
    assert path.startswith("/api/v1/")
