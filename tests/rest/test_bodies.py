"""Bodies, paths and input validation of the REST API."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import msgspec.inspect
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT
from rich.pretty import pretty_repr

from meshfleet.errors.protocol import MalformedText
from meshfleet.protocol.ids import DeviceId, Mac, Version
from meshfleet.protocol.times import format_time
from meshfleet.rest.accounts import TOKEN_LIFETIME, LoggedIn, Login
from meshfleet.rest.bodies import ResponseBody
from meshfleet.rest.devices import Connectivity, Device, DevicePage, FriendlyName, NewLabel
from meshfleet.rest.gateways import BrokerEndpoint, GatewayClaim, NewGateway
from meshfleet.rest.inputs import (
    DEFAULT_RESULTS,
    MAX_RESULTS,
    MIN_RESULTS,
    parse_bearer,
    parse_friendly_name,
    parse_key_name,
    parse_label,
    parse_new_label,
    parse_retry_after,
)
from meshfleet.rest.paths import (
    DEVICES_PATH,
    LABELS_PATH,
    LOGIN_PATH,
    credentials_path,
    device_label_path,
    friendly_name_path,
)
from meshfleet.rest.problems import ProblemReply, ProblemSummary
from tests.protocol.strategies import texts
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT = datetime(2020, 11, 4, 10, 7, 20, 880_000, tzinfo=UTC)
DEVICE = DeviceId("bmac-c4bd6a010203")
HIDDEN = "correct-horse-battery-staple"
NEXT = "a+/="

FULL_DEVICE = Device(
    id=DEVICE,
    friendly_name="Door",
    model_number="000F",
    labels=["north", "2nd floor"],
    boot_mode="dfu",
    connectivity=Connectivity(connected=True, timestamp=format_time(AT)),
    firmware_version="2.4.0",
    hardware_version=str(Version.parse("1.0")),
    imei="490154203237518",
    status=2,
)
FULL_DEVICE_TEXT = (
    b'{"id":"bmac-c4bd6a010203","friendlyName":"Door","modelNumber":"000F","labels":["north","2nd floor"],'
    b'"bootMode":"dfu","connectivity":{"connected":true,"timestamp":"2020-11-04T10:07:20.880Z"},'
    b'"firmwareVersion":"2.4.0","hardwareVersion":"1.0.0","imei":"490154203237518","status":2}'
)
NEW_DEVICE = msgspec.structs.replace(FULL_DEVICE, boot_mode=None, imei=None, status=None, labels=[])
NEW_DEVICE_TEXT = (
    b'{"id":"bmac-c4bd6a010203","friendlyName":"Door","modelNumber":"000F","labels":[],'
    b'"bootMode":null,"connectivity":{"connected":true,"timestamp":"2020-11-04T10:07:20.880Z"},'
    b'"firmwareVersion":"2.4.0","hardwareVersion":"1.0.0","imei":null,"status":null}'
)
LOGGED_IN_TEXT = b'{"status":"SUCCESS","authToken":"correct-horse-battery-staple","sessionId":null}'

CLAIM = GatewayClaim(
    mac="d0cf5e000001",
    device_id="bmac-d0cf5e000001",
    username="d0cf5e000001",
    password=HIDDEN,
    broker=BrokerEndpoint(host="broker.example", port=8883, tls=True),
)
CLAIM_TEXT = (
    b'{"mac":"d0cf5e000001","deviceId":"bmac-d0cf5e000001","username":"d0cf5e000001",'
    b'"password":"correct-horse-battery-staple","broker":{"host":"broker.example","port":8883,"tls":true}}'
)

RESPONSE_BODIES: list[tuple[msgspec.Struct, bytes]] = [
    (FULL_DEVICE, FULL_DEVICE_TEXT),
    (NEW_DEVICE, NEW_DEVICE_TEXT),
    (DevicePage(items=[NEW_DEVICE], next_token=NEXT), b'{"items":[%b],"nextToken":"a+/="}' % NEW_DEVICE_TEXT),
    (DevicePage(items=[], next_token=None), b'{"items":[],"nextToken":null}'),
    (LoggedIn(auth_token=HIDDEN), LOGGED_IN_TEXT),
    (CLAIM, CLAIM_TEXT),
]
REQUEST_BODIES: list[tuple[msgspec.Struct, bytes]] = [
    (
        Login(username="ada", password=HIDDEN),
        b'{"username":"ada","password":"correct-horse-battery-staple"}',
    ),
    (FriendlyName(name="Door"), b'{"name":"Door"}'),
    (NewLabel(label="north"), b'{"label":"north"}'),
    (NewGateway(mac="d0cf5e000001"), b'{"mac":"d0cf5e000001"}'),
]


@pytest.mark.rule("rest-1", "rest-16", "rest-29", "rest-30", "rest-31", "rest-32", "rest-33", "rest-43")
@pytest.mark.rule("rest-50", "rest-54", "rest-55", "rest-56", "rest-58", "auth-1", "auth-2")
@each_row(("body", "text"), [*RESPONSE_BODIES, *REQUEST_BODIES])
def test_a_body_is_decoded_and_encoded_exactly(body: msgspec.Struct, text: bytes) -> None:
    assert msgspec.json.decode(text, type=type(body)) == body
    assert msgspec.json.encode(body) == text


@pytest.mark.rule("rest-29")
def test_a_device_has_ten_fields_in_this_order() -> None:
    assert list(json.loads(msgspec.json.encode(FULL_DEVICE))) == [
        "id",
        "friendlyName",
        "modelNumber",
        "labels",
        "bootMode",
        "connectivity",
        "firmwareVersion",
        "hardwareVersion",
        "imei",
        "status",
    ]


NON_STRINGS: list[Any] = [None, True, 1, 1.5, [], {}]
INVALID_FIELDS: list[tuple[msgspec.Struct, str, list[Any]]] = [
    (FULL_DEVICE, "id", NON_STRINGS),
    (FULL_DEVICE, "friendlyName", NON_STRINGS),
    (FULL_DEVICE, "modelNumber", NON_STRINGS),
    (FULL_DEVICE, "firmwareVersion", NON_STRINGS),
    (FULL_DEVICE, "hardwareVersion", NON_STRINGS),
    (FULL_DEVICE, "labels", [None, "north", {}, [1], [None]]),
    (FULL_DEVICE, "bootMode", ["", "DFU", "connected", True, 1]),
    (FULL_DEVICE, "connectivity", [None, True, {}, {"connected": True}, {"connected": 1, "timestamp": ""}]),
    (FULL_DEVICE, "imei", [490154203237518, True, []]),
    (FULL_DEVICE, "status", ["0", True, 0.5, []]),
    (RESPONSE_BODIES[2][0], "items", [None, {}, "", [1]]),
    (RESPONSE_BODIES[2][0], "nextToken", [1, True, []]),
    (RESPONSE_BODIES[4][0], "status", ["success", "FAILED", None, 0]),
    (RESPONSE_BODIES[4][0], "authToken", NON_STRINGS),
    (RESPONSE_BODIES[4][0], "sessionId", ["x", 1, False]),
    (REQUEST_BODIES[0][0], "username", NON_STRINGS),
    (REQUEST_BODIES[0][0], "password", NON_STRINGS),
    (REQUEST_BODIES[1][0], "name", NON_STRINGS),
    (REQUEST_BODIES[2][0], "label", NON_STRINGS),
    (REQUEST_BODIES[3][0], "mac", NON_STRINGS),
    (CLAIM, "password", NON_STRINGS),
    (
        CLAIM,
        "broker",
        [None, {}, {"host": "", "port": 1, "tls": True}, {"host": "a", "port": 0, "tls": True}],
    ),
]


@pytest.mark.rule("rest-16", "rest-30", "rest-31", "rest-32", "rest-33", "rest-43", "rest-54", "rest-55")
@pytest.mark.rule("rest-56", "rest-58", "auth-1", "auth-2")
@each_row(
    ("body", "field", "value"),
    [(body, field, value) for body, field, values in INVALID_FIELDS for value in values],
)
def test_an_ill_typed_field_is_refused(body: msgspec.Struct, field: str, value: Any) -> None:
    fields = msgspec.json.decode(msgspec.json.encode(body)) | {field: value}
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.json.decode(json.dumps(fields), type=type(body))


@pytest.mark.rule("rest-16", "rest-29", "rest-43", "rest-58", "auth-1")
@each_row(
    ("body", "field"),
    [
        (body, field)
        for body, text in [RESPONSE_BODIES[0], RESPONSE_BODIES[3], RESPONSE_BODIES[5], *REQUEST_BODIES]
        for field in json.loads(text)
    ],
)
def test_no_field_may_be_missing(body: msgspec.Struct, field: str) -> None:
    fields = msgspec.json.decode(msgspec.json.encode(body))
    del fields[field]
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.json.decode(json.dumps(fields), type=type(body))


@pytest.mark.rule("rest-5")
@each_row(("body", "text"), REQUEST_BODIES)
def test_an_unknown_field_in_a_request_is_refused(body: msgspec.Struct, text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="somethingNew"):
        msgspec.json.decode(text[:-1] + b',"somethingNew":1}', type=type(body))


@each_row(("body", "text"), RESPONSE_BODIES)
def test_an_unknown_field_in_a_response_is_ignored(body: msgspec.Struct, text: bytes) -> None:
    assert msgspec.json.decode(text[:-1] + b',"somethingNew":1}', type=type(body)) == body


BODIES_WITH_SECRETS = [Login(username="ada", password=HIDDEN), LoggedIn(auth_token=HIDDEN), CLAIM]


@each_row("body", BODIES_WITH_SECRETS)
def test_the_representation_omits_passwords_and_tokens(body: msgspec.Struct) -> None:
    for text in (repr(body), str(body), f"{[body]}"):
        assert HIDDEN not in text


@each_row("body", BODIES_WITH_SECRETS)
def test_the_rich_representation_omits_passwords_and_tokens(body: msgspec.Struct) -> None:
    assert HIDDEN not in pretty_repr(body)


@pytest.mark.rule("rest-50")
@each_row(("reported", "listed"), [("1.0", "1.0.0"), ("0.0", "0.0.0"), ("3.12.1", "3.12.1")])
def test_a_hardware_version_is_padded_to_three_parts(reported: str, listed: str) -> None:
    assert str(Version.parse(reported)) == listed


@pytest.mark.rule("auth-5")
@each_row("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
@each_row("token", ["a", "eyJhbGciOiJIUzI1NiJ9.e30.x-_Y", "AZaz09-._~+/=="])
def test_the_authorization_scheme_is_accepted_in_any_case(scheme: str, token: str) -> None:
    assert parse_bearer(f"{scheme} {token}") == token


@pytest.mark.rule("auth-5")
@each_row(
    "header",
    [
        "",
        "a",
        "Bearer",
        "Bearer ",
        "Bearer  a",
        " Bearer a",
        "Bearer a ",
        "Bearer\ta",
        "Bearera",
        "Bearer a b",
        "Bearer a,b",
        "Bearer a=b",
        "Bearer =",
        "Bearer a\n",
        "Bearer \u00e9",
        "Basic a",
        "Token a",
        "Bearer: a",
    ],
)
def test_anything_but_one_space_and_a_token_is_not_a_bearer_header(header: str) -> None:
    assert parse_bearer(header) is None


@pytest.mark.rule("rest-44", "rest-66")
@each_row(("parse", "max_length"), [(parse_friendly_name, 128), (parse_label, 64)])
@each_row("character", ["x", "\u00e9", "\u6f22", "\U0001f600"])
def test_the_length_of_a_name_or_label_is_limited_after_trimming(
    parse: Callable[[str], str], max_length: int, character: str
) -> None:
    assert parse(f" \t{character}\n ") == character
    assert parse(f"  {character * max_length}  ") == character * max_length
    for text in ("", "   ", "\u2003", character * (max_length + 1)):
        with pytest.raises(MalformedText):
            parse(text)


@pytest.mark.rule("rest-66")
@each_row("control", ["\x00", "\n", "\t", "\x1f", "\x7f", "\x85", "\x9f", "\ud800"])
@each_row("parse", [parse_label, parse_friendly_name])
def test_a_control_character_is_refused(parse: Callable[[str], str], control: str) -> None:
    with pytest.raises(MalformedText):
        parse(f"a{control}b")


@pytest.mark.rule("rest-44", "rest-66")
def test_a_bidirectional_control_character_in_a_new_text_is_refused_by_name() -> None:
    controls = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    accepted = []
    for control in controls:
        for parse in (parse_friendly_name, parse_new_label, parse_key_name):
            try:
                accepted.append((f"U+{ord(control):04X}", parse(f"a{control}b")))
            except MalformedText as exc:
                assert f"U+{ord(control):04X}" in exc.reason  # noqa: PT017 # a table reports all its rows
                assert control not in exc.reason  # noqa: PT017
    assert accepted == []


@pytest.mark.rule("rest-44", "rest-66")
@each_row("text", ["מעבדה 3", "مختبر", "\u0645\u06cc\u200c\u0634\u0648\u062f", "👩\u200d🔬", "a\u00adb"])
def test_right_to_left_scripts_and_joiners_are_accepted_in_names_and_labels(text: str) -> None:
    assert parse_friendly_name(text) == parse_new_label(text) == parse_key_name(text) == text


@pytest.mark.rule("rest-66")
@each_row("dots", [".", "..", " . ", "\t..\n"])
def test_a_label_must_not_be_a_relative_path(dots: str) -> None:
    with pytest.raises(MalformedText):
        parse_label(dots)


@pytest.mark.rule("rest-66", "rest-67")
@each_row("label", ["...", ".a", "a/b", "/", "2nd floor", "100 %", "?", "#", "\u5317", "a\u200db", "é"])
def test_any_other_text_is_a_label(label: str) -> None:
    assert parse_label(label) == label


@pytest.mark.rule("rest-67")
def test_a_label_is_normalized_to_nfc_and_case_sensitive() -> None:
    assert parse_label("Cafe\u0301") == "Caf\u00e9"
    assert parse_label("e\u0301" * 64) == "\u00e9" * 64
    assert parse_label("North") != parse_label("north")


@pytest.mark.rule("rest-66", "rest-67")
@given(texts)
def test_an_accepted_label_is_in_nfc(text: str) -> None:
    try:
        label = parse_label(text)
    except MalformedText:
        return
    assert label == unicodedata.normalize("NFC", text).strip() == parse_label(label)
    assert unicodedata.is_normalized("NFC", label)


@pytest.mark.rule("rest-43", "version-20")
def test_paths_carry_the_version() -> None:
    assert (LOGIN_PATH, DEVICES_PATH, LABELS_PATH) == (
        "/api/v1/auth/login",
        "/api/v1/devices",
        "/api/v1/labels",
    )
    assert friendly_name_path(DEVICE) == "/api/v1/devices/bmac-c4bd6a010203/friendly-name"
    assert device_label_path(DEVICE, "north") == "/api/v1/devices/bmac-c4bd6a010203/labels/north"


@given(st.sampled_from(["a/b", "2nd floor", "100%", "%2F", "?x=1#y", "\u5317", "\U0001f600"]) | texts)
def test_any_label_fits_into_one_path_segment(label: str) -> None:
    path = device_label_path(DEVICE, label)
    parent, _, last = path.rpartition("/")
    assert parent == "/api/v1/devices/bmac-c4bd6a010203/labels"
    assert last.isascii()
    assert not set(last) & set("/?# ")
    assert unquote(last) == label


@pytest.mark.rule("rest-23")
def test_limits_match_the_specification() -> None:
    assert (MIN_RESULTS, MAX_RESULTS, DEFAULT_RESULTS) == (1, 1000, 100)
    assert timedelta(minutes=30) == TOKEN_LIFETIME


def test_credentials_have_a_path_below_the_mac_of_the_gateway() -> None:
    path = credentials_path(Mac("d0cf5e000001"))
    assert path == "/api/v1/gateways/d0cf5e000001/credentials"


@each_row(("text", "seconds"), [("0", 0), ("7", 7), ("999999999", 999_999_999)])
def test_retry_after_is_parsed_as_seconds(text: str, seconds: int) -> None:
    assert parse_retry_after(text) == seconds


@each_row(
    "text", ["", "-1", "1.5", " 1", "1 ", "\u0661", "soon", "1" * 5000, "Sun, 15 Nov 2026 07:31:40 GMT"]
)
def test_a_retry_after_that_is_not_a_number_of_seconds_is_ignored(text: str) -> None:
    assert parse_retry_after(text) is None


def _list_subclasses(kind: type[ResponseBody]) -> Iterator[type[ResponseBody]]:
    for each in kind.__subclasses__():
        yield each
        yield from _list_subclasses(each)


def test_response_fields_have_no_defaults_except_those_that_were_added_later() -> None:
    from_any_server = {ProblemSummary, ProblemReply}
    with_default = [
        f"{kind.__name__}.{field.name}"
        for kind in _list_subclasses(ResponseBody)
        if kind not in from_any_server
        for field in msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined] # type_info of a struct has fields
        if not (_has_no_default(field) or _has_one_value(field.type))
    ]
    # Added later, so that older services do not send them.
    assert set(with_default) == {
        "Firmware.bare",
        "Gateway.clock_offset",
        "LiveGateway.clock_offset",
        "GatewayCandidate.failed_at",
        *(f"Link.{name}" for name in ("expected", "loss", "channels")),
        *(f"LinkBucket.{name}" for name in ("expected", "loss")),
        "Links.heartbeats",
    }


def _has_no_default(field: msgspec.inspect.Field) -> bool:
    # msgspec reports fields whose default is UNSET as having none.
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _has_one_value(kind: msgspec.inspect.Type) -> bool:
    match kind:
        case msgspec.inspect.LiteralType():
            return len(kind.values) == 1
        case msgspec.inspect.NoneType():
            return True
    return False
