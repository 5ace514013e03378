"""Tables of inputs for one test: a separate test for each row would cost more than the row."""

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
"""Failures that are shown in detail; for the others only the row is named."""
_SLOW_SECONDS: Final = 20.0
"""Seconds after which a failed row has run into a timeout: later rows would too, and do not run."""


def each_row(names: str | tuple[str, ...], table: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test with each row of a table, and report every row that fails.

    It accepts the arguments of `pytest.mark.parametrize`, including `pytest.param` for a row with a name, and
    creates a single test. Use it if rows can share fixtures. Two tables run every combination.
    """
    arguments = (names,) if isinstance(names, str) else names
    rows = [_parse_row(arguments, row, is_single=isinstance(names, str)) for row in table]
    assert rows, "a table without rows tests nothing"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        remaining = [each for name, each in signature.parameters.items() if name not in arguments]
        assert len(remaining) == len(signature.parameters) - len(arguments), (
            f"the test has no arguments {arguments}"
        )
        outer = signature.replace(parameters=remaining)

        def run_rows(*args: Any, **kwargs: Any) -> None:
            fixtures = outer.bind(*args, **kwargs).arguments
            failures = _Failures(len(rows))
            for name, row in rows:
                with failures.recording(name, row):
                    test(**fixtures, **row)
            failures.raise_if_any()

        async def run_rows_async(*args: Any, **kwargs: Any) -> None:
            fixtures = outer.bind(*args, **kwargs).arguments
            failures = _Failures(len(rows))
            for name, row in rows:
                with failures.recording(name, row):
                    await test(**fixtures, **row)
            failures.raise_if_any()

        wrapper = functools.wraps(test)(run_rows_async if inspect.iscoroutinefunction(test) else run_rows)
        wrapper.__signature__ = outer  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parse_row(arguments: tuple[str, ...], row: Any, *, is_single: bool) -> tuple[str, dict[str, Any]]:
    """Return the name of a row, if it has one, and its arguments."""
    name, values = "", (row,) if is_single else tuple(row)
    if isinstance(row, _PARAMETER_SET):
        assert not row.marks, "a mark belongs to the whole test"
        name, values = str(row.id or ""), tuple(row.values)
    return name, dict(zip(arguments, values, strict=True))


def _format_value(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # huge integers, deeply nested lists
        text = f"some {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


class _Failures:
    """Failed rows and their errors."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: list[tuple[str, BaseException]] = []

    @contextmanager
    def recording(self, name: str, row: dict[str, Any]) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        except pytest.skip.Exception:
            self.raise_if_any()  # a skipped test would hide failed rows
            raise
        except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 # the other rows still run
            title = name or ", ".join(f"{key}={_format_value(value)}" for key, value in row.items())
            self._found.append((title, failure))
            if time.monotonic() - started > _SLOW_SECONDS:
                self.raise_if_any("it ran into a timeout, so later rows did not run")

    def raise_if_any(self, remark: str = "") -> None:
        if not self._found:
            return
        lines = [f"{len(self._found)} of {self._rows} rows fail:"]
        for number, (name, failure) in enumerate(self._found):
            lines.append(f"- {name}")
            if number < _MAX_DETAILS:
                details = "\n".join(
                    [f"{type(failure).__name__}: {failure}", *getattr(failure, "__notes__", ())]
                )
                lines += [f"    {line}" for line in details.splitlines()]
        if remark:
            lines.append(remark)
        raise AssertionError("\n".join(lines)) from self._found[0][1]
