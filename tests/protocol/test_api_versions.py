"""Interface versions: the features of each, and what older gateways are not sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import GatewayTooOld, MalformedInput, MalformedVersion
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
from meshfleet.rest.paths import DEVICES_PATH, LABELS_PATH, LOGIN_PATH, device_label_path, friendly_name_path
from tests.protocol.strategies import versions
from tests.row_tables import each_row

TIME = "2020-11-04T10:07:20.585Z"
NOW = parse_time(TIME)
EXTENDER = Mac("0123456789ab")
WITH_RESPONSE = [operation for operation in Operation if operation.is_answered]
DEVICE_OPERATIONS = [Operation.READ, Operation.READ_DECODED, Operation.WRITE, Operation.WRITE_DECODED]

# A version, and one just below it. Betas of a version come before it.
PREDECESSORS = {
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
    ("2.0.0", "response", DEVICE_OPERATIONS, ["responseTime", "origin", "route"]),
    ("2.0.0", "response", WITH_RESPONSE, ["extenderId", "extenderRoute"]),
    ("2.0.0", "request", [Operation.WRITE_DECODED], ["ext"]),
    (
        "2.0.1",
        "response",
        [Operation.APIVERSION],
        ["responseTime", "origin", "route"],
    ),
    ("2.1.0", "request", DEVICE_OPERATIONS, ["extenderId"]),
    ("2.2.0", "request", DEVICE_OPERATIONS, ["accessType", "publicKey", "key"]),
    ("2.4.0", "request", [Operation.ACK, Operation.ACK_DECODED], [None]),
]


@pytest.mark.rule("version-1", "version-2", "version-3", "version-4")
@pytest.mark.rule("version-5", "version-6", "version-7", "version-8")
@each_row(
    ("version", "part", "message", "field"),
    [
        (version, part, message, field)
        for version, part, messages, fields in TABLE
        for message in messages
        for field in fields
    ],
)
def test_a_feature_exists_from_its_version_on_and_not_just_below(
    version: str, part: InterfacePart, message: Kind | Operation | None, field: str | None
) -> None:
    at, below = Version.parse(version), Version.parse(PREDECESSORS[version])
    assert find_first_version(part, message, field) == at
    assert is_supported(part, message, field, at)
    assert is_supported(part, message, field, LATEST_VERSION)
    assert not is_supported(part, message, field, below)


def test_the_table_contains_no_other_features() -> None:
    expected = {(part, field) for _, part, _, fields in TABLE for field in fields}
    assert {(feature.part, feature.field) for feature in FEATURES} == expected
    assert max(feature.since for feature in FEATURES) == LATEST_VERSION


@each_row(
    ("part", "message", "field"),
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
def test_a_feature_without_a_row_has_always_existed(
    part: InterfacePart, message: Kind | Operation, field: str | None
) -> None:
    assert find_first_version(part, message, field) is None
    assert is_supported(part, message, field, Version(0, 0, 0))


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
def test_a_response_to_an_old_version_lacks_newer_fields(
    version: str, operation: str, missing: set[str]
) -> None:
    kind = responses.ApiVersionResponse if operation == "apiversion" else responses.ReadResponse
    response = kind(
        time=NOW,
        status=0,
        response_time=12,
        origin=Origin.CONNECTED,
        route="a-b",
        extender_id=EXTENDER,
        extender_route="c",
    )
    given_version = Version.parse(version)
    written = responses.encode_response(Operation(operation), response, version=given_version)
    versioned = {"responseTime", "origin", "route", "extenderId", "extenderRoute"}
    assert list_unsupported_fields("response", Operation(operation), given_version) == missing
    assert set(msgspec.json.decode(written)) == {"time", "status"} | versioned - missing


@pytest.mark.rule("version-3")
@each_row(("version", "has_field"), [("1.2.99999", False), ("1.3.0", True), ("2.4.0", True)])
def test_a_heartbeat_has_last_count_since_1_3_0(version: str, *, has_field: bool) -> None:
    heartbeat = reports.Heartbeat(time=NOW, seq=1, status=0, last_count=2)
    written = reports.encode_report(Kind.HEARTBEAT, heartbeat, version=Version.parse(version))
    assert ("lastCount" in msgspec.json.decode(written)) == has_field


@each_row("part", ["report", "request", "response"])
def test_without_a_version_all_fields_are_supported(part: InterfacePart) -> None:
    for message in (*Kind, *Operation):
        assert (
            list_unsupported_fields(part, message, None)
            == list_unsupported_fields(part, message, LATEST_VERSION)
            == frozenset()
        )


@given(versions, versions, st.sampled_from(FEATURES))
def test_every_feature_is_also_in_newer_versions(one: Version, other: Version, feature: Feature) -> None:
    _, part, message, field = feature
    older, newer = sorted([one, other])
    assert is_supported(part, message, field, older) <= is_supported(part, message, field, newer)


PARAMETERS: list[tuple[str, dict[str, object]]] = [
    ("2.1.0", {"extenderId": "0123456789AB"}),
    ("2.2.0", {"accessType": "legacy"}),
    ("2.2.0", {"publicKey": "00ff"}),
    ("2.2.0", {"key": "00ff"}),
]
VERSIONED = [
    *(
        (version, operation, parameters)
        for version, parameters in PARAMETERS
        for operation in DEVICE_OPERATIONS
    ),
    ("2.0.0", Operation.WRITE_DECODED, {"ext": {"a": 1}}),
]


@pytest.mark.rule("version-4", "version-6", "version-7")
@each_row(
    ("version", "operation", "given_parameter"),
    VERSIONED,
)
def test_a_newer_parameter_is_not_sent_to_an_older_gateway_which_would_ignore_it(
    version: str, operation: Operation, given_parameter: dict[str, object]
) -> None:
    at, below = Version.parse(version), Version.parse(PREDECESSORS[version])
    payload = msgspec.json.encode(given_parameter)
    request, bare = requests.decode_request(operation, payload), requests.decode_request(operation, b"{}")
    assert requests.decode_request(operation, payload, version=at) == request != bare
    assert requests.decode_request(operation, payload, version=below) == bare
    requests.check_request_supported(operation, request, at)
    requests.check_request_supported(operation, bare, below)
    with pytest.raises(GatewayTooOld) as caught:
        requests.check_request_supported(operation, request, below)
    (name,) = given_parameter
    message = f"{name} in {operation} needs API version {at} or newer; the gateway has {below}"
    assert str(caught.value) == message
    assert (caught.value.feature, caught.value.since, caught.value.version) == (
        f"{name} in {operation}",
        at,
        below,
    )


@pytest.mark.rule("version-8")
@each_row("operation", [Operation.ACK, Operation.ACK_DECODED])
@each_row("below", ["1.2.0", "2.3.99999", "2.4.0-beta.255"])
def test_an_ack_is_not_sent_to_a_gateway_before_2_4_0(operation: Operation, below: str) -> None:
    ack = requests.AckRequest(time=NOW, type=AckType.ACK)
    requests.check_request_supported(operation, ack, Version(2, 4, 0))
    with pytest.raises(GatewayTooOld) as caught:
        requests.check_request_supported(operation, ack, Version.parse(below))
    assert str(caught.value) == f"{operation} needs API version 2.4.0 or newer; the gateway has {below}"


@each_row("operation", [Operation.APIVERSION, *DEVICE_OPERATIONS])
def test_an_operation_with_its_oldest_parameters_is_supported_by_every_version(operation: Operation) -> None:
    check_operation_supported(operation, frozenset({"id", "priority", "value"}), Version(0, 0, 0))


def test_an_error_names_the_operation_first_then_the_parameters_in_order() -> None:
    with pytest.raises(GatewayTooOld, match=r"^ack needs"):
        check_operation_supported(Operation.ACK, frozenset({"extenderId"}), ASSUMED_VERSION)
    with pytest.raises(GatewayTooOld, match=r"^accessType in read needs"):
        check_operation_supported(
            Operation.READ, frozenset({"publicKey", "key", "accessType"}), ASSUMED_VERSION
        )


def test_an_unsupported_parameter_error_does_not_show_the_key() -> None:
    request = requests.ReadRequest(key=Secret(b"\xaa" * 16), access_type=AccessType.LEGACY)
    with pytest.raises(GatewayTooOld) as caught:
        requests.check_request_supported(Operation.READ, request, ASSUMED_VERSION)
    assert "aaaa" not in repr(caught.value)


@pytest.mark.rule("version-9")
@each_row(
    ("text", "version"), [("2.4.0", LATEST_VERSION), ("1.2.0", ASSUMED_VERSION), ("2.0", Version(2, 0, 0))]
)
def test_a_gateway_reports_its_version_as_dotted_text(text: str, version: Version) -> None:
    payload = msgspec.json.encode({"time": TIME, "status": 0, "version": text})
    response = responses.decode_response(Operation.APIVERSION, payload)
    assert isinstance(response, responses.ApiVersionResponse)
    assert response.version == version
    written = msgspec.json.decode(responses.encode_response(Operation.APIVERSION, response))
    assert written["version"] == str(version)


@pytest.mark.rule("version-9")
@each_row("version", ["", "two", "2", "2.4.0.0.0"])
def test_a_version_that_is_not_dotted_text_is_rejected(version: str) -> None:
    with pytest.raises(MalformedVersion) as caught:
        responses.decode_response(
            Operation.APIVERSION, msgspec.json.encode({"time": TIME, "status": 0, "version": version})
        )
    assert caught.value.field == "version"


@pytest.mark.rule("version-19")
def test_a_value_with_added_bytes_is_decoded_as_before_with_a_remainder() -> None:
    assert BUILTIN_CATALOGUE.decode("8800", bytes.fromhex("1234")).value == 46.60
    decoded = BUILTIN_CATALOGUE.decode("8800", bytes.fromhex("1234c0ffee"))
    assert (decoded.value, decoded.ext) == (46.60, {"rest": "c0ffee"})


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
def test_a_topic_of_a_newer_version_raises_our_error(text: str) -> None:
    with pytest.raises(MalformedInput):
        TopicCodec().parse(text)


@pytest.mark.rule("version-20")
@each_row(
    "path",
    [
        LOGIN_PATH,
        DEVICES_PATH,
        LABELS_PATH,
        friendly_name_path(DeviceId("bmac-0123456789ab")),
        device_label_path(DeviceId("bmac-0123456789ab"), "roof"),
    ],
)
def test_a_rest_path_starts_with_the_version_v1(path: str) -> None:
    assert path.startswith("/api/v1/")
