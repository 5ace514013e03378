"""Tables of inputs that one test goes through: a test for each row would cost more than the row."""

from __future__ import annotations

import functools
import inspect
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Test = Callable[..., Any]

_PARAMETER_SET: Final = type(pytest.param())
_MAX_DETAILS: Final = 10
"""Failures that are told at length; of the others, only the row."""
_SLOW_SECONDS: Final = 20.0
"""Seconds after which a row that fails has waited in vain: the others would as well, and do not run."""


def each_row(names: str | tuple[str, ...], table: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test with each row of a table, and report every row that fails.

    It takes what `pytest.mark.parametrize` takes, `pytest.param` for a row with a name included, and makes
    one test of it. Use it where rows share fixtures without disturbing each other. Two tables give
    every combination.
    """
    arguments = (names,) if isinstance(names, str) else names
    rows = [_row(arguments, row, alone=isinstance(names, str)) for row in table]
    assert rows, "a table without rows tests nothing"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in arguments]
        assert len(left) == len(signature.parameters) - len(arguments), f"the test takes no {arguments}"
        outer = signature.replace(parameters=left)

        def walk(*args: Any, **kwargs: Any) -> None:
            fixtures = outer.bind(*args, **kwargs).arguments
            failures = _Failures(len(rows))
            for name, row in rows:
                with failures.recording(name, row):
                    test(**fixtures, **row)
            failures.raise_if_any()

        async def walk_async(*args: Any, **kwargs: Any) -> None:
            fixtures = outer.bind(*args, **kwargs).arguments
            failures = _Failures(len(rows))
            for name, row in rows:
                with failures.recording(name, row):
                    await test(**fixtures, **row)
            failures.raise_if_any()

        walker = functools.wraps(test)(walk_async if inspect.iscoroutinefunction(test) else walk)
        walker.__signature__ = outer  # type: ignore[attr-defined]
        return walker

    return decorate


def _row(arguments: tuple[str, ...], row: Any, *, alone: bool) -> tuple[str, dict[str, Any]]:
    """The name of a row, if it has one, and its arguments."""
    name, values = "", (row,) if alone else tuple(row)
    if isinstance(row, _PARAMETER_SET):
        assert not row.marks, "a mark belongs to the whole test"
        name, values = str(row.id or ""), tuple(row.values)
    return name, dict(zip(arguments, values, strict=True))


def _format_value(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # whole numbers of thousands of digits, lists a thousand deep
        text = f"some {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


class _Failures:
    """What went wrong, row by row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: list[tuple[str, BaseException]] = []

    @contextmanager
    def recording(self, name: str, row: dict[str, Any]) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except pytest.skip.Exception:
            self.raise_if_any()  # rather than be skipped with those that fail
            raise
        except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 # the other rows run all the same
            shown = name or ", ".join(f"{key}={_format_value(value)}" for key, value in row.items())
            self._found.append((shown, failure))
            if time.monotonic() - begun > _SLOW_SECONDS:
                self.raise_if_any("it waited in vain, so the rows behind it did not run")

    def raise_if_any(self, remark: str = "") -> None:
        if not self._found:
            return
        lines = [f"{len(self._found)} of {self._rows} rows fail:"]
        for number, (name, failure) in enumerate(self._found):
            lines.append(f"- {name}")
            if number < _MAX_DETAILS:
                told = "\n".join([f"{type(failure).__name__}: {failure}", *getattr(failure, "__notes__", ())])
                lines += [f"    {line}" for line in told.splitlines()]
        if remark:
            lines.append(remark)
        raise AssertionError("\n".join(lines)) from self._found[0][1]
