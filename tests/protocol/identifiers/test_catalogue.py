"""The catalogue: every row, and conversions of the values of all identifiers."""

from __future__ import annotations

from contextlib import suppress
from functools import reduce
from math import inf, nan
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.errors.protocol import UndecodableValue, UnencodableValue, UnknownIdentifier
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, DecodedValue, IdentifierDefinition
from tests.examples import examples
from tests.row_tables import each_row

# Id, name, dictionary version, kind, access, unit; `raw` if the layout is not public. The names of 8120 to
# 8131 and of the raw ones, and undocumented access, are our own.
ROWS = """
8000 model-number 1 property r
8001 firmware-version 1 property r
8002 hardware-version 1 property r
8003 mac-address 1 property r
8005 production-info-extended - property r
8006 production-info 1 property r
8007 variant 1 property r
8008 public-key 10 property r
8009 host-public-key 10 property rw
8020 power-source - property r raw
8100 battery-level 1 property r %
8101 uptime 1 property r s
8102 reset-cause 3 property r
8103 vdd 6 property r mV
8110 device-mode 1 property rw
8111 legacy-device-mode-switch 1 command w
8112 storage-mode-event 1 event -
8113 watchdog-reset-event 3 event -
8120 firmware-update-state - property r
8121 start-firmware-update - command w
8122 firmware-update-control - command w
8124 start-firmware-broadcast - command w
8125 firmware-broadcast-state - property r
8126 firmware-broadcast-control - command w
8130 nordic-dfu-state - property r
8131 start-nordic-dfu - command w
8150 motion-detection-sensitivity - property rw raw
8200 accelerometer-configuration 1 property rw
8204 motion-to-not-in-motion-timeout - property rw s raw
8210 downlink-configuration - property rw raw
8300 soft-reset 1 command w
8301 factory-reset 1 command w
8302 request-property-reporting 1 command w
8303 start-upstream-throughput-test 5 command w
8304 start-downstream-throughput-test 5 command w
8305 throughput-test-packet-counter - property r raw
8800 temperature 1 measurement r °C
8801 pressure 1 measurement r hPa
8802 humidity 1 measurement r %
8803 light-intensity 1 measurement r lx
8806 pressure-hysteresis 4 property rw hPa
8810 motion 1 property r
8813 total-minutes-in-motion 1 measurement+property r min
8820 accelerometer - property r raw
8831 hall-effect-counter - property r raw
9800 alarm 1 property rw
9801 priority 1 property rw
9802 tx-power 1 property rw dBm
9803 long-button-press-timeout 1 property rw ms
9804 normal-mode-advertisement-interval 1 property rw
9805 alarm-mode-advertisement-interval 1 property rw
9806 priority-mode-advertisement-interval 1 property rw
9807 sleep-mode-advertisement-interval 1 property rw
9808 inactive-to-sleep-delay 1 property rw s
9809 alarm-2 3 property rw
9810 whitelist-key 1 property rw
9820 text-message - command w raw
9821 unread-text-message - property r raw
ff00 scan-mode 9 internal -
""".strip().splitlines()
DECODED = [entry for entry in BUILTIN_CATALOGUE if entry.layout is not None]
RAW_ONLY = [entry for entry in BUILTIN_CATALOGUE if entry.layout is None]
DEEP: list[Any] = reduce(lambda inner, _: [inner], range(10_000), [None])
every_decoded = each_row("entry", DECODED)


@each_row("row", ROWS)
@pytest.mark.rule("value-40", "value-41")
def test_an_identifier_is_as_documented(row: str) -> None:
    entry = BUILTIN_CATALOGUE[row[:4]]
    cells = [entry.id, entry.name, str(entry.dictionary or "-"), "+".join(sorted(entry.kinds)), entry.access]
    cells += [entry.unit, "raw" if entry.layout is None else ""]
    assert " ".join(filter(None, cells)) == row


def test_the_catalogue_has_all_identifiers_in_order_and_no_others() -> None:
    assert [entry.id for entry in BUILTIN_CATALOGUE] == [row[:4] for row in ROWS]
    assert len(BUILTIN_CATALOGUE) == len(BUILTIN_CATALOGUE.names) == len(ROWS)


@pytest.mark.rule("id-10")
def test_an_identifier_is_found_by_id_and_by_name() -> None:
    for entry in BUILTIN_CATALOGUE:
        assert (
            BUILTIN_CATALOGUE[entry.id]
            is BUILTIN_CATALOGUE[entry.name]
            is BUILTIN_CATALOGUE.find(entry.id)
            is entry
        )


@each_row("text", ["", "9999", "Temperature", "FF00", "0x8800", "temperature ", "\ud800"])
def test_an_unknown_identifier_is_not_found(text: str) -> None:
    assert BUILTIN_CATALOGUE.find(text) is None
    with pytest.raises(UnknownIdentifier):
        BUILTIN_CATALOGUE.decode(text, b"\x00")


@each_row("entry", RAW_ONLY)
@pytest.mark.rule("value-40")
def test_a_value_of_unknown_layout_has_no_decoded_form(entry: IdentifierDefinition) -> None:
    with pytest.raises(UnknownIdentifier, match="has no known layout"):
        BUILTIN_CATALOGUE.decode(entry.id, b"\x00")
    with pytest.raises(UnknownIdentifier, match="has no known layout"):
        BUILTIN_CATALOGUE.encode(entry.id, 0)


IMAGE = {"modelNumber": 1, "version": "1.2.3"}
STATE = {"state": "idle", "percent": 0, "error": 0, **IMAGE}
STATES: dict[str, dict[str, Any]] = {"8120": {}, "8125": {"done": 0, "total": 0}, "8130": {"mac": "0" * 12}}
INTERVALS = [f"98{number:02}" for number in range(4, 8)]
LIMITS: list[tuple[str, dict[str, Any], str, int, int]] = [
    ("8111", {"mac": "c8b1a2030405"}, "mode", 1, 5),
    ("8121", IMAGE, "type", 0, 1),
    ("8122", {}, "action", 0, 1),
    ("8124", {**IMAGE, "targets": []}, "type", 0, 1),
    ("8126", {}, "action", 0, 1),
    ("8303", {"packets": 0, "interval": 0, "priority": 0}, "burst", 1, 255),
    ("8303", {"packets": 0, "interval": 0, "burst": 1}, "priority", 0, 4),
    ("8304", {"packets": 0, "interval": 0, "target": "0" * 12, "priority": 0}, "burst", 1, 255),
    ("8304", {"packets": 0, "interval": 0, "target": "0" * 12, "burst": 1}, "priority", 0, 4),
    *((identifier, {**STATE, **extra}, "percent", 0, 100) for identifier, extra in STATES.items()),
    *((identifier, {**STATE, **extra}, "error", 0, 8) for identifier, extra in STATES.items()),
    *((identifier, {"denominator": 1}, "interval", 20, 10240) for identifier in INTERVALS),
    *((identifier, {"interval": 20}, "denominator", 1, 255) for identifier in INTERVALS),
]


@each_row(("identifier", "other_fields", "name", "low", "high"), LIMITS)
@pytest.mark.rule("value-29", "value-31", "value-32", "value-33", "value-44")
@pytest.mark.rule("firmware-3", "firmware-6", "firmware-7", "firmware-8", "firmware-11")
def test_a_field_outside_its_limits_is_refused(
    identifier: str, other_fields: dict[str, Any], name: str, low: int, high: int
) -> None:
    for number in (low, high):
        raw = BUILTIN_CATALOGUE.encode(identifier, {**other_fields, name: number})
        assert BUILTIN_CATALOGUE.decode(identifier, raw).value[name] == number
    for number in (low - 1, high + 1):
        with pytest.raises(UnencodableValue, match=f"is not between {low} and {high}") as refused:
            BUILTIN_CATALOGUE.encode(identifier, {**other_fields, name: number})
        assert refused.value.field == f"value.{name}"


@each_row(
    ("identifier", "low", "high"),
    [
        ("8806", 0, 4096),
        ("9802", -40, 8),
        ("9803", 100, 25500),
        ("8800", -327.68, 327.67),
        ("8802", 0, 6553.5),
    ],
)
@pytest.mark.rule("value-34", "value-35", "value-44")
def test_a_value_outside_its_limits_is_refused(identifier: str, low: float, high: float) -> None:
    for number in (low, high):
        assert (
            BUILTIN_CATALOGUE.decode(identifier, BUILTIN_CATALOGUE.encode(identifier, number)).value == number
        )
    for number in (low - 1, high + 1):
        with pytest.raises(UnencodableValue, match=r"value: .* is not between"):
            BUILTIN_CATALOGUE.encode(identifier, number)


@each_row(
    ("identifier", "raw", "value"),
    [
        ("8111", "c8b1a203040509", {"mac": "c8b1a2030405", "mode": 9}),
        ("8122", "07", {"action": 7}),
        ("8303", "0000000000ff", {"packets": 0, "interval": 0, "burst": 0, "priority": 255}),
        ("8806", "ffff", 65535),
        ("9802", "7f", 127),
        ("9803", "0000", 0),
        ("9804", "ffff00", {"interval": 65535, "denominator": 0}),
    ],
)
@pytest.mark.rule("value-44")
def test_a_value_outside_its_limits_is_decoded_unchanged(identifier: str, raw: str, value: Any) -> None:
    assert BUILTIN_CATALOGUE.decode(identifier, bytes.fromhex(raw)).value == value


@each_row(
    ("identifier", "value", "ext", "field"),
    [
        ("motion", 1, {"isTransition": True}, "ext.transitionCounter"),
        ("motion", 1, {"transitionCounter": "7"}, "ext.transitionCounter"),
        ("motion", 1, {"transitionCounter": 7, "isTransition": 1}, "ext.isTransition"),
        ("motion", 1, {"counter": 7}, "ext.counter"),
        ("motion", 1, {"rest": "abc"}, "ext.rest"),
        ("motion", 1, {"rest": 5}, "ext.rest"),
        ("motion", 1, {"rest": None}, "ext.rest"),
        ("motion", 1, {"transitionCounter": 7, "rest": "01"}, "ext"),
        ("temperature", 1, {"counter": 7}, "ext.counter"),
        ("storage-mode-event", {"modelNumber": 17}, {"rest": "04"}, "ext"),
        ("production-info-extended", {"variant": 4}, {"rest": "00"}, "ext"),
    ],
)
@pytest.mark.rule("value-21", "value-24")
def test_an_extension_that_would_be_decoded_differently_is_refused(
    identifier: str, value: Any, ext: dict[str, Any], field: str
) -> None:
    with pytest.raises(UnencodableValue) as refused:
        BUILTIN_CATALOGUE.encode(identifier, value, ext)
    assert refused.value.field == field


def make_plausible(raw: bytes) -> bytes:
    """Return mostly small bytes: known enumeration values, flags, short counts, sorted keys."""
    return bytes(byte & 3 if byte < 0xF0 else byte for byte in raw)


def encode_entries(entries: dict[int, bytes]) -> bytes:
    """Encode the entries of a dictionary."""
    return b"".join(bytes([key, len(entries[key])]) + entries[key] for key in sorted(entries))


raws = st.one_of(
    st.binary(max_size=24),
    st.binary(max_size=24).map(make_plausible),
    st.binary(min_size=65, max_size=67),
    st.dictionaries(st.integers(0, 9), st.binary(max_size=6), max_size=4).map(encode_entries),
)
texts = st.text(st.characters(exclude_categories=()), max_size=9)
words = st.sampled_from(["dfu", "idle", "1.2.3", "1.2.3-beta.4", "1.0", "c8b1a2030405", "ab", "A", "rest"])
numbers = st.sampled_from([0, 1, -1, 46.6, 2**64, 10**400, -(10**400), 1e308, -1e308, inf, -inf, nan])
scalars = st.none() | st.booleans() | numbers | st.integers() | st.floats() | words | texts
objects = st.dictionaries(words | texts, scalars, max_size=3)
invalid_values: st.SearchStrategy[Any] = scalars | objects | st.lists(scalars | objects, max_size=3)


class Attempt(NamedTuple):
    """Value and extension to encode."""

    value: Any
    ext: dict[str, Any] | None
    raw: bytes
    good_ext: bool
    part: int

    def build_for(self, entry: IdentifierDefinition) -> tuple[Any, dict[str, Any] | None]:
        """Return a value and an extension: invalid, or valid with one invalid part."""
        value, ext = self.value, self.ext
        with suppress(UndecodableValue):
            decoded = entry.decode(self.raw)
            ext = decoded.ext if self.good_ext else ext
            if isinstance(decoded.value, dict) and decoded.value:
                names = sorted(decoded.value)
                value = {**decoded.value, names[self.part % len(names)]: value}
        return value, ext


attempts = st.builds(Attempt, invalid_values, st.none() | objects, raws, st.booleans(), st.integers(0, 11))


def encode_and_decode(entry: IdentifierDefinition, decoded: DecodedValue) -> DecodedValue | None:
    """Encode and decode a value; return None if it exceeds a limit, which applies only to encoding."""
    try:
        return entry.decode(entry.encode(decoded.value, decoded.ext))
    except UnencodableValue as refused:
        if ".." in entry.type and "is not between" in refused.reason:
            return None
        raise


@settings(max_examples=examples(60))
@given(raw=raws)
@every_decoded
@pytest.mark.rule("value-24", "value-44", "report-19")
def test_bytes_are_refused_or_decoded_to_json_that_can_be_encoded_again(
    entry: IdentifierDefinition, raw: bytes
) -> None:
    try:
        decoded = entry.decode(raw)
    except UndecodableValue:
        return
    assert msgspec.json.encode(decoded)
    assert encode_and_decode(entry, decoded) in (decoded, None)


@settings(max_examples=examples(60))
@given(attempt=attempts)
@every_decoded
def test_any_json_is_encoded_reversibly_or_raises_our_error(
    entry: IdentifierDefinition, attempt: Attempt
) -> None:
    value, ext = attempt.build_for(entry)
    try:
        raw = entry.encode(value, ext)
    except UnencodableValue:
        return
    decoded = entry.decode(raw)
    assert entry.encode(decoded.value, decoded.ext) == raw


@each_row("identifier", ["uptime", "temperature", "alarm", "device-mode", "8001", "8005", "8121"])
@each_row("value", [10**5000, DEEP])
def test_a_value_that_cannot_be_printed_is_refused(identifier: str, value: Any) -> None:
    with pytest.raises(UnencodableValue):
        BUILTIN_CATALOGUE.encode(identifier, value)
