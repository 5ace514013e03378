"""Runs the main coroutine of a program on an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_Result = TypeVar("_Result")


def run_program(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, on uvloop if it is installed, else on asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 # an optional dependency
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
