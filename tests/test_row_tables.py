"""The walk through a table of inputs: no row that fails may get lost."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.row_tables import each_row


def test_every_row_runs_and_every_failure_is_told() -> None:
    ran = []

    @each_row(("given", "wanted"), [(1, 1), (2, 3), pytest.param(4, 5, id="four"), (6, 6), (7, 0)])
    def walk(given: int, wanted: int) -> None:
        ran.append(given)
        if given == 7:
            with pytest.raises(ValueError, match="never"):
                pass
        assert given == wanted, f"{given} is not {wanted}"

    with pytest.raises(AssertionError) as told:
        walk()
    assert ran == [1, 2, 4, 6, 7]
    lines = str(told.value).splitlines()
    assert lines[:2] == ["3 of 5 rows fail:", "- given=2, wanted=3"]
    assert [line for line in lines if line.startswith("-")] == [
        *("- given=2, wanted=3", "- four", "- given=7, wanted=0")
    ]
    assert "    AssertionError: 2 is not 3" in lines
    assert "    Failed: DID NOT RAISE ValueError" in lines
    assert str(told.value.__cause__).startswith("2 is not 3")


def test_two_tables_give_every_combination_and_leave_the_fixtures() -> None:
    ran = []

    @each_row("letter", ["a", "b"])
    @each_row("number", [1, 2])
    def walk(number: int, letter: str, *, fixture: int) -> None:
        ran.append((number, letter, fixture))
        assert (number, letter) != (2, "b")

    assert list(inspect.signature(walk).parameters) == ["fixture"]
    with pytest.raises(AssertionError, match="number=2"):
        walk(fixture=9)
    assert ran == [(1, "a", 9), (2, "a", 9), (1, "b", 9), (2, "b", 9)]


def test_a_row_that_is_skipped_hides_none_that_fails() -> None:
    @each_row("number", [1, 2])
    def walk(number: int) -> None:
        assert number != 1
        pytest.skip("a program is missing")

    with pytest.raises(AssertionError, match="1 of 2 rows fail:\n- number=1"):
        walk()


def test_a_coroutine_is_awaited_row_by_row() -> None:
    @each_row("number", [1, 2])
    async def walk(number: int) -> None:
        assert number == 1

    with pytest.raises(AssertionError, match="1 of 2 rows fail:\n- number=2"):
        asyncio.run(walk())


def test_a_property_is_searched_for_each_row() -> None:
    @each_row("most", [100, 50])
    @given(st.integers(0, 100))
    def walk(most: int, number: int) -> None:
        assert number <= most

    with pytest.raises(AssertionError, match=r"1 of 2 rows fail:\n- most=50\n.*51 <= 50"):
        walk()


def test_an_example_is_tried_on_each_row() -> None:
    @given(number=st.integers(0, 100))
    @each_row("most", [100, 50])
    def walk(most: int, number: int) -> None:
        assert number <= most

    with pytest.raises(AssertionError, match=r"1 of 2 rows fail:\n- most=50\n.*51 <= 50"):
        walk()


def test_a_table_has_rows_and_names_arguments() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        each_row("number", [])
    with pytest.raises(AssertionError, match="takes no"):
        each_row("number", [1])(lambda: None)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        each_row(("one", "other"), [(1,)])
