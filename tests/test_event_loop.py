"""Programs run on the faster loop where it is installed, and without it all the same."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import uvloop

from meshfleet.mqtt.client import run_program

if TYPE_CHECKING:
    import pytest


async def _loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_a_program_runs_on_uvloop_where_it_is_installed() -> None:
    assert run_program(_loop()) is uvloop.Loop


def test_a_program_runs_on_the_standard_loop_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert issubclass(run_program(_loop()), asyncio.BaseEventLoop)
