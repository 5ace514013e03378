"""Tables of inputs: one test goes through all rows and reports every row that fails, by its values."""

from __future__ import annotations

import functools
import inspect
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Test = Callable[..., None]

_LENGTH: Final = 80
"""Characters of each value by which a row is named."""


def each_row(names: str | tuple[str, ...], table: Iterable[Any]) -> Callable[[Test], Test]:
    """Let a test go through all rows of a table, where `pytest.mark.parametrize` would make a test of each.

    Rows share the fixtures of the test. Two tables make a walk over their product.
    """
    rows = [{names: row} if isinstance(names, str) else dict(zip(names, row, strict=True)) for row in table]
    if not rows:
        raise ValueError("a table without rows tests nothing")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def walk(**fixtures: Any) -> None:
            failures: dict[str, Exception] = {}
            for row in rows:
                try:
                    test(**fixtures, **row)
                except _FailedRows as failed:  # of the table inside this one
                    failures |= {f"{_name(row)}, {inner}": each for inner, each in failed.rows.items()}
                except Exception as failure:  # noqa: BLE001 # raised together with the others
                    failures[_name(row)] = failure
            if failures:
                raise _FailedRows(failures) from next(iter(failures.values()))

        signature = inspect.signature(test)
        kept = [each for name, each in signature.parameters.items() if name not in rows[0]]
        walk.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined] # for pytest
        return walk

    return decorate


class _FailedRows(AssertionError):
    """The failures of all rows of a table. pytest shows the first one in full, as the cause."""

    def __init__(self, rows: dict[str, Exception]) -> None:
        told = [
            line for name, failure in rows.items() for line in (f"\n{name}", *format_exception_only(failure))
        ]
        super().__init__("\n".join([f"{len(rows)} rows failed:", *told]))
        self.rows = rows


def _name(row: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r:.{_LENGTH}}" for name, value in row.items())
