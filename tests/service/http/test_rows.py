"""A table that is walked by one test hides no row that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.service.http.rows import each_row


@each_row("factor", [1, 2, 3])
@each_row(("number", "product"), [(1, 2), (2, 4)])
def _multiply(seen: list[tuple[int, int]], *, factor: int, number: int, product: int) -> None:
    seen.append((factor, number))
    if factor == 3:
        raise OSError("this one breaks")
    assert factor * number == product


def test_all_rows_are_gone_through_and_each_failure_is_told() -> None:
    seen: list[tuple[int, int]] = []
    with pytest.raises(AssertionError) as failure:
        _multiply(seen=seen)
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    lines = str(failure.value).splitlines()
    assert lines[0] == "4 rows failed:"
    assert [line for line in lines if line.startswith("factor=")] == [
        "factor=1, number=1, product=2",
        "factor=1, number=2, product=4",
        "factor=3, number=1, product=2",
        "factor=3, number=2, product=4",
    ]
    assert lines.count("OSError: this one breaks") == 2


def test_only_fixtures_are_left_for_pytest_to_bring() -> None:
    assert list(inspect.signature(_multiply).parameters) == ["seen"]


def test_a_table_without_rows_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="without rows"):
        each_row("number", [])
