"""Choice of the event loop: uvloop if it is installed, else that of asyncio."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import uvloop

from meshfleet.mqtt.client import run_program

if TYPE_CHECKING:
    import pytest


async def _get_loop_type() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_a_program_runs_on_uvloop_if_it_is_installed() -> None:
    assert run_program(_get_loop_type()) is uvloop.Loop


def test_a_program_runs_on_asyncio_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert issubclass(run_program(_get_loop_type()), asyncio.BaseEventLoop)
