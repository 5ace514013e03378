"""Process that runs the jobs of a database beside a service.

It has its own job runner and connection to the same broker. It ignores reports, which the service handles.

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
    """Handle of the process for tests."""

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
        """Prefix of the ids of its requests."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process immediately."""
        self._process.kill()
        self._process.communicate(timeout=TEST_TIMEOUT)


def sender_of(request: str) -> str:
    """Return the common prefix of the request ids of one process."""
    return request.rpartition("-")[0]


class _IgnoreReports:
    """Consumer that ignores reports: the service gets its own copies."""

    async def commit(self, batch: ReportBatch) -> None:
        """Ignore a batch of reports."""


async def _run(database: str, broker: str, name: str) -> None:
    broker_client = ExternalBrokerClient(
        BrokerAddress.parse(broker),
        name,
        prefix="",
        options=MqttOptions(retry_first_connect=True, backoff=ExponentialBackoff(initial=0.05, maximum=0.3)),
    )
    rpc = RpcClient(broker_client, TopicCodec(), clock.now)
    runner = JobRunner(open_database(database, Path.cwd()), rpc, clock.now, monotonic=clock.monotonic)
    sys.stdout.write(f"{rpc.new_id()}\n")
    sys.stdout.flush()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(broker_client.run(_IgnoreReports()))
        tasks.create_task(runner.run())


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:]))
