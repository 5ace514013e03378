"""Tables of inputs that one test goes through."""

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

_LONG: Final = 20.0
"""Seconds after which a row that fails has waited in vain: then the others would as well, and do not run."""


def each_row(names: str | tuple[str, ...], table: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test with each row of a table, and report every row that fails.

    It takes what `pytest.mark.parametrize` takes and makes one test of it, not one for each row: use it where
    rows share their fixtures without disturbing each other. Two tables give every combination.
    """
    arguments = (names,) if isinstance(names, str) else names
    given = [dict(zip(arguments, (row,) if isinstance(names, str) else row, strict=True)) for row in table]
    assert given, "a table without rows tests nothing"

    def decorate(test: Test) -> Test:
        def walk(**fixtures: Any) -> None:
            failures: list[Exception] = []
            for row in given:
                with _noting(failures, row):
                    test(**fixtures, **row)
            _raise(failures)

        async def walk_async(**fixtures: Any) -> None:
            failures: list[Exception] = []
            for row in given:
                with _noting(failures, row):
                    await test(**fixtures, **row)
            _raise(failures)

        walker = functools.wraps(test)(walk_async if inspect.iscoroutinefunction(test) else walk)
        signature = inspect.signature(test)
        fixtures = [each for name, each in signature.parameters.items() if name not in arguments]
        walker.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return walker

    return decorate


@contextmanager
def _noting(failures: list[Exception], row: dict[str, Any]) -> Iterator[None]:
    begun = time.monotonic()
    try:
        yield
    except pytest.fail.Exception as failure:  # what `pytest.raises` says is no Exception
        failures.append(AssertionError(str(failure)).with_traceback(failure.__traceback__))
    except Exception as failure:  # noqa: BLE001 # whatever it is, the other rows run
        failures.append(failure)
    else:
        return
    failures[-1].add_note(f"in the row {row!r:.300}")
    if time.monotonic() - begun > _LONG:
        _raise(failures)


def _raise(failures: list[Exception]) -> None:
    if failures:
        raise ExceptionGroup("rows of a table that fail", failures)
