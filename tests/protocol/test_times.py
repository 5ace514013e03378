"""Times: parsed in every spelling of ISO 8601, truncated to milliseconds of UTC, formatted in one way."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.errors.protocol import MalformedInput, MalformedTime
from meshfleet.protocol.times import format_time, from_millis, parse_time, to_millis
from tests.row_tables import each_row

DIGITS = st.text("0123456789", min_size=1, max_size=30)
ZONES = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# Far enough from both ends that no offset leaves the supported years, and four digits in strftime.
SECONDS = st.datetimes(datetime(1001, 1, 1), datetime(9998, 1, 1)).map(  # noqa: DTZ001 # zones are added later
    lambda time: time.replace(microsecond=0)
)


@pytest.mark.rule("id-18", "id-19", "id-20", "id-23")
@given(SECONDS, DIGITS, ZONES)
def test_any_digits_and_any_offset_are_parsed_to_milliseconds_of_utc(
    second: datetime, digits: str, zone: timezone
) -> None:
    millis = int(digits.ljust(3, "0")[:3])
    offset = second.replace(tzinfo=zone).isoformat()[19:]
    time = parse_time(f"{second.isoformat()}.{digits}{offset}")
    assert time == second.replace(microsecond=millis * 1000, tzinfo=zone)
    assert time.tzinfo is UTC


@pytest.mark.rule("id-18", "id-19", "id-20")
@given(SECONDS, st.sampled_from(["", "Z", "z", "+00:00", "+0000", "+00", "-00:00"]))
def test_a_time_without_digits_and_offset_is_in_whole_seconds_of_utc(second: datetime, zone: str) -> None:
    assert parse_time(second.isoformat() + zone) == second.replace(tzinfo=UTC)


@pytest.mark.rule("id-21")
@given(time=SECONDS)
@each_row("date", ["%Y-%m-%d", "%G-W%V-%u", "%Y-%j"])
@each_row("clock", ["%H:%M:%S", "%H:%M", "%H"])
@each_row("separator", ["T", "t", " "])
def test_calendar_week_and_ordinal_dates_are_parsed_in_both_forms(
    date: str, clock: str, separator: str, time: datetime
) -> None:
    time = time.replace(second=0) if "S" not in clock else time
    time = time.replace(minute=0) if "M" not in clock else time
    extended, expected = time.strftime(date + separator + clock), time.replace(tzinfo=UTC)
    assert parse_time(extended) == expected
    assert parse_time(extended.replace("-", "").replace(":", "") + "Z") == expected


@pytest.mark.rule("id-21", "id-23")
@given(time=SECONDS, digits=st.text("0123456789", min_size=1, max_size=11), mark=st.sampled_from(".,"))
@each_row(("clock", "unit"), [("%H:%M:%S", 1000), ("%H:%M", 60_000), ("%H", 3_600_000)])
def test_the_finest_part_may_have_a_decimal_point_or_comma(
    clock: str, unit: int, time: datetime, digits: str, mark: str
) -> None:
    millis = int(Fraction(f"0.{digits}") * unit)
    without_fraction = parse_time(time.strftime(f"%Y-%m-%dT{clock}"))
    assert parse_time(time.strftime(f"%Y-%m-%dT{clock}{mark}{digits}")) == without_fraction + timedelta(
        milliseconds=millis
    )


@pytest.mark.rule("id-21")
@each_row(
    ("text", "written"),
    [
        ("20201104T100720,585Z", "2020-11-04T10:07:20.585Z"),
        ("2020-11-04T10:07:20,5", "2020-11-04T10:07:20.500Z"),
        ("2020-11-04T10:07.5Z", "2020-11-04T10:07:30.000Z"),
        ("2020-11-04T10,25Z", "2020-11-04T10:15:00.000Z"),
        ("2020-W45-3T10:07Z", "2020-11-04T10:07:00.000Z"),
        ("2020W453T1007Z", "2020-11-04T10:07:00.000Z"),
        ("2020-W53-7T00Z", "2021-01-03T00:00:00.000Z"),
        ("2020-309T10Z", "2020-11-04T10:00:00.000Z"),
        ("2020366T10Z", "2020-12-31T10:00:00.000Z"),
        ("2020-11-04T24:00Z", "2020-11-05T00:00:00.000Z"),
        ("20201231T24Z", "2021-01-01T00:00:00.000Z"),
        ("2020-11-04T24:00:00.000+02:00", "2020-11-04T22:00:00.000Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
        ("2016-12-31T23:59:60.25Z", "2017-01-01T00:00:00.250Z"),
        ("2016-12-31T18:59:60-05:00", "2017-01-01T00:00:00.000Z"),
        ("2020-11-04T10:07:20+05:45", "2020-11-04T04:22:20.000Z"),
        ("2020-11-04T10:07:20-0330", "2020-11-04T13:37:20.000Z"),
        ("20201104T100720+01", "2020-11-04T09:07:20.000Z"),
        ("2020-02-29t00:00:00z", "2020-02-29T00:00:00.000Z"),
    ],
)
def test_other_spellings_of_iso_8601_are_parsed(text: str, written: str) -> None:
    assert format_time(parse_time(text)) == written


@pytest.mark.rule("id-19", "id-23")
@each_row("digits", ["585", "5859", "5859999", "585999999", "585" + "9" * 4997, "585" + "0" * 4997])
def test_digits_beyond_the_millisecond_are_truncated_not_rounded(digits: str) -> None:
    assert format_time(parse_time(f"2020-11-04T10:07:20.{digits}Z")) == "2020-11-04T10:07:20.585Z"


@pytest.mark.rule("id-23")
@each_row("text", ["1969-12-31T23:59:59.9999Z", "0001-01-01T00:00:00.9999Z"])
def test_a_time_before_1970_is_truncated_in_the_same_way(text: str) -> None:
    assert parse_time(text).microsecond == 999_000
    assert from_millis(to_millis(parse_time(text))) == parse_time(text)


@pytest.mark.rule("id-21", "id-23")
@each_row("text", ["2020-11-04T10,0000002777777777777778Z", "2020-11-04T10:00.00001666666666667Z"])
def test_a_fraction_just_past_a_millisecond_is_truncated_to_it(text: str) -> None:
    assert format_time(parse_time(text)) == "2020-11-04T10:00:00.001Z"


@pytest.mark.rule("id-18")
@each_row(
    "text",
    [
        *[
            "",
            "T",
            "now",
            "1604484440",
            "2020",
            "2020-11",
            "2020-11-04",
            "20201104",
            "T10:07:20Z",
            "10:07:20Z",
        ],
        *["2020-11-04_10:07:20", "2020-11-04TT10:07", "2020-11-04T", "2020-11-04T1", "2020-11-04T10:7"],
        *["2020-11-04T1007", "20201104T10:07", "2020-1104T10", "2020-1-4T10:07", "20-11-04T10:07"],
        *[
            "2020-11-04T10:07:20.Z",
            "2020-11-04T10:07:20.5.5",
            "2020-11-04T10.5:07",
            "2020-11-04T10:07:20.-5Z",
        ],
        *["2020-11-04T10:07:20+1", "2020-11-04T10:07:20+01:0", "2020-11-04T10:07:20+01:00:00"],
        *[
            "2020-11-04T10:07:20ZZ",
            "2020-11-04T10:07:20 Z",
            "2020-11-04T10:07:20UTC",
            "2020-11-04T10:07:20Z\n",
        ],
        *["-2020-11-04T10:07", "+2020-11-04T10:07", "2020-W45T10:07", "2020-W45-33T10", "2020-30T10"],
        *["202\uff10-11-04T10:07:20Z", "2020-11-04T10:07:20.\u0665Z", "2020-11-04T10:07:20+0\u0661:00"],
    ],
)
def test_text_of_another_form_is_rejected(text: str) -> None:
    with pytest.raises(MalformedTime, match="is not an ISO 8601 date and time") as caught:
        parse_time(text)
    assert caught.value.field == "time"


@pytest.mark.rule("id-18")
@each_row(
    "text",
    [
        *["2021-02-29T00:00Z", "2020-13-01T00:00Z", "2020-00-01T00:00Z", "2020-01-00T00Z", "2020-04-31T00Z"],
        *["2021-W54-1T00Z", "2021-W53-1T00Z", "2021-W00-1T00Z", "2021-W01-0T00Z", "2021-W01-8T00Z"],
        *["2021-366T00Z", "2021366T00Z", "2020-367T00Z", "2020-000T00Z"],
        *["2020-11-04T25:00Z", "2020-11-04T24:01Z", "2020-11-04T24:00:01Z", "2020-11-04T24:00:00.001Z"],
        *["2020-11-04T10:60Z", "2020-11-04T10:07:61Z", "2020-11-04T10:07:60Z", "2020-11-04T24,5Z"],
        *["2020-11-04T10:07+24:00", "2020-11-04T10:07-24", "2020-11-04T10:07+23:60", "2020-11-04T10:07-9959"],
        *["0000-01-01T00:00Z", "0001-01-01T00:00+00:01", "0001-01-01T23:58:59.999+23:59", "9999-366T00Z"],
        *["9999-12-31T23:59:59.999-00:01", "9999-12-31T24:00Z", "9999-12-31T23:59:60Z", "9999-W52-7T00Z"],
    ],
)
def test_a_time_that_does_not_exist_is_rejected(text: str) -> None:
    with pytest.raises(MalformedTime, match="is not a valid date and time") as caught:
        parse_time(text, "timestamp")
    assert caught.value.field == "timestamp"


@each_row("text", ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
def test_the_first_and_the_last_time_are_parsed_and_formatted(text: str) -> None:
    assert format_time(parse_time(text)) == text
    assert format_time(from_millis(to_millis(parse_time(text)))) == text


@given(
    st.text()
    | st.text("0123456789-:TWZ+.,\u0663", max_size=30)
    | st.from_regex(r"[09]\d{3}-\d\d-\d\dT\d\d.*\Z")
)
def test_arbitrary_text_is_parsed_or_raises_our_error(text: str) -> None:
    with suppress(MalformedInput):
        assert parse_time(text).microsecond % 1000 == 0


@each_row(
    "hostile",
    ["9" * 100_000, "\x1b[2J\n" * 100, "2020-11-04T25." + "1" * 60_000],
)
def test_long_or_hostile_text_is_not_repeated_in_full(hostile: str) -> None:
    with pytest.raises(MalformedTime) as caught:
        parse_time(hostile)
    assert len(str(caught.value)) < 160
    assert str(caught.value).isprintable()


@pytest.mark.rule("id-22", "id-23")
@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=ZONES))  # noqa: DTZ001 # zones are given by `timezones`
def test_a_time_is_formatted_in_utc_with_three_digits_and_z(time: datetime) -> None:
    written = format_time(time)
    truncated = time.replace(microsecond=time.microsecond // 1000 * 1000)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written)
    assert datetime.fromisoformat(written) == parse_time(written) == truncated


def test_a_time_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="has no UTC offset"):
        format_time(datetime(2020, 11, 4))  # noqa: DTZ001 # naive on purpose


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_milliseconds_since_1970_survive_a_round_trip(millis: int) -> None:
    assert to_millis(from_millis(millis)) == millis
    assert from_millis(millis) == from_millis(0) + timedelta(milliseconds=millis)


def test_microseconds_are_rounded_down() -> None:
    assert to_millis(datetime(1970, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)) == 1
    assert to_millis(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1
