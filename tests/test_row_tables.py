"""`each_row`: every row runs, and no failure gets lost."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.row_tables import each_row


def test_every_row_runs_and_every_failure_is_reported() -> None:
    ran = []

    @each_row(("value", "expected"), [(1, 1), (2, 3), pytest.param(4, 5, id="four"), (6, 6), (7, 0)])
    def check_row(value: int, expected: int) -> None:
        ran.append(value)
        if value == 7:
            with pytest.raises(ValueError, match="never"):
                pass
        assert value == expected, f"{value} is not {expected}"

    with pytest.raises(AssertionError) as raised:
        check_row()
    assert ran == [1, 2, 4, 6, 7]
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["3 of 5 rows fail:", "- value=2, expected=3"]
    assert [line for line in lines if line.startswith("-")] == [
        *("- value=2, expected=3", "- four", "- value=7, expected=0")
    ]
    assert "    AssertionError: 2 is not 3" in lines
    assert "    Failed: DID NOT RAISE ValueError" in lines
    assert str(raised.value.__cause__).startswith("2 is not 3")


def test_two_tables_run_every_combination_and_keep_the_fixtures() -> None:
    ran = []

    @each_row("letter", ["a", "b"])
    @each_row("number", [1, 2])
    def check_row(number: int, letter: str, *, fixture: int) -> None:
        ran.append((number, letter, fixture))
        assert (number, letter) != (2, "b")

    assert list(inspect.signature(check_row).parameters) == ["fixture"]
    with pytest.raises(AssertionError, match="number=2"):
        check_row(fixture=9)
    assert ran == [(1, "a", 9), (2, "a", 9), (1, "b", 9), (2, "b", 9)]


def test_a_skipped_row_does_not_hide_a_failed_one() -> None:
    @each_row("number", [1, 2])
    def check_row(number: int) -> None:
        assert number != 1
        pytest.skip("a program is missing")

    with pytest.raises(AssertionError, match="1 of 2 rows fail:\n- number=1"):
        check_row()


def test_coroutines_are_awaited_row_by_row() -> None:
    @each_row("number", [1, 2])
    async def check_row(number: int) -> None:
        assert number == 1

    with pytest.raises(AssertionError, match="1 of 2 rows fail:\n- number=2"):
        asyncio.run(check_row())


def test_a_property_is_tested_with_each_row() -> None:
    @each_row("limit", [100, 50])
    @given(st.integers(0, 100))
    def check_row(limit: int, number: int) -> None:
        assert number <= limit

    with pytest.raises(AssertionError, match=r"1 of 2 rows fail:\n- limit=50\n.*51 <= 50"):
        check_row()


def test_an_example_is_tested_with_each_row() -> None:
    @given(number=st.integers(0, 100))
    @each_row("limit", [100, 50])
    def check_row(limit: int, number: int) -> None:
        assert number <= limit

    with pytest.raises(AssertionError, match=r"1 of 2 rows fail:\n- limit=50\n.*51 <= 50"):
        check_row()


def test_a_table_needs_rows_and_the_names_of_arguments() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        each_row("number", [])
    with pytest.raises(AssertionError, match="has no arguments"):
        each_row("number", [1])(lambda: None)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        each_row(("one", "other"), [(1,)])
