"""Lines of InfluxDB's line protocol."""

from __future__ import annotations

from typing import Any

from meshfleet.db.samples import NO_SEQ, ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.service.influx.line_protocol import encode_line
from tests.row_tables import each_row

TIME = 1_700_000_000_123
HEAD = "meshfleet,device=d0cf5e000002,name=Door,gateway=d0cf5e000001"


def encode(number: float | None = 4.25, *, name: str = "Door", **fields: Any) -> str | None:
    values = {"kind": SampleKind.MEASUREMENT, "seq": NO_SEQ, "raw": None, "more": None, **fields}
    sample = StoredSample(
        TIME,
        values["kind"],
        0x8800,
        values["seq"],
        0xD0CF5E000001,
        number,
        values["raw"],
        values["more"],
    )
    line = encode_line(
        sample, 0xD0CF5E000002, device_name=name, identifier=fields.get("identifier", "temperature")
    )
    return None if line is None else line.decode()


@each_row(
    ("number", "fields", "expected"),
    [
        (4.25, {"seq": 7}, "kind=measurement temperature=4.25,seq=7i"),
        (20, {}, "kind=measurement temperature=20.0"),
        (1e300, {}, "kind=measurement temperature=1e+300"),
        (1, {"more": SampleExtras(text="true")}, "kind=measurement temperature=true"),
        (
            None,
            {"more": SampleExtras(text='"say \\"hi\\""')},
            'kind=measurement temperature_text="say \\"hi\\""',
        ),
        (None, {"more": SampleExtras(text='{"a":1}')}, 'kind=measurement temperature_text="{\\"a\\":1}"'),
        (None, {"raw": b"\x0f"}, 'kind=measurement temperature_raw="0f"'),
        (
            None,
            {"kind": SampleKind.MEASUREMENT_ERROR, "more": SampleExtras(error=5)},
            "kind=measurement-error temperature_error=5i",
        ),
    ],
)
def test_a_sample_is_one_line(number: float | None, fields: dict[str, Any], expected: str) -> None:
    assert encode(number, **fields) == f"{HEAD},{expected} {TIME}000000"


@each_row(
    ("name", "tag"),
    [
        ("Cold room, 3=x", r",name=Cold\ room\,\ 3\=x"),
        ("line\nbreak\t\u2028", r",name=line\ break\ \ "),
        ("ends with \\", r",name=ends\ with\ "),
        ("\\", ""),
        ("", ""),
        ('"quoted"', ',name="quoted"'),
        ("Ünïcode №", r",name=Ünïcode\ №"),
    ],
)
def test_a_hostile_name_is_escaped(name: str, tag: str) -> None:
    head = f"meshfleet,device=d0cf5e000002{tag},gateway=d0cf5e000001"
    assert encode(name=name) == f"{head},kind=measurement temperature=4.25 {TIME}000000"


def test_a_hostile_identifier_is_escaped() -> None:
    line = encode(identifier="a b=c,d\n\\")
    assert line is not None
    assert f"kind=measurement a\\ b\\=c\\,d\\ =4.25 {TIME}" in line


def test_a_sample_without_value_or_plausible_time_has_no_line() -> None:
    assert encode(None) is None
    assert encode(more=SampleExtras(clock=ClockFlag.PAST)) is None
    corrected = encode(more=SampleExtras(clock=ClockFlag.CORRECTED, shift=1000))
    assert corrected is not None
    assert corrected.endswith(f" {TIME + 1000}000000")
