from __future__ import annotations

from meshfleet.rest.percent import format_percent, format_progress, reaches_percent


def test_limits_are_compared_as_decimal_numbers() -> None:
    rows = [
        (19, 20, 95, True),
        (18, 19, 95, False),
        (946, 1000, 94.7, False),
        (947, 1000, 94.7, True),
        (33, 1500, 2.2, True),  # 2.2 * 1500 is 3300.0000000000005
        (32, 1500, 2.2, False),
        (0, 0, 100, True),
        (0, 5, 0, True),
    ]
    assert [row for row in rows if reaches_percent(*row[:3]) is not row[3]] == []


def test_percentages_are_formatted_without_rounding() -> None:
    rows = {95: "95 %", 94.7: "94.7 %", 99.99999: "99.99999 %", 0: "0 %", 100: "100 %", 0.00001: "0.00001 %"}
    assert {percent: format_percent(percent) for percent in rows} == rows


def test_progress_is_not_zero_if_devices_have_finished() -> None:
    rows = {(0, 0): "0 %", (0, 4): "< 1 %", (1, 10): "1 %", (99, 999): "99 %", (100, 1000): "100 %"}
    assert {row: format_progress(*row) for row in rows} == rows
