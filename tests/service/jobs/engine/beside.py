"""A program that runs the jobs of a database beside a service which does the same.

It has the runner of the service and a link of its own to the same broker; reports are left to the service.

python -m tests.service.jobs.engine.beside DATABASE BROKER NAME      prints an id as its requests have them
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from meshfleet.db import open_database
from meshfleet.link import Address, Delays, Options
from meshfleet.service import clock
from meshfleet.service.jobs.engine.runner import Runner
from meshfleet.service.mqtt.outside import Outside
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.topics import Topics
from tests.cli.outside import PATIENCE

if TYPE_CHECKING:
    from meshfleet.broker import Batch

_ROOT = Path(__file__).parents[4]


class Beside:
    """The program, as a test starts and kills it."""

    def __init__(self, database: str, broker: str) -> None:
        command = [sys.executable, "-m", "tests.service.jobs.engine.beside", database, broker, "beside"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT, env=dict(os.environ))
        assert self._process.stdout is not None
        self.sender = sender_of(self._process.stdout.readline().decode())
        """By which its requests are known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Let it end without a moment to do anything."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


def sender_of(request: str) -> str:
    """What the ids of all requests of one program begin with."""
    return request.rpartition("-")[0]


class _Deaf:
    """Takes no reports: the service does, and every session gets its own copy."""

    async def take(self, batch: Batch) -> None:
        """Let them go."""


async def _run(database: str, broker: str, name: str) -> None:
    carrier = Outside(
        Address.parse(broker),
        name,
        prefix="",
        consumer=_Deaf(),
        options=Options(patient=True, delays=Delays(first=0.05, most=0.3)),
    )
    asking = Asking(carrier, Topics(), clock.now)
    runner = Runner(open_database(database, Path.cwd()), asking, clock.now, steady=clock.steady)
    sys.stdout.write(f"{asking.new_id()}\n")
    sys.stdout.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(carrier.run())
        tasks.create_task(runner.run())


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
