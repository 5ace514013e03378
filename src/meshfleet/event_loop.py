"""Runs the main coroutine of a program on an event loop, uvloop or asyncio's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_Result = TypeVar("_Result")


def run_program(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the main coroutine of a program to its end, on uvloop if installed, else on asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 # an optional dependency
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
