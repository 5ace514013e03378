"""The fast and the complete encoder of reports produce the same bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedPayload, MalformedTime
from meshfleet.protocol import api_versions, payload, reports
from meshfleet.protocol.api_versions import LATEST_VERSION
from meshfleet.protocol.codes import Kind
from meshfleet.protocol.hex import Hex
from meshfleet.protocol.ids import Version
from tests.protocol.strategies import any_reports, versions
from tests.protocol.test_reports import AT, EXAMPLES
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.protocol.reports import Report

_ZONES = [UTC, timezone.utc, timezone(timedelta()), ZoneInfo("UTC"), ZoneInfo("Europe/London")]  # noqa: UP017 # every spelling of UTC
_offsets = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
# Mostly times of the fast encoder, so that the other fields are tested there.
_zones = st.just(UTC) | st.just(UTC) | st.sampled_from(_ZONES) | _offsets
# Whole seconds, whole milliseconds, and digits beyond them.
_millis = st.integers(0, 999).map(lambda millis: millis * 1000)
_micros = _millis | _millis | st.just(0) | st.integers(0, 999_999)
_times = st.builds(
    lambda time, micros: time.replace(microsecond=micros),
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones),  # noqa: DTZ001 # zones are given by `timezones`
    _micros,
)
_versions = st.none() | st.sampled_from([Version(1, 2, 0), Version(1, 3, 0), LATEST_VERSION]) | versions


@st.composite
def _encoded_reports(draw: st.DrawFn) -> tuple[Kind, Report]:
    topic, report = draw(any_reports())
    if isinstance(report, reports.Property | reports.Measurement | reports.Event) and report.value:
        value = draw(st.sampled_from([report.value, report.value.upper(), report.value.title()]))
        report = msgspec.structs.replace(report, value=Hex(value))
    return topic.kind, msgspec.structs.replace(report, time=draw(_times))


def _encode_completely(kind: Kind, report: Report, version: Version | None) -> bytes:
    return payload.encode_payload(
        report, excluded=api_versions.list_unsupported_fields("report", kind, version)
    )


@given(_encoded_reports(), _versions)
@example((Kind.PROPERTY_DECODED, reports.PropertyDecoded(time=AT.replace(microsecond=0), value="000Z")), None)
@example((Kind.PROPERTY_DECODED, reports.PropertyDecoded(time=AT.replace(microsecond=7), value="000Z")), None)
@example((Kind.PROPERTY_DECODED, reports.PropertyDecoded(time=AT, value="000Z")), LATEST_VERSION)
@example((Kind.PROPERTY, reports.Property(time=AT, value=Hex("C0FFEE"))), None)
@example((Kind.MEASUREMENT, reports.Measurement(time=AT, seq=0, value=Hex(""))), LATEST_VERSION)
@example((Kind.MEASUREMENT, reports.Measurement(time=AT, seq=0, value=Hex("c0fFee"))), LATEST_VERSION)
@example((Kind.EVENT, reports.Event(time=AT, seq=0, value=Hex("AA"))), LATEST_VERSION)
@example((Kind.RSSI, EXAMPLES[Kind.RSSI][1]), LATEST_VERSION)
def test_both_encoders_produce_the_same_bytes(drawn: tuple[Kind, Report], version: Version | None) -> None:
    kind, report = drawn
    assert reports.encode_report(kind, report, version=version) == _encode_completely(kind, report, version)


@each_row("kind", Kind)
@each_row("version", [None, Version(1, 2, 0), LATEST_VERSION])
@each_row("micros", [0, 1, 999, 1000, 585_000, 585_001, 999_999])
def test_each_kind_is_encoded_the_same_at_any_microsecond(
    kind: Kind, version: Version | None, micros: int
) -> None:
    report = msgspec.structs.replace(EXAMPLES[kind][1], time=AT.replace(microsecond=micros))
    assert reports.encode_report(kind, report, version=version) == _encode_completely(kind, report, version)


@pytest.mark.rule("id-22", "id-23")
@each_row("kind", Kind)
@each_row(
    ("time", "written"),
    [
        (AT, b"2020-11-04T10:07:20.585Z"),
        (AT.replace(microsecond=0), b"2020-11-04T10:07:20.000Z"),
        (AT.replace(microsecond=585_999), b"2020-11-04T10:07:20.585Z"),
        (AT.replace(microsecond=999), b"2020-11-04T10:07:20.000Z"),
        (AT.astimezone(timezone(timedelta(hours=2))), b"2020-11-04T10:07:20.585Z"),
        (AT.astimezone(timezone(timedelta(seconds=10))), b"2020-11-04T10:07:20.585Z"),
        (AT.replace(year=1), b"0001-11-04T10:07:20.585Z"),
    ],
)
def test_a_time_is_encoded_in_utc_with_three_digits(kind: Kind, time: datetime, written: bytes) -> None:
    report = msgspec.structs.replace(EXAMPLES[kind][1], time=time)
    assert reports.encode_report(kind, report).startswith(b'{"time":"%b",' % written)


@each_row("kind", Kind)
@each_row("micros", [0, 585_000])
def test_a_time_without_an_offset_is_refused(kind: Kind, micros: int) -> None:
    naive = AT.replace(microsecond=micros, tzinfo=None)
    with pytest.raises(ValueError, match="has no UTC offset"):
        reports.encode_report(kind, msgspec.structs.replace(EXAMPLES[kind][1], time=naive))


@each_row("kind", Kind)
def test_a_time_outside_the_supported_years_is_refused(kind: Kind) -> None:
    early = datetime(1, 1, 1, 0, 0, 0, 585_000, tzinfo=timezone(timedelta(hours=1)))
    with pytest.raises(MalformedTime):
        reports.encode_report(kind, msgspec.structs.replace(EXAMPLES[kind][1], time=early))


@each_row("time", [AT, AT.replace(microsecond=0)])
@each_row("value", ["\ud800", ["\udfff"], {"\ud83d": 1}])
def test_text_that_utf_8_cannot_encode_is_refused(time: datetime, value: object) -> None:
    with pytest.raises(MalformedPayload, match="UTF-8"):
        reports.encode_report(Kind.PROPERTY_DECODED, reports.PropertyDecoded(time=time, value=value))


def test_unreachable_is_omitted_if_it_is_false() -> None:
    report = msgspec.structs.replace(EXAMPLES[Kind.RSSI][1], unreachable=False)
    assert b"unreachable" not in reports.encode_report(Kind.RSSI, report)


@each_row("kind", Kind)
def test_a_kind_is_not_encoded_with_the_report_of_another(kind: Kind) -> None:
    other = Kind.DFU if kind is not Kind.DFU else Kind.RSSI
    with pytest.raises(TypeError, match=f"is not the payload of {kind}"):
        reports.encode_report(kind, EXAMPLES[other][1])
