"""Documented values of the identifiers, raw and decoded, byte by byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from meshfleet.errors.protocol import UndecodableValue, UnencodableValue
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, DecodedValue
from meshfleet.protocol.ids import Mac, to_dfu_mac
from tests.row_tables import each_row

KEY = "04" + "5a" * 64
MAC = "c8b1a2030405"
IMAGE, IMAGE_RAW = {"modelNumber": 0x0018, "version": "2.4.1-beta.3"}, "001802040103"
RELEASE, RELEASE_RAW = {"modelNumber": 0x0018, "version": "2.4.1"}, "001802040100"
PROGRESS, PROGRESS_RAW = {"state": "transferring", "percent": 42, "error": 0}, "022a00"
TEST, TEST_RAW = {"packets": 500, "interval": 20, "burst": 3, "priority": 4}, "01f400140304"
UPSTREAM, DOWNSTREAM = "start-upstream-throughput-test", "start-downstream-throughput-test"
STATES = ("idle", "fetching", "transferring", "verifying", "staged", "applying", "done", "failed")


def assert_converted(identifier: str, raw: str, value: Any, ext: dict[str, Any] | None = None) -> None:
    """Decode and encode. Compare as JSON, where 1 is not true and a number is not a string."""
    decoded = BUILTIN_CATALOGUE.decode(identifier, bytes.fromhex(raw))
    assert msgspec.json.encode(decoded) == msgspec.json.encode(DecodedValue(value, ext))
    assert BUILTIN_CATALOGUE.encode(identifier, value, ext) == bytes.fromhex(raw)


@each_row(
    ("identifier", "raw", "value"),
    [
        ("model-number", "000f", 15),
        ("mac-address", MAC, MAC),
        ("production-info", "00000100", 256),
        ("variant", "ff", 255),
        ("public-key", KEY, KEY),
        ("host-public-key", KEY, KEY),
        ("host-public-key", "00" * 65, "00" * 65),
        ("battery-level", "64", 100),
        ("uptime", "00015180", 86400),
        ("reset-cause", "08", 8),
        ("vdd", "0bb8", 3000),
        ("watchdog-reset-event", "", None),
        ("light-intensity", "01f4", 500),
        ("total-minutes-in-motion", "ffffffff", 0xFFFFFFFF),
        ("alarm", "01", True),
        ("alarm-2", "00", False),
        ("priority", "01", True),
        ("tx-power", "04", 4),
        ("tx-power", "d8", -40),
        ("long-button-press-timeout", "02bc", 700),
        ("inactive-to-sleep-delay", "003c", 60),
        ("whitelist-key", "000000000000", {"site": 0, "groupMask": 0}),
        ("whitelist-key", "000180000001", {"site": 1, "groupMask": 0x80000001}),
        ("scan-mode", "01", 1),
    ],
)
@pytest.mark.rule("value-1", "value-2", "value-3", "value-4", "value-5", "value-9", "value-39")
def test_a_raw_value_and_its_json_are_converted_both_ways(identifier: str, raw: str, value: Any) -> None:
    assert_converted(identifier, raw, value)


@each_row(
    ("identifier", "raw", "value"),
    [
        ("temperature", "1234", 46.60),
        ("temperature", "fbeb", -10.45),
        ("pressure", "3d17c27f", 1024.967295),
        ("humidity", "0237", 56.7),
    ],
)
@pytest.mark.rule("value-10", "value-26", "value-27", "value-28")
def test_a_scaled_value_is_the_documented_number(identifier: str, raw: str, value: float) -> None:
    assert_converted(identifier, raw, value)


@each_row("identifier", ["soft-reset", "factory-reset", "request-property-reporting"])
@pytest.mark.rule("value-2", "value-25")
def test_a_command_without_a_value_is_encoded_without_bytes(identifier: str) -> None:
    assert_converted(identifier, "", None)


@each_row(("raw", "mode"), [("01", "dfu"), ("02", "connected"), ("03", "storage"), ("04", "unconnected")])
@pytest.mark.rule("value-11", "value-12")
def test_a_device_mode_is_a_keyword(raw: str, mode: str) -> None:
    assert_converted("device-mode", raw, mode)


@each_row(
    ("raw", "version"),
    [
        ("020a00", "2.10.0"),
        ("000000", "0.0.0"),
        ("020a0001", "2.10.0-beta.1"),
        ("ffffffff", "255.255.255-beta.255"),
    ],
)
@pytest.mark.rule("value-13", "value-14")
def test_a_firmware_version_has_an_optional_beta(raw: str, version: str) -> None:
    assert_converted("firmware-version", raw, version)


@pytest.mark.rule("value-14")
def test_a_beta_of_0_is_a_production_version() -> None:
    assert BUILTIN_CATALOGUE.decode("firmware-version", bytes.fromhex("02040100")) == DecodedValue("2.4.1")


@each_row(("raw", "version"), [("0103", "1.3"), ("0000", "0.0"), ("ff0a", "255.10")])
@pytest.mark.rule("value-15")
def test_a_hardware_version_has_two_parts(raw: str, version: str) -> None:
    assert_converted("hardware-version", raw, version)


@each_row(
    ("identifier", "raw", "value"),
    [
        ("legacy-device-mode-switch", MAC + "05", {"mac": MAC, "mode": 5}),
        ("storage-mode-event", "0011", {"modelNumber": 17}),
        ("storage-mode-event", "001104", {"modelNumber": 17, "variant": 4}),
        (UPSTREAM, TEST_RAW, TEST),
        (UPSTREAM, TEST_RAW + "f4", {**TEST, "msgSize": 244}),
        (DOWNSTREAM, TEST_RAW + MAC, {**TEST, "target": MAC}),
        (DOWNSTREAM, TEST_RAW + "0" * 12 + "14", {**TEST, "target": "0" * 12, "msgSize": 20}),
        ("normal-mode-advertisement-interval", "00c80a", {"interval": 200, "denominator": 10}),
        ("alarm-mode-advertisement-interval", "00c802", {"interval": 200, "denominator": 2}),
        ("priority-mode-advertisement-interval", "01f401", {"interval": 500, "denominator": 1}),
        ("sleep-mode-advertisement-interval", "0bb805", {"interval": 3000, "denominator": 5}),
    ],
)
@pytest.mark.rule("value-16", "value-17", "value-29", "value-30", "value-31", "value-32", "value-33")
def test_a_composite_and_its_object_are_converted_both_ways(identifier: str, raw: str, value: Any) -> None:
    assert_converted(identifier, raw, value)


@each_row(("identifier", "extra"), [(UPSTREAM, {}), (DOWNSTREAM, {"target": MAC})])
@pytest.mark.rule("value-31", "value-32")
def test_a_throughput_test_without_a_priority_has_priority_2(identifier: str, extra: dict[str, Any]) -> None:
    raw = BUILTIN_CATALOGUE.encode(identifier, {"packets": 500, "interval": 20, "burst": 3, **extra})
    assert BUILTIN_CATALOGUE.decode(identifier, raw).value["priority"] == 2


@each_row("raw", ["00", "01", "10", "11", "20"])
@pytest.mark.rule("value-23")
def test_a_motion_is_the_number_of_its_cause(raw: str) -> None:
    assert_converted("motion", raw, int(raw, 16))


@each_row(
    ("extension", "ext"),
    [
        ("00000007", {"transitionCounter": 7}),
        ("00000007 00", {"transitionCounter": 7, "isTransition": False}),
        ("ffffffff 01", {"transitionCounter": 0xFFFFFFFF, "isTransition": True}),
        ("000007", {"rest": "000007"}),
        ("00000007 01 abcd", {"transitionCounter": 7, "isTransition": True, "rest": "abcd"}),
    ],
)
@pytest.mark.rule("value-21", "value-22", "value-24", "report-19")
def test_bytes_after_a_motion_are_its_extension(extension: str, ext: dict[str, Any]) -> None:
    assert_converted("motion", "10" + extension, 0x10, ext)


@each_row(("flags", "transition"), [("fe", False), ("ff", True)])
@pytest.mark.rule("value-22")
def test_only_bit_0_of_the_flags_of_a_motion_means_transition(flags: str, *, transition: bool) -> None:
    decoded = BUILTIN_CATALOGUE.decode("motion", bytes.fromhex("0100000000" + flags))
    assert decoded.ext == {"transitionCounter": 0, "isTransition": transition}


@pytest.mark.rule("id-25")
def test_the_remainder_is_accepted_in_any_case() -> None:
    assert BUILTIN_CATALOGUE.encode("temperature", 46.6, {"rest": "aBCd"}).hex() == "1234abcd"


@pytest.mark.rule("value-14", "value-24")
def test_a_release_with_a_remainder_survives_a_round_trip() -> None:
    decoded = BUILTIN_CATALOGUE.decode("firmware-version", bytes.fromhex("01020300 05"))
    assert (decoded.value, decoded.ext) == ("1.2.3", {"rest": "05"})
    assert BUILTIN_CATALOGUE.encode("firmware-version", decoded.value, decoded.ext).hex() == "0102030005"


@each_row(
    ("identifier", "raw", "value"),
    [
        ("start-firmware-update", IMAGE_RAW + "00", {**IMAGE, "type": 0}),
        ("start-firmware-update", RELEASE_RAW + "01", {**RELEASE, "type": 1}),
        ("firmware-update-state", PROGRESS_RAW + IMAGE_RAW, {**PROGRESS, **IMAGE}),
        ("firmware-update-control", "00", {"action": 0}),
        ("firmware-update-control", "01", {"action": 1}),
        ("start-firmware-broadcast", RELEASE_RAW + "0000", {**RELEASE, "type": 0, "targets": []}),
        (
            "start-firmware-broadcast",
            IMAGE_RAW + "01" + "02" + MAC + "000000000001",
            {**IMAGE, "type": 1, "targets": [MAC, "000000000001"]},
        ),
        (
            "firmware-broadcast-state",
            PROGRESS_RAW + IMAGE_RAW + "0005" + "0100",
            {**PROGRESS, **IMAGE, "done": 5, "total": 256},
        ),
        ("firmware-broadcast-control", "00", {"action": 0}),
        ("firmware-broadcast-control", "01", {"action": 1}),
        ("nordic-dfu-state", PROGRESS_RAW + RELEASE_RAW + MAC, {**PROGRESS, **RELEASE, "mac": MAC}),
        ("start-nordic-dfu", MAC + RELEASE_RAW, {"mac": MAC, **RELEASE}),
    ],
)
@pytest.mark.rule("value-18", "firmware-1", "firmware-2", "firmware-3", "firmware-4", "firmware-7")
@pytest.mark.rule("firmware-8", "firmware-10", "firmware-11", "firmware-12", "firmware-13")
def test_a_firmware_value_is_a_flat_object(identifier: str, raw: str, value: Any) -> None:
    assert_converted(identifier, raw, value)


@each_row(("number", "state"), [*enumerate(STATES)])
@each_row(("identifier", "suffix"), [("8120", ""), ("8125", "00000000"), ("8130", MAC)])
@pytest.mark.rule("firmware-5")
def test_the_state_of_an_update_is_a_keyword(identifier: str, suffix: str, number: int, state: str) -> None:
    raw = bytes.fromhex(f"{number:02x}0000" + IMAGE_RAW + suffix)
    value = BUILTIN_CATALOGUE.decode(identifier, raw).value
    assert value["state"] == state
    assert BUILTIN_CATALOGUE.encode(identifier, value) == raw


@each_row("error", range(9))
@pytest.mark.rule("firmware-6")
def test_the_error_of_an_update_is_its_number(error: int) -> None:
    value = {"state": "failed", "percent": 100, "error": error, **IMAGE}
    assert_converted("firmware-update-state", f"0764{error:02x}" + IMAGE_RAW, value)


@each_row(("identifier", "suffix"), [("8120", ""), ("8125", "00000000"), ("8130", MAC)])
@pytest.mark.rule("firmware-6", "value-44")
def test_an_unknown_update_error_is_decoded_but_not_encoded(identifier: str, suffix: str) -> None:
    value = BUILTIN_CATALOGUE.decode(identifier, bytes.fromhex("076409" + IMAGE_RAW + suffix)).value
    assert value["error"] == 9
    with pytest.raises(UnencodableValue):
        BUILTIN_CATALOGUE.encode(identifier, value)


@each_row(
    ("identifier", "raw"),
    [("device-mode", "00"), ("device-mode", "05"), ("firmware-update-state", "080000" + IMAGE_RAW)],
)
@pytest.mark.rule("value-11", "value-12", "firmware-5")
def test_a_number_without_a_keyword_has_no_decoded_form(identifier: str, raw: str) -> None:
    with pytest.raises(UndecodableValue, match="is not a value of this enumeration"):
        BUILTIN_CATALOGUE.decode(identifier, bytes.fromhex(raw))


@pytest.mark.rule("value-19", "value-38")
def test_production_info_is_a_dictionary_of_eight_known_keys() -> None:
    value = {
        "mac": MAC,
        "modelNumber": 0x0018,
        "variant": 4,
        "firmwareVersion": "2.4.1-beta.3",
        "publicKey": KEY,
        "chip": 0x52832,
        "chipVariant": 1,
        "chipPackage": 0x80000000,
    }
    start = f"0006{MAC} 01020018 020104 030402040103 0441{KEY}"
    assert_converted("8005", start + "050400052832 060400000001 070480000000", value)


@each_row(
    ("raw", "value"),
    [
        ("", {}),
        ("020104 0803abcdef", {"variant": 4, "8": "abcdef"}),
        ("0800", {"8": ""}),
        ("02020104 ff0100", {"2": "0104", "255": "00"}),
        ("0005c8b1a20304", {"0": "c8b1a20304"}),
    ],
)
@pytest.mark.rule("value-19", "value-38")
def test_an_entry_with_an_unknown_key_or_form_is_hex_under_its_number(raw: str, value: Any) -> None:
    assert_converted("8005", raw, value)


@each_row(
    ("mac", "advertised"),
    [
        ("c8b1a2030433", "c8b1a2030434"),
        ("c8b1a203043f", "c8b1a2030440"),
        ("00000000ffff", "000000010000"),
        ("ffffffffffff", "000000000000"),
    ],
)
@pytest.mark.rule("firmware-14")
def test_an_nrf52_device_advertises_its_mac_plus_one(mac: str, advertised: str) -> None:
    assert to_dfu_mac(Mac(mac)) == advertised
