"""A program that runs the jobs of a database beside a service which does the same.

It has the runner of the service and a link of its own to the same broker; reports are left to the service.

python -m tests.service.jobs.execution.second_runner DATABASE BROKER NAME    prints the id of its requests
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from meshfleet.db import open_database
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttOptions
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service import clock
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.requests.rpc import RpcClient
from tests.cli.programs import TEST_TIMEOUT

if TYPE_CHECKING:
    from meshfleet.mqtt.broker import ReportBatch

_ROOT = Path(__file__).parents[4]


class SecondRunner:
    """The program, as a test starts and kills it."""

    def __init__(self, database: str, broker: str) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.service.jobs.execution.second_runner",
            database,
            broker,
            "beside",
        ]
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
        self._process.communicate(timeout=TEST_TIMEOUT)


def sender_of(request: str) -> str:
    """What the ids of all requests of one program begin with."""
    return request.rpartition("-")[0]


class _IgnoreReports:
    """Takes no reports: the service does, and every session gets its own copy."""

    async def commit(self, batch: ReportBatch) -> None:
        """Let them go."""


async def _run(database: str, broker: str, name: str) -> None:
    carrier = ExternalBrokerClient(
        BrokerAddress.parse(broker),
        name,
        prefix="",
        consumer=_IgnoreReports(),
        options=MqttOptions(retry_first_connect=True, backoff=ExponentialBackoff(initial=0.05, maximum=0.3)),
    )
    asking = RpcClient(carrier, TopicCodec(), clock.now)
    runner = JobRunner(open_database(database, Path.cwd()), asking, clock.now, steady=clock.steady)
    sys.stdout.write(f"{asking.new_id()}\n")
    sys.stdout.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(carrier.run())
        tasks.create_task(runner.run())


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
